"""Keep compiled code between runs, and remember which blocks have been compiled.

torch.compile looks compiled code up in the folder `TORCHINDUCTOR_CACHE_DIR`, by default a temporary one, which a
restart of the machine empties. Triform uses a folder in its cache, unless the user has chosen one. An empty file in
this folder for each kind of block and batch says that its code is there, so that shorter runs compile as well.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict

import torch

from triform.config import ModelConfig
from triform.io.cache import use_compiler_cache

Shapes = tuple[tuple[int, ...], ...]


def block_marker(model: ModelConfig, shapes: Shapes, dtype: str, device: torch.device) -> str:
    """Return the name of the file that says that blocks have been compiled for such batches on such a device.

    Args:
        model: The settings of the model. The number of layers does not matter, because layers share their code.
        shapes: The shapes of the micro-batches of a step.
        dtype: The name of the dtype of products.
        device: The device.
    """
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    settings = {name: value for name, value in asdict(model).items() if name != "n_layers"}
    values = (torch.__version__, device_name, settings, sorted(set(shapes)), dtype)
    return f"triform-blocks-{hashlib.sha256(repr(values).encode()).hexdigest()[:24]}"


def is_compiled(marker: str) -> bool:
    """Return whether the code of such blocks is in the cache."""
    folder = use_compiler_cache()
    return folder is not None and (folder / marker).is_file()


def record_compiled(marker: str) -> None:
    """Remember that the code of such blocks is in the cache."""
    folder = use_compiler_cache()
    if folder is not None:
        with suppress(OSError):  # without the file, a later run only compiles later
            (folder / marker).touch()
