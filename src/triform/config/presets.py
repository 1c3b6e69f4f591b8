"""Presets: named settings of reference systems, of well-known models, and of models by size.

The sizes `tiny`, `small` and `base` fit every task. All other presets are made for one task.
"""

from __future__ import annotations

from collections.abc import Callable

from triform.config import (
    TASK_NAMES,
    Config,
    DataConfig,
    DataSizes,
    DecodeConfig,
    ModelConfig,
    ModelKind,
    TaskName,
    TokenizerConfig,
    TrainConfig,
)
from triform.config.settings import suggest_name
from triform.errors import ConfigError

ADAM_BETAS = (0.9, 0.999)  # the defaults of PyTorch, which the reported systems used


def imdb_encoder() -> Config:
    """Sentiment of IMDb reviews, trained from scratch. Reported test accuracy: 62.38 % after one epoch."""
    return Config(
        task="classify",
        data=DataConfig(max_len=256),
        tokenizer=TokenizerConfig(kind="bpe"),
        model=ModelConfig(
            d_model=768, d_ff=3072, n_layers=4, n_heads=12, positions="sinusoidal", norm_position="post"
        ),
        train=TrainConfig(
            optimizer="adam", betas=ADAM_BETAS, weight_decay=0.0, lr=5e-5, schedule="constant", warmup_steps=0,
            batch_size=16, epochs=1, clip_norm=0.0, patience=0,
        ),
    )  # fmt: skip


def shakespeare_char() -> Config:
    """A character language model on tiny Shakespeare."""
    # The report estimates losses on 200 random batches; here the whole validation part is evaluated.
    return Config(
        task="generate",
        data=DataConfig(max_len=32),
        tokenizer=TokenizerConfig(kind="char"),
        model=ModelConfig(
            d_model=64, d_ff=256, n_layers=4, n_heads=4, dropout=0.0, activation="relu", qkv_bias=False,
            tie_embeddings=False,
        ),
        train=TrainConfig(
            optimizer="adamw", betas=ADAM_BETAS, lr=1e-3, schedule="plateau", plateau_factor=0.5,
            plateau_patience=5, warmup_steps=0, batch_size=16, max_steps=30_000, eval_every=200, patience=10,
            clip_norm=0.0,
        ),
    )  # fmt: skip


def _ted_preset(n_layers: int, n_heads: int, d_model: int, dropout: float) -> Config:
    """Return reported sizes, dropout, batch size and epochs; the other settings let all four sets train well."""
    return Config(
        task="translate",
        data=DataConfig(max_len=128),
        tokenizer=TokenizerConfig(kind="bpe"),
        model=ModelConfig(
            d_model=d_model, d_ff=4 * d_model, n_layers=n_layers, n_heads=n_heads, dropout=dropout,
            positions="sinusoidal", scale_embeddings=True,
        ),
        train=TrainConfig(
            lr=5e-4, schedule="noam", warmup_steps=1_000, batch_size=16, epochs=10, label_smoothing=0.1,
            eval_every=1_875,
        ),
    )  # fmt: skip


def ted_set1() -> Config:
    """TED talks, English to French, set 1: 2 layers, 8 heads, d_model 512. Reported BLEU: 0.3745."""
    return _ted_preset(2, 8, 512, 0.1)


def ted_set2() -> Config:
    """TED talks, English to French, set 2: 4 layers, 8 heads, d_model 512. Reported BLEU: 0.3796."""
    return _ted_preset(4, 8, 512, 0.2)


def ted_set3() -> Config:
    """TED talks, English to French, set 3: 4 layers, 12 heads, d_model 768. Reported BLEU: 0.3854."""
    return _ted_preset(4, 12, 768, 0.2)


def ted_set4() -> Config:
    """TED talks, English to French, set 4: 6 layers, 12 heads, d_model 768. Reported BLEU: 0.3154."""
    return _ted_preset(6, 12, 768, 0.1)


