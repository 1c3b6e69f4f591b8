"""Triform: one Transformer in three forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triform.errors import CheckpointError, ConfigError, DataError, DivergedError, TriformError

if TYPE_CHECKING:
    from triform.config import Config
    from triform.explain.record import record_attention
    from triform.launch import train
    from triform.presets import preset
    from triform.run import Run, load
    from triform.seeds import train_seeds
    from triform.study.runner import compare

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "DataError",
    "DivergedError",
    "Run",
    "TriformError",
    "compare",
    "load",
    "preset",
    "record_attention",
    "train",
    "train_seeds",
]

# torch is imported when one of these is first used, so that `import triform` and `--help` answer at once.
_LATER = {
    "Config": "triform.config",
    "Run": "triform.run",
    "compare": "triform.study.runner",
    "load": "triform.run",
    "preset": "triform.presets",
    "record_attention": "triform.explain.record",
    "train": "triform.launch",
    "train_seeds": "triform.seeds",
}


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'triform' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)
