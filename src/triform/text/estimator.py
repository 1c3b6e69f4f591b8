"""The base class of the estimators in `triform.scratch` and `triform.sklearn`, which read lists of texts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from triform.config import TaskName
from triform.errors import DataError


class TextEstimatorBase:
    """Base class of estimators that validates texts. It needs neither torch nor scikit-learn."""

    task: ClassVar[TaskName]
    input_error: ClassVar[type[DataError]] = DataError  # raised for texts that cannot be used

    @classmethod
    def check_texts(cls, values: object, name: str, *, allow_empty: bool = False) -> list[str]:
        """Return texts as a list of strings.

        Args:
            values: Any iterable, such as a list or a column of a table.
            name: The name of the argument, for error messages.
            allow_empty: Accept an empty list.

        Raises:
            DataError: A value is not a text.
        """
        if isinstance(values, str | bytes):
            raise cls.input_error(f"{name} is a single text, {short_repr(values)}; pass a list of texts")
        shape = getattr(values, "shape", None)
        if shape is not None and len(shape) != 1:
            raise cls.input_error(
                f"{name} is a {type(values).__name__} of shape {tuple(shape)}; "
                "texts must have one dimension: select the column that contains them"
            )
        if isinstance(values, dict | set) or not isinstance(values, Iterable):
            kind = type(values).__name__
            raise cls.input_error(f"{name} is {short_repr(values)} ({kind}); pass a list of texts")
        texts = list(values)
        if not texts and not allow_empty:
            raise cls.input_error(f"{name} is empty; pass at least one text")
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise cls.input_error(
                    f"{name}: row {row} is {describe_value(text)}; every row must be a text (str)"
                )
            if has_lone_surrogate(text):
                raise cls.input_error(
                    f"{name}: row {row} contains half of a surrogate pair (\\ud...); correct the text"
                )
        return [str(text) for text in texts]  # elements of a NumPy array are a subclass of str

    @classmethod
    def check_same_length(cls, first_name: str, n_first: int, second_name: str, n_second: int) -> None:
        """Refuse two lists of different lengths."""
        if n_first != n_second:
            raise cls.input_error(
                f"{first_name} has {n_first} texts but {second_name} has {n_second}; they must have the same length"
            )


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or a missing value of pandas."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains half of a surrogate pair, which cannot be written as UTF-8."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def describe_value(value: object) -> str:
    """Return a value and its type, for error messages."""
    return f"missing ({value!r})" if is_missing(value) else f"{short_repr(value)} ({type(value).__name__})"


def short_repr(value: object) -> str:
    """Return the beginning of a value's repr."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
