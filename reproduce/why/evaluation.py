"""Evaluate a run as a whole and by length. Each metric is stored under the name of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reproduce.data import ExperimentData
from reproduce.leaks import leaked_mask
from reproduce.why.comparison import ComparisonTask
from triform.config import DataConfig
from triform.data.readers import read_aligned, read_rows
from triform.evaluation.metrics import Metrics, compute_translation_metrics
from triform.run import Run
from triform.tasks.generate import LanguageModelEvaluator

MetricsBySet = dict[str, Metrics]


def evaluate_by_length(run: Run, comparison: ComparisonTask, data: ExperimentData) -> MetricsBySet:
    """Return the metrics of each set, and of each length bin that has rows."""
    metrics_by_set = EVALUATORS[comparison.system.task](run, comparison, data)
    return {
        name: {metric: float(value) for metric, value in metrics.items()}
        for name, metrics in metrics_by_set.items()
    }


def _classification_metrics(run: Run, comparison: ComparisonTask, data: ExperimentData) -> MetricsBySet:
    """Return the accuracy on all test rows, on unseen rows (not in the training file), and on these by length."""
    rows = list(read_rows(data.resolve_path(comparison.system.eval_files["test"]), DataConfig()))
    predictions = run.predict([row.text for row in rows])
    is_correct = [prediction.output == row.label for prediction, row in zip(predictions, rows, strict=True)]
    unseen = [index for index, is_leaked in enumerate(leaked_mask(data, "test")) if not is_leaked]
    lengths = [len(rows[index].text.split()) for index in unseen]

    def accuracy_at(indices: Sequence[int]) -> Metrics:
        return {"accuracy": sum(is_correct[index] for index in indices) / len(indices), "rows": len(indices)}

    indices_by_bin = comparison.length_bins.group(lengths)
    return {
        "test": accuracy_at(range(len(rows))),
        **({"unseen": accuracy_at(unseen)} if unseen else {}),
        **{name: accuracy_at([unseen[index] for index in indices]) for name, indices in indices_by_bin.items()},
    }


def _translation_metrics(run: Run, comparison: ComparisonTask, data: ExperimentData) -> MetricsBySet:
    pairs = list(read_aligned(*data.resolve_path(comparison.system.eval_files["test"]).split(",")))
    hypotheses = [
        prediction.output for prediction in run.predict([pair.source for pair in pairs], strategy="greedy")
    ]

    def bleu_at(indices: Sequence[int]) -> Metrics:
        metrics = compute_translation_metrics(
            [hypotheses[index] for index in indices], [pairs[index].target for index in indices]
        )
        return {"bleu": metrics["bleu"], "chrf": metrics["chrf"], "pairs": len(indices)}

    indices_by_bin = comparison.length_bins.group([len(pair.source.split()) for pair in pairs])
    return {
        "test": bleu_at(range(len(pairs))),
        **{name: bleu_at(indices) for name, indices in indices_by_bin.items()},
    }


def _language_model_metrics(run: Run, comparison: ComparisonTask, data: ExperimentData) -> MetricsBySet:
    """Return the validation loss, and the loss by the number of tokens since the start of a window."""
    evaluator = run.task.evaluator
    assert isinstance(evaluator, LanguageModelEvaluator)
    mean_losses = evaluator.position_losses(run.task.data.load_validation_dataset([]))
    metrics: MetricsBySet = {"valid": {"loss": float(run.evaluate()["loss"])}}
    if mean_losses:
        metrics["windows"] = {"loss": sum(mean_losses) / len(mean_losses)}
        for name, positions in comparison.length_bins.group(range(1, len(mean_losses) + 1)).items():
            metrics[name] = {"loss": sum(mean_losses[position] for position in positions) / len(positions)}
    return metrics


EVALUATORS: Mapping[str, Callable[[Run, ComparisonTask, ExperimentData], MetricsBySet]] = {
    "classify": _classification_metrics,
    "generate": _language_model_metrics,
    "translate": _translation_metrics,
}
