"""Presets: the reference systems with their reported settings, and models by size.

A preset of a reference system has a task of its own; a size (`tiny`, `small`, `base`) fits any task.
"""

from __future__ import annotations

from collections.abc import Callable

from triform.config import (
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

ADAM_BETAS = (0.9, 0.999)  # torch's defaults, which the reports used


def imdb_encoder() -> Config:
    """IMDb sentiment from scratch. Reported: 62.38 % test accuracy after one epoch."""
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
    # The report estimates losses on 200 random batches; here the whole validation part is scored.
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
    """The report gives sizes, dropout, batch size and epochs; the rest is chosen so that all four sets train."""
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
    """TED talks, English to French, set 1: 2 layers, 8 heads, 512 wide. Reported: BLEU 0.3745."""
    return _ted_preset(2, 8, 512, 0.1)


def ted_set2() -> Config:
    """TED talks, English to French, set 2: 4 layers, 8 heads, 512 wide. Reported: BLEU 0.3796."""
    return _ted_preset(4, 8, 512, 0.2)


def ted_set3() -> Config:
    """TED talks, English to French, set 3: 4 layers, 12 heads, 768 wide. Reported: BLEU 0.3854."""
    return _ted_preset(4, 12, 768, 0.2)


def ted_set4() -> Config:
    """TED talks, English to French, set 4: 6 layers, 12 heads, 768 wide. Reported: failed to train, BLEU 0.3154."""
    return _ted_preset(6, 12, 768, 0.1)


def multi30k_tiny() -> Config:
    """A small model for Multi30k English to German, known as Transformer-tiny. Reported: 41.02 tokenised BLEU."""
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
    """Settings that the three speeches systems share: words, 32 tokens, 64 wide, 2 heads, 4 layers, Adam 1e-3.

    As in the report nothing is held out: the last weights are kept, unless a validation file is given.
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
            batch_size=16, epochs=epochs, max_steps=max_steps, clip_norm=0.0, eval_every=100,
            patience=0,
        ),
    )  # fmt: skip


def speeches_classifier() -> Config:
    """Which of three presidents said it. Reported: 87.60 % (on a test set that leaks)."""
    return _speeches_preset("classify", d_ff=256, epochs=15)


def speeches_lm() -> Config:
    """A word language model of speeches. Reported perplexities: 375.02, 476.34, 414.64."""
    return _speeches_preset("generate", d_ff=100, max_steps=500)


def speeches_window() -> Config:
    """The language model of speeches with a local window of 8. Reported perplexities: 368.99, 460.88, 402.49."""
    return _speeches_preset("generate", d_ff=100, window=8, max_steps=500)


def _size_preset(
    task: TaskName, kind: ModelKind, d_model: int, n_layers: int, n_heads: int, dropout: float
) -> Config:
    if kind != "transformer":  # as wide, and at most three layers: recurrent ones gain little from more
        return Config(task=task, model=ModelConfig(kind=kind, d_model=d_model, n_layers=min(3, n_layers)))
    model = ModelConfig(d_model=d_model, n_layers=n_layers, n_heads=n_heads, d_ff=4 * d_model, dropout=dropout)
    return Config(task=task, model=model)


def tiny(task: TaskName, kind: ModelKind = "transformer") -> Config:
    """64 wide, 2 layers: seconds on a laptop."""
    return _size_preset(task, kind, 64, 2, 4, 0.1)


def small(task: TaskName, kind: ModelKind = "transformer") -> Config:
    """256 wide, 4 layers: minutes on a laptop."""
    return _size_preset(task, kind, 256, 4, 4, 0.1)


def base(task: TaskName, kind: ModelKind = "transformer") -> Config:
    """512 wide, 6 layers: wants a GPU."""
    return _size_preset(task, kind, 512, 6, 8, 0.1)


def gpt2_small() -> Config:
    """The shape of GPT-2 with 124 million parameters."""
    model = ModelConfig(d_model=768, d_ff=3072, n_layers=12, n_heads=12, head_bias=False)
    return Config(
        task="generate", data=DataConfig(max_len=1024), tokenizer=TokenizerConfig(kind="bpe"), model=model
    )


def bert_base() -> Config:
    """The shape of BERT base: 12 post-norm layers, 768 wide."""
    model = ModelConfig(d_model=768, d_ff=3072, n_layers=12, n_heads=12, norm_position="post", final_norm=False)
    return Config(task="classify", data=DataConfig(max_len=512), tokenizer=TokenizerConfig(kind="bpe"), model=model)


def transformer_base() -> Config:
    """The base model of the original paper, with its schedule."""
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

# The sizes of the data in the reports, enough to build the model of a preset without any data. The reports on IMDb
# and TED give no vocabulary size: these presets have the default of a byte BPE vocabulary, for TED a joint one.
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
        name: The preset.
        task: Required for a size; a reference system has its own task, and another one is an error.
        kind: The model kind of a size; a reference system is a Transformer.

    Raises:
        ConfigError: The preset is unknown, or does not fit the task or the kind.

    Example:
        >>> from triform import preset
        >>> preset("tiny", "classify").task
        'classify'
    """
    if name in SIZE_PRESETS:
        if task is None:
            raise ConfigError(f"preset {name!r} fits any task: say which")
        return SIZE_PRESETS[name](task, kind)
    if name not in SYSTEM_PRESETS:
        raise ConfigError(f"unknown preset {name!r}; {suggest_name(name, [*SYSTEM_PRESETS, *SIZE_PRESETS])}")
    config = SYSTEM_PRESETS[name]()
    if task not in (None, config.task):
        raise ConfigError(f"preset {name!r} is for {config.task}, not {task}")
    if kind != config.model.kind:
        raise ConfigError(
            f"preset {name!r} is a {config.model.kind}, not {kind}; tiny, small and base fit any kind"
        )
    return config
