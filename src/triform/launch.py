"""`triform.train`: merge the settings, lock the run folder, set up, train, and write the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import torch

from triform.config import Config, TaskName
from triform.config.merging import absolute_path, flatten_settings, merge_request, request_sources
from triform.config.settings import Settings, build_config
from triform.device import resolve_device
from triform.errors import ConfigError, DataError, DivergedError
from triform.interrupts import handle_signals
from triform.io.ensembles import make_run_path_absolute
from triform.reporting.baseline_report import report_baseline
from triform.run import Run, load
from triform.run_log import finish_run, log_start, record_divergence
from triform.training.agreement import compare_processes, share_claim
from triform.training.baseline_job import add_mixture, start_baseline_job
from triform.training.callbacks import Callback
from triform.training.claim import claim_run_folder, create_default_folder
from triform.training.data_copies import copy_in_memory_data
from triform.training.distributed_step import require_exact_world_size
from triform.training.estimate import TrainingEstimate, estimate_training
from triform.training.init_from import apply_base
from triform.training.memory import free_memory, halve_batch, micro_batch_size, out_of_memory_error
from triform.training.run_folder import RunFolder
from triform.training.setup import UserSettings, initialise_trainer, prepare_data_and_model
from triform.training.stopping import format_resume_command, interrupted_error, stopped_without_saving_error
from triform.training.tracking import parse_trackers
from triform.training.trainer import Trainer
from triform.world import (
    broadcast_value,
    current_world,
    gather_values_slowly,
    is_launched,
    join_world,
    recall,
    remember,
    run_in_order,
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run a training, as opposed to what to train. None of this is stored in the run.

    Args:
        out: The run folder. Empty: a new folder under `runs/`.
        resume: Continue the run in `out`.
        overwrite: Replace the run in `out`.
        device: "auto", "cpu", "cuda" or "mps".
        verify: Check the files of a run to resume or to start from against their digests.
        progress: Where progress is shown; None: standard error.
        quiet: Show no progress.
        callbacks: Additional observers of the training. See `triform.training.callbacks`.
        track: Trackers that log the run, such as "tensorboard" or "mlflow=FOLDER". See `triform.training.tracking`.
    """

    out: str = ""
    resume: bool = False
    overwrite: bool = False
    device: str = "auto"
    verify: bool = True
    progress: TextIO | None = None
    quiet: bool = False
    callbacks: Sequence[Callback] = ()
    track: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        parse_trackers(self.track)
        if self.resume and self.overwrite:
            raise ConfigError(
                "--resume and --overwrite cannot be used together; one continues a run, the other replaces it"
            )


