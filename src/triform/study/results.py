"""What a study came to: the score of every run, means with intervals, and what may be said of each pair."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triform.errors import DivergedError, WarningText
from triform.report import History, read_history
from triform.seeds import TRAINING_LOSS
from triform.stats import (
    LEVEL,
    Difference,
    Numbers,
    Spread,
    bootstrap_bleu,
    holm,
    measure,
    paired,
    pairs_needed,
    show_p,
    spread,
    verdict,
)
from triform.study.kept import Kept, TestScores
from triform.study.plan import TRAINING, VALIDATION, Study
from triform.tasks.leaks import MEMORY
from triform.training.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run: what it scored on each set, or why it failed."""

    variant: str
    seed: int
    folder: Path
    failure: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    sentences: Mapping[str, Numbers] = field(default_factory=dict)  # for BLEU: what each adds to it
    notices: tuple[str, ...] = ()  # validation rows that leak, and what was cut or skipped of the test files
    parameters: int = 0
    steps: int = 0
    best_step: int = 0
    seconds: float = 0.0


class Summary(NamedTuple):
    """The runs of a variant on a set."""

    set: str
    variant: str
    n: int
    spread: Spread | None  # None: no run came to an end
    parameters: int
    seconds: float  # of all its seeds


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two variants on a set: the second minus the first, over the seeds that both have."""

    set: str
    first: str
    second: str
    difference: Difference
    corrected: float
    verdict: str
    over_seeds: Difference | None = None  # beside a bootstrap over sentences


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished study."""

    study: Study
    path: Path
    metric: str  # the training loss, where nothing was held out and there are no test files
    sets: tuple[str, ...]
    results: tuple[Result, ...]
    summaries: tuple[Summary, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def of(self, variant: str) -> list[Result]:
        return [result for result in self.results if result.variant == variant]


def judge(study: Study, kept: Kept) -> Outcome:
    """Read every run and compare."""
    results = [
        _read(study, variant.name, seed, RunFolder(kept.path / variant.name / f"seed-{seed}"))
        for variant in study.variants
        for seed in study.seeds
    ]
    if all(result.failure for result in results):
        raise DivergedError(f"every run of the study failed; the first: {results[0].failure}")
    found = {name for result in results for name in result.scores}
    order = [VALIDATION, *study.tests]
    sets = tuple(name for name in order if name in found) or (TRAINING,)
    metric = TRAINING_LOSS if sets == (TRAINING,) else study.metric
    summaries = [
        _summary(name, variant.name, results, kept.seconds(variant.name))
        for name in sets
        for variant in study.variants
    ]
    judged_on = [name for name in sets if name in study.tests] or sets
    comparisons = tuple(_compared(study, judged_on, results, metric))
    return Outcome(
        study=study,
        path=kept.path,
        metric=metric,
        sets=sets,
        results=tuple(results),
        summaries=tuple(summaries),
        comparisons=comparisons,
        notes=tuple(_notes(study, results, metric, len(comparisons))),
    )


# -- one run


def failure_of(folder: RunFolder) -> str:
    """Why a run failed, if it did."""
    if not folder.metrics_file.exists():
        return ""
    lines = folder.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [json.loads(line) for line in lines if '"event": "diverged"' in line]
    return str(told[-1].get("text", "diverged")) if told else ""


def _read(study: Study, variant: str, seed: int, folder: RunFolder) -> Result:
    history = read_history(folder.path)
    begun = Result(
        variant=variant,
        seed=seed,
        folder=folder.path,
        parameters=int(history.start.get("parameters", 0)),
        steps=history.last_step,
    )
    if failure := failure_of(folder):
        return replace(begun, failure=failure)
    latest = folder.latest_checkpoint()
    progress = folder.read_state(latest)["progress"] if latest else {}
    scores, sentences, notices = _scores(study, folder, history, progress.get("best"))
    leaks = [text for event in history.events["notice"] if MEMORY in (text := str(event.get("text", "")))]
    wrong = [name for name, value in scores.items() if not math.isfinite(value)]
    return replace(
        begun,
        failure=f"its {study.metric} on {', '.join(wrong)} is not finite" if wrong else "",
        scores={name: value for name, value in scores.items() if name not in wrong},
        sentences=sentences,
        notices=(*leaks, *notices),
        best_step=int(progress.get("best_step", 0)),
        seconds=float(progress.get("seconds", 0.0)),
    )


def _scores(
    study: Study, folder: RunFolder, history: History, best: Mapping[str, float] | None
) -> tuple[dict[str, float], dict[str, Numbers], list[str]]:
    """What the best weights scored, on the validation rows and on each test."""
    scores = {VALIDATION: float(best[study.metric])} if best else {}
    sentences: dict[str, Numbers] = {}
    notices: list[str] = []
    kept = TestScores(folder)
    for name, test in {**study.tests, VALIDATION: ""}.items():
        if entry := kept.find(name, test, study.metric, study.task):
            scores[name] = float(entry["scores"][study.metric])
            notices += entry["notices"]
            if "bleu" in entry and study.metric == "bleu":
                sentences[name] = np.array(entry["bleu"], dtype=np.float64)
    if not scores and (losses := history.curve("train", "loss")):
        scores[TRAINING] = losses[-1][1]
    return scores, sentences, notices


# -- all of them


def _having(results: Sequence[Result], variant: str, name: str) -> dict[int, Result]:
    return {each.seed: each for each in results if each.variant == variant and name in each.scores}


def _summary(name: str, variant: str, results: Sequence[Result], seconds: float) -> Summary:
    having = _having(results, variant, name)
    known = spread([each.scores[name] for each in having.values()]) if having else None
    own = [each for each in results if each.variant == variant]
    seconds = max(seconds, *(each.seconds for each in own))  # a killed command has not told how long it took
    return Summary(name, variant, len(having), known, max(each.parameters for each in own), seconds)


def _compared(study: Study, sets: Sequence[str], results: Sequence[Result], metric: str) -> list[Comparison]:
    """Every pair on every test, or on validation where there is none; all together are what is corrected for."""
    found: list[tuple[str, str, str, Difference, Difference | None]] = []
    for name in sets:
        for first, second in combinations((variant.name for variant in study.variants), 2):
            one, other = (_having(results, variant, name) for variant in (first, second))
            if seeds := [seed for seed in study.seeds if seed in one and seed in other]:
                pairs = [(one[seed], other[seed]) for seed in seeds]
                found.append((name, first, second, *_difference(name, pairs)))
    corrected = holm([each[3].p for each in found])
    return [
        Comparison(
            set=name,
            first=first,
            second=second,
            difference=difference,
            corrected=p,
            over_seeds=over_seeds,
            verdict=verdict(first, second, difference, metric, corrected=p, comparisons=len(found))
            + _only_these(difference, over_seeds, p),
        )
        for (name, first, second, difference, over_seeds), p in zip(found, corrected, strict=True)
    ]


def _difference(name: str, pairs: Sequence[tuple[Result, Result]]) -> tuple[Difference, Difference | None]:
    """Over the seeds; for BLEU over the sentences, and over the seeds beside it."""
    first, second = zip(*pairs, strict=True)
    over_seeds = paired([each.scores[name] for each in first], [each.scores[name] for each in second])
    if any(name not in each.sentences for each in (*first, *second)):
        return over_seeds, None
    shares = [np.stack([each.sentences[name] for each in side]) for side in (first, second)]
    return bootstrap_bleu(*shares), over_seeds if len(pairs) > 1 else None


def _only_these(difference: Difference, over_seeds: Difference | None, corrected: float) -> str:
    """What the seeds say of a difference that was found over sentences: would other models show it too?"""
    found = corrected <= LEVEL
    if over_seeds is None:
        return ", of these two trained models" if found and "bootstrap" in difference.test else ""
    beside = f"; over seeds {show_p(over_seeds.p)}"
    return f"{beside}: other seeds may turn it round" if found and over_seeds.p > LEVEL else beside


def _notes(study: Study, results: Sequence[Result], metric: str, comparisons: int) -> list[str]:
    failures: dict[tuple[str, str], list[str]] = {}
    for each in results:
        if each.failure:
            failures.setdefault((each.variant, each.failure), []).append(str(each.seed))
    notes = [
        f"{variant}, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: failed: {failure}"
        for (variant, failure), seeds in failures.items()
    ]
    if notes:
        notes.append("a pair is compared over the seeds that both have; where there is none, not at all")
    if len(study.seeds) == 1:
        notes.append(
            "one seed each: there is no interval over seeds, and a difference may be chance; "
            f"give seeds = {pairs_needed(max(comparisons, 1))} or more"
        )
    if metric == TRAINING_LOSS:
        notes.append("nothing was held out: compared is the last training loss, which says nothing of new text")
    said = dict.fromkeys(notice for each in results for notice in each.notices)
    return [*map(WarningText, notes), *(WarningText(text) if MEMORY in text else text for text in said)]


def better(metric: str) -> str:
    return "more is better" if measure(metric).higher_is_better else "less is better"
