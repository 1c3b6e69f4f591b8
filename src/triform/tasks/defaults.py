"""Settings left open, chosen from the size of the data.

The rules are few and plain. Small data gets a small model, small batches and many epochs; large data a larger
model, large batches and few epochs. Whatever the user sets stays.
"""

from __future__ import annotations

from triform.config import Config, ModelConfig
from triform.settings import Settings, build, flatten
from triform.tasks.learned import given_tokenizer

MILLION = 1_000_000


def with_tokenizer(config: Config, n_characters: int) -> Config:
    """Whole words for small labelled sets, characters for a very short text to imitate, else byte BPE."""
    if config.tokenizer.kind != "auto":
        return config
    if config.tokenizer.file:
        return build({"tokenizer.kind": given_tokenizer(config.tokenizer).kind}, config)
    kind = "bpe"
    if config.task == "classify" and n_characters < 3 * MILLION:
        kind = "word"
    if config.task == "generate" and n_characters < 50_000:
        kind = "char"
    return build({"tokenizer.kind": kind}, config)


def settle(config: Config, n_tokens: int, settings: Settings) -> Config:
    """`config` with `settings` laid over it and every open setting chosen for so many training tokens."""
    config = build(settings, config)
    config = build(_open(config, _model(config, n_tokens)), config)
    if not config.model.is_recurrent:
        config = build(_open(config, {"model.d_ff": feedforward_width(config.model)}), config)
    return build(_open(config, _pace(config, n_tokens)), config)


def settle_steps(config: Config, max_steps: int) -> Config:
    """The settings that depend on how long training is: warm-up, and how often to look, log and save."""
    eval_every = max(1, min(1_000, max_steps // 10))
    steps: Settings = {
        "train.eval_every": eval_every,
        "train.checkpoint_every": config.train.eval_every or eval_every,
        "train.log_every": max(1, min(50, max_steps // 100)),
    }
    config = build(_open(config, steps), config)
    if config.train.warmup_steps < 0:
        config = build({"train.warmup_steps": min(1_000, max_steps // 20)}, config)
    return config


def settle_patience(config: Config, n_valid: int, validations_per_epoch: int) -> Config:
    """How many validations without progress end training: a few for classifiers, which overfit soon; 0: any number.

    Scores on few examples vary by chance, so these get more patience; it always covers an epoch.
    """
    if config.train.patience >= 0:
        return config
    few = 5 if n_valid < 200 else 4 if n_valid < 1_000 else 3
    patience = max(few, validations_per_epoch) if config.task == "classify" and n_valid else 0
    return build({"train.patience": patience}, config)


def _open(config: Config, proposal: Settings) -> Settings:
    """Those of the proposed settings that the config leaves open."""
    have = flatten(config)
    return {name: value for name, value in proposal.items() if not have[name]}


def _model(config: Config, n_tokens: int) -> Settings:
    width, layers, heads = 128, 2, 4
    if n_tokens > 5 * MILLION:
        width, layers, heads = 256, 4, 4
    if n_tokens > 50 * MILLION:
        width, layers, heads = 512, 6, 8
    width = config.model.d_model or width
    if config.model.is_recurrent:  # as wide again costs as much as a Transformer's feedforward layers
        return {"model.d_model": width, "model.n_layers": min(layers, 3)}
    if config.model.n_heads and width % config.model.n_heads:  # asked-for heads decide what the width may be
        width = config.model.n_heads * max(1, width // config.model.n_heads)
        width *= 1 + width % 2  # fixed positions come in pairs
    while width % heads:
        heads -= 1
    return {"model.d_model": width, "model.n_layers": layers, "model.n_heads": heads}


def feedforward_width(model: ModelConfig) -> int:
    """Four times the model's width; a gated layer has a matrix more, and two thirds of that."""
    return 8 * round(model.d_model / 3) if model.activation == "swiglu" else 4 * model.d_model


def _pace(config: Config, n_tokens: int) -> Settings:
    """Learning rate by width, batch by amount of data, and as many epochs as the data bears."""
    train, width = config.train, config.model.d_model
    rate = 2e-3 if width <= 128 else 1e-3 if width <= 256 else 5e-4
    gently = bool(train.base) and not train.lora_rank  # weights that have learned are easily lost
    pace: Settings = {"train.lr": rate / 10 if gently else rate, "train.lora_alpha": 2.0 * train.lora_rank}
    tokens = 1_024 if n_tokens < MILLION else 4_096 if n_tokens < 20 * MILLION else 16_384
    if not train.batch_size and not train.batch_tokens:
        if config.task == "generate":  # windows are all of one length
            pace["train.batch_size"] = max(1, tokens // config.data.max_len)
        else:
            pace["train.batch_tokens"] = tokens
    if not train.max_steps and not train.epochs:
        epochs = {"classify": 8, "generate": 15, "translate": 10}[config.task]
        small = n_tokens < 2 * MILLION
        pace["train.epochs"] = float(epochs if small else max(2, epochs // 3))
    return pace