def multi30k_tiny() -> Config:
    """Multi30k, English to German, with the model known as Transformer-tiny. Reported tokenised BLEU: 41.02."""
    return Config(
        task="translate",
        data=DataConfig(max_len=128),
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=8_000),
        model=ModelConfig(
            d_model=128, d_ff=256, n_layers=4, n_heads=4, dropout=0.3, positions="sinusoidal", activation="relu",
            scale_embeddings=True, head_bias=False,
        ),
        train=TrainConfig(
            optimizer="adam", weight_decay=0.0, lr=5e-3, schedule="noam", warmup_steps=2_000, batch_tokens=4_096,
            max_steps=10_000, eval_every=250, patience=10, label_smoothing=0.1,
        ),
        decode=DecodeConfig(strategy="beam", beam_size=5),
    )  # fmt: skip


def _speeches_preset(
    task: TaskName, d_ff: int, window: int = -1, epochs: float = 0.0, max_steps: int = 0
) -> Config:
    """Return the settings that the three systems on speeches share.

    As in the report, nothing is held out for validation, so the last weights are kept.
    """
    return Config(
        task=task,
        data=DataConfig(max_len=32, valid_fraction=0.0),
        tokenizer=TokenizerConfig(kind="word"),
        model=ModelConfig(
            d_model=64, d_ff=d_ff, n_layers=4, n_heads=2, dropout=0.0, activation="relu", qkv_bias=False,
            tie_embeddings=False, head_hidden=100 if task == "classify" else 0, window=window,
        ),
        train=TrainConfig(
            optimizer="adam", betas=ADAM_BETAS, weight_decay=0.0, lr=1e-3, schedule="constant", warmup_steps=0,
            batch_size=16, epochs=epochs, max_steps=max_steps, clip_norm=0.0, patience=0,
            eval_every="epoch" if task == "classify" else 100,
        ),
    )  # fmt: skip


def speeches_classifier() -> Config:
    """Which of three presidents gave a speech. Reported accuracy: 87.60 %, on a test set with training examples."""
    return _speeches_preset("classify", d_ff=256, epochs=15)


def speeches_lm() -> Config:
    """A word-level language model of speeches. Reported perplexities: 375.02, 476.34 and 414.64."""
    return _speeches_preset("generate", d_ff=100, max_steps=500)


def speeches_window() -> Config:
    """The language model of speeches with a window of 8. Reported perplexities: 368.99, 460.88 and 402.49."""
    return _speeches_preset("generate", d_ff=100, window=8, max_steps=500)


def _size_preset(task: TaskName, kind: ModelKind, d_model: int, n_layers: int, n_heads: int) -> Config:
    if kind != "transformer":  # more than three recurrent layers gain little
        return Config(task=task, model=ModelConfig(kind=kind, d_model=d_model, n_layers=min(3, n_layers)))
    model = ModelConfig(d_model=d_model, n_layers=n_layers, n_heads=n_heads, d_ff=4 * d_model)
    return Config(task=task, model=model)


def tiny(task: TaskName, kind: ModelKind = "transformer") -> Config:
    """d_model 64 and 2 layers; trains in seconds on a laptop."""
    return _size_preset(task, kind, 64, 2, 4)


def small(task: TaskName, kind: ModelKind = "transformer") -> Config:
    """d_model 256 and 4 layers; trains in minutes on a laptop."""
    return _size_preset(task, kind, 256, 4, 4)


def base(task: TaskName, kind: ModelKind = "transformer") -> Config:
    """d_model 512 and 6 layers; needs a GPU."""
    return _size_preset(task, kind, 512, 6, 8)


def gpt2_small() -> Config:
    """The model of GPT-2 small, with 124 million parameters."""
    model = ModelConfig(d_model=768, d_ff=3072, n_layers=12, n_heads=12, head_bias=False)
    return Config(
        task="generate", data=DataConfig(max_len=1024), tokenizer=TokenizerConfig(kind="bpe"), model=model
    )


def bert_base() -> Config:
    """The model of BERT base: 12 post-norm layers, d_model 768."""
    model = ModelConfig(d_model=768, d_ff=3072, n_layers=12, n_heads=12, norm_position="post", final_norm=False)
    return Config(task="classify", data=DataConfig(max_len=512), tokenizer=TokenizerConfig(kind="bpe"), model=model)


