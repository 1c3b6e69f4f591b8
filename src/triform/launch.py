"""Training from start to finish: what was asked for, the run folder, the trainer, the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, TypeVar

import torch

import triform
from triform.analysis.capacity import training_flops_per_token
from triform.config import Config, TaskName
from triform.config.presets import preset as preset_of
from triform.config.settings import (
    SETTING_TYPES,
    Settings,
    build_config,
    coerce_setting,
    flatten_config,
    merge_settings,
    non_default_settings,
    read_settings,
    suggest_name,
)
from triform.data.readers import fingerprint
from triform.errors import CheckpointError, ConfigError, DataError, format_notice, notice_level
from triform.formatting import print_message
from triform.interrupts import handle_signals
from triform.reporting.run_report import write_report
from triform.run import Run, load, resolve_device
from triform.tasks import TASKS, PreparedTask
from triform.tasks.task import BucketedDataset
from triform.training.callbacks import MetricsFile
from triform.training.claim import claim_run_folder, create_default_folder
from triform.training.display import ProgressDisplay
from triform.training.freezing import count_trainable
from triform.training.init_from import apply_base, load_initial_weights
from triform.training.length import (
    extend_run,
    format_early_stopping_notice,
    format_stopped_early_notice,
    resolve_length,
)
from triform.training.memory import (
    fit_batch_to_memory,
    free_memory,
    halve_batch,
    micro_batch_size,
    out_of_memory_error,
    require_training_memory,
)
from triform.training.run_folder import RunFolder
from triform.training.stopping import format_resume_command, interrupted_error, stopped_without_saving_error
from triform.training.time_budget import fit_steps_to_budget
from triform.training.trainer import Callback, Trainer

DATA_FILE_SETTINGS = tuple(
    f"data.{name}" for name in ("train", "valid", "source", "target", "valid_source", "valid_target")
)
TOKENIZER_FILE_SETTINGS = ("tokenizer.kind", "tokenizer.vocab_size")
KEYWORD_ALIASES = {
    "data": "data.train",
    "valid": "data.valid",
    "source": "data.source",
    "target": "data.target",
    "seed": "seed",
    "init_from": "train.init_from",
    "embeddings": "train.embeddings",
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run, as opposed to what: none of this is part of a run's settings."""

    out: str = ""
    resume: bool = False
    overwrite: bool = False
    device: str = "auto"
    verify: bool = True  # compare the files of a run to go on with, or to begin with, with their digests
    progress: TextIO | None = None  # where the progress line goes; None: standard error
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise ConfigError("--resume goes on with a run and --overwrite replaces it: give only one of them")


