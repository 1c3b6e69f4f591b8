"""Helpers of the config dataclasses."""

from __future__ import annotations

from typing import Literal

from triform.errors import ConfigError

AutoBool = Literal["auto", "yes", "no"]


def require(condition: bool, message: str) -> None:
    """Raise a ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)
