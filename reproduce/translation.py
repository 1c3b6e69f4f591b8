"""Evaluate the translations of a run: metrics, time, metrics by length, and examples. Compare variants by BLEU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproduce.result_file import ExperimentResult
from reproduce.system import ReferenceSystem
from triform.data.readers import TextPair, read_aligned
from triform.evaluation.metrics import bleu_statistics, compute_translation_metrics, lowercase_bleu
from triform.evaluation.statistics import bootstrap_bleu, corpus_bleu
from triform.experiments.engine import JsonDict, VariantResult
from triform.run import Run
from triform.tasks.translate import TranslationEvaluator

DECODE_SETTINGS: dict[str, dict[str, object]] = {
    "test greedy": {"strategy": "greedy"},
    "test beam 5": {"beam_size": 5},
}
COMPARED_SET = "test beam 5"  # variants are compared by their BLEU on this set
ALL_SENTENCES = "all"
WARM_UP_SENTENCES = 64  # translated for warm-up before decoding is timed


def evaluate_translation(run: Run, eval_set: str, path: str, *, system: ReferenceSystem) -> JsonDict:
    """Decode the sources of a set, or predict its targets from the true tokens before each.

    Returns:
        `scores` and, for the test set of a system with `word_length_bins`, metrics `by_length`. Decoded sets
        also have the counts of each sentence for `bootstrap_bleu` as `bleu`, and the `examples`.
    """
    pairs = list(read_aligned(*path.split(",")))
    if eval_set in DECODE_SETTINGS:
        return _decode(run, pairs, DECODE_SETTINGS[eval_set], system)
    entry: JsonDict = {"scores": _teacher_forced_metrics(run, path)}
    if eval_set == "test" and system.word_length_bins:
        entry["by_length"] = {
            name: {"pairs": len(indices), **_teacher_forced_metrics(run, path, [pairs[i].line for i in indices])}
            for name, indices in _group_by_length(system, pairs).items()
        }
    return entry


def _teacher_forced_metrics(run: Run, path: str, lines: Sequence[int] | None = None) -> dict[str, float]:
    evaluator = run.task.evaluator
    assert isinstance(evaluator, TranslationEvaluator)
    selected = None if lines is None else frozenset(lines)
    return evaluator.teacher_forced_metrics(run.task.data.load_dataset(path, [], selected))


def _decode(
    run: Run, pairs: Sequence[TextPair], decode_settings: Mapping[str, object], system: ReferenceSystem
) -> JsonDict:
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    run.predict(sources[:WARM_UP_SENTENCES], **decode_settings)  # type: ignore[arg-type]
    start = time.perf_counter()
    hypotheses = [prediction.output for prediction in run.predict(sources, **decode_settings)]  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    metrics = compute_translation_metrics(hypotheses, references)
    metrics |= {"tokenised_bleu": lowercase_bleu(hypotheses, references), "seconds": seconds}
    counts = bleu_statistics(hypotheses, references)
    entry: JsonDict = {
        "scores": {name: float(value) for name, value in metrics.items()},
        "bleu": counts.astype(int).tolist(),
    }
    if system.n_examples:
        entry["examples"] = [hypotheses[index] for index in example_indices(len(pairs), system.n_examples)]
    if system.word_length_bins:
        entry["by_length"] = {
            name: {"pairs": len(indices), "bleu": float(corpus_bleu(counts[indices].sum(axis=0)))}
            for name, indices in _group_by_length(system, pairs).items()
        }
    return entry


def _group_by_length(system: ReferenceSystem, pairs: Sequence[TextPair]) -> dict[str, list[int]]:
    """Return the indices of the pairs in each bin, by the number of words in the source."""
    assert system.word_length_bins is not None
    return system.word_length_bins.group([len(pair.source.split()) for pair in pairs])


def example_indices(n_sentences: int, n_examples: int) -> list[int]:
    """Return the indices of the example sentences, evenly spaced over a file."""
    return sorted({round((n_sentences - 1) * (2 * n + 1) / (2 * n_examples)) for n in range(n_examples)})


def read_examples(system: ReferenceSystem, path: str) -> list[dict[str, str]]:
    """Return the sources and references of the examples in a test file."""
    pairs = list(read_aligned(*path.split(",")))
    selected = [pairs[index] for index in example_indices(len(pairs), system.n_examples)]
    return [{"source": pair.source, "reference": pair.target} for pair in selected]


def compare_translations(
    system: ReferenceSystem, result: ExperimentResult, finished: Sequence[VariantResult], test_path: str
) -> list[dict[str, Any]]:
    """Compare variants of `compared_group` by a paired bootstrap over the test sentences.

    The variant with the highest mean validation metric is compared with each of the others on all sentences, and
    the variant of `long_sentences` with each of the others on the longest sentences.

    Args:
        system: The system.
        result: Its result, with an entry for each finished variant.
        finished: The variants that were run in this call, without those that diverged.
        test_path: The test file, `source,target`.
    """
    group = {variant.name for variant in system.select_variants(system.compared_group)}
    counts = {
        variant.spec.name: np.array([run.evaluations[COMPARED_SET]["bleu"] for run in variant.runs], dtype=float)
        for variant in finished
        if variant.spec.name in group and all("bleu" in run.evaluations[COMPARED_SET] for run in variant.runs)
    }
    validation = {
        entry["name"]: sum(entry["held_out"]["values"]) / len(entry["held_out"]["values"])
        for entry in result["variants"]
        if entry["name"] in counts
    }
    tests: list[tuple[str, str, list[int]]] = []
    if validation:
        pairs = list(read_aligned(*test_path.split(",")))
        tests.append((max(validation, key=lambda name: validation[name]), ALL_SENTENCES, list(range(len(pairs)))))
        if system.long_sentences and system.word_length_bins:
            *_, (longest_bin, indices) = _group_by_length(system, pairs).items()
            tests.append((system.long_sentences["variant"], longest_bin, indices))
    comparisons = []
    for subject, sentences, indices in tests:
        for other in counts if subject in counts else ():
            if other != subject:
                n_seeds = min(len(counts[other]), len(counts[subject]))
                first, second = (counts[name][:n_seeds, indices] for name in (other, subject))
                difference = bootstrap_bleu(first, second)._asdict()
                comparison = {"first": other, "second": subject, "sentences": sentences, "difference": difference}
                comparisons.append(comparison)
    return comparisons
