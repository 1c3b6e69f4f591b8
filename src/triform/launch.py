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
from triform.config import Config, TaskName
from triform.data.readers import fingerprint
from triform.errors import CheckpointError, ConfigError, DataError, notice_level, show_notice
from triform.explain.capacity import operations_a_token
from triform.formatting import print_message
from triform.interrupts import handle_signals
from triform.memory import divide, free_memory, halved, out_of_memory, require_training_memory, texts_at_once
from triform.presets import preset as preset_of
from triform.report import write_report
from triform.run import Run, load, pick_device
from triform.settings import (
    HINTS,
    Settings,
    build,
    chosen,
    flatten,
    nearest,
    overlay,
    read_toml,
    typed,
)
from triform.tasks import TASKS, Prepared
from triform.tasks.task import ByLength
from triform.training.base import begin, with_base
from triform.training.budget import fit_to_budget
from triform.training.claim import claimed, default_out
from triform.training.display import ProgressLine
from triform.training.folder import RunFolder
from triform.training.layers import learning
from triform.training.length import (
    early_stopping_notice,
    lengthen,
    settle_length,
    stopped_early_notice,
)
from triform.training.listeners import MetricsFile
from triform.training.stopping import interrupted, resume_command, stopped_at_once
from triform.training.trainer import Listener, Trainer

FILES = tuple(f"data.{name}" for name in ("train", "valid", "source", "target", "valid_source", "valid_target"))
OF_TOKENIZER_FILE = ("tokenizer.kind", "tokenizer.vocab_size")
SHORT = {
    "data": "data.train",
    "valid": "data.valid",
    "source": "data.source",
    "target": "data.target",
    "seed": "seed",
    "base": "train.base",
    "embeddings": "train.embeddings",
}


@dataclass(frozen=True, kw_only=True)
class Options:
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
    options: Options | None = None,
    **settings: Any,
) -> Run:
    """Train a model and open its run.

    Settings are given by section, `train("classify", data="reviews.csv", model={"d_model": 64})`, with
    `data`, `valid`, `source`, `target`, `base`, `embeddings` and `seed` as short names, and `out`, `resume`,
    `overwrite`, `device` and `quiet` saying how to run.
    """
    how = {name: settings.pop(name) for name in Options.__dataclass_fields__ if name in settings}
    options = replace(options or Options(), **how)
    asked = collect(task, preset, config, dotted(settings))
    folder = RunFolder(out_folder(asked, options), verify=options.verify)
    with claimed(folder, asked, resume=options.resume, overwrite=options.overwrite) as (stored, notices):
        if stored is None or not folder.complete(stored):
            again = resume_command(task, folder.path, options.device)
            try:
                with handle_signals(out=options.progress, exit_message=lambda: stopped_at_once([folder], again)):
                    _train(folder, asked, stored, options, notices)
            except KeyboardInterrupt:
                folder.discard_if_unused()
                raise stopped_at_once([folder], again) from None
    return load(folder.path, device=options.device, verify=options.verify)


def _train(
    folder: RunFolder, asked: Settings, stored: Config | None, options: Options, notices: tuple[str, ...]
) -> None:
    """Train in a claimed folder, from the start or from where the run in it stands."""
    try:
        config = stored or build(with_base(asked, verify=options.verify))
        trainer, more = set_up(config, folder, options, resume=stored is not None)
    except (ConfigError, DataError):
        folder.discard_if_unused()
        raise
    announce(trainer, (*notices, *more), options)
    trainer = fit(trainer, options)
    close(trainer)
    if not trainer.progress.finished:
        raise interrupted(trainer.progress.step, resume_command(asked["task"], folder.path, options.device))
    folder.drop_tokens()


