"""Quantities with units on the command line: counts, bytes, speeds, operations and times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

from triform.errors import ConfigError

QUANTITY = re.compile(r"(?P<number>[0-9][0-9_,]*\.?[0-9]*(?:[eE][0-9]+)?|\.[0-9]+)\s*(?P<unit>[A-Za-z/]*)")
PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
COUNT_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
BYTE_UNITS = {
    **{f"{prefix}B": factor for prefix, factor in PREFIXES.items()},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T", "P"), start=1)},
}
SPEED_UNITS = {
    **{f"{unit}/s": factor for unit, factor in BYTE_UNITS.items()},
    **{f"{prefix}b/s": factor / 8 for prefix, factor in PREFIXES.items()},  # bits
}
FLOP_UNITS = {f"{prefix}FLOP/s": factor for prefix, factor in PREFIXES.items()}
TIME_UNITS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


def parse_count(option: str, text: str) -> int:
    """Read a count, such as 7B or 524288.

    >>> parse_count("--params", "1.5B")
    1500000000
    """
    return round(_parse(option, text, COUNT_UNITS, "7B, 350M or 524288"))


def parse_bytes(option: str, text: str) -> int:
    """Read a number of bytes, such as 80GB or 80GiB."""
    return round(_parse(option, text, BYTE_UNITS, "80GB or 80GiB"))


def parse_speed(option: str, text: str) -> float:
    """Read a speed in bytes or bits per second, such as 50GB/s or 400Gb/s.

    >>> parse_speed("--network", "400Gb/s")
    50000000000.0
    """
    return _parse(option, text, SPEED_UNITS, "50GB/s (bytes) or 400Gb/s (bits)")


def parse_flops(option: str, text: str) -> float:
    """Read operations per second, such as 989TFLOP/s."""
    return _parse(option, text, FLOP_UNITS, "989TFLOP/s")


def parse_duration(option: str, text: str) -> float:
    """Read a time in seconds, such as 30min."""
    return _parse(option, text, TIME_UNITS, "90s, 10min, 50000h or 3d")


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
