"""Set up a run: read the data, build the model, resolve the training settings, and create the trainer.

The settings of a run become final here, in this order: `Task.prepare` chooses those that depend on the data (model
size, batch size, learning rate), `fit_batch_to_memory` and `fit_steps_to_budget` adapt them to the device and to a
time budget, and `resolve_length` chooses those that depend on the number of steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TextIO, TypeVar

import torch

from triform.analysis.capacity import training_flops_per_token
from triform.config import Config
from triform.config.merging import DATA_FILE_SETTINGS, split_aligned_name
from triform.config.settings import flatten_config
from triform.data.readers import fingerprint
from triform.errors import CheckpointError
from triform.formatting import print_message
from triform.tasks import TASKS, PreparedTask
from triform.tasks.batch import BucketedDataset
from triform.training.callbacks import Callback, MetricsFile
from triform.training.display import ProgressDisplay
from triform.training.init_from import load_initial_weights
from triform.training.length import extend_run, format_stopped_early_notice, resolve_length
from triform.training.memory import fit_batch_to_memory, require_training_memory
from triform.training.run_folder import RunFolder
from triform.training.time_budget import fit_steps_to_budget
from triform.training.trainer import Trainer
from triform.training.validation_table import ValidationTable

TrainerT = TypeVar("TrainerT", bound=Trainer)


def prepare_data_and_model(
    config: Config, folder: RunFolder, device: torch.device, *, resume: bool
) -> PreparedTask:
    """Read the data and move the model to its device. A new run is also adapted to its memory and time budget."""
    prepared = TASKS[config.task].prepare(config, folder.path, resume=resume)
    prepared = replace(
        prepared, notices=(*prepared.notices, *load_initial_weights(prepared.task, folder, resume=resume))
    )
    require_training_memory(prepared.task, device)
    if resume:
        prepared.task.model.to(device)
        return prepared
    prepared = prepared.with_config(*fit_batch_to_memory(prepared.task, device))
    prepared.task.model.to(device)
    return prepared.with_config(*fit_steps_to_budget(prepared, folder))


def initialise_trainer(
    prepared: PreparedTask,
    folder: RunFolder,
    *,
    resume: bool,
    trainer_class: type[TrainerT],
    quiet: bool = False,
    stream: TextIO | None = None,
) -> TrainerT:
    """Write a run's settings and tokenizers to its folder, and return a trainer at the current step of the run.

    Args:
        prepared: The data and the model, which is already on its device.
        folder: The run folder, which this process has locked.
        resume: Whether to continue the run in the folder. Otherwise an earlier run there is removed.
        trainer_class: `Trainer`, or `EnsembleMember` for a run that is trained together with others.
        quiet: Show no progress.
        stream: Where to show progress. The default is standard error.
    """
    prepared = prepared.with_config(resolve_length(prepared))
    task = prepared.task
    files = [str(flatten_config(task.config)[name]) for name in DATA_FILE_SETTINGS]
    files += [file for _, name in task.config.data.monitored_files for file in split_aligned_name(name)]
    fingerprints = {"data": {file: fingerprint(file) for file in files if file}}
    extension_notices: list[str] = []
    if resume:
        _check_same_data(folder, fingerprints["data"])
        extension_notices = extend_run(folder, prepared)
        if folder.latest_checkpoint() is None:  # the run starts again, and so do its events
            folder.metrics_file.unlink(missing_ok=True)
    else:
        tokens_folder = folder.tokens_folder  # just written by prepare; all other files are those of an older run
        folder.clear(keep_name=tokens_folder.name)
        task.save(folder.path)
        folder.write_config(task.config)
    callbacks: list[Callback] = [MetricsFile(folder.metrics_file)]
    flops_per_token = training_flops_per_token(task.config, task.sizes, _mean_length(prepared))
    trainer = trainer_class(prepared, folder, callbacks, fingerprints, flops_per_token)
    if not quiet:
        callbacks.append(build_display(trainer, trainer.max_steps, stream))
    if resume:
        trainer.resume()
        extension_notices = extension_notices and (format_stopped_early_notice(trainer) or extension_notices)
    if not quiet:
        for text in extension_notices:
            print_message(text, stream)
    return trainer


def build_display(trainer: Trainer, max_steps: int, stream: TextIO | None) -> ProgressDisplay:
    """Return a display of progress, with a table of validations if several sets are evaluated or each epoch is."""
    task, by_epoch = trainer.task, trainer.config.eval_every == "epoch"
    table = None
    if trainer.monitors or by_epoch:
        table = ValidationTable(
            "" if trainer.valid_data is None else task.config.data.valid_name,
            list(trainer.monitors),
            task.shown_metrics,
            steps_per_epoch=trainer.steps_per_epoch if by_epoch else 0.0,
        )
    return ProgressDisplay(max_steps, task.metric, stream, eval_every=trainer.eval_every, table=table)


def _mean_length(prepared: PreparedTask) -> int:
    """Return the mean number of tokens per training text."""
    lengths = prepared.train.lengths if isinstance(prepared.train, BucketedDataset) else None
    if lengths is None:
        return prepared.task.config.data.longest_training_example
    return max(1, round(float(lengths.mean())))


def _check_same_data(folder: RunFolder, current: dict[str, str]) -> None:
    latest = folder.latest_checkpoint()
    recorded = folder.read_state(latest)["metadata"].get("data", {}) if latest else current
    for name, digest in current.items():
        if recorded.get(name) != digest:
            raise CheckpointError(f"{folder.path} cannot be resumed: {name} has changed since the run started")