def fit(trainer: Trainer, options: Options) -> Trainer:
    """Train; where memory runs out before anything was saved, again in smaller batches, if that was allowed."""
    device = trainer.task.device
    memory = free_memory(device) if device.type == "cuda" else 0
    try:
        with handle_signals(trainer, options.progress):
            trainer.fit()
        return trainer
    except torch.OutOfMemoryError:
        early = trainer.folder.latest_checkpoint() is None
        if not (trainer.config.auto_batch and early and texts_at_once(trainer.task.config) > 1):
            raise out_of_memory(trainer.task, device, memory) from None
    config, told = halved(trainer.task.config)
    trainer.release()
    trainer, notices = set_up(config, trainer.folder, options, resume=False)
    announce(trainer, (*notices, told), options)
    return fit(trainer, options)


def collect(task: TaskName, preset: str, config: str | Path | Config | None, settings: Settings) -> Settings:
    """What the user asked for, in order of precedence: settings, config, preset."""
    if task not in TASKS:
        raise ConfigError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    layers = []
    if config is not None:
        layers.append(chosen(flatten(config)) if isinstance(config, Config) else read_toml(Path(config)))
    if preset:
        given = overlay(*layers, settings)
        kind: Any = given.get("model.kind", "transformer")  # a size fits any
        named = chosen(flatten(preset_of(preset, task, kind)))
        if given.get("tokenizer.file"):  # decides its own kind and size
            named = {name: value for name, value in named.items() if name not in OF_TOKENIZER_FILE}
        layers.insert(0, named)
    asked = overlay(*(_aligned(layer, task) for layer in (*layers, settings)))
    if asked.get("task", task) != task:
        raise ConfigError(f"the settings are for {asked['task']}, not {task}")
    asked["task"] = task
    build(asked)
    if base := asked.get("train.base"):
        from triform.pretrained.runs import as_base  # only here: most runs begin with nothing

        asked["train.base"] = as_base(str(base))
    paths = (*FILES, "tokenizer.file", "train.base", "train.embeddings")
    return asked | {name: _absolute(str(asked[name])) for name in paths if asked.get(name)}


def _absolute(path: str) -> str:
    """A run must find its data from wherever it is opened."""
    return path if path.startswith("builtin:") else str(Path(path).absolute())


def _aligned(settings: Settings, task: TaskName) -> Settings:
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


def dotted(settings: Mapping[str, Any]) -> Settings:
    """Keyword arguments as dotted settings."""
    flat: Settings = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": typed(f"{name}.{key}", item) for key, item in value.items()}
        elif (known := SHORT.get(name, name)) in HINTS:
            flat[known] = typed(known, str(value) if isinstance(value, Path) else value)
        else:
            raise ConfigError(f"unknown setting {name!r}; {nearest(name, [*SHORT, *HINTS])}")
    return flat


def out_folder(asked: Settings, options: Options) -> Path:
    """The folder that was asked for, or a new one for these settings."""
    if options.resume and not options.out:
        raise ConfigError("--resume needs --out RUN: which run is to go on?")
    return Path(options.out or default_out(asked))


def set_up(config: Config, folder: RunFolder, options: Options, *, resume: bool) -> tuple[Trainer, Sequence[str]]:
    """Read the data, build the model, and stand where the run stood."""
    device = pick_device(options.device)
    older = folder.check_before_resume() if resume else ()
    prepared = prepare(config, folder, device, resume=resume)
    return ready(prepared, folder, options, resume=resume, kind=Trainer), (*older, *prepared.notices)


def prepare(config: Config, folder: RunFolder, device: torch.device, *, resume: bool) -> Prepared:
    """Read the data and put the model on its device; a new run is also fitted to its memory and time budget."""
    prepared = TASKS[config.task].prepare(config, folder.path, resume=resume)
    prepared = replace(prepared, notices=(*prepared.notices, *begin(prepared.task, folder, resume=resume)))
    require_training_memory(prepared.task, device)
    if resume:
        prepared.task.model.to(device)
        return prepared
    prepared = divide(prepared, device)
    prepared.task.model.to(device)
    return replace(prepared, notices=(*prepared.notices, *fit_to_budget(prepared, folder)))


AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


