"""The text that documents a setting, declared next to its default value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
DOC_KEY = "doc"  # of the metadata of a dataclass field


@dataclass(frozen=True, kw_only=True)
class SettingDoc:
    """What a user should know about a setting.

    Args:
        meaning: One sentence.
        auto: How the value is chosen if the setting keeps its default. Empty: the default is used as it is.
        applies_to: The tasks or other settings with which the setting has an effect. Empty: all.
        details: Further sentences, such as what a special value means.
    """

    meaning: str
    auto: str = ""
    applies_to: str = ""
    details: str = ""


def setting(default: T, meaning: str, *, auto: str = "", applies_to: str = "", details: str = "") -> T:
    """Declare a field of a config dataclass with its default and its documentation; see `SettingDoc`."""
    doc = SettingDoc(meaning=meaning, auto=auto, applies_to=applies_to, details=details)
    return field(default=default, metadata={DOC_KEY: doc})
