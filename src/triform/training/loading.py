"""Load the task of a run folder with its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import torch

from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.io.run_layout import MODEL_FILE, RUN_FILES
from triform.tasks import Task, choose_task
from triform.training.init_from import load_interrupted_weights, load_latest_weights, load_matching_weights
from triform.training.lora_adapter import Adapter
from triform.training.run_folder import RunFolder
from triform.training.tensors import load_weights, named_weights, validate_shapes

Checkpoint = Literal["best", "latest"]  # the weights of a run to load


def validate_checkpoint(checkpoint: object, adapter: str | Path) -> None:
    """Refuse a name of weights that is unknown, or that cannot be combined with an adapter."""
    if checkpoint not in get_args(Checkpoint):
        raise ConfigError(f"checkpoint must be {' or '.join(get_args(Checkpoint))}, found {checkpoint!r}")
    if adapter and checkpoint == "latest":
        raise ConfigError("an adapter applies to the best weights of its base; leave out checkpoint='latest'")


def load_task(folder: RunFolder, config: Config, adapter: Adapter | None = None) -> tuple[Task, tuple[str, ...]]:
    """Load a run's task on the CPU with its best weights, with an adapter, or with those of its last checkpoint.

    The state of the random generators does not change.

    Args:
        folder: The run folder.
        config: Its settings.
        adapter: A LoRA adapter that was trained on this run.

    Returns:
        The task, and notices for the user.

    Raises:
        CheckpointError: There are no weights, or they do not match the settings.
    """
    if adapter is not None:
        return _load_with_adapter(folder, adapter), ()
    if folder.model_file.exists():
        return _load_best(folder, config), ()
    task = _load_with_initial_weights(config, folder.path)
    return task, (load_interrupted_weights(task, folder),)


def load_latest_task(folder: RunFolder, config: Config) -> tuple[Task, int, tuple[str, ...]]:
    """Load a run's task on the CPU with the weights of its latest checkpoint.

    The best weights are neither read nor verified, because a run in training may be replacing them.

    Returns:
        The task, the step of its weights, and notices for the user.

    Raises:
        CheckpointError: There is no checkpoint, or its weights do not match the settings.
    """
    notices = folder.verify_files(*(pattern for pattern in RUN_FILES if pattern != MODEL_FILE))
    task = _load_with_initial_weights(config, folder.path)
    return task, load_latest_weights(task, folder), notices


def _load_with_initial_weights(config: Config, folder: Path) -> Task:
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced at once
        return choose_task(config).load(config, folder)


def _load_best(folder: RunFolder, config: Config) -> Task:
    """Load the best weights. Wrong shapes are refused before memory is allocated."""
    shapes = folder.read_shapes()
    if config.model.n_layers > len(shapes):
        raise CheckpointError(
            f"{folder.model_file} does not match the settings: it has {len(shapes)} tensors, "
            f"too few for model.n_layers={config.model.n_layers}"
        )
    task = _load_without_weights(config, folder.path)
    validate_shapes(folder.model_file, shapes, named_weights(task.model))
    allocate_model(task)
    load_weights(task.model, folder.read_weights(verify=False), folder.model_file)  # the files have been verified
    return task


def _load_with_adapter(base: RunFolder, adapter: Adapter) -> Task:
    try:
        task = _load_without_weights(adapter.config, base.path)
        load_matching_weights(task, base.path, verify=False)  # only compares shapes; the base has been verified
        allocate_model(task)
        load_matching_weights(task, base.path, verify=False)
        adapter.apply_to(task.model)
    except ConfigError as error:
        raise CheckpointError(f"{adapter.path} is an adapter for another base: {error}") from None
    return task


def _load_without_weights(config: Config, folder: Path) -> Task:
    """Return the task of a run folder with a model on the meta device, which has shapes but no memory."""
    with torch.device("meta"):
        return choose_task(config).load(config, folder)


def allocate_model(task: Task) -> None:
    """Replace a model on the meta device by one whose weights can be loaded."""
    with torch.random.fork_rng(devices=[]):
        task.model = task.build_model()
