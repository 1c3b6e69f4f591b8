"""Format the results of `why-transformers` as Markdown: metrics and speed, metrics by length, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reproduce.result_file import ExperimentResult
from reproduce.system import MetricColumn
from reproduce.systems import WHY_TRANSFORMERS
from reproduce.tables import (
    ENVIRONMENT_COLUMNS,
    MIN_PAIRS,
    SMOKE_TEXT,
)
from reproduce.values import format_mean_interval, seed_values, values_by_seed
from reproduce.why.comparison import STUDY_TITLE, ComparisonTask, load_comparison_tasks
from triform.experiments.pairing import VariantPair, compare_pairs, pair_over_seeds
from triform.reporting.markdown import render_markdown_table

METHOD = (
    "Every seed of each model trains for the same number of seconds. A pilot run measures how many steps a model "
    "takes per second, and the number of steps follows from that. The column `epochs` shows how often a model has "
    "read its training data. With few epochs, the figures show how fast a model learns, not how good it can "
    "become. With many epochs, a model may be past its best, because there is no early stopping. Each model uses "
    "the best of several learning rates, chosen in the same way for both models on a held-out tenth of the "
    "training data; the final models train on all of the data. The models have the same number of parameters "
    "within 2 %; the width of the LSTM is chosen to match. Each seed is a separate run on a device that does "
    "nothing else. Figures are means over seeds, ± half of their 95 % interval."
)
LIMITATIONS = (
    "The comparison has limits. Only the learning rate was searched, and if the best one is at the edge of its "
    "grid, a better one may lie beyond. On speeches, all other settings, including dropout and weight decay, come "
    "from an earlier search for a Transformer; on the other tasks they are common values. Each model trains in "
    "the precision that `train` chooses for it, and on a GPU the LSTM uses cuDNN. The step counts come from a "
    "pilot run, so the measured seconds differ slightly. On Shakespeare, the validation loss of the LSTM carries "
    "its state through 16 windows, while the Transformer starts each window with an empty context. The next "
    "column resets both models for each window, and it is the one that is compared. Intervals describe the "
    "variation over seeds, not over other test rows, and speeches has few unseen rows. With seven seeds and three "
    "comparisons, no corrected p can be below 0.047."
)
STEPS_PER_SECOND_COLUMN = MetricColumn(eval_set="", metric="", title="steps/s", decimals=1)
SECONDS_COLUMN = MetricColumn(eval_set="", metric="", title="seconds", unit="seconds", decimals=1)


def format_section(result: ExperimentResult | None) -> str:
    """Return the section of the study: findings and tables first, methods last."""
    parts = [f"## {STUDY_TITLE}"]
    if result is None or not result["parts"]:
        return "\n\n".join([*parts, f"Not run yet: `python -m reproduce {WHY_TRANSFORMERS}`."])
    parts.append(f"Study `{WHY_TRANSFORMERS}`.{' ' + SMOKE_TEXT if result['quick'] else ''}")
    finished = [
        (comparison, result["parts"][comparison.name])
        for comparison in load_comparison_tasks()
        if comparison.name in result["parts"]
    ]
    if verdicts := comparison_verdicts(finished):
        parts += ["**Findings**", "\n".join(f"- {line}" for line in verdicts)]
    for comparison in load_comparison_tasks():
        parts.append(f"### {comparison.title}")
        if task_result := result["parts"].get(comparison.name):
            parts += [
                _results_table(comparison, task_result),
                _length_table(comparison, task_result),
                _learning_rate_table(task_result),
            ]
        else:
            parts.append(f"Not run yet: `python -m reproduce {WHY_TRANSFORMERS}`.")
    parts += ["**Notes**", METHOD, LIMITATIONS, *result.get("notes", ())]
    return "\n\n".join([*parts, "**Environment**", _environment_table(finished)])


def _results_table(comparison: ComparisonTask, task_result: Mapping[str, Any]) -> str:
    head = ["model", *(column.title for column in comparison.columns)]
    rows = []
    for variant_result in task_result["variants"]:
        runs = variant_result["runs"]
        rows.append(
            [
                f"**{variant_result['name']}**",
                *(
                    format_mean_interval(column, seed_values(variant_result, column.key))
                    for column in comparison.columns
                ),
                f"{variant_result['parameters']:,}",
                f"{runs[0]['steps']:,}",
                f"{runs[0]['epochs']:.1f}",
                format_mean_interval(STEPS_PER_SECOND_COLUMN, [run["steps_per_s"] for run in runs]),
                format_mean_interval(SECONDS_COLUMN, [run["seconds"] for run in runs]),
                str(len(runs)),
            ]
        )
    return render_markdown_table(
        [*head, "parameters", "steps", "epochs", "steps/s", "training time", "seeds"], rows
    )


def _length_table(comparison: ComparisonTask, task_result: Mapping[str, Any]) -> str:
    """Return the metric of each model by length, with one column for each bin that has rows."""
    bins = [
        name
        for name in comparison.length_bins.names
        if any(
            seed_values(variant_result, f"{name}.{comparison.length_column.metric}")
            for variant_result in task_result["variants"]
        )
    ]
    rows = [
        [
            f"**{variant_result['name']}**",
            *(
                format_mean_interval(
                    replace(comparison.length_column, eval_set=name),
                    seed_values(variant_result, f"{name}.{comparison.length_column.metric}"),
                )
                for name in bins
            ),
        ]
        for variant_result in task_result["variants"]
    ]
    return render_markdown_table([f"{comparison.length_column.title}, by {comparison.length_unit}", *bins], rows)


def _learning_rate_table(task_result: Mapping[str, Any]) -> str:
    """Return the loss for each learning rate that was tried. The selected one is bold."""
    rows = []
    for variant_result in task_result["variants"]:
        best_rate = variant_result["settings"]["train.lr"]
        cells = [
            "diverged" if trial["loss"] is None else f"{trial['loss']:.4f}" for trial in variant_result["tries"]
        ]
        marked_cells = [
            f"**{cell}**" if trial["rate"] == best_rate else cell
            for trial, cell in zip(variant_result["tries"], cells, strict=True)
        ]
        rows.append([f"**{variant_result['name']}**", *marked_cells])
    rates = [f"{trial['rate']:g}" for trial in task_result["variants"][0]["tries"]]
    return render_markdown_table(["held-out loss by `train.lr`", *rates], rows)


def comparison_verdicts(finished: list[tuple[ComparisonTask, Mapping[str, Any]]]) -> list[str]:
    """Describe in words which model is better. The p-values of all parts are corrected together."""
    tested = []
    for comparison, task_result in finished:
        transformer, lstm = (
            values_by_seed(variant_result, comparison.compared_column) for variant_result in task_result["variants"]
        )
        if difference := pair_over_seeds(lstm, transformer, min_pairs=MIN_PAIRS):
            metric = comparison.compared_column.rpartition(".")[2]
            tested.append((comparison, VariantPair("lstm", "transformer", metric, difference)))
    lines = []
    for (comparison, _), verdict in zip(tested, compare_pairs([pair for _, pair in tested]), strict=True):
        title = next(column.title for column in comparison.columns if column.key == comparison.compared_column)
        lines.append(f"{comparison.title}, {title}: {verdict.text}")
    return lines


def _environment_table(finished: list[tuple[ComparisonTask, Mapping[str, Any]]]) -> str:
    rows = []
    for comparison, task_result in finished:
        environment = task_result["made"]
        versions = f"torch {environment['torch']}, Triform {environment['triform']}, Python {environment['python']}"
        precisions = ", ".join(
            f"{variant_result['name']}: {variant_result['trained_in']}"
            for variant_result in task_result["variants"]
        )
        vocabulary = f"{task_result['variants'][0]['vocabulary']:,}"
        rows.append(
            [
                comparison.name,
                f"`{environment['command']}`",
                environment["device"],
                versions,
                precisions,
                vocabulary,
                environment["date"],
            ]
        )
    head = ("part", *ENVIRONMENT_COLUMNS[:-2], "precision", *ENVIRONMENT_COLUMNS[-2:])
    return render_markdown_table(head, rows, n_text_columns=len(head))
