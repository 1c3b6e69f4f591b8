"""What a user gives to an estimator, looked at before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from triform.errors import DataError

Array = np.ndarray[Any, Any]


class InputError(DataError, ValueError):
    """Texts or labels that cannot be used: Triform's error, and the one that scikit-learn's callers expect."""


def check_texts(given: object, name: str = "X") -> list[str]:
    """The texts as a list; an InputError says what was given instead."""
    if isinstance(given, str | bytes):
        raise InputError(f"{name} is one text, {_shown(given)}; give a list of texts")
    shape = getattr(given, "shape", None)
    if shape is not None and len(shape) != 1:
        raise InputError(
            f"{name} is a {type(given).__name__} of shape {tuple(shape)}; "
            "a list of texts has one dimension: choose the column that holds them"
        )
    if isinstance(given, dict | set) or not isinstance(given, Iterable):
        raise InputError(f"{name} is {_shown(given)} ({type(given).__name__}); give a list of texts")
    texts = list(given)
    if not texts:
        raise InputError(f"{name} is empty: 0 texts; give at least 1")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{name}: row {row} is {_described(text)}; every row must be a text (str)")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(f"{name}: row {row} holds half of a surrogate pair (\\ud...); mend the text")
    return texts


def check_labels(y: object, n_texts: int, who: object) -> Array:
    """The labels as an array, one for each text."""
    if y is None:
        raise InputError(f"{type(who).__name__} requires y to be passed, but the target y is None")
    labels: Array = column_or_1d(y, warn=True)
    _check_length("y", len(labels), n_texts)
    missing = np.flatnonzero([_is_missing(label) for label in labels.tolist()])
    if len(missing):
        row = int(missing[0])
        raise InputError(f"Input y contains NaN: row {row} is {_described(labels[row])}; every text needs a label")
    check_classification_targets(labels)
    return labels


def names_of(classes: Array) -> tuple[str, ...]:
    """What the run calls the classes, in their order."""
    return tuple(str(label).strip() for label in classes.tolist())


def usable_names(classes: Array) -> tuple[str, ...]:
    """The same of classes that are to be learned; an InputError where they cannot be."""
    if len(classes) < 2:
        raise InputError(
            f"y has one class only, {_shown(classes.tolist()[0])}; a classifier needs at least two classes"
        )
    names = names_of(classes)
    for place, name in enumerate(names):
        if not name:
            raise InputError(f"y has an empty label, {_shown(classes.tolist()[place])}; name the class")
        if name in names[:place]:
            alike = _shown(classes.tolist()[names.index(name)]), _shown(classes.tolist()[place])
            raise InputError(f"y has labels that read alike, {alike[0]} and {alike[1]}; give them different names")
    return names


def check_targets(y: object, n_texts: int, who: object) -> list[str]:
    """The translations, one for each text."""
    if y is None:
        raise InputError(f"{type(who).__name__} requires y to be passed, but the target y is None")
    targets = check_texts(y, "y")
    _check_length("y", len(targets), n_texts)
    return targets


def text_array(texts: Sequence[str]) -> Array:
    """Texts as an array; of objects, since one long text would make all entries as wide."""
    found: Array = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found


def _check_length(name: str, length: int, n_texts: int) -> None:
    if length != n_texts:
        raise InputError(f"X has {n_texts} texts but {name} has {length}: every text needs its own")


def _is_missing(value: object) -> bool:
    """None, NaN, and what pandas writes for them: not equal to itself, or not saying."""
    return (
        value is None or (isinstance(value, float) and not np.isfinite(value)) or type(value).__name__ == "NAType"
    )


def _described(value: object) -> str:
    if _is_missing(value):
        return f"missing ({value!r})"
    return f"{_shown(value)} ({type(value).__name__})"


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
