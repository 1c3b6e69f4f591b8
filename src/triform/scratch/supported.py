"""Which settings the NumPy models know. Any other that would change something is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from triform.config import Config, DataConfig, ModelConfig
from triform.errors import ConfigError
from triform.scratch.layers import LayerNorm
from triform.text import OWN, Tokenizer

MODEL: dict[str, tuple[Any, ...]] = {
    "kind": ("transformer",),
    "positions": ("learned", "sinusoidal", "none"),
    "score": ("scaled_dot", "dot"),
    "norm": ("layer",),
    "norm_eps": (0.0, LayerNorm.EPSILON),
    "activation": ("relu", "gelu", "gelu_tanh"),
    "window": (-1,),
    "layer_windows": ((),),
}
# Followed whatever they are; a setting that is in neither table must be as it is by default.
MODEL_FREE = (
    *("d_model", "d_ff", "n_layers", "n_heads", "n_kv_heads", "dropout", "attention_dropout", "reach"),
    *("norm_position", "final_norm", "bias", "qkv_bias", "tie_embeddings", "scale_embeddings"),
    *("head_hidden", "head_bias"),
)
TRAIN: dict[str, tuple[Any, ...]] = {
    "optimizer": ("adam", "adamw"),
    "schedule": ("constant", "cosine", "linear", "noam"),
    "precision": ("auto", "fp32"),
}
TRAIN_FREE = (
    *("lr", "betas", "weight_decay", "warmup_steps", "final_lr_ratio", "batch_size", "batch_tokens", "max_steps"),
    *("epochs", "clip_norm", "label_smoothing"),
)
# Without meaning here, so they may be anything: the first three are for sgd and plateau, which are refused, and
# nothing is judged, saved or shown while these models learn.
TRAIN_IDLE = (
    "momentum",
    "plateau_factor",
    "plateau_patience",
    "eval_every",
    "checkpoint_every",
    "log_every",
    "patience",
)
TOKENIZER_FREE = ("kind", "vocab_size", "min_count", "lowercase", "shared")
DATA: dict[str, tuple[Any, ...]] = {"valid_fraction": (0.0, DataConfig.valid_fraction)}  # nothing is held out
DATA_FREE = ("labels", "max_len")


def check_model(config: ModelConfig) -> None:
    """A ConfigError unless the settings are known here, and chosen."""
    check_known(config)
    if config.n_kv_heads not in (0, config.n_heads):
        _refuse("model", "n_kv_heads", config.n_kv_heads, (0, config.n_heads))
    for name in ("d_model", "d_ff", "n_layers", "n_heads"):
        if not getattr(config, name):
            raise ConfigError(f"model.{name}=0 is left open: a NumPy model is built from sizes that are chosen")


def check_known(config: ModelConfig) -> None:
    """The same of settings some of which are left open."""
    for found in _unknown(_without_defaults(config), MODEL, MODEL_FREE):
        _refuse("model", *found)


def _without_defaults(config: ModelConfig) -> ModelConfig:
    """The config with settings left open that were given the value they would have anyway."""
    if config.out_bias == ("yes" if config.bias else "no"):
        config = replace(config, out_bias="auto")
    return replace(config, layer_windows=()) if set(config.layer_windows) == {-1} else config


def check_training(config: Config) -> None:
    for found in _unknown(config.train, TRAIN, (*TRAIN_FREE, *TRAIN_IDLE)):
        _refuse("train", *found)
    for found in _unknown(config.tokenizer, {}, TOKENIZER_FREE):
        _refuse("tokenizer", *found)
    for name, value, _ in _unknown(config.data, DATA, DATA_FREE):
        raise ConfigError(f"data.{name}={value} is about files, and here `fit` is given all data: leave it out")


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Of a run: what begins, ends and frames a text must be as in vocabularies that are learned here."""
    if tokenizer.special != OWN:
        _refuse("tokenizer", "kind", tokenizer.kind, ("char", "word", "bpe"))


def _unknown(
    config: Any, known: dict[str, tuple[Any, ...]], free: tuple[str, ...]
) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Settings with a value that is not known, and which are."""
    for each in fields(config):
        value, values = getattr(config, each.name), known.get(each.name, (each.default,))
        if each.name not in free and value not in values:
            yield each.name, value, values


def _refuse(section: str, name: str, value: object, known: tuple[Any, ...]) -> None:
    shown = ", ".join(str(list(each) if isinstance(each, tuple) else each) for each in known)
    raise ConfigError(
        f"{section}.{name}={list(value) if isinstance(value, tuple) else value} is not known to triform.scratch "
        f"({f'only {shown}' if shown else 'it must be left empty'}); the torch models have it"
    )


def settled(config: Config) -> Config:
    """Settings left open, chosen: a small model, as the torch side has it for little data."""
    model, train, tokenizer = config.model, config.train, config.tokenizer
    check_known(model)  # what is chosen below fits only these
    width = model.d_model or 128
    heads = model.n_heads or next(heads for heads in (4, 3, 2, 1) if width % heads == 0)
    model = replace(model, d_model=width, n_heads=heads, n_layers=model.n_layers or 2, d_ff=model.d_ff or 4 * width)
    if not train.batch_size and not train.batch_tokens:
        train = replace(train, batch_tokens=1_024)
    if not train.max_steps and not train.epochs:
        train = replace(train, epochs={"classify": 8.0, "generate": 15.0, "translate": 10.0}[config.task])
    train = replace(train, lr=train.lr or (2e-3 if width <= 128 else 1e-3 if width <= 256 else 5e-4))
    if tokenizer.kind == "auto":
        tokenizer = replace(tokenizer, kind="word" if config.task == "classify" else "bpe")
    return replace(config, model=model, train=train, tokenizer=tokenizer)
