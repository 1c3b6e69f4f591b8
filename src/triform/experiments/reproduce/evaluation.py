"""Evaluate the runs of a reference system."""

from __future__ import annotations

from functools import lru_cache, partial

from triform.evaluation.metrics import Metrics
from triform.experiments.engine import Evaluation, JsonDict
from triform.experiments.reproduce.data import ExperimentData
from triform.experiments.reproduce.system import ReferenceSystem
from triform.experiments.reproduce.translation import DECODE_SETTINGS, evaluate_translation
from triform.explain.gradients import gradient_norms
from triform.run import Run

GRADIENTS = "gradients"  # a set whose metrics are norms of gradients


def system_evaluation(data: ExperimentData) -> Evaluation:
    """Return the evaluation of a system on all sets. Translations are teacher-forced, and decoded in two ways."""
    eval_sets = data.eval_files()
    if data.system.task == "translate" and "test" in eval_sets:
        eval_sets |= dict.fromkeys(DECODE_SETTINGS, eval_sets["test"])
    if data.system.measure_gradients:
        eval_sets[GRADIENTS] = ""  # measured on the validation data
    if bins := data.system.token_length_bins:
        eval_sets |= dict.fromkeys(bins.names, data.resolve_path(data.system.length_file))
    return Evaluation(eval_sets=eval_sets, evaluate=partial(_evaluate_set, system=data.system))


def _evaluate_set(run: Run, eval_set: str, path: str, *, system: ReferenceSystem) -> JsonDict | None:
    if (bins := system.token_length_bins) and eval_set in bins.names:
        metrics = metrics_by_length(run, path, bins.edges).get(eval_set)
        if metrics is None:
            return None
    elif system.task == "translate":
        return evaluate_translation(run, eval_set, path, system=system)
    else:
        metrics = relative_gradients(run) if eval_set == GRADIENTS else run.evaluate(path)
    return {"scores": {name: float(value) for name, value in metrics.items()}}


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
