"""Training that does not begin with nothing: another run's shape, vocabulary and weights (`--from`), or vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from triform.config import Config, TaskName
from triform.errors import CheckpointError, ConfigError
from triform.nn.lora import adapt, merge
from triform.settings import DEFAULTS, OPEN, Settings, differences, flatten, overlay
from triform.tasks import Task
from triform.training.embeddings import fill, with_width
from triform.training.folder import RunFolder, check_finite, checkpoint_step, damaged, load_weights, weights_of
from triform.training.layers import limit_learning

# What a form may begin with: itself, or one that has its encoder.
BEGINS: dict[TaskName, tuple[TaskName, ...]] = {
    "classify": ("classify", "translate"),
    "generate": ("generate",),
    "translate": ("translate", "classify"),
}
OWN_CHOICE = ("dropout", "attention_dropout", "window", "layer_windows", "reach", "head_hidden")  # of model.*


def base_config(path: Path, task: TaskName, *, verify: bool = True) -> Config:
    """The settings of a base that `task` can begin with."""
    folder = RunFolder(path, verify=verify)
    config = folder.read_config()
    if config.task not in BEGINS[task]:
        raise ConfigError(
            f"{path}: is for {config.task}; {task} can begin with a run of {' or '.join(BEGINS[task])}"
        )
    if not folder.model_file.exists():
        raise CheckpointError(f"{path}: has no model yet; train it further with --resume")
    return config


def with_base(asked: Settings, *, verify: bool = True) -> Settings:
    """What was asked for, laid over all that the base decides: the shape of the model, and its vocabulary.

    Word vectors decide only how wide a model is.
    """
    if asked.get("train.embeddings"):
        return with_width(asked)
    if not asked.get("train.base"):
        return asked
    path = Path(str(asked["train.base"]))
    try:
        config = base_config(path, asked["task"], verify=verify)  # type: ignore[arg-type]
        RunFolder(path, verify=verify).check("tokenizer*.json")
    except CheckpointError as error:
        known = "" if path.exists() else "; give a run, a published model's folder, or hub:OWNER/NAME"
        raise ConfigError(f"train.base={error}{known}") from None
    two = config.task == "translate" and not config.tokenizer.shared
    # a language may have pieces of its own, though one vocabulary numbers them all
    by_side = (path / "tokenizer.source.json").exists()
    file = path / ("tokenizer.source.json" if by_side else "tokenizer.json")
    shape = {name: value for name, value in flatten(config).items() if name.startswith("model.")}
    decided: Settings = {
        **shape,
        "data.max_len": config.data.max_len,
        "tokenizer.kind": config.tokenizer.kind,
        "tokenizer.lowercase": config.tokenizer.lowercase,
        "tokenizer.shared": not two or asked["task"] != "translate",
        "tokenizer.file": str(path if by_side and asked["task"] == "translate" else file),
    }
    if asked.get("tokenizer.file", "") not in ("", decided["tokenizer.file"]):
        raise ConfigError(f"tokenizer.file: the vocabulary comes with {path}; leave it out")
    free = ("tokenizer.file", "data.max_len", *(f"model.{name}" for name in OWN_CHOICE))
    free += ("tokenizer.shared",) if asked["task"] != config.task else ()
    fixed = {name: value for name, value in asked.items() if name in decided and name not in free}
    if "tokenizer.vocab_size" in asked and not two:
        fixed["tokenizer.vocab_size"] = asked["tokenizer.vocab_size"]
    if other := differences(fixed, config):
        raise ConfigError(f"{path}: what begins with it has its shape and vocabulary; leave out {'; '.join(other)}")
    left_open = {name for name in decided if name in OPEN and asked.get(name) == DEFAULTS[name]}
    return overlay(decided, {name: value for name, value in asked.items() if name not in left_open})


def begin(task: Task, folder: RunFolder, *, resume: bool) -> tuple[str, ...]:
    """Give a new model what it begins with, a base's weights or word vectors, and freeze what is not to learn.

    What the user should know of it. A run that goes on has its weights in its checkpoint.
    """
    base = task.config.train.base
    notices = []
    if base and not (resume and folder.latest_checkpoint()):
        taken = take(task, Path(base), verify=folder.verify)
        notices += [*RunFolder(Path(base), verify=folder.verify).check("config.toml"), f"{base}: {taken}"]
    if task.config.train.embeddings and not (resume and folder.latest_checkpoint()):
        notices.append(fill(task))
    limit_learning(task.model, task.config)
    return tuple(notices)


def load_interrupted(task: Task, folder: RunFolder) -> str:
    """Load the weights of a run that was stopped before it kept a model, from its latest checkpoint.

    Returns:
        What the user should know about these weights.

    Raises:
        CheckpointError: There is no checkpoint either, or the run was finished and has lost its model.
    """
    latest = folder.latest_checkpoint()
    if latest is None:
        raise CheckpointError(f"{folder.path}: has no model and no checkpoint yet; train it further with --resume")
    tensors, state = folder.read_checkpoint(latest)
    if state.get("finished"):
        raise damaged(folder.model_file, "no such file")
    if task.config.train.lora_rank:
        adapt(task.model, task.config.train)
    prefix = "model."
    weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    load_weights(task.model, weights, latest)
    merge(task.model)
    task.model.requires_grad_()
    step = checkpoint_step(latest)
    return (
        f"{folder.path}: training was interrupted at step {step}, before a validation kept a model; "
        "these are the weights of the latest checkpoint (go on with --resume)"
    )


class Taken(NamedTuple):
    """The names of what came from a base, of what it did not have, and of what it had for nothing."""

    taken: list[str]
    new: list[str]
    left: list[str]

    def __str__(self) -> str:
        parts = ((kind, names) for kind, names in zip(self._fields, self, strict=True) if names)
        return "; ".join(f"{len(names)} tensors {kind}: {_summed_up(names)}" for kind, names in parts)


def _summed_up(names: Iterable[str]) -> str:
    """By the part of the model that they belong to, `encoder.blocks 24`."""
    parts = Counter(".".join(name.split(".")[: 2 if name.startswith("encoder.") else 1]) for name in names)
    return ", ".join(f"{part} {count}" if count > 1 else part for part, count in parts.items())


def take(task: Task, path: Path, *, verify: bool = True) -> Taken:
    """Copy what fits from the base into the task's model."""
    folder = RunFolder(path, verify=verify)
    config, weights = base_config(path, task.name, verify=verify), folder.read_weights()
    check_finite(folder.model_file, weights)
    taken, new = [], []
    for name, parameter in weights_of(task.model).items():
        if name not in weights or not _means_the_same(name, config, task.config):
            new.append(name)
            continue
        with torch.no_grad():
            parameter.copy_(_fitted(name, weights[name], parameter, path))
        taken.append(name)
    if odd := [name for name in new if config.task == task.name and not name.startswith("head.")]:
        raise ConfigError(f"{path}: does not fit the settings: it has no {odd[0]}")
    return Taken(taken, new, sorted(weights.keys() - set(taken)))


def _means_the_same(name: str, base: Config, config: Config) -> bool:
    """Scores are of labels; the hidden layer before them is not (in BERT it is the pooler, and pretrained)."""
    if not name.startswith("head.") or base.task == config.task != "classify":
        return True
    alike = base.task == config.task and base.model.head_hidden == config.model.head_hidden
    return alike and (name.startswith("head.0.") or base.data.labels == config.data.labels)


def _fitted(name: str, tensor: Tensor, wanted: Tensor, path: Path) -> Tensor:
    """The tensor, or of learned positions as many as the model reads."""
    if name.endswith("positions.table.weight") and len(tensor) > len(wanted):
        tensor = tensor[: len(wanted)]
    if tensor.shape == wanted.shape:
        return tensor
    if name.endswith("positions.table.weight") and tensor.shape[1:] == wanted.shape[1:]:
        raise ConfigError(
            f"{path}: has learned {len(tensor)} positions and data.max_len={len(wanted)} needs more: lower it"
        )
    raise ConfigError(f"{path}: {name} is {tuple(tensor.shape)} there, and {tuple(wanted.shape)} is needed")
