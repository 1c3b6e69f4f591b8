"""Format results of reference systems as Markdown: reported figures, our figures, baselines and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from reproduce.costs import device_name, format_cost
from reproduce.progress_tables import format_progress
from reproduce.result_file import ExperimentResult
from reproduce.system import MetricColumn, ReferenceSystem, SystemVariant, Target
from reproduce.translation_tables import (
    BOOTSTRAP_REMARK,
    failure_verdicts,
    format_examples,
    format_length_tables,
    padding_remark,
    ranking_verdicts,
)
from reproduce.values import (
    baseline_values,
    find_variant_result,
    format_mean_interval,
    seed_values,
    values_by_seed,
)
from triform.evaluation.statistics import summarise
from triform.experiments.pairing import VariantPair, compare_pairs, pair_over_seeds
from triform.formatting import format_duration
from triform.reporting.markdown import fold, render_markdown_table

NOT_RUN_TEXT = "not run"
RUN_COLUMNS = ("parameters", "seeds", "precision", "device", "training time", "cost")
ENVIRONMENT_COLUMNS = ("command", "hardware", "software", "vocabulary", "date")
SMOKE_TEXT = "This was a smoke run, which only shows that everything works. Its figures have no meaning."
MEAN_TOLERANCE = 1e-9  # a mean that equals a target may differ from it by rounding
MIN_PAIRS = 2  # variants with fewer shared seeds are not compared


def format_section(
    system: ReferenceSystem,
    result: ExperimentResult | None,
    figures: Sequence[str] = (),
    *,
    collapsed: bool = False,
) -> str:
    """Return the section of one system: results first, then findings, samples and figures, and methods last.

    Args:
        system: The system.
        result: Its stored result; None if it was not run.
        figures: Links to the figures of the section, as Markdown.
        collapsed: Whether the reader opens tables of single validations, and texts of the models, with a click.
    """
    parts = [f"## {system.title}"]
    notes = ["**Notes**", *system.notes] if system.notes else []
    if result is None or not (result["variants"] or result["failures"]):
        parts.append(f"Not run yet: `python -m reproduce {system.name}`.")
        if model := system.variants[0].init_from:
            parts.append(f"This system {_needed_model(model)}, whose weights were not available for this page.")
        return "\n\n".join([*parts, "**Variants**", _variant_descriptions(system), *notes])
    parts.append(f"System `{system.name}`.{' ' + SMOKE_TEXT if result['quick'] else ''}")
    parts += [
        _results_table(system, result),
        _remarks(system, result),
        "**Variants**",
        _variant_descriptions(system),
    ]
    if not result["quick"]:
        parts += _findings(system, result)
    progress, texts = format_progress(result), [*_format_samples(result), *format_examples(result)]
    parts += [
        *format_length_tables(system, result),
        *(fold("Validations during training", progress) if collapsed else progress),
        *(fold("Texts written by the models", texts) if collapsed else texts),
        *figures,
        *notes,
        *_test_set_settings(system, result),
        "**Environment**",
        _environment_table(result),
    ]
    return "\n\n".join(part for part in parts if part)


def _findings(system: ReferenceSystem, result: ExperimentResult) -> list[str]:
    rankings = ranking_verdicts(system, result)
    verdicts = [*target_verdicts(system, result), *pairing_verdicts(system, result), *rankings]
    verdicts += failure_verdicts(system, result)
    if not verdicts:
        return []
    return ["**Findings**", "\n".join(f"- {line}" for line in verdicts), BOOTSTRAP_REMARK if rankings else ""]


def _variant_descriptions(system: ReferenceSystem) -> str:
    return "\n".join(f"- {variant.name}: {variant.description}" for variant in system.variants)


def _results_table(system: ReferenceSystem, result: ExperimentResult) -> str:
    head = ["variant", *(column.title for column in system.columns), *RUN_COLUMNS]
    empty = [""] * len(RUN_COLUMNS)
    rows = []
    for variant in system.variants:
        if variant.reported_metrics:
            figures = [_format_single(column, variant.reported_metrics) for column in system.columns]
            rows.append([f"*reported, {variant.name}*", *figures, *empty])
        rows.append(
            _variant_row(
                system, variant, find_variant_result(result, variant.name), result["failures"].get(variant.name, "")
            )
        )
    rows += _baseline_rows(system, result)
    return render_markdown_table(head, rows)


def _format_single(column: MetricColumn, values_by_key: Mapping[str, float]) -> str:
    return format_mean_interval(column, [values_by_key[column.key]]) if column.key in values_by_key else ""


def _variant_row(
    system: ReferenceSystem, variant: SystemVariant, variant_result: Mapping[str, Any] | None, failure: str
) -> list[str]:
    if variant_result is None:
        return [
            f"**{variant.name}**",
            f"failed: {failure.partition('; ')[0]}" if failure else _not_run_text(variant),
            *[""] * (len(system.columns) + len(RUN_COLUMNS) - 1),
        ]
    figures = [format_mean_interval(column, seed_values(variant_result, column.key)) for column in system.columns]
    return [
        f"**{variant.name}**",
        *figures,
        f"{variant_result['parameters']:,}",
        str(len(variant_result["runs"])),
        variant_result["trained_in"],
        device_name(variant_result),
        format_duration(variant_result["seconds"]),
        format_cost(variant_result),
    ]


def _not_run_text(variant: SystemVariant) -> str:
    reason = variant.not_run_reason or (_needed_model(variant.init_from) if variant.init_from else "")
    return f"{NOT_RUN_TEXT}; {reason}" if reason else NOT_RUN_TEXT


def _needed_model(init_from: str) -> str:
    return f"needs the published model `{init_from}`"


def _baseline_rows(system: ReferenceSystem, result: ExperimentResult) -> list[list[str]]:
    """Return one row for each baseline. If a baseline could not be fitted, the row contains the reason."""
    empty = [""] * len(RUN_COLUMNS)
    rows = [
        [f"baseline: {name}", *(_format_single(column, values) for column in system.columns), *empty]
        for name, values in baseline_values(result).items()
    ]
    for name, reason in result["unfit"].items():
        rows.append([f"baseline: {name}", f"not fitted: {reason}", *[""] * (len(system.columns) - 1), *empty])
    return rows


def _test_set_settings(system: ReferenceSystem, result: ExperimentResult) -> list[str]:
    """Return the list of all settings that were ever evaluated on the test set: earlier ones, then the variants."""
    if not system.length_file and system.eval_files.keys() <= {"train", "valid"}:
        return []
    lines = list(system.test_set_history)
    for entry in result["variants"]:
        n_runs = len(entry["runs"])
        runs = f"{n_runs} seed{'s' if n_runs > 1 else ''}"
        lines.append(f"`{entry['name']}`, the settings of this page: {runs}, {entry['made']['date']}")
    lines += [f"`{name}`, the settings of this page: diverged, not evaluated" for name in result["failures"]]
    return ["**Every setting that saw the test set**", "\n".join(f"- {line}" for line in lines)]


def _remarks(system: ReferenceSystem, result: ExperimentResult) -> str:
    """Return sentences about missing intervals, leaked texts, word vectors and the version of the metric."""
    remarks = []
    if single_seed := [
        variant_result["name"] for variant_result in result["variants"] if len(variant_result["runs"]) == 1
    ]:
        remarks.append(f"Variants with one seed have no interval: {', '.join(single_seed)}.")
    for eval_set, leak in result["leaks"].items():
        if leak["seen"]:
            verb = "is" if leak["seen"] == 1 else "are"
            share = f"{leak['seen']:,} of the {leak['rows']:,} texts"
            remarks.append(f"{share} in the set {eval_set} {verb} also in the training file.")
    for variant_result in result["variants"]:
        if matched := variant_result.get("vectors", {}).get("matched"):
            remarks.append(f"{variant_result['name']}: {matched}.")
    if result.get("signature"):
        remarks.append(f"sacreBLEU signature: `{result['signature']}`.")
    if padding := padding_remark(system, result):
        remarks.append(padding)
    return " ".join(remarks)


def target_verdicts(system: ReferenceSystem, result: ExperimentResult) -> list[str]:
    """Return one line for each target: the measured mean, the target, and whether it was reached."""
    verdicts = []
    for target in system.targets:
        variant_result = find_variant_result(result, target.variant)
        if variant_result is None:
            continue
        column = next(candidate for candidate in system.columns if candidate.key == target.column)
        column_values = seed_values(variant_result, target.column)
        _, _, requirement = _target_bounds(system, result, target, column)
        note = f" ({target.note})" if target.note else ""
        status = target_status(system, result, target)
        measured = f"{target.variant}, {column.title}: {format_mean_interval(column, column_values)}"
        verdicts.append(f"{measured}; target {requirement}{note}: {status}")
    return verdicts


def target_status(system: ReferenceSystem, result: ExperimentResult, target: Target) -> str:
    """Return whether a target was reached; "" if its variant was not run."""
    variant_result = find_variant_result(result, target.variant)
    if variant_result is None:
        return ""
    if missing := _missing_variants(system, result, target):
        return f"not decided, because {', '.join(missing)} {'was' if len(missing) == 1 else 'were'} not run"
    column = next(candidate for candidate in system.columns if candidate.key == target.column)
    low, high, _ = _target_bounds(system, result, target, column)
    values = seed_values(variant_result, target.column)
    is_reached = bool(values) and low - MEAN_TOLERANCE <= summarise(values).mean <= high + MEAN_TOLERANCE
    return "reached" if is_reached else "**not reached**"


def _missing_variants(system: ReferenceSystem, result: ExperimentResult, target: Target) -> list[str]:
    """Return the variants that a target is relative to and that have no results yet."""
    compared = [variant.name for variant in system.variants if variant.group == target.above_group]
    return [name for name in compared if find_variant_result(result, name) is None]


def _target_bounds(
    system: ReferenceSystem, result: ExperimentResult, target: Target, column: MetricColumn
) -> tuple[float, float, str]:
    if target.above_group:
        names = [variant.name for variant in system.variants if variant.group == target.above_group]
        means = [
            summarise(column_values).mean
            for name in names
            if (variant_result := find_variant_result(result, name))
            and (column_values := seed_values(variant_result, target.column))
        ]
        low = max(means, default=math.nan) + target.margin
        low_text = f", {_format_bound(column, low)}" if means else ""
        return low, math.inf, f"{target.margin:g} above the best of {', '.join(names)}{low_text}"
    bound_texts = [_format_bound(column, bound) for bound in (target.low, target.high)]
    if math.isinf(target.high):
        return target.low, target.high, f"{bound_texts[0]} or more"
    if math.isinf(target.low):
        return target.low, target.high, f"{bound_texts[1]} or less"
    return target.low, target.high, f"{bound_texts[0]} to {bound_texts[1]}"


def _format_bound(column: MetricColumn, value: float) -> str:
    return format_mean_interval(column, [value]) if math.isfinite(value) else ""


def pairing_verdicts(system: ReferenceSystem, result: ExperimentResult) -> list[str]:
    """Describe in words whether paired variants differ. The p-values of all columns are corrected together."""
    tested = []
    for pairing in system.pairings:
        first, second = (find_variant_result(result, name) for name in (pairing.first, pairing.second))
        if first is None or second is None:
            continue
        for column in pairing.columns:
            difference = pair_over_seeds(
                values_by_seed(first, column), values_by_seed(second, column), min_pairs=MIN_PAIRS
            )
            if difference:
                metric = column.rpartition(".")[2]
                tested.append((pairing, column, VariantPair(pairing.first, pairing.second, metric, difference)))
    verdicts = []
    for (pairing, key, _), verdict in zip(tested, compare_pairs([pair for _, _, pair in tested]), strict=True):
        title = next(column.title for column in system.columns if column.key == key)
        verdicts.append(f"{pairing.question} {title}: {verdict.text}")
    return verdicts


def _format_samples(result: ExperimentResult) -> list[str]:
    """Return the texts that the variants generated, prompt by prompt."""
    named_samples = [
        [(variant["name"], sample) for sample in variant["samples"]]
        for variant in result["variants"]
        if variant.get("samples")
    ]
    parts = []
    for name, sample in chain.from_iterable(zip(*named_samples, strict=True)):
        prompt_text = f"with the prompt `{sample['input']}`" if sample["input"] else "without a prompt"
        text = f"{sample['input']}{sample['output']}".strip()
        parts.append(f"Text generated by {name} {prompt_text}:\n\n```\n{text}\n```")
    return parts


def _environment_table(result: ExperimentResult) -> str:
    """Return a table of the command, hardware, software and date of each variant."""
    rows = []
    for variant_result in result["variants"]:
        environment = variant_result["made"]
        versions = f"torch {environment['torch']}, Triform {environment['triform']}, Python {environment['python']}"
        rows.append(
            [
                variant_result["name"],
                f"`{environment['command']}`",
                environment["device"],
                versions,
                f"{variant_result['vocabulary']:,}",
                environment["date"],
            ]
        )
    return render_markdown_table(
        ["variant", *ENVIRONMENT_COLUMNS], rows, n_text_columns=1 + len(ENVIRONMENT_COLUMNS)
    )
