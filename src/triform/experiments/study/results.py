"""Collect the result of a study: metrics of all runs, means with intervals, and a verdict for each pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triform.errors import DivergedError, WarningText
from triform.evaluation.statistics import (
    ALPHA,
    Numbers,
    PairedDifference,
    SampleSummary,
    bootstrap_bleu,
    describe_p_value,
    min_pairs_needed,
    summarise,
)
from triform.experiments.engine import SeedResult, VariantResult
from triform.experiments.pairing import VariantPair, compare_pairs, pair_over_seeds
from triform.experiments.seed_results import TRAINING_LOSS
from triform.experiments.study.plan import TRAINING_SET, VALIDATION_SET, Study
from triform.reporting.run_history import RunHistory, read_history
from triform.tasks.leaks import LEAK_PHRASE


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run: its metric on each evaluation set, or the reason why it failed."""

    variant: str
    seed: int
    folder: Path
    failure: str = ""
    metric_values: Mapping[str, float] = field(default_factory=dict)
    sentence_stats: Mapping[str, Numbers] = field(default_factory=dict)  # BLEU statistics of each sentence
    notices: tuple[str, ...] = ()  # about leaked validation rows, and about cut or skipped test rows
    parameters: int = 0
    steps: int = 0
    best_step: int = 0
    seconds: float = 0.0


