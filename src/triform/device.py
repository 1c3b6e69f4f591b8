"""Choose the device that a model runs on."""

from __future__ import annotations

import torch

from triform.errors import ConfigError
from triform.world import current_world, is_launched


def resolve_device(name: str) -> torch.device:
    """Return the torch device for a name. Each process of `torchrun` has its own GPU, whose index is in the device.

    Args:
        name: cpu, cuda, mps or auto. auto chooses CUDA if there is a GPU, then Apple's MPS, then the CPU.

    Raises:
        ConfigError: The name is unknown, the device is not available, or there are more processes than GPUs.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if has_cuda else "mps" if has_mps else "cpu"
    if name not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"unknown device {name!r}; choose from auto, cpu, cuda, mps")
    if (name == "cuda" and not has_cuda) or (name == "mps" and not has_mps):
        raise ConfigError(f"device {name!r} is not available here; use --device auto or --device cpu")
    world = current_world()
    if name == "cpu" or not is_launched() or (name == "mps" and world.size == 1):
        return torch.device(name)
    n_gpus = torch.cuda.device_count() if name == "cuda" else 0
    if world.local_rank >= n_gpus:
        raise ConfigError(
            f"there is no GPU for process {world.local_rank + 1} of this machine, which has {n_gpus}; start at "
            "most as many processes as there are GPUs (torchrun --nproc-per-node), or use --device cpu"
        )
    return torch.device(name, world.local_rank)
