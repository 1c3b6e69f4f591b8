"""The settings that the NumPy models support. All others are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from triform.config import Config, DataConfig, DecodeConfig, ModelConfig
from triform.errors import ConfigError
from triform.scratch.layers import LayerNorm
from triform.text import DEFAULT_SPECIAL_TOKENS, Tokenizer

MODEL_ALLOWED: dict[str, tuple[Any, ...]] = {
    "kind": ("transformer",),
    "positions": ("learned", "sinusoidal", "none"),
    "attention_score": ("scaled_dot", "dot"),
    "norm": ("layer",),
    "norm_eps": (0.0, LayerNorm.EPSILON),
    "activation": ("relu", "gelu", "gelu_tanh"),
    "window": (-1,),
    "layer_windows": ((),),
}
# Supported with any value. A setting that is in neither table must have its default value.
MODEL_UNRESTRICTED = (
    *(
        "d_model",
        "d_ff",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "dropout",
        "attention_dropout",
        "attention_scale",
        "attention_direction",
    ),
    *("norm_position", "final_norm", "bias", "qkv_bias", "tie_embeddings", "scale_embeddings"),
    *("head_hidden", "head_bias"),
)
TRAIN_ALLOWED: dict[str, tuple[Any, ...]] = {
    "optimizer": ("adam", "adamw"),
    "schedule": ("constant", "cosine", "linear", "noam"),
    "precision": ("auto", "fp32"),
}
TRAIN_UNRESTRICTED = (
    *("lr", "betas", "weight_decay", "warmup_steps", "min_lr_ratio", "batch_size", "batch_tokens", "max_steps"),
    *("epochs", "clip_norm", "label_smoothing"),
)
# Settings without effect here may have any value: the first four are for objectives, sgd and plateau, which are
# refused, and nothing is evaluated, saved or printed during training.
TRAIN_IGNORED = (
    "mask_rate",
    "momentum",
    "plateau_factor",
    "plateau_patience",
    "eval_every",
    "eval_train",
    "checkpoint_every",
    "log_every",
    "baseline",
    "patience",
)
TOKENIZER_UNRESTRICTED = ("kind", "vocab_size", "min_count", "lowercase", "joint_vocab")
# The default is accepted too, but `triform.scratch` uses no validation data.
DATA_ALLOWED: dict[str, tuple[Any, ...]] = {"valid_fraction": (0.0, DataConfig.valid_fraction)}
DATA_UNRESTRICTED = ("labels", "max_len")


def check_model(config: ModelConfig) -> None:
    """Raise a ConfigError if a setting is not supported or a size is not set."""
    check_supported(config)
    if config.n_kv_heads not in (0, config.n_heads):
        _raise_unsupported("model", "n_kv_heads", config.n_kv_heads, (0, config.n_heads))
    for name in ("d_model", "d_ff", "n_layers", "n_heads"):
        if not getattr(config, name):
            raise ConfigError(f"model.{name}=0 is not supported by triform.scratch; set a size")


def check_supported(config: ModelConfig) -> None:
    """Raise a ConfigError if a setting is not supported. Sizes may be unset."""
    for problem in _find_unsupported(_without_defaults(config), MODEL_ALLOWED, MODEL_UNRESTRICTED):
        _raise_unsupported("model", *problem)


def _without_defaults(config: ModelConfig) -> ModelConfig:
    """Return the config with those settings reset that are equal to their resolved default."""
    if config.out_bias == ("yes" if config.bias else "no"):
        config = replace(config, out_bias="auto")
    return replace(config, layer_windows=()) if set(config.layer_windows) == {-1} else config


def check_training(config: Config) -> None:
    """Raise a ConfigError if a setting of data, tokenizer or training is not supported."""
    for problem in _find_unsupported(config.train, TRAIN_ALLOWED, (*TRAIN_UNRESTRICTED, *TRAIN_IGNORED)):
        _raise_unsupported("train", *problem)
    for problem in _find_unsupported(config.tokenizer, {}, TOKENIZER_UNRESTRICTED):
        _raise_unsupported("tokenizer", *problem)
    for name, value, _ in _find_unsupported(config.data, DATA_ALLOWED, DATA_UNRESTRICTED):
        raise ConfigError(
            f"data.{name}={value} applies only to files, and `fit` receives all data as arguments; remove it"
        )


def check_decoding(config: DecodeConfig) -> None:
    """Raise a ConfigError if a decoding setting is not supported. Settings that only make decoding fast are."""
    if config.mix:
        _raise_unsupported("decode", "mix", config.mix, ())


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Raise a ConfigError if a tokenizer has other special tokens than those that Triform trains."""
    if tokenizer.special_tokens != DEFAULT_SPECIAL_TOKENS:
        _raise_unsupported("tokenizer", "kind", tokenizer.kind, ("char", "word", "bpe", "wordpiece"))


def _find_unsupported(
    config: Any, allowed: dict[str, tuple[Any, ...]], unrestricted: tuple[str, ...]
) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield each setting with an unsupported value, with the values that are supported."""
    for field in fields(config):
        value, values = getattr(config, field.name), allowed.get(field.name, (field.default,))
        if field.name not in unrestricted and value not in values:
            yield field.name, value, values


def _raise_unsupported(section: str, name: str, value: object, allowed: tuple[Any, ...]) -> None:
    choices = ", ".join(str(list(choice) if isinstance(choice, tuple) else choice) for choice in allowed)
    raise ConfigError(
        f"{section}.{name}={list(value) if isinstance(value, tuple) else value} is not supported by "
        f"triform.scratch ({f'only {choices}' if choices else 'it must be empty'}); use triform.train instead"
    )


def resolve_defaults(config: Config) -> Config:
    """Return the config with default sizes: a small model, as `triform train` chooses for little data."""
    model, train, tokenizer = config.model, config.train, config.tokenizer
    check_supported(model)  # the defaults below are only for these
    d_model = model.d_model or 128
    n_heads = model.n_heads or next(n_heads for n_heads in (4, 3, 2, 1) if d_model % n_heads == 0)
    model = replace(
        model, d_model=d_model, n_heads=n_heads, n_layers=model.n_layers or 2, d_ff=model.d_ff or 4 * d_model
    )
    if not train.batch_size and not train.batch_tokens:
        train = replace(train, batch_tokens=1_024)
    if not train.max_steps and not train.epochs:
        train = replace(train, epochs={"classify": 8.0, "generate": 15.0, "translate": 10.0}[config.task])
    train = replace(train, lr=train.lr or (2e-3 if d_model <= 128 else 1e-3 if d_model <= 256 else 5e-4))
    if tokenizer.kind == "auto":
        tokenizer = replace(tokenizer, kind="word" if config.task == "classify" else "bpe")
    return replace(config, model=model, train=train, tokenizer=tokenizer)