class VariantSummary(NamedTuple):
    """The metric of a variant on an evaluation set, over its seeds."""

    eval_set: str
    variant: str
    n_runs: int
    stats: SampleSummary | None  # None if no run finished
    parameters: int
    seconds: float  # training time of all seeds


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference of two variants on an evaluation set, second minus first, over the seeds that both have."""

    eval_set: str
    first: str
    second: str
    difference: PairedDifference
    corrected_p: float
    verdict: str
    over_seeds: PairedDifference | None = None  # for BLEU, in addition to the bootstrap over sentences


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A finished study."""

    study: Study
    path: Path
    metric: str  # the training loss if there is neither validation data nor a test file
    eval_sets: tuple[str, ...]
    runs: tuple[RunResult, ...]
    summaries: tuple[VariantSummary, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        variants = [variant.name for variant in self.study.variants]
        return (
            f"StudyResult(path={str(self.path)!r}, metric={self.metric!r}, variants={variants!r}, "
            f"runs={len(self.runs)}, comparisons={len(self.comparisons)})"
        )

    def _repr_html_(self) -> str:
        from triform.experiments.study.page import render_study_card

        return render_study_card(self)

    def runs_of(self, variant: str) -> list[RunResult]:
        """Return the runs of a variant."""
        return [run for run in self.runs if run.variant == variant]


def collect_results(study: Study, path: Path, variants: Sequence[VariantResult]) -> StudyResult:
    """Summarise the runs of every variant and compare the variants in pairs."""
    runs = [_read_run(study, variant.spec.name, run) for variant in variants for run in variant.runs]
    if all(run.failure for run in runs):
        raise DivergedError(f"every run of the study failed; the first reason: {runs[0].failure}")
    scored_sets = {eval_set for run in runs for eval_set in run.metric_values}
    order = [VALIDATION_SET, *study.test_files]
    eval_sets = tuple(eval_set for eval_set in order if eval_set in scored_sets) or (TRAINING_SET,)
    metric = TRAINING_LOSS if eval_sets == (TRAINING_SET,) else study.metric
    summaries = [
        _summarise_variant(eval_set, variant.spec.name, runs, variant.seconds)
        for eval_set in eval_sets
        for variant in variants
    ]
    compared_sets = [eval_set for eval_set in eval_sets if eval_set in study.test_files] or eval_sets
    comparisons = tuple(_compare_pairs(study, compared_sets, runs, metric))
    return StudyResult(
        study=study,
        path=path,
        metric=metric,
        eval_sets=eval_sets,
        runs=tuple(runs),
        summaries=tuple(summaries),
        comparisons=comparisons,
        notes=tuple(_collect_notes(study, runs, metric, len(comparisons))),
    )


# -- one run


def _read_run(study: Study, variant: str, seed_result: SeedResult) -> RunResult:
    folder = seed_result.folder
    history = read_history(folder.path)
    run = RunResult(
        variant=variant,
        seed=seed_result.seed,
        folder=folder.path,
        failure=seed_result.failure,
        parameters=int(history.start.get("parameters", 0)),
        steps=history.last_step,
    )
    if run.failure:
        return run
    progress = seed_result.progress()
    metric_values = _read_metrics(study, seed_result, history, progress.get("best"))
    leak_notices = [
        text for event in history.events["notice"] if LEAK_PHRASE in (text := str(event.get("text", "")))
    ]
    evaluations = seed_result.evaluations
    notices = [notice for entry in evaluations.values() for notice in entry["notices"]]
    not_finite = [name for name, value in metric_values.items() if not math.isfinite(value)]
    return replace(
        run,
        failure=f"its {study.metric} on {', '.join(not_finite)} is not finite" if not_finite else "",
        metric_values={name: value for name, value in metric_values.items() if name not in not_finite},
        sentence_stats={
            name: np.array(entry["bleu"], dtype=np.float64)
            for name, entry in evaluations.items()
            if "bleu" in entry and study.metric == "bleu"
        },
        notices=(*leak_notices, *notices),
        best_step=int(progress.get("best_step", 0)),
        seconds=float(progress.get("seconds", 0.0)),
    )


def _read_metrics(
    study: Study, seed_result: SeedResult, history: RunHistory, best: Mapping[str, float] | None
) -> dict[str, float]:
    """Return the metric on the validation rows and on each test file, or else the last training loss."""
    metric_values = {VALIDATION_SET: float(best[study.metric])} if best else {}
    for eval_set, entry in seed_result.evaluations.items():
        metric_values[eval_set] = float(entry["scores"][study.metric])
    if not metric_values and (losses := history.curve("train", "loss")):
        metric_values[TRAINING_SET] = losses[-1][1]
    return metric_values


# -- all runs


def _runs_by_seed(runs: Sequence[RunResult], variant: str, eval_set: str) -> dict[int, RunResult]:
    return {run.seed: run for run in runs if run.variant == variant and eval_set in run.metric_values}


def _summarise_variant(eval_set: str, variant: str, runs: Sequence[RunResult], seconds: float) -> VariantSummary:
    scored_runs = _runs_by_seed(runs, variant, eval_set)
    stats = summarise([run.metric_values[eval_set] for run in scored_runs.values()]) if scored_runs else None
    variant_runs = [run for run in runs if run.variant == variant]
    seconds = max(seconds, *(run.seconds for run in variant_runs))  # a killed command has not stored its time
    return VariantSummary(
        eval_set, variant, len(scored_runs), stats, max(run.parameters for run in variant_runs), seconds
    )


def _compare_pairs(
    study: Study, eval_sets: Sequence[str], runs: Sequence[RunResult], metric: str
) -> list[Comparison]:
    """Compare every pair of variants on every set. The p-values of all comparisons are corrected together."""
    tested: list[tuple[str, VariantPair, PairedDifference | None]] = []
    for eval_set in eval_sets:
        for first, second in combinations((variant.name for variant in study.variants), 2):
            sides = [_runs_by_seed(runs, variant, eval_set) for variant in (first, second)]
            if differences := _paired_differences(eval_set, *sides):
                difference, over_seeds = differences
                tested.append((eval_set, VariantPair(first, second, metric, difference), over_seeds))
    verdicts = compare_pairs([pair for _, pair, _ in tested])
    return [
        Comparison(
            eval_set=eval_set,
            first=pair.first,
            second=pair.second,
            difference=pair.difference,
            corrected_p=verdict.corrected_p,
            over_seeds=over_seeds,
            verdict=verdict.text + _seed_caveat(pair.difference, over_seeds, verdict.corrected_p),
        )
        for (eval_set, pair, over_seeds), verdict in zip(tested, verdicts, strict=True)
    ]


def _paired_differences(
    eval_set: str, first: Mapping[int, RunResult], second: Mapping[int, RunResult]
) -> tuple[PairedDifference, PairedDifference | None] | None:
    """Return the difference over seeds, and for BLEU also the difference over sentences, which comes first."""
    over_seeds = pair_over_seeds(
        *({seed: run.metric_values[eval_set] for seed, run in side.items()} for side in (first, second))
    )
    seeds = [seed for seed in first if seed in second]
    if over_seeds is None:
        return None
    pairs = [[side[seed] for seed in seeds] for side in (first, second)]
    if any(eval_set not in run.sentence_stats for side in pairs for run in side):
        return over_seeds, None
    sentence_stats = [np.stack([run.sentence_stats[eval_set] for run in side]) for side in pairs]
    return bootstrap_bleu(*sentence_stats), over_seeds if len(seeds) > 1 else None


def _seed_caveat(difference: PairedDifference, over_seeds: PairedDifference | None, corrected_p: float) -> str:
    """Return a remark about whether a difference over sentences would hold for other seeds."""
    is_significant = corrected_p <= ALPHA
    if over_seeds is None:
        return ", of these two trained models" if is_significant and "bootstrap" in difference.test else ""
    seed_text = f"; over seeds {describe_p_value(over_seeds.p)}"
    return f"{seed_text}: other seeds may reverse it" if is_significant and over_seeds.p > ALPHA else seed_text


def _collect_notes(study: Study, runs: Sequence[RunResult], metric: str, n_comparisons: int) -> list[str]:
    failures: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run.failure:
            failures.setdefault((run.variant, run.failure), []).append(str(run.seed))
    notes = [
        f"{variant}, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: failed: {failure}"
        for (variant, failure), seeds in failures.items()
    ]
    if notes:
        notes.append("two variants are compared only over the seeds that both have")
    if len(study.seeds) == 1:
        notes.append(
            "with one seed there is no interval over seeds, and a difference may be chance; "
            f"set seeds = {min_pairs_needed(max(n_comparisons, 1))} or more"
        )
    if metric == TRAINING_LOSS:
        notes.append(
            "there is no validation data, so the last training loss is compared, which says nothing about new text"
        )
    notices = dict.fromkeys(notice for run in runs for notice in run.notices)
    return [*map(WarningText, notes), *(WarningText(text) if LEAK_PHRASE in text else text for text in notices)]
