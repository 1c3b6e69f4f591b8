"""What training a reference system costs: the device hours of stored results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def device_name(variant_result: Mapping[str, Any]) -> str:
    """Return the short name of the device that trained a variant: CPU, or the model of the GPU."""
    name = str(variant_result["made"]["device"])
    return "CPU" if name.startswith("cpu") else name.removeprefix("NVIDIA ")


def format_cost(variant_result: Mapping[str, Any]) -> str:
    """Return the hours for which the device was used to train all seeds, such as "0.06 H200 hours"."""
    return f"{variant_result['seconds'] / 3_600:.2g} {device_name(variant_result)} hours"
