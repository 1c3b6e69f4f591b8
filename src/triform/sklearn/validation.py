"""Validate the arguments of an estimator. Errors name parameters instead of command-line options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from triform.errors import ConfigError, DataError, TriformError
from triform.text.estimator import TextEstimatorBase, describe_value, has_lone_surrogate, is_missing, short_repr

Array = np.ndarray[Any, Any]
# Advice to users of the command line, and the same advice to users of an estimator.
MESSAGE_REPLACEMENTS = {
    "use --valid FILE, or raise data.valid_fraction": "raise validation_fraction, or set it to 0",
    "use a validation file, or raise data.valid_fraction": "raise validation_fraction, or set it to 0",
    "use --valid FILE, or set data.valid_fraction=0": "set validation_fraction to 0",
    "use --device auto or --device cpu": "use device='auto' or 'cpu'",
    "choose another --out": "choose another path",
    ", then continue with --resume": ", then try again",
    "or train again with --overwrite": "or train again",
    "continue its training with --resume": "continue its training with triform train --resume",
    "let --set train.auto_batch=true find it": "let settings={'train.auto_batch': True} find it",
    "with --from RUN (train.init_from)": "with settings={'train.init_from': RUN}",
    "leave out --embeddings or --from": "leave out one of them",
    "train with tokenizer.kind=bpe": "train with tokenizer='bpe'",
}


class InputError(DataError, ValueError):
    """Texts or labels that cannot be used. It is also a ValueError, as users of scikit-learn expect."""


@contextmanager
def translate_errors(file: str = "") -> Iterator[None]:
    """Raise errors again in the terms of an estimator. The temporary file of `fit` is called X."""
    try:
        yield
    except TriformError as error:
        message = str(error).replace(file, "X") if file else str(error)
        for cli_text, estimator_text in MESSAGE_REPLACEMENTS.items():
            message = message.replace(cli_text, estimator_text)
        error_class = InputError if isinstance(error, DataError) else type(error)
        if isinstance(error, error_class) and message == str(error):
            raise
        raise error_class(message) from None


def to_python_scalar(value: object) -> object:
    """Convert a NumPy number, as in parameter grids, to a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def resolve_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed of a `random_state`. An int is the seed itself, as for `triform train --seed`."""
    if not isinstance(random_state, int | np.integer):
        return int(check_random_state(random_state).randint(2**31 - 1))
    if not 0 <= random_state < 2**32:
        raise ConfigError(f"random_state={random_state} must be between 0 and {2**32 - 1}")
    return int(random_state)


def check_settings(settings: object) -> Mapping[str, object]:
    """Return `settings` if it is a mapping with string keys, or raise a ConfigError."""
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(
            f"settings={short_repr(settings)} must be a dict of names and values, such as {{'model.d_ff': 64}}"
        )
    return settings


def check_labels(y: object, n_texts: int, estimator: TextEstimatorBase) -> Array:
    """Return the labels as an array, one for each text."""
    if y is None:
        raise InputError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    labels: Array = column_or_1d(y, warn=True)
    estimator.check_same_length("X", n_texts, "y", len(labels))
    for row, label in enumerate(labels.tolist()):
        if is_missing(label):
            raise InputError(
                f"Input y contains NaN: row {row} is {describe_value(label)}; every text needs a label"
            )
        if isinstance(label, float) and np.isinf(label):
            raise InputError(f"Input y contains infinity: row {row} is {describe_value(label)}; name the class")
    check_classification_targets(labels)
    return labels


def class_names(classes: Array) -> tuple[str, ...]:
    """Return the labels of the run for the classes, in order."""
    return tuple(str(label).strip() for label in classes.tolist())


def check_class_names(classes: Array) -> tuple[str, ...]:
    """Return the labels of the run for the classes, or refuse classes that cannot be used."""
    if len(classes) < 2:
        raise InputError(
            f"y has only one class, {short_repr(classes.tolist()[0])}; a classifier needs at least two classes"
        )
    names = class_names(classes)
    for index, name in enumerate(names):
        if not name:
            raise InputError(f"y has an empty label, {short_repr(classes.tolist()[index])}; name the class")
        if has_lone_surrogate(name):
            raise InputError(f"y has a label with half of a surrogate pair, {short_repr(name)}; correct the label")
        if name in names[:index]:
            duplicates = short_repr(classes.tolist()[names.index(name)]), short_repr(classes.tolist()[index])
            raise InputError(
                f"y has labels that look the same, {duplicates[0]} and {duplicates[1]}; give them different names"
            )
    return names


def check_targets(y: object, n_texts: int, estimator: TextEstimatorBase) -> list[str]:
    """Return the translations, one for each text."""
    if y is None:
        raise InputError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    targets = estimator.check_texts(y, "y")
    estimator.check_same_length("X", n_texts, "y", len(targets))
    return targets


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise an InputError if every pair has an empty side."""
    blank = [name for name, texts in (("X", sources), ("y", targets)) if not any(map(str.strip, texts))]
    if blank:
        raise InputError(f"{' and '.join(blank)}: all rows are empty")
    if not any(source.strip() and target.strip() for source, target in zip(sources, targets, strict=True)):
        raise InputError("X and y: every row has an empty side")


def to_object_array(texts: Sequence[str]) -> Array:
    """Return texts as an array of objects. In an array of strings, all would take the size of the longest."""
    array: Array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array
