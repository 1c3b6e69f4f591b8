"""Quantities with units on the command line: bytes and operations per second."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

from triform.errors import ConfigError

QUANTITY = re.compile(r"(?P<number>[0-9][0-9_,]*\.?[0-9]*(?:[eE][0-9]+)?|\.[0-9]+)\s*(?P<unit>[A-Za-z/]*)")
PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BYTE_UNITS = {
    **{f"{prefix}B": factor for prefix, factor in PREFIXES.items()},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T", "P"), start=1)},
}
FLOP_UNITS = {f"{prefix}FLOP/s": factor for prefix, factor in PREFIXES.items()}


def parse_bytes(option: str, text: str) -> int:
    """Read a number of bytes, such as 80GB or 80GiB."""
    return round(_parse(option, text, BYTE_UNITS, "80GB or 80GiB"))


def parse_flops(option: str, text: str) -> float:
    """Read operations per second, such as 400TFLOP/s.

    >>> parse_flops("--device-speed", "400TFLOP/s")
    400000000000000.0
    """
    return _parse(option, text, FLOP_UNITS, "400TFLOP/s")


def _parse(option: str, text: str, units: Mapping[str, float], examples: str) -> float:
    match = QUANTITY.fullmatch(text.strip())
    if not match or match["unit"] not in units:
        raise ConfigError(f"{option} {text}: expected a positive number with a unit, such as {examples}")
    value = float(match["number"].replace(",", "").replace("_", "")) * units[match["unit"]]
    if value <= 0:
        raise ConfigError(f"{option} {text}: must be above 0")
    if not isfinite(value):
        raise ConfigError(f"{option} {text}: the number is too large")
    return value