def transformer_base() -> Config:
    """The base model of "Attention Is All You Need", with its learning-rate schedule."""
    return Config(
        task="translate",
        data=DataConfig(max_len=256),
        tokenizer=TokenizerConfig(kind="bpe"),
        model=ModelConfig(
            d_model=512, d_ff=2048, n_layers=6, n_heads=8, activation="relu", positions="sinusoidal",
            norm_position="post", final_norm=False, scale_embeddings=True, head_bias=False,
        ),
        train=TrainConfig(
            optimizer="adam", weight_decay=0.0, lr=7e-4, schedule="noam", warmup_steps=4_000,
            batch_tokens=8_192, label_smoothing=0.1,
        ),
    )  # fmt: skip


SYSTEM_PRESETS: dict[str, Callable[[], Config]] = {
    "imdb-encoder": imdb_encoder,
    "shakespeare-char": shakespeare_char,
    "ted-set1": ted_set1,
    "ted-set2": ted_set2,
    "ted-set3": ted_set3,
    "ted-set4": ted_set4,
    "multi30k-tiny": multi30k_tiny,
    "speeches-classifier": speeches_classifier,
    "speeches-lm": speeches_lm,
    "speeches-window": speeches_window,
    "gpt2-small": gpt2_small,
    "bert-base": bert_base,
    "transformer-base": transformer_base,
}
SIZE_PRESETS: dict[str, Callable[[TaskName, ModelKind], Config]] = {"tiny": tiny, "small": small, "base": base}

# The sizes of the reported data: the model of a preset can be built from them without the data. The reports on IMDb
# and TED give no vocabulary size; the sizes here are the default of byte-level BPE.
DEFAULT_BPE_VOCAB_SIZE = 16_384
REPORTED_SIZES: dict[str, DataSizes] = {
    "imdb-encoder": DataSizes(vocab_size=DEFAULT_BPE_VOCAB_SIZE, max_len=256, n_labels=2),
    "shakespeare-char": DataSizes(vocab_size=65, max_len=32),
    **{f"ted-set{number}": DataSizes(vocab_size=DEFAULT_BPE_VOCAB_SIZE, max_len=128) for number in (1, 2, 3, 4)},
    "multi30k-tiny": DataSizes(vocab_size=8_000, max_len=128),
    "speeches-classifier": DataSizes(vocab_size=5755, max_len=32, n_labels=3),
    "speeches-lm": DataSizes(vocab_size=5755, max_len=32),
    "speeches-window": DataSizes(vocab_size=5755, max_len=32),
    "gpt2-small": DataSizes(vocab_size=50_257, max_len=1024),
    "bert-base": DataSizes(vocab_size=30_522, max_len=512, n_labels=2),
    "transformer-base": DataSizes(vocab_size=37_000, max_len=256),
}


def preset(name: str, task: TaskName | None = None, kind: ModelKind = "transformer") -> Config:
    """Return the settings of a preset.

    Args:
        name: The name of the preset.
        task: Required for the sizes `tiny`, `small` and `base`. The other presets accept only their task.
        kind: The kind of model of a size. The other presets are Transformers.

    Raises:
        ConfigError: The preset is unknown, or does not fit the task or the kind.

    Example:
        >>> from triform import preset
        >>> preset("tiny", "classify").task
        'classify'
    """
    if name in SIZE_PRESETS:
        if task is None:
            raise ConfigError(f"preset {name!r} fits every task; name one of {', '.join(TASK_NAMES)}")
        return SIZE_PRESETS[name](task, kind)
    if name not in SYSTEM_PRESETS:
        raise ConfigError(f"unknown preset {name!r}; {suggest_name(name, [*SYSTEM_PRESETS, *SIZE_PRESETS])}")
    config = SYSTEM_PRESETS[name]()
    if task not in (None, config.task):
        raise ConfigError(f"preset {name!r} is for {config.task}, not {task}")
    if kind != config.model.kind:
        raise ConfigError(
            f"preset {name!r} is a {config.model.kind}, not {kind}; tiny, small and base support every kind"
        )
    return config
