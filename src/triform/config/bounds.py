"""The smallest and the largest value of every numeric setting.

The upper bounds are generous. A larger number is a typing error or comes from a damaged file.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from triform.errors import ConfigError

MAX_LEN = 2**24  # tokens a model reads at once
MAX_WIDTH = 2**16  # d_model
MAX_COUNT = 10**9  # steps, rows and the like
MAX_SEEDS = 500  # models of one command; each holds a lock file open, and many systems allow 1,024 open files

BOUNDS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**32 - 1),
    "data.valid_fraction": (0, 0.5),
    "data.max_len": (0, MAX_LEN),
    "data.train_max_len": (0, MAX_LEN),
    "tokenizer.vocab_size": (0, 2**24),
    "tokenizer.max_vocab_size": (1, 2**24),
    "tokenizer.min_count": (1, MAX_COUNT),
    "tokenizer.bpe_dropout": (0, 0.5),
    "model.d_model": (0, MAX_WIDTH),
    "model.d_ff": (0, 2**20),
    "model.n_layers": (0, 1000),
    "model.n_heads": (0, 4096),
    "model.n_kv_heads": (0, 4096),
    "model.dropout": (0, 0.95),
    "model.attention_dropout": (0, 0.95),
    "model.rotary_base": (1, 1e12),
    "model.rotary_scaling": (0, 1e9),
    "model.max_distance": (0, MAX_LEN),
    "model.n_buckets": (4, MAX_WIDTH),
    "model.window": (-1, 2**31),
    "model.layer_windows": (-1, 2**31),
    "model.norm_eps": (0, 1),
    "model.n_segments": (0, 1000),
    "model.bigram_buckets": (0, 2**28),
    "model.term_buckets": (0, 2**28),
    "model.head_hidden": (0, 2**20),
    "train.mask_rate": (0.01, 0.9),
    "train.lr": (0, 1e38),
    "train.betas": (0, 1),
    "train.momentum": (0, 1),
    "train.weight_decay": (0, 1000),
    "train.warmup_steps": (-1, MAX_COUNT),
    "train.min_lr_ratio": (0, 1),
    "train.plateau_factor": (0.01, 0.99),
    "train.plateau_patience": (0, MAX_COUNT),
    "train.batch_size": (0, 2**24),
    "train.batch_tokens": (0, 2**30),
    "train.grad_accumulation": (1, 10**6),
    "train.max_steps": (0, MAX_COUNT),
    "train.epochs": (0, 10**6),
    "train.max_minutes": (0, 10**6),
    "train.clip_norm": (0, 1e18),
    "train.label_smoothing": (0, 0.9),
    "train.r_drop": (0, 1000),
    "train.token_cutoff": (0, 0.9),
    "train.simcut": (0, 1000),
    "train.ema_decay": (0, 0.999999),
    "train.distill_weight": (0, 1),
    "train.distill_temperature": (0.01, 1000),
    "train.freeze_layers": (-1, 1000),
    "train.layer_decay": (0.01, 1),
    "train.lora_rank": (0, MAX_WIDTH),
    "train.lora_alpha": (0, 10**6),
    "train.lora_dropout": (0, 0.95),
    "train.eval_every": (0, MAX_COUNT),
    "train.eval_train": (-1, MAX_COUNT),
    "train.checkpoint_every": (0, MAX_COUNT),
    "train.log_every": (0, 10**6),
    "train.patience": (-1, MAX_COUNT),
    "decode.temperature": (1e-6, 1e6),
    "decode.top_k": (0, 2**24),
    "decode.top_p": (0, 1),
    "decode.beam_size": (1, 1000),
    "decode.length_penalty": (0, 10),
    "decode.max_new_tokens": (0, 10**6),
}


def validate_bounds(section: Any, name: str = "") -> None:
    """Check the numbers of a section of settings."""
    for field in fields(section):
        setting = f"{name}.{field.name}" if name else field.name
        if setting in BOUNDS:
            value = getattr(section, field.name)
            for number in value if isinstance(value, tuple) else (value,):
                if not isinstance(number, str):  # a word that stands for a number
                    validate_bound(setting, number)


def validate_bound(setting: str, number: float) -> None:
    """Raise a ConfigError if a number is outside the bounds of its setting."""
    low, high = BOUNDS[setting]
    if not low <= number <= high:
        raise ConfigError(f"{setting}={format_value(number)} must be between {low} and {high}")


def format_value(value: object) -> str:
    """Return a value for a message, shortened if it is very long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length():,} bits"
    return shorten(repr(value))


def shorten(text: str, max_chars: int = 60) -> str:
    """Return a text for a message; a long one is cut, and its length added."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 20]}... ({len(text):,} characters)"
