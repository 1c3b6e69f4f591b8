"""Set up a run: read the data, build the model, resolve the training settings, and create the trainer.

The settings of a run become final here, in this order: `Task.prepare` chooses those that depend on the data (model
size, batch size, learning rate), `fit_batch_to_memory` and `fit_steps_to_budget` adapt them to the device and to a
time budget, and `resolve_length` chooses those that depend on the number of steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import torch

from triform.analysis.capacity import training_flops_per_token
from triform.config import Config
from triform.config.merging import DATA_FILE_SETTINGS, split_aligned_name
from triform.config.settings import build_config, flatten_config
from triform.data.readers import fingerprint
from triform.errors import CheckpointError
from triform.formatting import print_message
from triform.io.run_layout import DATA_FOLDER
from triform.tasks import PreparedTask, choose_task
from triform.tasks.batch import BucketedDataset
from triform.tasks.classifier_defaults import ClassifierDefaults
from triform.tasks.cpu_budget import CpuBudget
from triform.training.callbacks import Callback, MetricsFile
from triform.training.display import ProgressDisplay
from triform.training.distillation import load_teacher, teacher_files
from triform.training.init_from import load_initial_weights
from triform.training.length import extend_run, format_stopped_early_notice, resolve_length
from triform.training.linear_part import fit_linear_part
from triform.training.memory import fit_batch_to_memory, require_training_memory
from triform.training.run_folder import RunFolder
from triform.training.time_budget import fit_steps_to_budget
from triform.training.tracking import build_trackers
from triform.training.trainer import Trainer
from triform.training.validation_table import ValidationTable
from triform.world import broadcast_value, current_world, run_in_order

# The names of the settings that the user has given; `choose_defaults` decides on the others. None: all are final.
UserSettings = Collection[str] | None


def prepare_data_and_model(
    config: Config, folder: RunFolder, device: torch.device, *, resume: bool, user_settings: UserSettings
) -> PreparedTask:
    """Read the data and move the model to its device. A new run is also adapted to its memory and time budget.

    Of several processes, the main one reads the data first, and the others use the files that it writes.
    """

    def prepare() -> PreparedTask:
        defaults = None if resume or user_settings is None else choose_defaults(config, user_settings, device)
        prepared = choose_task(config).prepare(config, folder.path, resume=resume, defaults=defaults)
        notices = initialise_model(prepared, folder, resume=resume)
        load_teacher(prepared.task, device, verify=folder.verify)
        require_training_memory(prepared.task, device)
        return replace(prepared, notices=(*prepared.notices, *notices))

    prepared = run_in_order(prepare, main_first=True)
    if resume:
        prepared.task.model.to(device)
        return prepared
    prepared = use_config_of_main(prepared.with_config(*fit_batch_to_memory(prepared.task, device)))
    prepared.task.model.to(device)
    return use_config_of_main(prepared.with_config(*fit_steps_to_budget(prepared, folder)))


def initialise_model(prepared: PreparedTask, folder: RunFolder, *, resume: bool) -> tuple[str, ...]:
    """Load the weights that a run starts from, if there are any, and fit the linear part of a new run.

    Returns:
        Notices about the weights.
    """
    notices = load_initial_weights(prepared.task, folder, resume=resume)
    if not (resume and folder.latest_checkpoint()):
        fit_linear_part(prepared.task, prepared.train)
    return notices


def choose_defaults(
    config: Config, user_settings: Collection[str], device: torch.device
) -> CpuBudget | ClassifierDefaults | None:
    """Return how settings are chosen that the user has not given; None: from the amount of data alone."""
    return CpuBudget.choose(config, user_settings, device.type) or ClassifierDefaults.choose(config, user_settings)


def use_config_of_main(prepared: PreparedTask) -> PreparedTask:
    """Return the same data and model with the settings of the main process, whose memory and clock decide."""
    if current_world().size == 1:
        return prepared
    return prepared.with_config(build_config(broadcast_value(flatten_config(prepared.task.config))))


def initialise_trainer(
    prepared: PreparedTask,
    folder: RunFolder,
    *,
    resume: bool,
    quiet: bool = False,
    stream: TextIO | None = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] = (),
) -> Trainer:
    """Write a run's settings and tokenizers to its folder, and return a trainer at the current step of the run.

    Only the main one of several processes writes, shows progress and prints.

    Args:
        prepared: The data and the model, which is already on its device.
        folder: The run folder, which this process has locked.
        resume: Whether to continue the run in the folder. Otherwise an earlier run there is removed.
        quiet: Show no progress.
        stream: Where to show progress. The default is standard error.
        callbacks: Observers in addition to the metrics file and the display of progress.
        track: The trackers that log the run; see `triform.training.tracking`.
    """
    prepared = prepared.with_config(resolve_length(prepared))
    task = prepared.task
    fingerprints = {"data": run_in_order(lambda: data_fingerprints(task.config))}
    is_main = current_world().is_main
    extension_notices = run_in_order(
        lambda: _write_settings(prepared, folder, fingerprints, resume) if is_main else []
    )
    observers: list[Callback] = []
    if is_main:
        trackers = build_trackers(track, task.config, folder.path, stream)
        observers = [MetricsFile(folder.metrics_file), *callbacks, *trackers]
    flops_per_token = training_flops_per_token(task.config, task.sizes, _mean_length(prepared))
    trainer = Trainer(prepared, folder, observers, fingerprints, flops_per_token)
    quiet = quiet or not is_main
    if not quiet:
        observers.append(build_display(trainer, trainer.max_steps, stream))
    if resume:
        run_in_order(trainer.resume)
        extension_notices = extension_notices and (format_stopped_early_notice(trainer) or extension_notices)
    if not quiet:
        for text in extension_notices:
            print_message(text, stream)
    return trainer


def _write_settings(
    prepared: PreparedTask, folder: RunFolder, fingerprints: dict[str, dict[str, str]], resume: bool
) -> list[str]:
    """Write the settings and tokenizers of a new run, or of one that trains for longer. Return notices."""
    if not resume:
        # Tokens and copies of data have just been written; all other files are those of an older run.
        copies = DATA_FOLDER if any(Path(name).parent.name == DATA_FOLDER for name in fingerprints["data"]) else ""
        folder.clear(keep_names=(folder.tokens_folder.name, copies))
        prepared.task.save(folder.path)
        folder.write_config(prepared.task.config)
        return []
    _check_same_data(folder, fingerprints["data"])
    notices = extend_run(folder, prepared)
    if folder.latest_checkpoint() is None:  # the run starts again, and so do its events
        folder.metrics_file.unlink(missing_ok=True)
    return notices


def data_fingerprints(config: Config) -> dict[str, str]:
    """Return the fingerprint of each data file of the settings, and of the weights of a teacher."""
    files = [str(flatten_config(config)[name]) for name in DATA_FILE_SETTINGS]
    files += [file for _, name in config.data.monitored_files for file in split_aligned_name(name)]
    files += [file for name in config.data.extra for file in split_aligned_name(name)]
    files += teacher_files(config.train.distill_from)
    return {file: fingerprint(file) for file in files if file}


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
    return ProgressDisplay(
        max_steps,
        task.metric,
        stream,
        eval_every=trainer.eval_every,
        table=table,
        count_setups=lambda: trainer.n_setups,
    )


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
