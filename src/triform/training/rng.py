"""Save and restore the state of torch's random generators."""

from __future__ import annotations

import torch
from torch import Tensor


def get_rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's random generators for the CPU and the device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_rng_state(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the state that `get_rng_state` returned, on this or another device."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    elif "mps" in states and device.type == "mps":
        torch.mps.set_rng_state(states["mps"])
