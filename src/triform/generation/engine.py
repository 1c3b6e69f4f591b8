"""Engines: other programs that run the model of a task and decode whole requests, instead of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

from triform.config import DecodeConfig
from triform.errors import ConfigError
from triform.generation.backend import Request, TokenConstraints

EngineName = Literal["auto", "torch", "ctranslate2"]
ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)


class Engine(Protocol):
    """A program that decodes requests to the tokens that torch gives. Several threads may use one."""

    name: str

    def unsupported_reason(self, decode: DecodeConfig) -> str:
        """Return why it does not decode with these settings, or an empty string if it does."""

    def generate(self, requests: Sequence[Request], constraints: TokenConstraints) -> list[list[int]]:
        """Decode all requests and return their new tokens, without the end token, in the same order."""


def validate_engine_name(name: str) -> None:
    """Refuse the name of an engine that does not exist."""
    if name not in ENGINE_NAMES:
        raise ConfigError(f"unknown engine {name!r}; choose from {', '.join(ENGINE_NAMES)}")


def require_engine_support(engine: Engine, decode: DecodeConfig) -> None:
    """Raise `ConfigError` if an engine does not decode with these settings."""
    if reason := engine.unsupported_reason(decode):
        raise ConfigError(f"engine {engine.name} {reason}, or use engine torch")
