"""Triform: one Transformer in three forms, to classify, generate and translate text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triform.errors import CheckpointError, ConfigError, DataError, DivergedError, TriformError

if TYPE_CHECKING:
    from triform.config import Config
    from triform.config.presets import preset
    from triform.experiments.distillation import distill
    from triform.experiments.seeds import train_seeds
    from triform.experiments.study.runner import compare
    from triform.explain.recorder import record_attention
    from triform.launch import train
    from triform.run import Run, load

__version__ = "0.2.0"

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "DataError",
    "DivergedError",
    "Run",
    "TriformError",
    "compare",
    "distill",
    "load",
    "preset",
    "record_attention",
    "train",
    "train_seeds",
]

# torch is imported when one of these names is first used, so that `import triform` and `--help` stay fast.
_LAZY_IMPORTS = {
    "Config": "triform.config",
    "Run": "triform.run",
    "compare": "triform.experiments.study.runner",
    "distill": "triform.experiments.distillation",
    "load": "triform.run",
    "preset": "triform.config.presets",
    "record_attention": "triform.explain.recorder",
    "train": "triform.launch",
    "train_seeds": "triform.experiments.seeds",
}


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})


def __getattr__(name: str) -> Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module 'triform' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY_IMPORTS[name]), name)
