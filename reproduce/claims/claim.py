"""A claim of a report, its assessment, and its section on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from reproduce.result_file import ExperimentResult
from reproduce.system import MetricColumn
from reproduce.systems import WHY_TRANSFORMERS, get_system
from reproduce.tables import pairing_verdicts
from reproduce.values import (
    find_variant_result,
    format_mean_interval,
    seed_values,
    values_by_seed,
)
from triform.evaluation.statistics import PairedDifference
from triform.experiments.pairing import pair_over_seeds
from triform.formatting import metric_info
from triform.reporting.markdown import render_markdown_table

Results = Mapping[str, ExperimentResult]  # the results of the systems that were run
UNDECIDED = "not decided"


class Assessment(NamedTuple):
    """The measurement as Markdown, the verdict in a few words, and its explanation in sentences."""

    evidence: str
    verdict: str
    explanation: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a report.

    Args:
        title: The claim in a few words.
        statement: What the report says, in one sentence.
        code: Commands or Python that repeat the measurement.
        language: The language of `code`.
        needs: The variants of each reference system that the assessment uses.
        assess: Returns the assessment from results that contain everything in `needs`.
    """

    title: str
    statement: str
    code: str
    assess: Callable[[Results], Assessment]
    language: Literal["sh", "python"] = "sh"
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def decide(self, results: Results) -> Assessment:
        """Assess the claim. It stays undecided if a system or a variant that it needs was not run."""
        missing = [name for name, variants in self.needs.items() if not _was_run(results, name, variants)]
        if missing:
            commands = " and ".join(f"`python -m reproduce {name}`" for name in missing)
            return Assessment("", UNDECIDED, f"The results of {commands} are not complete.")
        return self.assess(results)


def _was_run(results: Results, name: str, variants: Sequence[str]) -> bool:
    if name not in results:
        return False
    if name == WHY_TRANSFORMERS:
        return set(variants) <= results[name]["parts"].keys()
    return all(find_variant_result(results[name], variant) for variant in variants)


def render_claim(claim: Claim, assessment: Assessment) -> str:
    """Return the section of a claim: statement, measurement and verdict."""
    parts = [
        f"### {claim.title}",
        f"**Claim.** {claim.statement}",
        f"**Measurement.**\n\n```{claim.language}\n{claim.code.strip()}\n```",
        assessment.evidence,
        f"**Verdict: {assessment.verdict}.** {assessment.explanation}",
    ]
    return "\n\n".join(part for part in parts if part)


# -- figures of the results


def variant_entry(results: Results, system: str, variant: str) -> dict[str, Any]:
    """Return the entry of a variant that a claim needs."""
    return next(entry for entry in results[system]["variants"] if entry["name"] == variant)


def column_values(results: Results, system: str, variant: str, column: str) -> list[float]:
    """Return the values of a column over the seeds of a variant."""
    return seed_values(variant_entry(results, system, variant), column)


def column_mean(results: Results, system: str, variant: str, column: str) -> float:
    """Return the mean of a column over the seeds of a variant."""
    values = column_values(results, system, variant, column)
    return sum(values) / len(values)


def format_column(results: Results, system: str, variant: str, column: str) -> str:
    """Format the mean of a column as the results page does."""
    return format_mean_interval(_find_column(system, column), column_values(results, system, variant, column))


def variant_table(results: Results, system: str, variants: Sequence[str], columns: Sequence[str]) -> str:
    """Return a table of some variants and columns of a system, with the reported figures."""
    selected = [_find_column(system, key) for key in columns]
    reported = {variant.name: variant.reported_metrics for variant in get_system(system).variants}
    rows = []
    for name in variants:
        if any(key in reported[name] for key in columns):
            figures = [[reported[name][key]] if key in reported[name] else [] for key in columns]
            rows.append([f"*{name}, reported*", *map(format_mean_interval, selected, figures), ""])
        cells = [format_column(results, system, name, key) for key in columns]
        rows.append([f"**{name}**", *cells, str(len(column_values(results, system, name, columns[0])))])
    return render_markdown_table(["variant", *(column.title for column in selected), "seeds"], rows)


def _find_column(system: str, key: str) -> MetricColumn:
    return next(column for column in get_system(system).columns if column.key == key)


# -- comparisons


def findings(results: Results, system: str, first: str, second: str) -> list[str]:
    """Return the findings of the results page about a pair of variants."""
    reference = get_system(system)
    questions = {
        pairing.question for pairing in reference.pairings if (pairing.first, pairing.second) == (first, second)
    }
    return [
        line
        for line in pairing_verdicts(reference, results[system])
        if any(line.startswith(question) for question in questions)
    ]


def count_wins(lines: Sequence[str], name: str) -> int:
    """Return in how many findings a model is better with statistical significance."""
    return sum(f": {name} is better by " in line for line in lines)


def verdict_from_counts(n_true: int, n_false: int, n_comparisons: int, unit: str) -> str:
    """Return the verdict on a claim that several comparisons test, some of which may be undecided."""
    if not n_true:
        return "false" if n_false else UNDECIDED
    if n_true == n_comparisons:
        return "true"
    return f"true in {n_true} of {n_comparisons} {unit}" + (f", false in {n_false}" if n_false else "")


def bullet_list(lines: Sequence[str]) -> str:
    """Return lines as a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


class Difference(NamedTuple):
    """Whether the second of two variants is better: "yes", "no", or "not decided" with the reason."""

    answer: str
    paired: PairedDifference


def compare_variants(results: Results, system: str, first: str, second: str, column: str) -> Difference:
    """Compare a column of two variants over shared seeds."""
    first_values, second_values = (
        values_by_seed(variant_entry(results, system, name), column) for name in (first, second)
    )
    return compare_seeds(first_values, second_values, column.rpartition(".")[2])


def compare_seeds(first: Mapping[int, float], second: Mapping[int, float], metric: str) -> Difference:
    """Compare values by seed. The answer is decided if the 95 % interval of the difference excludes zero."""
    paired = pair_over_seeds(first, second)
    assert paired is not None, "seeds start at 0, so all variants share the first one"
    if paired.pairs == 1:
        return Difference(f"{UNDECIDED}: one seed", paired)
    if paired.low <= 0 <= paired.high:
        return Difference(UNDECIDED, paired)
    is_better = (paired.mean > 0) == metric_info(metric).higher_is_better
    return Difference("yes" if is_better else "no", paired)
