"""How numbers are shown to people, everywhere alike."""

from __future__ import annotations

import math

PERCENT_METRICS = ("accuracy", "f1", "exact_match", "token_accuracy")  # stored as fractions of 1


def format_metric(name: str, value: float) -> str:
    """A metric as people read it: fractions in percent, BLEU from 0 to 100, counts as whole numbers."""
    if name in PERCENT_METRICS:
        return f"{100 * value:.2f} %"
    if math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"
