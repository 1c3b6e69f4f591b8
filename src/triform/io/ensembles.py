"""Which run folders a name stands for: one run, the runs of several seeds, or several runs. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from triform.errors import ConfigError
from triform.io.run_layout import CONFIG_FILE

RunPath = str | Path | Sequence[str | Path]


def join_run_paths(path: RunPath) -> Path:
    """Return one path that names all of these runs, as the command line does: `runs/a,runs/b`.

    Raises:
        ConfigError: No run is named.
    """
    if not isinstance(path, str | Path) and not path:
        raise ConfigError("an ensemble needs at least one run folder")
    return Path(path) if isinstance(path, str | Path) else Path(",".join(map(str, path)))


def find_member_folders(path: Path) -> list[Path]:
    """Return the run folders that a path names.

    Args:
        path: A run folder; a folder with the runs of several seeds, `seed-0`, `seed-1` and so on; or several such
            folders with commas between them.

    Returns:
        The run folders. A path that is none of these is returned as it is, for the error about it.

    Example:
        >>> [str(folder) for folder in find_member_folders(Path("runs/a,runs/b"))]
        ['runs/a', 'runs/b']
    """
    if path.is_dir():
        return [path] if (path / CONFIG_FILE).exists() else _find_seeds(path) or [path]
    names = str(path).split(",")
    if len(names) == 1 or not all(names):
        return [path]
    return [folder for name in names for folder in find_member_folders(Path(name))]


def make_run_path_absolute(path: Path) -> Path:
    """Return a path that names the same runs from any working directory."""
    names = [str(path)] if path.is_dir() else str(path).split(",")
    return Path(",".join(str(Path(name).absolute()) for name in names))


def _find_seeds(path: Path) -> list[Path]:
    """Return the runs of `triform train --seeds` in the order of their seeds."""
    matches = ((re.fullmatch(r"seed-(\d+)", file.parent.name), file) for file in path.glob(f"seed-*/{CONFIG_FILE}"))
    return [file.parent for _, file in sorted((int(match[1]), file) for match, file in matches if match)]