def train(
    task: TaskName,
    *,
    preset: str = "",
    config: str | Path | Config | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Run:
    """Train a model and return its run.

    Args:
        task: "classify", "generate" or "translate".
        preset: The name of a preset, such as "tiny" or "small".
        config: A config, or the path of a TOML file with settings. A config gives what its constructors were given,
            also values that equal the default; that of a run gives all settings.
        options: How to run; `out`, `resume`, `overwrite`, `device`, `verify`, `progress`, `quiet`, `callbacks` and
            `track` can also be given as keyword arguments.
        **settings: Settings by section, such as `model={"d_model": 64}`, or by their dotted names. `data`, `valid`,
            `source`, `target`, `init_from`, `embeddings` and `seed` need no section. Without data, the task's
            built-in dataset is used. `data` and `valid` are files, or data frames or iterables of rows
            (`triform.data.in_memory`), which are copied to the run folder.

    Returns:
        The trained run, ready to predict and evaluate.

    Raises:
        ConfigError: A setting is unknown or invalid, or the run does not fit into memory.
        DataError: A data file cannot be used.
        CheckpointError: The run folder cannot be used.
        DivergedError: The loss became NaN or infinite.
        RunInterruptedError: The user stopped training; `resume=True` continues it.

    >>> import triform
    >>> tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    >>> run = triform.train("classify", out="run", model=tiny, train={"max_steps": 2}, device="cpu", quiet=True)
    >>> run.predict("A wonderful film.")[0].output in run.config.data.labels
    True
    """
    option_values = {name: settings.pop(name) for name in RunOptions.__dataclass_fields__ if name in settings}
    options = replace(options or RunOptions(), **option_values)
    with (
        join_world(resolve_device(options.device)),
        copy_in_memory_data(task, preset, config, settings, str(options.out)) as (file_settings, out),
    ):
        return _train_in_processes(task, preset, config, replace(options, out=out), flatten_settings(file_settings))


def _train_in_processes(
    task: TaskName, preset: str, config: str | Path | Config | None, options: RunOptions, settings: Settings
) -> Run:
    """Train in one process, or in all processes of `join_world`. Only the main one locks the folder and prints."""
    requested = run_in_order(lambda: resolve_settings(task, preset, config, settings), main_first=True)
    compare_processes(requested)
    if requested.get("train.exact"):
        require_exact_world_size(current_world().size)
    if requested.get("train.parallel") == "fsdp" and not is_launched():
        raise ConfigError(
            "train.parallel=fsdp needs several processes; start them with "
            "torchrun --nproc-per-node N -m triform train, or leave the setting out"
        )
    sources = request_sources(task, preset, config, settings)
    request = {name: (value, sources[name]) for name, value in requested.items()}
    options = share_out_folder(requested, options)
    folder = RunFolder(Path(options.out), verify=options.verify, request=request)
    with share_claim(folder, requested, resume=options.resume, overwrite=options.overwrite) as (stored, notices):
        is_complete = stored is not None and folder.is_complete(stored)
        if not broadcast_value(is_complete):
            world = current_world()
            command = format_resume_command(task, folder.path, options.device, n_processes=world.size)
            try:
                with handle_signals(
                    stream=options.progress,
                    exit_message=lambda: stopped_without_saving_error([folder], command),
                    alone=world.size == 1,
                ):
                    _train(folder, requested, stored, options, notices)
            except KeyboardInterrupt:
                if world.is_main:
                    folder.discard_if_unused()
                raise stopped_without_saving_error([folder], command) from None
        gather_values_slowly(None)  # until the main process has written the report
        return load(folder.path, device=options.device, verify=options.verify)


def estimate(
    task: TaskName,
    *,
    preset: str = "",
    config: str | Path | Config | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> TrainingEstimate:
    """Estimate the parameters, memory and time of a run without training it.

    The data is read and the model is built as for `train`, and a few steps are timed. The arguments are those of
    `train`; of the options, only `device` and `verify` have an effect.

    Raises:
        ConfigError: A setting is unknown or invalid, or the run does not fit into memory.
        DataError: A data file cannot be used.
    """
    options = options or RunOptions()
    requested = resolve_settings(task, preset, config, flatten_settings(settings))
    with TemporaryDirectory() as path:
        folder, device = RunFolder(Path(path)), resolve_device(options.device)
        full_config = build_config(apply_base(requested, verify=options.verify))
        prepared = prepare_data_and_model(full_config, folder, device, resume=False, user_settings=requested)
        return estimate_training(prepared, folder)


def _train(
    folder: RunFolder, requested: Settings, stored: Config | None, options: RunOptions, notices: tuple[str, ...]
) -> None:
    """Train in a locked folder, from the start or from where the stored run stopped."""
    try:
        config = stored or run_in_order(lambda: build_config(apply_base(requested, verify=options.verify)))
        trainer, new_notices = build_trainer(config, folder, options, resume=bool(stored), user_settings=requested)
    except (ConfigError, DataError):
        folder.discard_if_unused()
        raise
    remember("started", str(folder.path))
    if is_main := current_world().is_main:
        log_start(trainer, (*notices, *new_notices), quiet=options.quiet, stream=options.progress)
    with start_baseline_job(trainer, enabled=is_main and not options.quiet) as baseline_job:
        try:
            trainer = fit_with_oom_retry(trainer, options)
        except DivergedError as failure:
            if is_main:
                record_divergence(trainer, failure)
            raise
        if baseline_job and trainer.progress.finished:
            event = report_baseline(
                folder.path,
                trainer.task.config,
                lambda: add_mixture(trainer, baseline_job.result()),
                options.progress,
            )
            trainer.emit("baseline", **event)
    if is_main:
        finish_run(trainer)
    if not trainer.progress.finished:
        raise interrupted_error(
            trainer.progress.step,
            format_resume_command(requested["task"], folder.path, options.device, n_processes=trainer.world.size),
        )
    if is_main:
        folder.delete_tokens()


def write_untrained_run(requested: Settings, options: RunOptions) -> None:
    """Write a run that has the weights of its base, `train.init_from`, and is only validated. It replaces a run.

    Args:
        requested: Resolved settings, with the data to validate on.
        options: How to run; `out` is the run folder.
    """
    folder = RunFolder(Path(options.out), verify=options.verify)
    with claim_run_folder(folder, requested, resume=False, overwrite=True) as (_, notices):
        config = build_config(apply_base(requested, verify=options.verify))
        trainer, new_notices = build_trainer(config, folder, options, resume=False, user_settings=requested)
        trainer.skip_training()
        log_start(trainer, (*notices, *new_notices), quiet=options.quiet, stream=options.progress)
        trainer.fit()
        finish_run(trainer)
        folder.delete_tokens()


def fit_with_oom_retry(trainer: Trainer, options: RunOptions) -> Trainer:
    """Train. With `train.auto_batch`, halve the batch and retry if memory runs out before the first checkpoint."""
    device = trainer.task.device
    memory = free_memory(device) if device.type == "cuda" else 0
    try:
        with handle_signals(trainer, options.progress, alone=trainer.world.size == 1):
            trainer.fit()
        return trainer
    except torch.OutOfMemoryError:
        nothing_saved = trainer.folder.latest_checkpoint() is None
        may_retry = trainer.config.auto_batch and nothing_saved and trainer.world.size == 1
        if not (may_retry and micro_batch_size(trainer.task.config) > 1):
            raise out_of_memory_error(trainer.task, device, memory) from None
    config, notice = halve_batch(trainer.task.config)
    trainer.release_memory()
    trainer, notices = build_trainer(config, trainer.folder, options, resume=False)
    log_start(trainer, (*notices, notice), quiet=options.quiet, stream=options.progress)
    return fit_with_oom_retry(trainer, options)


def resolve_settings(
    task: TaskName, preset: str, config: str | Path | Config | None, settings: Settings
) -> Settings:
    """Merge the settings of the user. If `train.init_from` is a published model, convert it to a run folder.

    See `triform.config.merging.merge_request`.
    """
    requested = merge_request(task, preset, config, settings)
    if base := requested.get("train.init_from"):
        from triform.pretrained.run_import import ensure_run_folder

        requested["train.init_from"] = absolute_path(ensure_run_folder(str(base)))
    if teacher := requested.get("train.distill_from"):
        requested["train.distill_from"] = str(make_run_path_absolute(Path(str(teacher))))
    return requested


def resolve_out_folder(requested: Settings, options: RunOptions) -> Path:
    """Return the folder of the option `out`, or create a new folder named after the task and the data."""
    if options.resume and not options.out:
        raise ConfigError("--resume needs --out RUN, the folder of the run to continue")
    return Path(options.out or create_default_folder(requested))


def share_out_folder(requested: Settings, options: RunOptions) -> RunOptions:
    """Return the options with the run folder that the main process chooses.

    If `torchrun` has started the processes again after a failure, they continue the run of the earlier attempt.
    """
    if not is_launched():
        return replace(options, out=str(resolve_out_folder(requested, options)))
    if earlier_out := recall("started"):
        return replace(options, out=earlier_out, resume=True, overwrite=False)
    is_main, earlier_choice = current_world().is_main, recall("out")

    def choose() -> str:
        return earlier_choice or (str(resolve_out_folder(requested, options).absolute()) if is_main else "")

    out = broadcast_value(run_in_order(choose))
    remember("out", out)
    return replace(options, out=out)


def build_trainer(
    config: Config, folder: RunFolder, options: RunOptions, *, resume: bool, user_settings: UserSettings = None
) -> tuple[Trainer, Sequence[str]]:
    """Read the data and build the model. Return a trainer at the step where the run stopped, and notices."""
    is_main = current_world().is_main
    folder_notices = run_in_order(lambda: folder.prepare_resume() if resume and is_main else ())
    device = resolve_device(options.device)
    prepared = prepare_data_and_model(config, folder, device, resume=resume, user_settings=user_settings)
    trainer = initialise_trainer(
        prepared,
        folder,
        resume=resume,
        quiet=options.quiet,
        stream=options.progress,
        callbacks=options.callbacks,
        track=options.track,
    )
    return trainer, (*folder_notices, *prepared.notices)