def train(
    task: TaskName,
    *,
    preset: str = "",
    config: str | Path | Config | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Run:
    """Train a model and open its run.

    Settings are given by section, `train("classify", data="reviews.csv", model={"d_model": 64})`, with
    `data`, `valid`, `source`, `target`, `base`, `embeddings` and `seed` as short names, and `out`, `resume`,
    `overwrite`, `device` and `quiet` saying how to run.
    """
    option_values = {name: settings.pop(name) for name in RunOptions.__dataclass_fields__ if name in settings}
    options = replace(options or RunOptions(), **option_values)
    requested = resolve_settings(task, preset, config, flatten_settings(settings))
    folder = RunFolder(resolve_out_folder(requested, options), verify=options.verify)
    with claim_run_folder(folder, requested, resume=options.resume, overwrite=options.overwrite) as (
        stored,
        notices,
    ):
        if stored is None or not folder.is_complete(stored):
            command = format_resume_command(task, folder.path, options.device)
            try:
                with handle_signals(
                    stream=options.progress, exit_message=lambda: stopped_without_saving_error([folder], command)
                ):
                    _train(folder, requested, stored, options, notices)
            except KeyboardInterrupt:
                folder.discard_if_unused()
                raise stopped_without_saving_error([folder], command) from None
    return load(folder.path, device=options.device, verify=options.verify)


def _train(
    folder: RunFolder, requested: Settings, stored: Config | None, options: RunOptions, notices: tuple[str, ...]
) -> None:
    """Train in a claimed folder, from the start or from where the run in it stands."""
    try:
        config = stored or build_config(apply_base(requested, verify=options.verify))
        trainer, setup_notices = build_trainer(config, folder, options, resume=stored is not None)
    except (ConfigError, DataError):
        folder.discard_if_unused()
        raise
    log_start(trainer, (*notices, *setup_notices), options)
    trainer = fit_with_oom_retry(trainer, options)
    finish_run(trainer)
    if not trainer.progress.finished:
        raise interrupted_error(
            trainer.progress.step, format_resume_command(requested["task"], folder.path, options.device)
        )
    folder.delete_tokens()


def fit_with_oom_retry(trainer: Trainer, options: RunOptions) -> Trainer:
    """Train; where memory runs out before anything was saved, again in smaller batches, if that was allowed."""
    device = trainer.task.device
    memory = free_memory(device) if device.type == "cuda" else 0
    try:
        with handle_signals(trainer, options.progress):
            trainer.fit()
        return trainer
    except torch.OutOfMemoryError:
        nothing_saved = trainer.folder.latest_checkpoint() is None
        if not (trainer.config.auto_batch and nothing_saved and micro_batch_size(trainer.task.config) > 1):
            raise out_of_memory_error(trainer.task, device, memory) from None
    config, notice = halve_batch(trainer.task.config)
    trainer.release_memory()
    trainer, notices = build_trainer(config, trainer.folder, options, resume=False)
    log_start(trainer, (*notices, notice), options)
    return fit_with_oom_retry(trainer, options)


def resolve_settings(
    task: TaskName, preset: str, config: str | Path | Config | None, settings: Settings
) -> Settings:
    """What the user asked for, in order of precedence: settings, config, preset."""
    if task not in TASKS:
        raise ConfigError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    layers = []
    if config is not None:
        layers.append(
            non_default_settings(flatten_config(config))
            if isinstance(config, Config)
            else read_settings(Path(config))
        )
    if preset:
        overrides = merge_settings(*layers, settings)
        kind: Any = overrides.get("model.kind", "transformer")  # a size fits any
        preset_settings = non_default_settings(flatten_config(preset_of(preset, task, kind)))
        if overrides.get("tokenizer.file"):  # decides its own kind and size
            preset_settings = {
                name: value for name, value in preset_settings.items() if name not in TOKENIZER_FILE_SETTINGS
            }
        layers.insert(0, preset_settings)
    requested = merge_settings(*(_split_aligned_files(layer, task) for layer in (*layers, settings)))
    if requested.get("task", task) != task:
        raise ConfigError(f"the settings are for {requested['task']}, not {task}")
    requested["task"] = task
    build_config(requested)
    if base := requested.get("train.init_from"):
        from triform.pretrained.run_import import ensure_run_folder

        requested["train.init_from"] = ensure_run_folder(str(base))
    paths = (*DATA_FILE_SETTINGS, "tokenizer.file", "train.init_from", "train.embeddings")
    return requested | {name: _absolute_path(str(requested[name])) for name in paths if requested.get(name)}


def _absolute_path(path: str) -> str:
    """A run must find its data from wherever it is opened."""
    return path if path.startswith("builtin:") else str(Path(path).absolute())


def _split_aligned_files(settings: Settings, task: TaskName) -> Settings:
    """Two aligned files may be given as one name, `a.en,a.fr`."""
    for name, source, target in (
        ("data.train", "data.source", "data.target"),
        ("data.valid", "data.valid_source", "data.valid_target"),
    ):
        first, comma, second = str(settings.get(name, "")).partition(",")
        if task == "translate" and comma and not Path(str(settings[name])).exists():
            settings = {key: value for key, value in settings.items() if key != name}
            settings |= {source: first, target: second}
    return settings


def flatten_settings(settings: Mapping[str, Any]) -> Settings:
    """Keyword arguments as dotted settings."""
    flat: Settings = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": coerce_setting(f"{name}.{key}", item) for key, item in value.items()}
        elif (dotted_name := KEYWORD_ALIASES.get(name, name)) in SETTING_TYPES:
            flat[dotted_name] = coerce_setting(dotted_name, str(value) if isinstance(value, Path) else value)
        else:
            raise ConfigError(f"unknown setting {name!r}; {suggest_name(name, [*KEYWORD_ALIASES, *SETTING_TYPES])}")
    return flat


def resolve_out_folder(requested: Settings, options: RunOptions) -> Path:
    """The folder that was asked for, or a new one for these settings."""
    if options.resume and not options.out:
        raise ConfigError("--resume needs --out RUN: which run is to go on?")
    return Path(options.out or create_default_folder(requested))


def build_trainer(
    config: Config, folder: RunFolder, options: RunOptions, *, resume: bool
) -> tuple[Trainer, Sequence[str]]:
    """Read the data, build the model, and stand where the run stood."""
    device = resolve_device(options.device)
    folder_notices = folder.verify_before_resume() if resume else ()
    prepared = prepare_data_and_model(config, folder, device, resume=resume)
    return initialise_trainer(prepared, folder, options, resume=resume, trainer_class=Trainer), (
        *folder_notices,
        *prepared.notices,
    )


def prepare_data_and_model(
    config: Config, folder: RunFolder, device: torch.device, *, resume: bool
) -> PreparedTask:
    """Read the data and put the model on its device; a new run is also fitted to its memory and time budget."""
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


TrainerT = TypeVar("TrainerT", bound=Trainer)


def initialise_trainer(
    prepared: PreparedTask, folder: RunFolder, options: RunOptions, *, resume: bool, trainer_class: type[TrainerT]
) -> TrainerT:
    """Write down what is to be trained, and stand where the run stood; the model is on its device already."""
    prepared = prepared.with_config(resolve_length(prepared))
    task = prepared.task
    names = [str(flatten_config(task.config)[name]) for name in DATA_FILE_SETTINGS]
    fingerprints = {"data": {name: fingerprint(name) for name in names if name}}
    extension_notices: list[str] = []
    if resume:
        _check_same_data(folder, fingerprints["data"])
        extension_notices = extend_run(folder, prepared)
    else:
        tokens_folder = folder.tokens_folder  # just written by prepare; everything else here is an older run's
        folder.clear(keep_name=tokens_folder.name)
        task.save(folder.path)
        folder.write_config(task.config)
    callbacks: list[Callback] = [MetricsFile(folder.metrics_file)]
    flops_per_token = training_flops_per_token(task.config, task.sizes, _mean_length(prepared))
    trainer = trainer_class(prepared, folder, callbacks, fingerprints, flops_per_token)
    if not options.quiet:
        progress_line = ProgressDisplay(
            trainer.max_steps, task.metric, options.progress, eval_every=trainer.eval_every
        )
        trainer.display = progress_line
        callbacks.append(progress_line)
    if resume:
        trainer.resume()
        extension_notices = extension_notices and (format_stopped_early_notice(trainer) or extension_notices)
    if not options.quiet:
        for text in extension_notices:
            print_message(text, options.progress)
    return trainer


def _mean_length(prepared: PreparedTask) -> int:
    """Tokens of a text, on the mean."""
    lengths = prepared.train.lengths if isinstance(prepared.train, BucketedDataset) else None
    return prepared.task.config.data.max_len if lengths is None else max(1, round(float(lengths.mean())))


def _check_same_data(folder: RunFolder, current: dict[str, str]) -> None:
    latest = folder.latest_checkpoint()
    recorded = folder.read_state(latest)["marks"].get("data", {}) if latest else current
    for name, digest in current.items():
        if recorded.get(name) != digest:
            raise CheckpointError(f"{folder.path}: cannot be resumed: {name} has changed since the run began")


def log_start(trainer: Trainer, notices: Sequence[str], options: RunOptions) -> None:
    """Say what begins; a resumed run has said it before."""
    if trainer.progress.finished:
        return
    task, out, notices = trainer.task, options.progress, (*notices, *format_early_stopping_notice(trainer))
    n_parameters = sum(p.numel() for p in task.model.parameters())
    n_trainable = count_trainable(task.model).trainable
    trainable_text = f", {n_trainable:,} of which learn," if n_trainable < n_parameters else ""
    if not options.quiet:
        for line in (
            *map(format_notice, notices),
            f"{task.name}: {n_parameters:,} parameters{trainable_text} on {task.device}, {trainer.max_steps} steps",
        ):
            print_message(line, out)
    if trainer.progress.step:
        return
    metrics_file = MetricsFile(trainer.folder.metrics_file)
    metrics_file.load_state_dict({"bytes": 0})
    start_event = {
        "event": "start",
        "task": task.name,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "parameters": n_parameters,
        "learning": n_trainable,
        "device": str(task.device),
        "precision": trainer.train_step.compute_dtype,
        "unit": task.unit,
        "train_examples": len(trainer.train_data),
        "valid_examples": len(trainer.valid_data or ()),
        "vocab_size": task.config.tokenizer.vocab_size,
        "max_steps": trainer.max_steps,
        "version": triform.__version__,
        "time": datetime.now().isoformat(timespec="seconds"),
    }
    metrics_file.on_event(start_event)
    for text in notices:
        metrics_file.on_event({"event": "notice", "level": notice_level(text), "text": text})


def finish_run(trainer: Trainer, *, samples: bool = True) -> None:
    """Samples from the best weights, and the report."""
    task, folder = trainer.task, trainer.folder
    if trainer.progress.finished:
        trainer.load_best_weights()
        task.model.eval()
        metrics_file = MetricsFile(folder.metrics_file)
        with suppress(DataError):  # a data file that is gone by now leaves the report without samples
            for sample in (
                task.sample_predictions(trainer.valid_data) if samples and trainer.valid_data is not None else ()
            ):
                metrics_file.on_event({"event": "sample", "step": trainer.progress.best_step, **sample})
    write_report(folder.path)
