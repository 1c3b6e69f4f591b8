"""The folders that keep downloads, encoded data, converted models and compiled code between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

COMPILER_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
COMPILER_CACHE_DISABLED = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}


def cache_folder() -> Path:
    """Return the folder of encoded data: `TRIFORM_CACHE` if it is set, else a folder in the user's cache."""
    configured = os.environ.get("TRIFORM_CACHE")
    return Path(configured) if configured else _system_cache_folder() / "tokens"


def datasets_folder() -> Path:
    """Return the folder of downloaded datasets, which is next to the folder of encoded data."""
    return _cache_subfolder("sets")


def compiler_folder() -> Path:
    """Return the folder of the code that torch.compile has written, next to the folder of encoded data."""
    return _cache_subfolder("compiled")


def use_compiler_cache() -> Path | None:
    """Let torch.compile keep its code in Triform's cache, or in the folder that the user has chosen.

    Returns:
        The folder; None if it cannot be written, or if the user has disabled the cache of torch.compile.
    """
    if any(os.environ.get(name) == value for name, value in COMPILER_CACHE_DISABLED.items()):
        return None
    try:
        folder = Path(os.environ.get(COMPILER_CACHE_VARIABLE) or compiler_folder())
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    if not os.access(folder, os.W_OK):
        return None
    os.environ[COMPILER_CACHE_VARIABLE] = str(folder)  # torch reads it when it compiles
    return folder


def _cache_subfolder(name: str) -> Path:
    configured = os.environ.get("TRIFORM_CACHE")
    return (Path(configured) if configured else _system_cache_folder()) / name


def _system_cache_folder() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "triform"
