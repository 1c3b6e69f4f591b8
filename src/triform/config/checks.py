"""What settings say about themselves when they cannot be meant."""

from __future__ import annotations

from typing import Literal

from triform.errors import ConfigError

Answer = Literal["auto", "yes", "no"]


def require(good: bool, problem: str) -> None:
    if not good:
        raise ConfigError(problem)
