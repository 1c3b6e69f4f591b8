"""Evaluate the runs of a reference system."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from triform.data.readers import read_aligned
from triform.evaluation.metrics import Metrics, compute_translation_metrics, lowercase_bleu
from triform.experiments.engine import Evaluation, JsonDict
from triform.experiments.reproduce.data import ExperimentData
from triform.explain.gradients import gradient_norms
from triform.run import Run
from triform.tasks.evaluation import TokenEvaluator

DECODE_SETTINGS: dict[str, dict[str, object]] = {
    "test greedy": {"strategy": "greedy"},
    "test beam 5": {"beam_size": 5},
}
GRADIENTS = "gradients"  # a set whose metrics are norms of gradients
WARM_UP_SENTENCES = 64  # translated for warm-up before decoding is timed


def system_evaluation(data: ExperimentData) -> Evaluation:
    """Return the evaluation of a system on all sets. Translations are teacher-forced, and decoded in two ways."""
    eval_sets = data.eval_files()
    if data.system.task == "translate":
        eval_sets |= dict.fromkeys(DECODE_SETTINGS, eval_sets["test"])
    if data.system.measure_gradients:
        eval_sets[GRADIENTS] = ""  # measured on the validation data
    return Evaluation(eval_sets=eval_sets, evaluate=partial(_evaluate_set, task=data.system.task))


def _evaluate_set(run: Run, eval_set: str, path: str, *, task: str) -> JsonDict:
    if eval_set == GRADIENTS:
        metrics = relative_gradients(run)
    elif task != "translate":
        metrics = run.evaluate(path)
    elif eval_set in DECODE_SETTINGS:
        metrics = timed_translation_metrics(run, path, DECODE_SETTINGS[eval_set])
    else:
        metrics = teacher_forced_metrics(run, path)
    return {"scores": {name: float(value) for name, value in metrics.items()}}


def relative_gradients(run: Run) -> Metrics:
    """Compute the norm of the gradient at distances 1, 2, 4, ... from the last input, relative to its own."""
    norms = gradient_norms(run.task.model, run.task.data.load_validation_dataset([])).tolist()
    distances = (1 << power for power in range(len(norms).bit_length()))
    return {f"distance {distance}": norms[distance] / norms[0] for distance in distances if distance < len(norms)}


def teacher_forced_metrics(run: Run, path: str) -> Metrics:
    """Compute loss and token accuracy when each token is predicted from the true tokens before it."""
    evaluator = run.task.evaluator
    assert isinstance(evaluator, TokenEvaluator)
    return evaluator.teacher_forced_metrics(run.task.data.load_dataset(path, []))


def timed_translation_metrics(run: Run, path: str, decode_settings: Mapping[str, object]) -> Metrics:
    """Compute translation metrics and the seconds of decoding."""
    pairs = list(read_aligned(*path.split(",")))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    run.predict(sources[:WARM_UP_SENTENCES], **decode_settings)  # type: ignore[arg-type]
    start = time.perf_counter()
    hypotheses = [prediction.output for prediction in run.predict(sources, **decode_settings)]  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    metrics = compute_translation_metrics(hypotheses, references)
    return {**metrics, "tokenised_bleu": lowercase_bleu(hypotheses, references), "seconds": seconds}
