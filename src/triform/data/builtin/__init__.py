"""Three small data sets that need no download: one for each form of the model.

Every set is made by rules from a fixed seed, when asked and not before, so every machine sees the same text.
(The documentation topics are those of the running Python and change with its version.)
"""

from __future__ import annotations

from triform.data.builtin.numbers import numbers
from triform.data.builtin.reviews import reviews
from triform.data.builtin.topics import topics

__all__ = ["DEFAULT_SETS", "SPLITS", "numbers", "reviews", "topics"]

DEFAULT_SETS: dict[str, str] = {"classify": "reviews", "generate": "topics", "translate": "numbers"}
"""The set each task learns from when the user names no data."""

SPLITS = ("train", "valid", "test")
