"""The results of `why-transformers` as Markdown: metrics and speed, metrics by length, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triform.experiments.pairing import VariantPair, compare_pairs, pair_over_seeds
from triform.experiments.reproduce.result_file import ExperimentResult
from triform.experiments.reproduce.system import MetricColumn
from triform.experiments.reproduce.systems import WHY_TRANSFORMERS
from triform.experiments.reproduce.tables import (
    MIN_PAIRS,
    format_mean_interval,
    seed_values,
    values_by_seed,
)
from triform.experiments.reproduce.why.comparison import STUDY_TITLE, ComparisonTask, load_comparison_tasks
from triform.reporting.markdown import render_markdown_table

INTRODUCTION = (
    "Each seed of each model learns for as many seconds: a pilot run shows how many steps a model takes in one, "
    "and the number of steps follows from that. How often it has then read its training data stands beside them. "
    "Where that is seldom, the figures tell how soon a model learns, not how far it would come; where it is often, "
    "a model may be past its best, and nothing stops it early. The rate is the best of those tried, by each model "
    "alike, on a tenth of the training data, held out; all of it is learned from afterwards. Models have the same "
    "number of parameters within 2 %: the LSTM's width is found for it. A seed is a run of its own on a device "
    "that does nothing else. Figures are means over seeds, ± half of their 95 % interval."
)
LIMITATIONS = (
    "What is not equal: nothing but the rate was searched for here, and one at the end of its row may have a "
    "better one beyond it. On speeches all other settings, dropout and weight decay too, come from an earlier "
    "search for a Transformer; the others are usual ones. Each model learns in the number format that `train` "
    "takes for it, and on a GPU the LSTM runs in cuDNN's cells. The step counts come from a pilot, so the seconds "
    "beside them, measured, differ a little. On Shakespeare the validation loss of the LSTM carries its state "
    "through 16 windows and the Transformer's begins each window with nothing; the column beside it has both "
    "begin with nothing, and is the one compared. Intervals are over seeds and say nothing of other test rows, "
    "and the unseen rows of speeches are few. Seven seeds and three looks give no corrected p below 0.047."
)
STEPS_PER_SECOND_COLUMN = MetricColumn(eval_set="", metric="", title="steps/s", decimals=1)
SECONDS_COLUMN = MetricColumn(eval_set="", metric="", title="seconds", unit="seconds", decimals=1)


def format_section(result: ExperimentResult | None) -> str:
    parts = [f"## {STUDY_TITLE}", f"`{WHY_TRANSFORMERS}`"]
    if result is None or not result["parts"]:
        return "\n\n".join([*parts, f"Not run yet: `triform reproduce {WHY_TRANSFORMERS}`."])
    if result["quick"]:
        parts.append("A smoke run: it shows that everything runs, and its figures mean nothing.")
    parts += [INTRODUCTION, LIMITATIONS, *result.get("notes", ())]
    finished = [
        (comparison, result["parts"][comparison.name])
        for comparison in load_comparison_tasks()
        if comparison.name in result["parts"]
    ]
    for comparison in load_comparison_tasks():
        parts.append(f"### {comparison.title}")
        if task_result := result["parts"].get(comparison.name):
            parts += [
                _results_table(comparison, task_result),
                _length_table(comparison, task_result),
                _learning_rate_table(task_result),
            ]
        else:
            parts.append(f"Not run yet: `triform reproduce {WHY_TRANSFORMERS}`.")
    parts.append("\n".join(f"- {line}" for line in comparison_verdicts(finished)))
    return "\n\n".join([*parts, _environment_table(finished)])


def _results_table(comparison: ComparisonTask, task_result: Mapping[str, Any]) -> str:
    head = ["", *(column.title for column in comparison.columns)]
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
                f"{runs[0]['epochs']:.1f} times",
                format_mean_interval(STEPS_PER_SECOND_COLUMN, [run["steps_per_s"] for run in runs]),
                format_mean_interval(SECONDS_COLUMN, [run["seconds"] for run in runs]),
                str(len(runs)),
            ]
        )
    return render_markdown_table([*head, "parameters", "steps", "data read", "steps/s", "learning", "seeds"], rows)


def _length_table(comparison: ComparisonTask, task_result: Mapping[str, Any]) -> str:
    """One column for each bin that either model has rows in."""
    bins = [
        name
        for name in comparison.bin_names
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
    """The loss of every learning rate that was tried; the chosen one is bold."""
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
    return render_markdown_table(["loss held out, by `train.lr`", *rates], rows)


def comparison_verdicts(finished: list[tuple[ComparisonTask, Mapping[str, Any]]]) -> list[str]:
    """Whether the Transformer is better, in words; the p-values of all parts are corrected together."""
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
    return render_markdown_table(["", "command", "where", "with", "trained in", "vocabulary", "date"], rows)
