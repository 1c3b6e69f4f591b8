"""Open trained runs for predictions: one run, or an ensemble of several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from triform.device import resolve_device
from triform.errors import ConfigError
from triform.io.ensembles import find_member_folders
from triform.nn.kernels.precision import Precision, cast_model, resolve_precision
from triform.tasks import Task
from triform.tasks.ensemble import combine_tasks
from triform.training.loading import Checkpoint, load_latest_task, load_task, validate_checkpoint
from triform.training.lora_adapter import read_adapter
from triform.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class OpenedTask:
    """A task with trained weights, and how it was opened. The fields are those of `triform.run.Run`."""

    path: Path
    task: Task
    precision: Precision
    adapter: Path | None = None
    members: tuple[Path, ...] = ()
    notices: tuple[str, ...] = ()
    step: int | None = None


def open_task(
    path: Path,
    *,
    device: str,
    precision: str = "auto",
    adapter: str | Path = "",
    checkpoint: Checkpoint = "best",
    verify: bool = True,
) -> OpenedTask:
    """Open the run or the ensemble that a path names. The arguments are those of `triform.load`."""
    validate_checkpoint(checkpoint, adapter)
    folders = find_member_folders(path)
    if len(folders) == 1:
        return _open_run(folders[0], device, precision, adapter, checkpoint, verify=verify)
    if adapter:
        raise ConfigError(f"{path} is an ensemble of {len(folders)} runs; an adapter applies to a single run")
    members = [_open_run(folder, device, precision, "", checkpoint, verify=verify) for folder in folders]
    return OpenedTask(
        path=path,
        task=combine_tasks([member.task for member in members], [str(folder) for folder in folders]),
        precision=members[0].precision,
        members=tuple(folders),
        notices=tuple(dict.fromkeys(notice for member in members for notice in member.notices)),
        step=members[0].step,
    )


def _open_run(
    path: Path, device: str, precision: str, adapter: str | Path, checkpoint: Checkpoint, *, verify: bool
) -> OpenedTask:
    torch_device = resolve_device(device)
    folder = RunFolder(path, verify=verify)
    config = folder.read_config()
    resolved_precision = resolve_precision(precision, torch_device, config.model)
    loaded_adapter, step = None, None
    if checkpoint == "latest":
        task, step, notices = load_latest_task(folder, config)
    else:
        notices = folder.verify_files()
        loaded_adapter = read_adapter(Path(adapter), verify=verify) if adapter else None
        task, load_notices = load_task(folder, config, loaded_adapter)
        notices += load_notices
    cast_model(task.model.to(torch_device).eval(), resolved_precision)
    return OpenedTask(
        path=path,
        task=task,
        precision=resolved_precision,
        adapter=loaded_adapter.path if loaded_adapter else None,
        notices=notices,
        step=step,
    )
