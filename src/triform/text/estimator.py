"""The base of the estimators in `triform.scratch` and `triform.sklearn`: both read lists of texts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from triform.config import TaskName
from triform.errors import DataError


class TextEstimatorBase:
    """An estimator of one task that validates its input. It needs neither torch nor scikit-learn."""

    task: ClassVar[TaskName]
    input_error: ClassVar[type[DataError]] = DataError  # what is raised for texts that cannot be used

    @classmethod
    def check_texts(cls, values: object, name: str, *, allow_empty: bool = False) -> list[str]:
        """Return texts as a list of strings.

        Args:
            values: Anything that can be iterated over once, such as a list or a column of a table.
            name: The name of the argument, for error messages.
            allow_empty: Whether there may be no texts at all.

        Raises:
            DataError: Something else than texts was given.
        """
        if isinstance(values, str | bytes):
            raise cls.input_error(f"{name} is one text, {short_repr(values)}; give a list of texts")
        shape = getattr(values, "shape", None)
        if shape is not None and len(shape) != 1:
            raise cls.input_error(
                f"{name} is a {type(values).__name__} of shape {tuple(shape)}; "
                "a list of texts has one dimension: choose the column that holds them"
            )
        if isinstance(values, dict | set) or not isinstance(values, Iterable):
            kind = type(values).__name__
            raise cls.input_error(f"{name} is {short_repr(values)} ({kind}); give a list of texts")
        texts = list(values)
        if not texts and not allow_empty:
            raise cls.input_error(f"{name} is empty: 0 texts; give at least 1")
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise cls.input_error(
                    f"{name}: row {row} is {describe_value(text)}; every row must be a text (str)"
                )
            if has_lone_surrogate(text):
                raise cls.input_error(f"{name}: row {row} holds half of a surrogate pair (\\ud...); mend the text")
        return [str(text) for text in texts]  # elements of a NumPy array are of a subclass

    @classmethod
    def check_same_length(cls, first_name: str, n_first: int, second_name: str, n_second: int) -> None:
        """Refuse two lists whose rows do not belong together."""
        if n_first != n_second:
            raise cls.input_error(
                f"{first_name} has {n_first} texts but {second_name} has {n_second}: every text needs its own"
            )


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or what pandas writes for them."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text holds half of a surrogate pair, which cannot be written to a file."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def describe_value(value: object) -> str:
    """Return a value and its type, for error messages."""
    return f"missing ({value!r})" if is_missing(value) else f"{short_repr(value)} ({type(value).__name__})"


def short_repr(value: object) -> str:
    """Return the beginning of a value's repr."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
