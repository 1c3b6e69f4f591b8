"""A table of the validations of several sets, printed row by row while a run trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triform.config import TRAIN_SET
from triform.evaluation.metrics import Metrics
from triform.formatting import METRICS, format_duration, format_metric

MIN_COLUMN_WIDTH = 10  # of 1 min 05 s


class ValidationTable:
    """Formats validations as a Markdown table, with a column for each set and metric.

    Args:
        valid_name: The name of the validation set; empty: there is none.
        monitors: The names of the sets that are evaluated with it.
        metrics: The metrics that are shown of each set.
        steps_per_epoch: How many steps an epoch has, to count rows in epochs; 0: they are counted in steps.
    """

    def __init__(
        self, valid_name: str, monitors: Sequence[str], metrics: Sequence[str], *, steps_per_epoch: float = 0.0
    ) -> None:
        self.valid_name, self.metrics, self.steps_per_epoch = valid_name, metrics, steps_per_epoch
        names = [*([valid_name] if valid_name else []), *monitors]
        self.sets = sorted(names, key=lambda name: name != TRAIN_SET)  # the training set first
        columns = [f"{name} {METRICS[metric].label}" for name in self.sets for metric in metrics]
        self.columns = ["epoch" if steps_per_epoch else "step", "training loss", *columns, "time"]
        self.widths = [max(MIN_COLUMN_WIDTH, len(column)) for column in self.columns]

    def heading(self) -> list[str]:
        """Return the two lines above the first row."""
        return [self._format_row(self.columns), f"|{'|'.join('-' * (width + 1) + ':' for width in self.widths)}|"]

    def row(self, step: int, loss: float | None, metrics: Mapping[str, Metrics], seconds: float) -> str:
        """Return the line of one validation.

        Args:
            step: The step after which the sets were evaluated.
            loss: The mean training loss since the last validation; None: nothing was logged.
            metrics: The metrics of every set, by its name.
            seconds: How long training has taken so far.
        """
        position = f"{step / self.steps_per_epoch:.4g}" if self.steps_per_epoch else str(step)
        values = [format_metric(metric, metrics[name][metric]) for name in self.sets for metric in self.metrics]
        return self._format_row(
            [position, "–" if loss is None else f"{loss:.4f}", *values, format_duration(seconds)]
        )

    def _format_row(self, cells: Sequence[str]) -> str:
        padded = (cell.rjust(width) for cell, width in zip(cells, self.widths, strict=True))
        return f"| {' | '.join(padded)} |"
