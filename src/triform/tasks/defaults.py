"""Default settings, chosen from the size of the data.

Small data gets a small model, small batches and many epochs. Large data gets a larger model, large batches and few
epochs. Settings of the user are never changed.
"""

from __future__ import annotations

from collections.abc import Collection

from triform.config import Config, ModelConfig
from triform.config.settings import Settings, build_config, flatten_config
from triform.tasks.learned_tokenizers import load_configured_tokenizer

MILLION = 1_000_000
PRETRAINING_EPOCHS = 15  # as for generate; each epoch has other masks


def resolve_tokenizer_kind(config: Config, n_characters: int) -> Config:
    """Choose a tokenizer: words for small labelled sets, characters for very short texts, else byte-level BPE."""
    if config.tokenizer.kind != "auto":
        return config
    if config.tokenizer.file:
        return build_config({"tokenizer.kind": load_configured_tokenizer(config.tokenizer).kind}, config)
    kind = "bpe"
    if config.task == "classify" and n_characters < 3 * MILLION:
        kind = "word"
    if config.task == "generate" and n_characters < 50_000:
        kind = "char"
    return build_config({"tokenizer.kind": kind}, config)


def resolve_defaults(config: Config, n_tokens: int, settings: Settings) -> Config:
    """Return the config overridden by `settings`, with defaults for a number of training tokens."""
    config = with_model_defaults(build_config(settings, config), n_tokens)
    return build_config(_only_unset(config, _train_defaults(config, n_tokens)), config)


def with_model_defaults(config: Config, n_tokens: int) -> Config:
    """Return the config with a default size of the model for a number of training tokens."""
    config = build_config(_only_unset(config, _model_defaults(config, n_tokens)), config)
    if config.model.is_recurrent:
        return config
    return build_config(_only_unset(config, {"model.d_ff": default_d_ff(config.model)}), config)


def resolve_step_defaults(config: Config, max_steps: int) -> Config:
    """Return the config with defaults that depend on the number of steps, such as warm-up and validation."""
    eval_every = max(1, min(1_000, max_steps // 10))
    defaults: Settings = {
        "train.eval_every": eval_every,
        "train.checkpoint_every": (config.train.eval_every != "epoch" and config.train.eval_every) or eval_every,
        "train.log_every": max(1, min(50, max_steps // 100)),
    }
    config = build_config(_only_unset(config, defaults), config)
    if config.train.warmup_steps < 0:
        config = build_config({"train.warmup_steps": min(1_000, max_steps // 20)}, config)
    return config


def resolve_patience(config: Config, n_valid: int, validations_per_epoch: int) -> Config:
    """Return the config with a default patience, the number of validations without progress before stopping.

    Only classifiers stop early, because they overfit soon; otherwise it is 0. Metrics on few examples vary by
    chance, so small sets get more patience. The patience always covers an epoch.
    """
    if config.train.patience >= 0:
        return config
    min_patience = 5 if n_valid < 200 else 4 if n_valid < 1_000 else 3
    patience = max(min_patience, validations_per_epoch) if config.predicts_labels and n_valid else 0
    return build_config({"train.patience": patience}, config)


def with_unset(config: Config, defaults: Settings, user_settings: Collection[str]) -> Config:
    """Return the settings with defaults for those that the user has not given."""
    return build_config({name: value for name, value in defaults.items() if name not in user_settings}, config)


def _only_unset(config: Config, defaults: Settings) -> Settings:
    """Return those defaults whose settings are not set in the config."""
    current = flatten_config(config)
    return {name: value for name, value in defaults.items() if not current[name]}


def _model_defaults(config: Config, n_tokens: int) -> Settings:
    d_model, n_layers, n_heads = 128, 2, 4
    if n_tokens > 5 * MILLION:
        d_model, n_layers, n_heads = 256, 4, 4
    if n_tokens > 50 * MILLION:
        d_model, n_layers, n_heads = 512, 6, 8
    d_model = config.model.d_model or d_model
    if config.model.is_recurrent:  # a recurrent layer costs as much as a layer of the Transformer
        return {"model.d_model": d_model, "model.n_layers": min(n_layers, 3)}
    if (
        config.model.n_heads and d_model % config.model.n_heads
    ):  # the width must be a multiple of the number of heads
        d_model = config.model.n_heads * max(1, d_model // config.model.n_heads)
        d_model *= 1 + d_model % 2  # sinusoidal positions need an even width
    while d_model % n_heads:
        n_heads -= 1
    return {"model.d_model": d_model, "model.n_layers": n_layers, "model.n_heads": n_heads}


def default_d_ff(model: ModelConfig) -> int:
    """Return four times the model's width, or two thirds of that for gated layers, which have one more matrix."""
    return 8 * round(model.d_model / 3) if model.activation == "swiglu" else 4 * model.d_model


def default_lr(d_model: int) -> float:
    """Return the default peak learning rate for a width of the model."""
    return 2e-3 if d_model <= 128 else 1e-3 if d_model <= 256 else 5e-4


def _train_defaults(config: Config, n_tokens: int) -> Settings:
    """Choose the learning rate by the width, and batch size and epochs by the amount of data."""
    train = config.train
    lr = default_lr(config.model.d_model)
    is_fine_tuning = bool(train.init_from) and not train.lora_rank  # a high rate would destroy trained weights
    defaults: Settings = {"train.lr": lr / 10 if is_fine_tuning else lr, "train.lora_alpha": 2.0 * train.lora_rank}
    batch_tokens = 1_024 if n_tokens < MILLION else 4_096 if n_tokens < 20 * MILLION else 16_384
    if not train.batch_size and not train.batch_tokens:
        if config.task == "generate":  # all windows have the same length
            defaults["train.batch_size"] = max(1, batch_tokens // config.data.longest_training_example)
        else:
            defaults["train.batch_tokens"] = batch_tokens
    if not train.max_steps and not train.epochs:
        epochs = {"classify": 8, "generate": 15, "translate": 10}[config.task]
        if train.objective != "auto":
            epochs = PRETRAINING_EPOCHS
        is_small = n_tokens < 2 * MILLION
        defaults["train.epochs"] = float(epochs if is_small else max(2, epochs // 3))
    return defaults
