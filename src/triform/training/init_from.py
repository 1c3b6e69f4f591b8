"""Start from the settings, tokenizer and weights of another run (`--from`), or from word vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from triform.config import Config, TaskName
from triform.config.settings import (
    Settings,
    describe_differences,
    flatten_config,
    leaves_choice,
    merge_settings,
)
from triform.errors import CheckpointError, ConfigError
from triform.io.errors import damaged_error
from triform.io.run_layout import CONFIG_FILE
from triform.nn.lora import apply_lora, merge_lora
from triform.tasks import Task
from triform.training.embeddings import infer_d_model, load_embeddings
from triform.training.freezing import freeze_parameters
from triform.training.run_folder import RunFolder, checkpoint_step
from triform.training.tensors import load_weights, named_weights, validate_finite

# The tasks whose runs a task can start from: the same task, or one with the same encoder.
COMPATIBLE_TASKS: dict[TaskName, tuple[TaskName, ...]] = {
    "classify": ("classify", "translate"),
    "generate": ("generate",),
    "translate": ("translate", "classify"),
}
LINEAR_PART = "linear_part."  # prefix of the names of weights that each run fits to its own texts
HEADS = ("classification_head.", "lm_head.")  # prefixes of the names of a head's weights
# Settings under `model.` that may differ from those of the base.
OVERRIDABLE_MODEL_SETTINGS = (
    "dropout",
    "attention_dropout",
    "window",
    "layer_windows",
    "attention_direction",
    "head_hidden",
    "term_buckets",
)


def load_base_config(path: Path, task: TaskName, *, verify: bool = True) -> Config:
    """Return the settings of a run that `task` can start from.

    Raises:
        ConfigError: The run is for a task that this one cannot start from.
        CheckpointError: The run cannot be read, or has no model yet.
    """
    folder = RunFolder(path, verify=verify)
    config = folder.read_config()
    if config.task not in COMPATIBLE_TASKS[task]:
        raise ConfigError(
            f"{path} is a run of {config.task}; {task} can start from {' or '.join(COMPATIBLE_TASKS[task])} runs"
        )
    if not folder.model_file.exists():
        raise CheckpointError(f"{path} has no model yet; continue its training with --resume")
    return config


def apply_base(requested: Settings, *, verify: bool = True) -> Settings:
    """Merge the requested settings with those of the base run: the shape of the model and the tokenizer.

    Word vectors determine only `model.d_model`.

    Raises:
        ConfigError: A requested setting contradicts the base, or the base cannot be used.
    """
    if requested.get("train.embeddings"):
        return infer_d_model(requested)
    if not requested.get("train.init_from"):
        return requested
    path = Path(str(requested["train.init_from"]))
    try:
        config = load_base_config(path, requested["task"], verify=verify)  # type: ignore[arg-type]
        RunFolder(path, verify=verify).verify_files("tokenizer*.json")
    except CheckpointError as error:
        hint = "" if path.exists() else "; use a run, the folder of a published model, or hub:OWNER/NAME"
        raise ConfigError(f"train.init_from={error}{hint}") from None
    separate_vocabularies = config.task == "translate" and not config.tokenizer.joint_vocab
    # Each language may split text in its own way, although they share one vocabulary.
    tokenizer_per_language = (path / "tokenizer.source.json").exists()
    file = path / ("tokenizer.source.json" if tokenizer_per_language else "tokenizer.json")
    model_settings = {name: value for name, value in flatten_config(config).items() if name.startswith("model.")}
    if requested["task"] != config.task:
        model_settings["model.term_buckets"] = 0  # only a classifier has a linear part
    inherited: Settings = {
        **model_settings,
        "data.max_len": config.data.max_len,
        "tokenizer.kind": config.tokenizer.kind,
        "tokenizer.lowercase": config.tokenizer.lowercase,
        "tokenizer.joint_vocab": not separate_vocabularies or requested["task"] != "translate",
        "tokenizer.file": str(path if tokenizer_per_language and requested["task"] == "translate" else file),
    }
    if requested.get("tokenizer.file", "") not in ("", inherited["tokenizer.file"]):
        raise ConfigError(f"remove tokenizer.file: the tokenizer is that of {path}")
    overridable = ("tokenizer.file", "data.max_len", *(f"model.{name}" for name in OVERRIDABLE_MODEL_SETTINGS))
    overridable += ("tokenizer.joint_vocab",) if requested["task"] != config.task else ()
    restricted = {name: value for name, value in requested.items() if name in inherited and name not in overridable}
    if "tokenizer.vocab_size" in requested and not separate_vocabularies:
        restricted["tokenizer.vocab_size"] = requested["tokenizer.vocab_size"]
    if conflicts := describe_differences(restricted, config):
        raise ConfigError(
            f"{path} determines the shape of the model and its vocabulary; remove {'; '.join(conflicts)}"
        )
    choices = {
        name: value
        for name, value in requested.items()
        if name != "tokenizer.file" and not (name in inherited and leaves_choice(name, value))
    }
    return merge_settings(inherited, choices)


def load_initial_weights(task: Task, folder: RunFolder, *, resume: bool) -> tuple[str, ...]:
    """Load the weights of the base run or word vectors into a new model, and freeze parameters.

    A resumed run loads its weights from its checkpoint instead.

    Returns:
        Notices for the user.
    """
    base = task.config.train.init_from
    notices = []
    if base and not (resume and folder.latest_checkpoint()):
        report = load_matching_weights(task, Path(base), verify=folder.verify)
        notices += [*RunFolder(Path(base), verify=folder.verify).verify_files(CONFIG_FILE), f"{base}: {report}"]
    if task.config.train.embeddings and not (resume and folder.latest_checkpoint()):
        notices.append(load_embeddings(task))
    freeze_parameters(task.model, task.config)
    return tuple(notices)


def load_interrupted_weights(task: Task, folder: RunFolder) -> str:
    """Load the weights of a run that was stopped before its first validation, from its latest checkpoint.

    Returns:
        A notice about these weights.

    Raises:
        CheckpointError: There is no checkpoint either, or the run had finished and its model is missing.
    """
    latest = folder.read_latest_checkpoint()
    if latest is None:
        raise CheckpointError(
            f"{folder.path} has no model and no checkpoint yet; continue its training with --resume"
        )
    checkpoint, tensors, state = latest
    if state.get("finished"):
        raise damaged_error(folder.model_file, "no such file")
    _load_checkpoint_tensors(task, checkpoint, tensors)
    return (
        f"{folder.path}: training was interrupted at step {checkpoint_step(checkpoint)}, before the first "
        "validation; these are the weights of the latest checkpoint (continue with --resume)"
    )


def load_latest_weights(task: Task, folder: RunFolder) -> int:
    """Load the weights of the latest checkpoint of a run, which may be in training, and return its step.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    latest = folder.read_latest_checkpoint()
    if latest is None:
        raise CheckpointError(f"{folder.path} has no checkpoint; a run writes them while it trains")
    checkpoint, tensors, _ = latest
    _load_checkpoint_tensors(task, checkpoint, tensors)
    return checkpoint_step(checkpoint)


