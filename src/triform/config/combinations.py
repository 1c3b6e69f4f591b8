"""Checks of settings that depend on the task or on several sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triform.config.model import ATTENTION_SETTINGS, ModelConfig
from triform.config.validation import require
from triform.errors import ConfigError

if TYPE_CHECKING:
    from triform.config import Config

OBJECTIVE_TASKS = {"masked": "classify", "denoise": "translate"}  # the only task of an objective


def validate_combinations(config: Config) -> None:
    """Raise a ConfigError if settings of different sections contradict each other."""
    task, model, train = config.task, config.model, config.train
    if task != "translate" and config.data.source:
        raise ConfigError(f"data.source and data.target apply to translate only; for {task}, set data.train")
    require(
        not config.data.extra_tag
        or (task == "translate" and bool(config.data.extra) and train.objective == "auto"),
        "data.extra_tag applies to translate with data.extra only; leave it out, or add --extra-data",
    )
    require(
        not config.data.extra or task != "generate",
        "data.extra applies to classify and translate only; for generate, put the files into one folder",
    )
    require(
        not model.bigram_buckets or task == "classify",
        f"model.bigram_buckets applies to classify only, not to {task}",
    )
    _validate_linear_part(config)
    if config.tokenizer.bpe_dropout and (task == "generate" or config.tokenizer.kind not in ("auto", "bpe")):
        raise ConfigError("tokenizer.bpe_dropout applies only to classify and translate with tokenizer.kind=bpe")
    if train.r_drop and not (model.dropout or model.attention_dropout):
        raise ConfigError("train.r_drop needs dropout; set model.dropout above 0")
    if model.attention_direction == "full" and task != "classify":
        raise ConfigError(
            "model.attention_direction=full would let the decoder see the tokens that it predicts; "
            f"for {task}, use auto or causal"
        )
    if config.decode.mix:
        _validate_mix(config)
    if train.objective != "auto":
        _validate_objective(config)
    if model.is_recurrent:
        _validate_recurrent(config)


def _validate_linear_part(config: Config) -> None:
    model, train = config.model, config.train
    require(
        not model.term_buckets or config.predicts_labels,
        "model.term_buckets applies to classify only, and not to pretraining; leave it out",
    )
    require(
        not train.refit_linear_part or config.predicts_labels,
        "train.refit_linear_part applies to classify only, and not to pretraining; leave it out",
    )
    require(
        not train.refit_linear_part or (not config.data.valid and config.data.valid_fraction > 0),
        "train.refit_linear_part needs validation texts that are held out of the training file; leave out "
        "data.valid (--valid), and set data.valid_fraction above 0",
    )
    require(
        not (train.refit_linear_part and train.lora_rank),
        "train.refit_linear_part changes more than the adapters of train.lora_rank; leave one of them out",
    )
    require(
        not (model.term_buckets and train.parallel == "fsdp"),
        "model.term_buckets needs the whole model in each process; leave out train.parallel=fsdp",
    )


def _validate_mix(config: Config) -> None:
    data = config.data
    require(config.task == "generate", f"decode.mix applies to generate only, not to {config.task}; leave it out")
    has_split = data.train.startswith("builtin:") or not data.train  # built-in sets have a validation split
    require(
        bool(data.valid) or data.valid_fraction > 0 or has_split,
        "decode.mix learns its weights on validation data; set data.valid, or data.valid_fraction above 0",
    )


def _validate_objective(config: Config) -> None:
    train, objective = config.train, f"train.objective={config.train.objective}"
    task = OBJECTIVE_TASKS[train.objective]
    require(
        config.task == task,
        f"{objective} applies to {task} only, not to {config.task}; use triform pretrain --for {config.task}",
    )
    data = config.data
    require(not data.source, f"{objective} reads texts, not pairs; give one file with --data")
    require(not data.valid_source, f"{objective} reads texts, not pairs; give one file with --valid")
    require(
        train.objective != "masked" or not config.tokenizer.bpe_dropout,
        f"tokenizer.bpe_dropout cannot be combined with {objective}; leave it out",
    )
    require(
        config.tokenizer.joint_vocab,
        f"{objective} reads and writes the same texts; leave out tokenizer.joint_vocab=false",
    )
    for name in ("r_drop", "token_cutoff", "distill_from", "lora_rank"):
        require(not getattr(train, name), f"train.{name} cannot be combined with {objective}; leave it out")


def _validate_recurrent(config: Config) -> None:
    model, train, kind = config.model, config.train, f"model.kind={config.model.kind}"
    require(not train.lora_rank, f"train.lora_rank applies to Transformers only, not to {kind}")
    require(train.optimizer != "muon", f"train.optimizer=muon applies to Transformers only, not to {kind}")
    require(
        train.precision != "bf16",
        f"train.precision=bf16 applies to Transformers only; {kind} is trained in fp32",
    )
    if config.task != "translate":
        for name in ATTENTION_SETTINGS:
            value = getattr(model, name)
            require(
                value == getattr(ModelConfig, name),
                f"model.{name}={value} applies to attention, which {kind} has in translate only; leave it out",
            )
    require(
        config.task == "generate" or model.attention_direction == "causal" or model.d_model % 2 == 0,
        f"model.d_model={model.d_model} must be even, because {kind} reads forwards with one half of it and "
        "backwards with the other",
    )
