"""The metrics of runs that differ only in their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from triform.evaluation.statistics import SampleSummary, summarise
from triform.formatting import format_mean, format_metric, metric_label, metric_scale, metric_title
from triform.html.elements import render_table
from triform.html.notebook import render_output
from triform.io.events import read_events
from triform.reporting.interval_plot import Strip, render_interval_plot
from triform.run import Run, load
from triform.tasks import choose_task
from triform.training.run_folder import RunFolder

TRAINING_LOSS = "training loss"  # the metric if there is no validation data


@dataclass(frozen=True, kw_only=True)
class SeedResults:
    """Runs that differ only in their seeds, with the validation metric of each."""

    path: Path
    folders: tuple[Path, ...]
    metric: str
    values: tuple[float, ...]  # for the best weights of each run; the last ones without validation data

    @property
    def summary(self) -> SampleSummary:
        """Mean, standard deviation and 95 % interval of the metric."""
        return summarise(self.values)

    def _repr_html_(self) -> str:
        scale = metric_scale(self.metric)[0]
        deviation = self.summary.deviation
        interval = {"low": self.summary.low * scale, "high": self.summary.high * scale} if deviation else {}
        strip = Strip(
            name=f"{len(self.values)} seeds",
            css_class="tone-a",
            value_text=format_mean(self.metric, self.summary.mean, self.summary.half_width),
            value=self.summary.mean * scale,
            runs=[value * scale for value in self.values],
            **interval,
        )
        values = [format_metric(self.metric, value) for value in self.values]
        rows = [
            f'<tr><th scope="row">{escape(folder.name)}</th><td class="num">{value}</td></tr>'
            for folder, value in zip(self.folders, values, strict=True)
        ]
        title = f"{self.path}: {metric_label(self.metric)}"
        plot = render_interval_plot(title, "mean, 95 % interval and each seed", [strip])
        table = render_table(["Run", metric_title(self.metric)], rows, numeric=[1])
        return render_output(f'<div class="charts">{plot}</div>{table}')

    def runs(self, *, device: str = "auto", verify: bool = True) -> list[Run]:
        """Load the runs."""
        return [load(folder, device=device, verify=verify) for folder in self.folders]


def collect_results(out: Path, folders: Sequence[RunFolder]) -> SeedResults:
    """Return the validation metric of each run, or the last training loss if there is no validation data."""
    metric = choose_task(folders[0].read_config()).metric
    values = [_read_best_metric(folder, metric) for folder in folders]
    if None in values:
        metric, values = TRAINING_LOSS, [_read_last_loss(folder) for folder in folders]
    return SeedResults(
        path=out,
        folders=tuple(folder.path for folder in folders),
        metric=metric,
        values=tuple(value for value in values if value is not None),
    )


def _read_best_metric(folder: RunFolder, metric: str) -> float | None:
    checkpoint = folder.latest_checkpoint()
    best = folder.read_state(checkpoint)["progress"]["best"] if checkpoint else None
    return None if best is None else float(best[metric])


def _read_last_loss(folder: RunFolder) -> float:
    events = read_events(folder.metrics_file)
    return [float(event["loss"]) for event in events if event["event"] == "train"][-1]
