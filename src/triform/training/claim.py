"""Claiming the folder of a run: it must be free, or hold an earlier run that is resumed or replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from triform.config import Config
from triform.config.settings import Settings, describe_differences
from triform.errors import CheckpointError, ConfigError
from triform.io.errors import write_errors
from triform.io.run_layout import RUN_FOLDER_PATTERNS
from triform.training.length import LENGTH_SETTINGS, apply_length
from triform.training.run_folder import RunFolder


def create_default_folder(requested: Settings) -> str:
    """Create the folder `runs/TASK-DATA`, with a number if that exists, and return its name."""
    name = str(requested.get("data.train") or requested.get("data.source") or "builtin")
    stem = Path(name.removeprefix("builtin:")).name.split(".")[0]
    base = Path("runs") / f"{requested['task']}-{stem}"
    path, number = base, 1
    while True:
        with write_errors(path), suppress(FileExistsError):
            path.mkdir(parents=True)  # not checked before: two processes could take the same name
            return str(path)
        number += 1
        path = base.with_name(f"{base.name}-{number}")


@contextmanager
def claim_run_folder(
    folder: RunFolder, requested: Settings, *, resume: bool = False, overwrite: bool = False
) -> Iterator[tuple[Config | None, tuple[str, ...]]]:
    """Lock a run folder for this process inside the `with` block.

    Yields:
        The stored settings if an earlier run is to be resumed, else None; and notices for the user.

    Raises:
        CheckpointError: Another process holds the folder, or it may not be used.
    """
    if resume and not folder.path.is_dir():
        raise CheckpointError(f"{folder.path}: nothing to resume: no such run folder")
    with folder.lock(f"training {requested['task']}" if "task" in requested else "saving a run") as notice:
        yield _validate_claim(folder, requested, resume=resume, overwrite=overwrite), (notice,) if notice else ()


def _validate_claim(folder: RunFolder, requested: Settings, *, resume: bool, overwrite: bool) -> Config | None:
    """Check that the locked folder may be used, and return the stored settings if its run is to be resumed."""
    if str(requested.get("train.init_from", "")) == str(folder.path.absolute()):
        raise ConfigError(f"{folder.path}: a run cannot begin with itself; choose another --out")
    if resume and folder.config_file.exists():
        stored = folder.read_config()
        if conflicts := describe_differences(
            {name: requested[name] for name in requested if name not in LENGTH_SETTINGS}, stored
        ):
            raise ConfigError(
                f"{folder.path}: --resume goes on with the run's own settings, but these differ: "
                f"{'; '.join(conflicts)}"
            )
        if _has_only_model(folder):
            reason = "has lost its" if folder.metrics_show_end() else "was saved without"
            raise CheckpointError(f"{folder.path}: {reason} checkpoints; its model works, but cannot be trained on")
        return apply_length(stored, requested)
    if not resume and not overwrite and folder.config_file.exists():
        is_finished = folder.is_finished() or _has_only_model(folder)
        state = "a finished run" if is_finished else "an unfinished run (--resume goes on with it)"
        raise CheckpointError(f"{folder.path}: already holds {state}; choose another --out or give --overwrite")
    if folder.path.is_dir() and not folder.config_file.exists() and _has_foreign_files(folder.path):
        raise CheckpointError(f"{folder.path}: exists and is not a run folder; choose another --out")
    return None


def _has_only_model(folder: RunFolder) -> bool:
    """Whether a folder has a model but no checkpoint to resume from: it is lost, or the model was imported.

    A run that was killed before its first checkpoint has metrics without an end: it may begin again.
    """
    without_metrics = folder.model_file.exists() and not folder.metrics_file.exists()
    return folder.latest_checkpoint() is None and (folder.metrics_show_end() or without_metrics)


def _has_foreign_files(path: Path) -> bool:
    """Whether a folder holds files that are not those of a run."""
    return any(
        not any(entry.match(pattern) for pattern in (*RUN_FOLDER_PATTERNS, ".*")) for entry in path.iterdir()
    )
