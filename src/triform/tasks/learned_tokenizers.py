"""The tokenizers of a task: trained on the training files, loaded from `tokenizer.file`, or saved in a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache as once
from pathlib import Path

from triform.config import Config, DataConfig, TokenizerConfig
from triform.data.token_cache import TokenCache
from triform.errors import CheckpointError, ConfigError
from triform.text import (
    MAX_TRAIN_CHARS,
    BpeTokenizer,
    Tokenizer,
    bpe_dropout,
    load_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from triform.text.exporting import Side


def reader_options(data: DataConfig) -> dict[str, object]:
    """Return the settings that determine how a file is read."""
    names = ("text_column", "label_column", "source_column", "target_column", "header", "delimiter")
    options = {name: value for name, value in asdict(data).items() if name in names}
    return options | ({"extra_tag": data.extra_tag} if data.extra_tag else {})


def tokenizer_versions(tokenizer: Tokenizer, config: TokenizerConfig) -> Sequence[Tokenizer]:
    """Return the tokenizers that encode training text: one or, with BPE dropout, several random variants."""
    if not config.bpe_dropout:
        return [tokenizer]
    if not isinstance(tokenizer, BpeTokenizer) or tokenizer.kind != "bpe":
        raise ConfigError(f"tokenizer.bpe_dropout needs a bpe tokenizer; this one is {tokenizer.kind}")
    return bpe_dropout.build_dropout_versions(tokenizer, config.bpe_dropout)


def load_tokenizers(config: Config, folder: Path) -> tuple[Tokenizer, ...]:
    """Load the tokenizer of a run folder, or for translate those of the source and the target."""
    if config.task != "translate":
        return (load_tokenizer(folder / "tokenizer.json"),)
    if config.tokenizer.joint_vocab and not (folder / "tokenizer.source.json").exists():
        return (load_tokenizer(folder / "tokenizer.json"),) * 2
    # Two tokenizers even for one vocabulary, because each language may split text in its own way.
    return load_tokenizer(folder / "tokenizer.source.json"), load_tokenizer(folder / "tokenizer.target.json")


def save_tokenizers(tokenizers: Sequence[Tokenizer], folder: Path) -> None:
    """Write tokenizers to a run folder, from which `load_tokenizers` reads them."""
    if tokenizers[0] is tokenizers[-1]:
        tokenizers[0].save(folder / "tokenizer.json")
    else:
        tokenizers[0].save(folder / "tokenizer.source.json")
        tokenizers[1].save(folder / "tokenizer.target.json")


def has_two_tokenizers(file: str) -> bool:
    """Return whether a folder has a tokenizer for each language, as Marian models and some runs do."""
    pairs = (("tokenizer.source.json", "tokenizer.target.json"), ("source.spm", "target.spm"))
    return bool(file) and any(all((Path(file) / name).is_file() for name in pair) for pair in pairs)


def load_configured_tokenizer(config: TokenizerConfig, side: Side = "source") -> Tokenizer:
    """Load the tokenizer of `tokenizer.file`, a file or a folder. Its kind and size must match the settings."""
    path = Path(config.file)
    if not config.joint_vocab and not path.is_dir():
        raise ConfigError(
            "tokenizer.file has one vocabulary, and tokenizer.joint_vocab=false needs two; "
            "remove one of these settings"
        )
    try:
        tokenizer = read_tokenizer(path, side=side)
    except CheckpointError as error:
        raise ConfigError(f"tokenizer.file={error}") from None
    if config.kind not in ("auto", tokenizer.kind):
        raise ConfigError(f"tokenizer.kind={config.kind}, but the kind of {config.file} is {tokenizer.kind}")
    if config.vocab_size not in (0, tokenizer.vocab_size):
        raise ConfigError(
            f"tokenizer.vocab_size={config.vocab_size}, but {config.file} has {tokenizer.vocab_size} tokens"
        )
    return tokenizer


def train_or_load_tokenizer(
    cache: TokenCache, config: TokenizerConfig, cache_key: object, texts: Iterable[str], n_characters: int,
    side: Side = "source",
) -> Tokenizer:  # fmt: skip
    """Return the tokenizer of `tokenizer.file`, or one trained on texts.

    Args:
        cache: Keeps a tokenizer that was trained on large files.
        config: The tokenizer settings.
        cache_key: The values that distinguish these texts from others of the same files.
        texts: The texts, which are read only if a tokenizer is trained.
        n_characters: The number of characters in the texts.
        side: Which tokenizer to load from a folder with two.
    """
    if config.file:
        return load_configured_tokenizer(config, side)
    name = ",".join(cache.files)
    if config.kind in ("bpe", "wordpiece") and n_characters > MAX_TRAIN_CHARS:
        amount = f"{MAX_TRAIN_CHARS // 1_000_000} of {n_characters // 1_000_000} million characters"
        cache.notices.append(f"{name}: the tokenizer was trained on {amount}, spread over the text")

    @once  # if the cache cannot be written, it calls this function again
    def train() -> Tokenizer:
        return train_tokenizer(config, texts, name=name, n_characters=n_characters)

    if not cache.is_large:
        return train()
    cache_key = ["tokenizer", asdict(config), cache_key]
    file_name = "learned.json"
    return cache.open_entry(
        cache_key,
        lambda folder: train().save(folder / file_name),
        lambda folder: load_tokenizer(folder / file_name),
    )
