"""Choose the device that a model runs on."""

from __future__ import annotations

import torch

from triform.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """Return the torch device for a name.

    Args:
        name: cpu, cuda, mps or auto. auto chooses CUDA if there is a GPU, then Apple's MPS, then the CPU.

    Raises:
        ConfigError: The name is unknown, or the device is not available.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    if name not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"unknown device {name!r}; choose from auto, cpu, cuda, mps")
    if (name == "cuda" and not has_cuda) or (name == "mps" and not has_mps):
        raise ConfigError(f"device {name!r} is not available here; use --device auto or --device cpu")
    return torch.device(name)