def ready(
    prepared: Prepared, folder: RunFolder, options: Options, *, resume: bool, kind: type[AnyTrainer]
) -> AnyTrainer:
    """Write down what is to be trained, and stand where the run stood; the model is on its device already."""
    task = prepared.task
    settle_length(prepared)
    names = [str(flatten(task.config)[name]) for name in FILES]
    marks = {"data": {name: fingerprint(name) for name in names if name}}
    longer: list[str] = []
    if resume:
        _same_data(folder, marks["data"])
        longer = lengthen(folder, prepared)
    else:
        kept = folder.tokens  # just written by prepare; everything else here is an older run's
        folder.clear(keep=kept.name)
        task.save(folder.path)
        folder.write_config(task.config)
    listeners: list[Listener] = [MetricsFile(folder.metrics_file)]
    operations = operations_a_token(task.config, task.sizes, _usual_length(prepared))
    trainer = kind(prepared, folder, listeners, marks, operations)
    if not options.quiet:
        line = ProgressLine(trainer.max_steps, task.metric, options.progress, eval_every=trainer.eval_every)
        trainer.display = line
        listeners.append(line)
    if resume:
        trainer.resume()
        longer = longer and (stopped_early_notice(trainer) or longer)
    if not options.quiet:
        for text in longer:
            print_message(text, options.progress)
    return trainer


def _usual_length(prepared: Prepared) -> int:
    """Tokens of a text, on the mean."""
    lengths = prepared.train.lengths if isinstance(prepared.train, ByLength) else None
    return prepared.task.config.data.max_len if lengths is None else max(1, round(float(lengths.mean())))


def _same_data(folder: RunFolder, now: dict[str, str]) -> None:
    latest = folder.latest_checkpoint()
    before = folder.read_state(latest)["marks"].get("data", {}) if latest else now
    for name, mark in now.items():
        if before.get(name) != mark:
            raise CheckpointError(f"{folder.path}: cannot be resumed: {name} has changed since the run began")


def announce(trainer: Trainer, notices: Sequence[str], options: Options) -> None:
    """Say what begins; a resumed run has said it before."""
    if trainer.progress.finished:
        return
    task, out, notices = trainer.task, options.progress, (*notices, *early_stopping_notice(trainer))
    parameters = sum(p.numel() for p in task.model.parameters())
    learns = learning(task.model).learns
    some = f", {learns:,} of which learn," if learns < parameters else ""
    if not options.quiet:
        for line in (
            *map(show_notice, notices),
            f"{task.name}: {parameters:,} parameters{some} on {task.device}, {trainer.max_steps} steps",
        ):
            print_message(line, out)
    if trainer.progress.step:
        return
    file = MetricsFile(trainer.folder.metrics_file)
    file.restore({"bytes": 0})
    start = {
        "event": "start",
        "task": task.name,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "parameters": parameters,
        "learning": learns,
        "device": str(task.device),
        "precision": trainer.learner.number_format,
        "unit": task.unit,
        "train_examples": len(trainer.train_data),
        "valid_examples": len(trainer.valid_data or ()),
        "vocab_size": task.config.tokenizer.vocab_size,
        "max_steps": trainer.max_steps,
        "version": triform.__version__,
        "time": datetime.now().isoformat(timespec="seconds"),
    }
    file.hear(start)
    for text in notices:
        file.hear({"event": "notice", "level": notice_level(text), "text": text})


def close(trainer: Trainer, *, samples: bool = True) -> None:
    """Samples from the best weights, and the report."""
    task, folder = trainer.task, trainer.folder
    if trainer.progress.finished:
        trainer.take_best()
        task.model.eval()
        file = MetricsFile(folder.metrics_file)
        with suppress(DataError):  # a data file that is gone by now leaves the report without samples
            for sample in task.samples(trainer.valid_data) if samples and trainer.valid_data is not None else ():
                file.hear({"event": "sample", "step": trainer.progress.best_step, **sample})
    write_report(folder.path)
