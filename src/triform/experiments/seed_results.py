"""The metrics of runs that differ only in their seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triform.evaluation.statistics import SampleSummary, summarise
from triform.run import Run, load
from triform.tasks import TASKS
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

    def runs(self, *, device: str = "auto", verify: bool = True) -> list[Run]:
        """Load the runs."""
        return [load(folder, device=device, verify=verify) for folder in self.folders]


def collect_results(out: Path, folders: Sequence[RunFolder]) -> SeedResults:
    """Return the validation metric of each run, or the last training loss if there is no validation data."""
    metric = TASKS[folders[0].read_config().task].metric
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
    events = (json.loads(line) for line in folder.metrics_file.read_text(encoding="utf-8").splitlines())
    return [float(event["loss"]) for event in events if event["event"] == "train"][-1]
