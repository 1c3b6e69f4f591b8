"""Helpers of the config dataclasses."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any, Literal, Self

from triform.errors import ConfigError

AutoBool = Literal["auto", "yes", "no"]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the settings, which remembers in `given` the names of those that its constructor was given.

    A given value counts even if it equals the default. `dataclasses.replace` keeps the names and adds those that it
    changes. Sections with equal values are equal, whatever was given.
    """

    given: InitVar[frozenset[str] | None] = None  # the first field, so that `replace` passes the changes before it

    def __new__(cls, **values: Any) -> Self:
        section = super().__new__(cls)
        names = list(values)
        if "given" in values:
            names = [*names[: names.index("given")], *(values["given"] or ())]
        object.__setattr__(section, "given", frozenset(names))
        return section


def require(condition: bool, message: str) -> None:
    """Raise a ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)
