"""Format analyses of translations: which variant is best, metrics by length, padding, and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reproduce.result_file import ExperimentResult
from reproduce.system import MetricColumn, ReferenceSystem
from reproduce.translation import ALL_SENTENCES, COMPARED_SET, DECODE_SETTINGS
from reproduce.values import (
    find_variant_result,
    format_mean_interval,
    seed_values,
    values_by_seed,
)
from triform.evaluation.statistics import ALPHA, PairedDifference, format_difference
from triform.experiments.pairing import VariantPair, compare_pairs, pair_over_seeds
from triform.reporting.markdown import render_markdown_table

BLEU = MetricColumn(eval_set=COMPARED_SET, metric="bleu", title="sacreBLEU, beam 5")
LENGTH_COLUMNS = (
    BLEU,
    MetricColumn(eval_set="test greedy", metric="bleu", title="sacreBLEU, greedy"),
    MetricColumn(eval_set="test", metric="loss", title="test loss", decimals=4),
)
BOOTSTRAP_REMARK = (
    "The comparisons of BLEU are paired bootstraps over the test sentences. They average BLEU over the seeds of "
    "each variant. They describe these trained models; their intervals say nothing about other seeds."
)


def ranking_verdicts(system: ReferenceSystem, result: ExperimentResult) -> list[str]:
    """Say which variant of the compared group is best, and whether it differs from each of the others."""
    comparisons = result.get("comparisons", [])
    pairs = [
        VariantPair(entry["first"], entry["second"], BLEU.metric, PairedDifference(**entry["difference"]))
        for entry in comparisons
    ]
    overall, by_length, similar = [], [], []
    for entry, pair, verdict in zip(comparisons, pairs, compare_pairs(pairs), strict=True):
        if entry["sentences"] == ALL_SENTENCES:
            text = f"Is {pair.second} better than {pair.first}? {BLEU.title}: {verdict.text}"
            overall.append(text + _difference_over_seeds(result, pair))
            similar += [pair.first] if verdict.corrected_p > ALPHA or pair.difference.mean <= 0 else []
        else:
            question = f"{system.long_sentences['question']} Compared with {pair.first}"
            by_length.append(f"{question}, {entry['sentences']} words, {BLEU.title}: {verdict.text}")
    best = [pair.second for pair in pairs[: len(overall)]][:1]
    return [line for name in best for line in _describe_best(system, result, name, similar)] + overall + by_length


def _describe_best(system: ReferenceSystem, result: ExperimentResult, best: str, similar: list[str]) -> list[str]:
    """Say which variant is best by validation BLEU, and list the means of all variants."""
    names = [variant.name for variant in system.select_variants(system.compared_group)]
    entries = [entry for entry in result["variants"] if entry["name"] in names]
    validation = _ranked({entry["name"]: entry["held_out"]["values"] for entry in entries})
    test = _ranked({entry["name"]: seed_values(entry, BLEU.key) for entry in entries})
    conclusion = f"not shown to be better than {', '.join(similar)}" if similar else "better than all others"
    return [
        f"{best} is best by validation BLEU: {validation}",
        f"On the test set, {best} is {conclusion}; {BLEU.title}: {test}",
    ]


def _ranked(values: Mapping[str, Sequence[float]]) -> str:
    """Return the variants and their means, the highest first."""
    ranked = sorted(
        (name for name in values if values[name]), key=lambda name: -sum(values[name]) / len(values[name])
    )
    return ", ".join(f"{name} {format_mean_interval(BLEU, values[name])}" for name in ranked)


def _difference_over_seeds(result: ExperimentResult, pair: VariantPair) -> str:
    entries = [find_variant_result(result, name) for name in (pair.first, pair.second)]
    first, second = (values_by_seed(entry, BLEU.key) if entry else {} for entry in entries)
    difference = pair_over_seeds(first, second, min_pairs=2)
    if difference is None:
        return ""
    return f"; over {difference.pairs} seeds, the difference is {format_difference(difference, BLEU.metric)}"


def failure_verdicts(system: ReferenceSystem, result: ExperimentResult) -> list[str]:
    """Say for each variant whether its training failed as reported, or diverged."""
    if not system.failure_range:
        return []
    low, high = system.failure_range["low"], system.failure_range["high"]
    column = next(column for column in system.columns if column.key == system.failure_range["column"])
    verdicts = []
    for entry in result["variants"]:
        values = seed_values(entry, column.key)
        failed = low <= sum(values) / len(values) <= high
        status = "**fails as reported**" if failed else "does not fail as reported"
        verdicts.append(f"{entry['name']} {status}; {column.title}: {format_mean_interval(column, values)}")
    return verdicts + [f"{name} diverges" for name in result["failures"]]


def format_length_tables(system: ReferenceSystem, result: ExperimentResult) -> list[str]:
    """Return the table of each metric by the length of the source, with one column for each bin."""
    entries = [entry for entry in result["variants"] if all(run.get("by_length") for run in entry["runs"])]
    if not entries or system.word_length_bins is None:
        return []
    first = entries[0]["runs"][0]["by_length"]
    bins = [name for name in system.word_length_bins.names if name in first[BLEU.eval_set]]
    parts = ["**By sentence length**, in words of the source"]
    for column in LENGTH_COLUMNS:
        rows = [["test sentences", *(f"{first[column.eval_set][name]['pairs']:,}" for name in bins)]]
        for entry in entries:
            values = {
                name: [run["by_length"][column.eval_set][name][column.metric] for run in entry["runs"]]
                for name in bins
            }
            rows.append([f"**{entry['name']}**", *(format_mean_interval(column, values[name]) for name in bins)])
        parts.append(render_markdown_table([column.title, *bins], rows))
    return parts


def padding_remark(system: ReferenceSystem, result: ExperimentResult) -> str:
    """Return the measured share of padding in the targets of the sets whose accuracy with padding is shown."""
    shown_sets = [column.eval_set for column in system.columns if column.metric == "token_accuracy_with_padding"]
    for entry in result["variants"]:
        shares = []
        for eval_set, scores in entry["runs"][0]["scores"].items():
            if eval_set in shown_sets and "token_accuracy_with_padding" in scores:
                accuracy, with_padding = scores["token_accuracy"], scores["token_accuracy_with_padding"]
                shares.append(f"{100 * (with_padding - accuracy) / (1 - accuracy):.1f} % in {eval_set}")
        if shares:
            batches = f"shuffled batches of {entry['settings'].get('train.batch_size', 16)}"
            return f"Share of padding among the target tokens in {batches}: {', '.join(shares)}."
    return ""


def format_examples(result: ExperimentResult) -> list[str]:
    """Return the translations of the examples by every variant, greedy and with beam search."""
    entries = [entry for entry in result["variants"] if entry.get("translations")]
    if not entries or not result.get("examples"):
        return []
    parts = ["**Example translations**, first seed; the sentences are evenly spaced over the test file"]
    for index, example in enumerate(result["examples"]):
        lines = {"source": example["source"], "reference": example["reference"]}
        for entry in entries:
            for eval_set in DECODE_SETTINGS:
                label = f"{entry['name']}, {eval_set.removeprefix('test ')}"
                lines[label] = entry["translations"][eval_set][index]
        width = max(map(len, lines)) + 2
        rows = [f"{label + ':':{width}}{' '.join(text.split())}".rstrip() for label, text in lines.items()]
        parts.append("\n".join(["```", *rows, "```"]))
    return parts
