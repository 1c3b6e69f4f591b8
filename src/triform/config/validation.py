"""What settings say about themselves when they cannot be meant."""

from __future__ import annotations

from typing import Literal

from triform.errors import ConfigError

AutoBool = Literal["auto", "yes", "no"]


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
