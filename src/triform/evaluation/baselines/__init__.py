"""Baselines: what is reached without a Transformer, so that nobody is fooled by a table."""

from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.table import BaselineMetrics, FittedBaselines, evaluate_baselines, fit_baselines

__all__ = ["BaselineError", "BaselineMetrics", "FittedBaselines", "evaluate_baselines", "fit_baselines"]
