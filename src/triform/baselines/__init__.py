"""Baselines: what is reached without a Transformer, so that nobody is fooled by a table."""

from triform.baselines.table import Fitted, Table, fit, scores
from triform.baselines.unfit import UnfitError

__all__ = ["Fitted", "Table", "UnfitError", "fit", "scores"]
