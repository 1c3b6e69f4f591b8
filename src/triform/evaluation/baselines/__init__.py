"""Baselines for each task: the metrics that simple models without a Transformer reach."""

from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.table import BaselineMetrics, FittedBaselines, evaluate_baselines, fit_baselines

__all__ = ["BaselineError", "BaselineMetrics", "FittedBaselines", "evaluate_baselines", "fit_baselines"]