def _load_checkpoint_tensors(task: Task, checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    """Copy the weights among the tensors of a checkpoint into the model, and merge its LoRA layers."""
    if task.config.train.lora_rank:
        apply_lora(task.model, task.config.train)
    prefix = "model."
    weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    load_weights(task.model, weights, checkpoint)
    merge_lora(task.model)
    task.model.requires_grad_()


class LoadReport(NamedTuple):
    """The names of the tensors that were loaded, that the base lacks, and that this model does not use."""

    loaded: list[str]
    new: list[str]
    unused: list[str]

    def __str__(self) -> str:
        parts = ((kind, names) for kind, names in zip(self._fields, self, strict=True) if names)
        return "; ".join(f"{len(names)} tensors {kind}: {_summarise_names(names)}" for kind, names in parts)


def _summarise_names(names: Iterable[str]) -> str:
    """Count tensors by the part of the model, such as `encoder.blocks 24`."""
    parts = Counter(".".join(name.split(".")[: 2 if name.startswith("encoder.") else 1]) for name in names)
    return ", ".join(f"{part} {count}" if count > 1 else part for part, count in parts.items())


def load_matching_weights(task: Task, path: Path, *, verify: bool = True) -> LoadReport:
    """Copy those weights of the base that the task's model also has."""
    folder = RunFolder(path, verify=verify)
    config, weights = load_base_config(path, task.name, verify=verify), folder.read_weights()
    validate_finite(folder.model_file, weights)
    loaded, new = [], []
    for name, parameter in named_weights(task.model).items():
        if name not in weights or name.startswith(LINEAR_PART) or not _is_transferable(name, config, task.config):
            new.append(name)
            continue
        with torch.no_grad():
            parameter.copy_(_fit_positions(name, weights[name], parameter, path))
        loaded.append(name)
    if missing := [name for name in new if config.task == task.name and not name.startswith((*HEADS, LINEAR_PART))]:
        raise ConfigError(f"{path} does not match the settings: it has no {missing[0]}")
    return LoadReport(loaded, new, sorted(weights.keys() - set(loaded)))


def _is_transferable(name: str, base: Config, config: Config) -> bool:
    """Return whether a tensor means the same in both models. A classification head needs equal labels."""
    if not name.startswith(HEADS) or base.task == config.task != "classify":
        return True
    same_head = base.task == config.task and base.model.head_hidden == config.model.head_hidden
    return same_head and (name.startswith("classification_head.0.") or base.data.labels == config.data.labels)


def _fit_positions(name: str, tensor: Tensor, target: Tensor, path: Path) -> Tensor:
    """Return the tensor, with learned positions truncated to those that the model needs."""
    if name.endswith("position_embedding.table.weight") and len(tensor) > len(target):
        tensor = tensor[: len(target)]
    if tensor.shape == target.shape:
        return tensor
    if name.endswith("position_embedding.table.weight") and tensor.shape[1:] == target.shape[1:]:
        raise ConfigError(
            f"{path} has {len(tensor)} learned positions, and data.max_len={len(target)} needs more; "
            "lower data.max_len"
        )
    raise ConfigError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {tuple(target.shape)}")
