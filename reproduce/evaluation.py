"""Evaluate the runs of a reference system."""

from __future__ import annotations

from functools import lru_cache, partial

from reproduce.data import ExperimentData
from reproduce.dynamic import DynamicEvaluation
from reproduce.system import ReferenceSystem, SystemVariant
from reproduce.translation import DECODE_SETTINGS, evaluate_translation
from triform.evaluation.metrics import Metrics
from triform.experiments.engine import Evaluation, JsonDict
from triform.explain.gradients import gradient_norms
from triform.run import Run
from triform.tasks.mixture import MixedLanguageModel

GRADIENTS = "gradients"  # a set whose metrics are norms of gradients


def system_evaluation(data: ExperimentData, variant: SystemVariant) -> Evaluation:
    """Return the evaluation of a variant on all sets. Translations are teacher-forced, and decoded in two ways."""
    eval_sets = data.eval_files()
    if data.system.task == "translate" and "test" in eval_sets:
        eval_sets |= dict.fromkeys(DECODE_SETTINGS, eval_sets["test"])
    if data.system.measure_gradients:
        eval_sets[GRADIENTS] = ""  # measured on the validation data
    if bins := data.system.token_length_bins:
        eval_sets |= dict.fromkeys(bins.names, data.resolve_path(data.system.length_file))
    return Evaluation(eval_sets=eval_sets, evaluate=partial(_evaluate_set, system=data.system, variant=variant))


def _evaluate_set(
    run: Run, eval_set: str, path: str, *, system: ReferenceSystem, variant: SystemVariant
) -> JsonDict | None:
    if (bins := system.token_length_bins) and eval_set in bins.names:
        metrics = metrics_by_length(run, path, bins.edges).get(eval_set)
        if metrics is None:
            return None
    elif system.task == "translate":
        return evaluate_translation(run, eval_set, path, system=system)
    elif variant.dynamic:
        metrics = evaluate_dynamically(run, path)
    else:
        metrics = relative_gradients(run) if eval_set == GRADIENTS else run.evaluate(path)
    return {"scores": {name: float(value) for name, value in metrics.items()}}


def evaluate_dynamically(run: Run, path: str) -> Metrics:
    """Evaluate a model, mixed as `decode.mix` says, that learns from the text that it has already predicted."""
    dynamic, mixture = _dynamic_evaluation(run)
    if mixture is None:
        return dynamic.evaluate(path).metrics
    return mixture.evaluate(run.task.data.load_dataset(path, []))


@lru_cache(maxsize=1)  # the sets of one run are evaluated one after the other
def _dynamic_evaluation(run: Run) -> tuple[DynamicEvaluation, MixedLanguageModel | None]:
    """Return the dynamic evaluation of a run, with a learning rate and weights from its validation data."""
    dynamic, mix = DynamicEvaluation(run.task), run.config.decode.mix
    losses = partial(dynamic.score, lr=dynamic.lr)
    return dynamic, MixedLanguageModel(run.task, mix, lambda data: losses(data)[0]) if mix else None


@lru_cache(maxsize=1)  # the sets of one run are evaluated one after the other
def metrics_by_length(run: Run, path: str, edges: tuple[int, ...]) -> dict[str, Metrics]:
    """Evaluate a run on texts of each length, with greedy decoding."""
    decode = {"strategy": "greedy"} if run.config.task == "translate" else {}
    return dict(run.evaluate_by_length(path, edges=edges, **decode))


def relative_gradients(run: Run) -> Metrics:
    """Compute the norm of the gradient at distances 1, 2, 4, ... from the last input, relative to its own."""
    norms = gradient_norms(run.task.model, run.task.data.load_validation_dataset([])).tolist()
    distances = (1 << power for power in range(len(norms).bit_length()))
    return {f"distance {distance}": norms[distance] / norms[0] for distance in distances if distance < len(norms)}
