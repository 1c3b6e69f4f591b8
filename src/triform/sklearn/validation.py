"""What a user gives to an estimator, looked at before anything is made of it; errors in the user's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from triform.errors import ConfigError, DataError, TriformError

Array = np.ndarray[Any, Any]
# What is advised to users of the command line, and how an estimator says it.
MESSAGE_REPLACEMENTS = {
    "give --valid FILE, or raise data.valid_fraction": "raise validation_fraction, or set it to 0",
    "give a validation set, or raise data.valid_fraction": "raise validation_fraction, or set it to 0",
    "give --valid, or data.valid_fraction=0": "set validation_fraction to 0",
    "use --device auto or cpu": "use device='auto' or 'cpu'",
    "choose another --out": "choose another path",
    ", then go on with --resume": ", then try again",
    "or train again with --overwrite": "or train again",
    "train it further with --resume": "train it further with triform train --resume",
    "let --set train.auto_batch=true find it": "let settings={'train.auto_batch': True} find it",
    "with --from RUN (train.init_from)": "with settings={'train.init_from': RUN}",
    "leave out --embeddings or --from": "leave out one of them",
    "train with tokenizer.kind=bpe": "train with tokenizer='bpe'",
}


class InputError(DataError, ValueError):
    """Texts or labels that cannot be used: Triform's error, and the one that scikit-learn's callers expect."""


@contextmanager
def translate_errors(file: str = "") -> Iterator[None]:
    """Errors name parameters, not options of a command; a file that only `fit` knows is X."""
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
    """A number of NumPy's, which grids and draws give, as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def resolve_seed(random_state: int | np.random.RandomState | None) -> int:
    """A whole number is the seed itself, so that `triform train` with the same seed learns the same."""
    if not isinstance(random_state, int | np.integer):
        return int(check_random_state(random_state).randint(2**31 - 1))
    if not 0 <= random_state < 2**32:
        raise ConfigError(f"random_state={random_state} must lie between 0 and {2**32 - 1}")
    return int(random_state)


def check_settings(settings: object) -> Mapping[str, object]:
    """`settings` as a mapping from names."""
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(
            f"settings={_short_repr(settings)} must be a dict of names and values, such as {{'model.d_ff': 64}}"
        )
    return settings


def check_texts(values: object, name: str = "X") -> list[str]:
    """The texts as a list; an InputError says what was given instead."""
    if isinstance(values, str | bytes):
        raise InputError(f"{name} is one text, {_short_repr(values)}; give a list of texts")
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise InputError(
            f"{name} is a {type(values).__name__} of shape {tuple(shape)}; "
            "a list of texts has one dimension: choose the column that holds them"
        )
    if isinstance(values, dict | set) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {_short_repr(values)} ({type(values).__name__}); give a list of texts")
    texts = list(values)
    if not texts:
        raise InputError(f"{name} is empty: 0 texts; give at least 1")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{name}: row {row} is {_describe_value(text)}; every row must be a text (str)")
        if _has_lone_surrogate(text):
            raise InputError(f"{name}: row {row} holds half of a surrogate pair (\\ud...); mend the text")
    return texts


def check_labels(y: object, n_texts: int, estimator: object) -> Array:
    """The labels as an array, one for each text."""
    if y is None:
        raise InputError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    labels: Array = column_or_1d(y, warn=True)
    _check_length("y", len(labels), n_texts)
    for row, label in enumerate(labels.tolist()):
        if _is_missing(label):
            raise InputError(
                f"Input y contains NaN: row {row} is {_describe_value(label)}; every text needs a label"
            )
        if isinstance(label, float) and np.isinf(label):
            raise InputError(f"Input y contains infinity: row {row} is {_describe_value(label)}; name the class")
    check_classification_targets(labels)
    return labels


def class_names(classes: Array) -> tuple[str, ...]:
    """What the run calls the classes, in their order."""
    return tuple(str(label).strip() for label in classes.tolist())


def check_class_names(classes: Array) -> tuple[str, ...]:
    """The same of classes that are to be learned; an InputError where they cannot be."""
    if len(classes) < 2:
        raise InputError(
            f"y has one class only, {_short_repr(classes.tolist()[0])}; a classifier needs at least two classes"
        )
    names = class_names(classes)
    for index, name in enumerate(names):
        if not name:
            raise InputError(f"y has an empty label, {_short_repr(classes.tolist()[index])}; name the class")
        if _has_lone_surrogate(name):
            raise InputError(f"y has a label with half of a surrogate pair, {_short_repr(name)}; mend the label")
        if name in names[:index]:
            duplicates = _short_repr(classes.tolist()[names.index(name)]), _short_repr(classes.tolist()[index])
            raise InputError(
                f"y has labels that read alike, {duplicates[0]} and {duplicates[1]}; give them different names"
            )
    return names


def check_targets(y: object, n_texts: int, estimator: object) -> list[str]:
    """The translations, one for each text."""
    if y is None:
        raise InputError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    targets = check_texts(y, "y")
    _check_length("y", len(targets), n_texts)
    return targets


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Something must have both sides, for only that can be learned."""
    blank = [name for name, texts in (("X", sources), ("y", targets)) if not any(map(str.strip, texts))]
    if blank:
        raise InputError(f"{' and '.join(blank)}: no row has any text")
    if not any(source.strip() and target.strip() for source, target in zip(sources, targets, strict=True)):
        raise InputError("X and y: no row has text on both sides")


def to_object_array(texts: Sequence[str]) -> Array:
    """Texts as an array; of objects, since one long text would make all entries as wide."""
    array: Array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def _check_length(name: str, length: int, n_texts: int) -> None:
    if length != n_texts:
        raise InputError(f"X has {n_texts} texts but {name} has {length}: every text needs its own")


def _is_missing(value: object) -> bool:
    """None, NaN, and what pandas writes for them: not equal to itself, or not saying."""
    return value is None or (isinstance(value, float) and np.isnan(value)) or type(value).__name__ == "NAType"


def _has_lone_surrogate(text: str) -> bool:
    """Whether it holds half of a surrogate pair, which no file can."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _describe_value(value: object) -> str:
    if _is_missing(value):
        return f"missing ({value!r})"
    return f"{_short_repr(value)} ({type(value).__name__})"


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
