"""What the page of one run shows: its settings with their sources, notices, samples, test metrics and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from triform.config.merging import describe_sources
from triform.config.settings import DEFAULTS, flatten_config, format_setting
from triform.errors import DataError, TriformError
from triform.evaluation.details import DetailTable, build_tables, count_examples, details_to_dict
from triform.formatting import METRICS, metric_scale, metric_title
from triform.io.events import Event
from triform.io.run_config import read_run_config, read_setting_sources
from triform.reporting.run_history import is_finite
from triform.run import Run
from triform.serving.metrics_tail import MetricsTail
from triform.serving.run_list import MetricValue, name_metric

MAX_FILES = 200
MAX_SHOWN_ROWS = 12  # predictions that are shown next to the expected outputs


class Setting(msgspec.Struct, kw_only=True):
    """A setting of a run, and where its value comes from: a default, a preset, a file, an option."""

    name: str
    value: str
    source: str
    is_default: bool


class Notice(msgspec.Struct, kw_only=True):
    """A message about the data or the training of a run."""

    level: str
    text: str


class Sample(msgspec.Struct, kw_only=True):
    """A prediction. `expected` is None if there is no expected output."""

    step: int | None
    input: str
    output: str
    expected: str | None


class EvaluationResult(msgspec.Struct, kw_only=True):
    """The metrics of a run on a test set."""

    name: str
    metrics: list[MetricValue]


class RunFile(msgspec.Struct, kw_only=True):
    """A file of a run folder."""

    path: str
    bytes: int


class MetricFormat(msgspec.Struct, kw_only=True):
    """How a metric is written: multiplied by `scale`, with `decimals` (None: four digits), followed by `unit`."""

    title: str
    scale: float
    unit: str
    decimals: int | None
    higher_is_better: bool


class Predictions(msgspec.Struct, kw_only=True):
    """Predictions of the best weights so far on validation data.

    Args:
        n_rows: The number of rows, pairs or tokens that the details are about.
        details: Where the model is wrong, as in `details` of `triform evaluate --details --json`.
        tables: The details as the page shows them.
        samples: Translations or labels next to the expected ones, or generated texts.
    """

    n_rows: int
    details: dict[str, Any]
    tables: list[DetailTable]
    samples: list[Sample]


def read_settings(folder: Path) -> list[Setting]:
    """Return the settings of a run in the order of its `config.toml`.

    Raises:
        CheckpointError: The settings are damaged.
    """
    config = read_run_config(folder, verify=False)
    try:
        recorded = read_setting_sources(folder)
    except TriformError:  # the run works without them
        recorded = None
    sources = describe_sources(config, recorded, resolved=True)
    return [
        Setting(
            name=name,
            value=format_setting(value),
            source=sources[name],
            is_default=value == DEFAULTS.get(name),
        )
        for name, value in flatten_config(config).items()
    ]


def read_files(folder: Path) -> list[RunFile]:
    """Return the files of a run folder with their sizes, without hidden ones."""
    paths = (path for path in sorted(folder.rglob("*")) if not path.is_symlink() and path.is_file())
    visible = (path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return [
        RunFile(path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size)
        for path in islice(visible, MAX_FILES)
    ]


def read_events(path: Path) -> list[Event]:
    """Return the events of a run, thinned."""
    return MetricsTail(path=path).read_history()


def find_notices(events: Sequence[Event]) -> list[Notice]:
    """Return each notice once."""
    pairs = ((str(e.get("level", "info")), str(e.get("text", ""))) for e in events if e["event"] == "notice")
    return [Notice(level=level, text=text) for level, text in dict.fromkeys(pairs)]


def find_samples(events: Sequence[Event]) -> list[Sample]:
    """Return the sample predictions that were recorded, in the order in which they were made."""
    return [
        Sample(
            step=int(event["step"]) if is_finite(event.get("step")) else None,
            input=str(event.get("input", "")),
            output=str(event.get("output", "")),
            expected=str(event["expected"]) if "expected" in event else None,
        )
        for event in events
        if event["event"] == "sample"
    ]


def find_tests(events: Sequence[Event]) -> list[EvaluationResult]:
    """Return the last result on each test set."""
    results: dict[str, EvaluationResult] = {}
    for event in events:
        scores = event.get("scores")
        if event["event"] == "test" and isinstance(scores, dict):
            name = str(event.get("name", "test"))
            results[name] = EvaluationResult(
                name=name, metrics=[name_metric(key, value) for key, value in scores.items() if is_finite(value)]
            )
    return list(results.values())


def describe_metrics(names: Sequence[str] = tuple(METRICS)) -> dict[str, MetricFormat]:
    """Return how metrics are written, by name, for curves whose values the page formats."""
    return {
        name: MetricFormat(
            title=metric_title(name),
            scale=metric_scale(name)[0],
            unit=metric_scale(name)[1],
            decimals=2 if METRICS[name].is_fraction or METRICS[name].is_out_of_100 else None,
            higher_is_better=METRICS[name].higher_is_better,
        )
        for name in names
        if name in METRICS
    }


def predict_validation_rows(run: Run) -> Predictions:
    """Evaluate rows of the validation data in detail, as the report does, and predict some of them.

    Raises:
        DataError: The run has no validation data, or its files are gone.
    """
    run = replace(run, task=run.validation_task)
    data = run.task.data.load_validation_dataset([])
    if data is None:
        raise DataError("the run has no validation data")
    with run.inference_context():
        details = run.task.evaluator.report_details(data)
    return Predictions(
        n_rows=count_examples(details),
        details=details_to_dict(details),
        tables=build_tables(details),
        samples=_make_samples(run, data),
    )


def _make_samples(run: Run, data: Any) -> list[Sample]:
    if run.config.task != "translate":
        samples = run.task.predictor.sample_predictions(data)
        return [
            Sample(step=None, input=item["input"], output=item["output"], expected=item.get("expected"))
            for item in samples
        ]
    pairs = data.raw_pairs[:MAX_SHOWN_ROWS]
    outputs = [prediction.output for prediction in run.predict([pair.source for pair in pairs])]
    return [
        Sample(step=None, input=pair.source, output=output, expected=pair.target)
        for pair, output in zip(pairs, outputs, strict=True)
    ]
