"""Claim the folder of a run. It must be free, or contain an earlier run that is resumed or replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from triform.config import Config
from triform.config.settings import Settings, describe_differences
from triform.errors import CheckpointError, ConfigError
from triform.io.ensembles import find_member_folders
from triform.io.errors import write_errors
from triform.io.run_layout import LATER_FOLDERS, RUN_FOLDER_PATTERNS
from triform.training.length import RESUME_SETTINGS, apply_length
from triform.training.run_folder import RunFolder


def create_default_folder(requested: Settings) -> str:
    """Create the folder `runs/TASK-DATA`, with a number if it exists, and return its name."""
    name = str(requested.get("data.train") or requested.get("data.source") or "builtin")
    stem = Path(name.removeprefix("builtin:")).name.split(".")[0]
    base = Path("runs") / f"{requested['task']}-{stem}"
    path, number = base, 1
    while True:
        with write_errors(path), suppress(FileExistsError):
            path.mkdir(parents=True)  # without a check before, because two processes could take the same name
            return str(path)
        number += 1
        path = base.with_name(f"{base.name}-{number}")


@contextmanager
def claim_run_folder(
    folder: RunFolder,
    requested: Settings,
    *,
    resume: bool = False,
    overwrite: bool = False,
    required: bool = True,
) -> Iterator[tuple[Config | None, tuple[str, ...]]]:
    """Lock a run folder for this process inside the `with` block.

    Args:
        folder: The run folder.
        requested: The settings that the user gives.
        resume: Continue the run in the folder.
        overwrite: Replace the run in the folder.
        required: Whether the folder of a run to resume must exist. Otherwise a missing run is started.

    Yields:
        The stored settings if an earlier run is resumed, else None; and notices for the user.

    Raises:
        CheckpointError: Another process uses the folder, or the folder contains something else.
    """
    if resume and required and not folder.path.is_dir():
        raise CheckpointError(f"{folder.path}: no such run folder, so there is nothing to resume")
    with folder.lock(f"training {requested['task']}" if "task" in requested else "saving a run") as notice:
        yield _validate_claim(folder, requested, resume=resume, overwrite=overwrite), (notice,) if notice else ()


def _validate_claim(folder: RunFolder, requested: Settings, *, resume: bool, overwrite: bool) -> Config | None:
    """Check that the locked folder may be used, and return the stored settings if its run is resumed."""
    if str(requested.get("train.init_from", "")) == str(folder.path.absolute()):
        raise ConfigError(f"{folder.path}: a run cannot start from itself; choose another --out")
    teacher = str(requested.get("train.distill_from", ""))
    if teacher and folder.path.absolute() in find_member_folders(Path(teacher)):
        raise ConfigError(f"{folder.path}: a run cannot learn from itself; choose another --out")
    if resume and folder.config_file.exists():
        stored = folder.read_config()
        if conflicts := describe_differences(
            {name: requested[name] for name in requested if name not in RESUME_SETTINGS}, stored
        ):
            raise ConfigError(
                f"{folder.path}: --resume continues with the stored settings, but these differ: "
                f"{'; '.join(conflicts)}. Leave these settings out, or train a new run with another --out"
            )
        if _has_only_model(folder):
            reason = "lost its" if folder.metrics_show_end() else "was saved without"
            raise CheckpointError(
                f"{folder.path} {reason} checkpoints, so it cannot be resumed; its model can still be used"
            )
        return apply_length(stored, requested)
    if not resume and not overwrite and folder.config_file.exists():
        is_finished = folder.is_finished() or _has_only_model(folder)
        state = "a finished run" if is_finished else "an unfinished run (continue it with --resume)"
        raise CheckpointError(f"{folder.path} already contains {state}; choose another --out or use --overwrite")
    if folder.path.is_dir() and not folder.config_file.exists() and _has_foreign_files(folder.path):
        raise CheckpointError(f"{folder.path} exists and is not a run folder; choose another --out")
    return None


def _has_only_model(folder: RunFolder) -> bool:
    """Return whether a folder has a model but no checkpoint, because it was lost or the model was imported.

    A run that was killed before its first checkpoint has metrics without an end. It may start again.
    """
    without_metrics = folder.model_file.exists() and not folder.metrics_file.exists()
    return folder.latest_checkpoint() is None and (folder.metrics_show_end() or without_metrics)


def _has_foreign_files(path: Path) -> bool:
    """Return whether a folder without config.toml contains more than the first files of a run."""
    first_files = (*(name for name in RUN_FOLDER_PATTERNS if name not in LATER_FOLDERS), ".*")
    return any(not any(entry.match(pattern) for pattern in first_files) for entry in path.iterdir())
