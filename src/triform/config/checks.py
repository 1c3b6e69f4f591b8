"""What settings say about themselves when they cannot be meant."""

from __future__ import annotations

from typing import Literal

from triform.errors import ConfigError

Answer = Literal["auto", "yes", "no"]


def require(good: bool, problem: str) -> None:
    if not good:
        raise ConfigError(problem)


def at_least(section: str, least: float, **values: float) -> None:
    for name, value in values.items():
        require(value >= least, f"{section}.{name}={value} is too small: it must be at least {least}")


def between(section: str, low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        require(low <= value <= high, f"{section}.{name}={value} must lie between {low} and {high}")
