"""Warnings about the labels of a classification set, given before training: what accuracy would hide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from triform.errors import WarningText
from triform.evaluation.metrics import Labels
from triform.formatting import format_metric

MAX_MAJORITY_SHARE = 0.8  # of the training texts: beyond it, accuracy says little about the other labels
MAX_LABEL_RATIO = 20  # the most frequent label may be this many times as frequent as the rarest
MIN_VALID_TEXTS = 100  # fewer leave a 95 % interval of more than ± 9.8 points
MAX_NUMBER_LABELS = 20  # distinct numbers that may still be categories, such as ratings
MIN_TEXTS_PER_NUMBER = 10  # of categories that are numbered 0, 1, 2, ... or 1, 2, 3, ...


def label_warnings(name: str, labels: Sequence[str], train: Labels, valid: Labels | None) -> list[str]:
    """Warn of labels that are numbers or unbalanced, and of a validation set too small to choose by.

    Args:
        name: The training file, which every sentence about training labels begins with.
        labels: The labels in the order of their numbers.
        train: The label number of every training text.
        valid: The label number of every validation text, or None where nothing is held out.
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
            f"{name}: the label column looks like numbers with {count:,} distinct values. Triform classifies, it "
            "does not regress: every value is a label of its own, and none is closer to another. To predict a "
            "quantity, replace the numbers by a few ranges, such as low, medium and high"
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
            f"{name}: the labels are unbalanced: of the training texts {shares[majority]} and {shares[rarest]}. "
            f"Always answering {labels[majority]!r} has an accuracy of {accuracy} on the {split_name} texts: "
            "judge the model by f1 as well, which weighs every label alike"
        )
    ]


def _small_validation_warnings(n_texts: int) -> list[str]:
    if n_texts >= MIN_VALID_TEXTS:
        return []
    points = 196 * math.sqrt(0.25 / n_texts)  # the normal approximation at an accuracy of 50 %, where it is widest
    texts = "only 1 text is" if n_texts == 1 else f"only {n_texts} texts are"
    return [
        WarningText(
            f"{texts} held out for validation: the 95 % interval of an accuracy is up to ± {points:.0f} percentage "
            "points, too wide to choose the best weights by; give more with --valid FILE or data.valid_fraction"
        )
    ]
