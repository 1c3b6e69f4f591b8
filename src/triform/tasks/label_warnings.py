"""Warnings before training about labels for which accuracy would be misleading."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from triform.errors import WarningText
from triform.evaluation.metrics import Labels
from triform.formatting import format_metric

MAX_MAJORITY_SHARE = 0.8  # of the training texts; above it, accuracy says little about the other labels
MAX_LABEL_RATIO = 20  # the most frequent label may be this many times as frequent as the rarest
MIN_VALID_TEXTS = 100  # with fewer, the 95 % interval is wider than ± 9.8 points
MAX_NUMBER_LABELS = 20  # distinct numbers that may still be categories, such as ratings
MIN_TEXTS_PER_NUMBER = 10  # for categories that are numbered 0, 1, 2, ... or 1, 2, 3, ...


def label_warnings(name: str, labels: Sequence[str], train: Labels, valid: Labels | None) -> list[str]:
    """Return warnings about numeric labels, unbalanced labels and a validation set that is too small.

    Args:
        name: The training file, for the messages.
        labels: The labels, ordered by id.
        train: The label id of every training text.
        valid: The label id of every validation text, or None if there is no validation data.
    """
    number_warnings = _number_label_warnings(name, labels, len(train))
    warnings = number_warnings or _imbalance_warnings(name, labels, train, valid)
    return [*warnings, *([] if valid is None else _small_validation_warnings(len(valid)))]


def _number_label_warnings(name: str, labels: Sequence[str], n_texts: int) -> list[str]:
    try:
        values = sorted(map(float, labels))
    except ValueError:
        return []
    count = len(values)
    numbered = values in (list(range(count)), list(range(1, count + 1)))
    if count <= MAX_NUMBER_LABELS or (numbered and n_texts >= MIN_TEXTS_PER_NUMBER * count):
        return []
    return [
        WarningText(
            f"{name}: the label column contains numbers with {count:,} distinct values. Triform does not support "
            "regression: each value becomes a separate label, and no two labels are closer than others. To predict "
            "a quantity, replace the numbers by a few ranges, such as low, medium and high"
        )
    ]


def _imbalance_warnings(name: str, labels: Sequence[str], train: Labels, valid: Labels | None) -> list[str]:
    counts = np.bincount(train, minlength=len(labels))
    majority, rarest = int(counts.argmax()), int(counts.argmin())
    share = counts[majority] / len(train)
    if share < MAX_MAJORITY_SHARE and counts[majority] < MAX_LABEL_RATIO * counts[rarest]:
        return []
    evaluated = train if valid is None else valid
    accuracy = format_metric("accuracy", float(np.mean(evaluated == majority)))
    split_name = "training" if valid is None else "validation"
    shares = [f"{label!r} is {100 * counts[index] / len(train):.1f} %" for index, label in enumerate(labels)]
    return [
        WarningText(
            f"{name}: the labels are unbalanced: in the training texts, {shares[majority]} and {shares[rarest]}. "
            f"Always predicting {labels[majority]!r} has an accuracy of {accuracy} on the {split_name} texts. "
            "Compare models by F1 as well, which gives all labels the same weight"
        )
    ]


def _small_validation_warnings(n_texts: int) -> list[str]:
    if n_texts >= MIN_VALID_TEXTS:
        return []
    # The normal approximation at an accuracy of 50 %, where the interval is widest.
    points = 196 * math.sqrt(0.25 / n_texts)
    texts = "only 1 text" if n_texts == 1 else f"only {n_texts} texts"
    return [
        WarningText(
            f"the validation data has {texts}: the 95 % interval of the accuracy is up to ± {points:.0f} "
            "percentage points, too wide to select the best weights; give more with data.valid, or "
            "raise data.valid_fraction"
        )
    ]
