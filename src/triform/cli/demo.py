"""`triform demo`: all three forms on built-in data, a scoreboard at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triform.cli.options import DeviceOption, JsonOption, print_json
from triform.formatting import echo, format_duration, format_metric, print_table

if TYPE_CHECKING:
    from triform.config import TaskName
    from triform.reporting.scoreboard import ScoreboardRow

SUMMARIES = {
    "classify": "reviews with negation, contrast and irony: positive or negative?",
    "generate": "Python's own documentation, continued",
    "translate": "English numbers, dates and times into French",
}
TARGETS: dict[str, tuple[str, float]] = {
    "classify": ("accuracy", 0.97),
    "generate": ("bits_per_byte", 2.4),  # what xz needs for the same text is 2.54
    "translate": ("exact_match", 0.95),
}
SETTINGS: dict[str, Any] = {
    # Shorter than the defaults: enough for the targets, within four minutes on two cores. Text made by a
    # grammar cannot be overfitted, so the two tasks that learn one go without dropout.
    "classify": {"train": {"epochs": 5.0}, "model": {"dropout": 0.0}},
    "generate": {"train": {"max_steps": 500}},
    "translate": {"train": {"epochs": 4.5}, "model": {"dropout": 0.0}},
}


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the three run folders go.")] = Path(
        "runs/demo"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace runs that are not a demo's.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed for initialisation, shuffling and dropout.")] = 0,
    device: DeviceOption = "auto",
    json_: JsonOption = False,
) -> None:
    """Train, evaluate and ask a classifier, a language model and a translator, in a few minutes."""
    from triform.reporting.scoreboard import write_scoreboard

    if not overwrite:
        _refuse_foreign_runs(out)
    rows = []
    for task in ("classify", "generate", "translate"):
        rows.append(_run_task(task, out, seed, device))
    page = write_scoreboard(out / "index.html", rows)
    if json_:
        print_json({"report": str(page), "tasks": [_row_to_dict(row) for row in rows]})
    else:
        _print_scoreboard(rows, page)
    if not all(row.reached for row in rows):
        raise typer.Exit(1)


def _refuse_foreign_runs(out: Path) -> None:
    """A demo may replace an older demo, nothing else."""
    from triform.errors import CheckpointError
    from triform.training.run_folder import RunFolder

    for task in SUMMARIES:
        folder = RunFolder(out / task)
        if folder.config_file.exists() and not folder.read_config().data.train.startswith("builtin:"):
            raise CheckpointError(f"{folder.path}: holds a run of your own; choose another --out, or --overwrite")


def _run_task(task: TaskName, out: Path, seed: int, device: str) -> ScoreboardRow:
    """Train one task, score it on its test set, and show what it says."""
    import time

    from triform.launch import train
    from triform.reporting.run_report import write_report
    from triform.reporting.scoreboard import ScoreboardRow
    from triform.training.callbacks import MetricsFile

    echo(f"\n{task}: {SUMMARIES[task]}", err=True)
    start_time = time.monotonic()
    run = train(task, out=str(out / task), overwrite=True, seed=seed, device=device, **SETTINGS[task])
    seconds = time.monotonic() - start_time
    metrics = run.evaluate()
    MetricsFile(run.path / "metrics.jsonl").on_event({"event": "test", "name": "test", "scores": metrics})
    write_report(run.path)
    metric, target = TARGETS[task]
    return ScoreboardRow(
        task=task,
        summary=SUMMARIES[task],
        metric=metric,
        score=metrics[metric],
        target=target,
        seconds=seconds,
        report=run.path / "report.html",
    )


def _row_to_dict(row: ScoreboardRow) -> dict[str, object]:
    return {
        "task": row.task,
        "metric": row.metric,
        "score": row.score,
        "target": row.target,
        "reached": row.reached,
        "seconds": row.seconds,
        "report": str(row.report),
    }


def _print_scoreboard(rows: list[ScoreboardRow], page: Path) -> None:
    table = [["task", "metric", "test score", "target", "", "training"]]
    for row in rows:
        score, target = format_metric(row.metric, row.score), format_metric(row.metric, row.target)
        direction = "above" if row.higher_is_better else "below"
        reached = "reached" if row.reached else "missed"
        table.append([row.task, row.metric, score, f"{direction} {target}", reached, format_duration(row.seconds)])
    print_table(table, align="llrrlr")
    echo(f"report: {page}")
    folder = rows[0].report.parent.parent
    echo("try:")
    echo(f'  triform predict {folder}/classify "I expected the keyboard to be faulty, and it was not."')
    echo(f'  triform predict {folder}/generate "The with statement"')
    echo(f'  triform predict {folder}/translate "twenty-one"')
