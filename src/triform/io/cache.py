"""The folders that keep downloads and encoded data between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of encoded data: `TRIFORM_CACHE` if it is set, else a folder in the user's cache."""
    configured = os.environ.get("TRIFORM_CACHE")
    return Path(configured) if configured else _system_cache_folder() / "tokens"


def datasets_folder() -> Path:
    """Return the folder of downloaded datasets, which is next to the folder of encoded data."""
    configured = os.environ.get("TRIFORM_CACHE")
    return (Path(configured) if configured else _system_cache_folder()) / "sets"


def _system_cache_folder() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "triform"
