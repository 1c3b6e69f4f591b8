"""Train a tokenizer on texts, or load one from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from triform.config import TokenizerConfig
from triform.errors import CheckpointError, ConfigError, TriformError
from triform.text.base import FORMAT_VERSION, Tokenizer, TrainingText
from triform.text.bpe import BpeTokenizer
from triform.text.char import CharTokenizer
from triform.text.imported_tokenizers import IMPORTED_KIND, parse_backend, parse_special_tokens, wrap_backend
from triform.text.spm import SentencePieceTokenizer, parse_saved_model
from triform.text.word import WordTokenizer
from triform.text.wordpiece import WordPieceTokenizer

TOKENIZERS: dict[str, type[BpeTokenizer | CharTokenizer | WordTokenizer | WordPieceTokenizer]] = {
    "char": CharTokenizer,
    "word": WordTokenizer,
    "bpe": BpeTokenizer,
    "wordpiece": WordPieceTokenizer,
}


def train_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], *, name: str = "the data", n_characters: int = 0
) -> Tokenizer:
    """Train a tokenizer.

    Args:
        config: Tokenizer settings.
        texts: The texts, which are read once and are never all in memory.
        name: The name of the data, for error messages.
        n_characters: The number of characters in all texts. If it is known, BPE and WordPiece train on a sample
            of a very long text.

    Returns:
        A tokenizer of the kind that the settings name.

    Raises:
        ConfigError: The settings cannot be used, for example because the vocabulary is too small.
        DataError: The texts are empty or contain half of a surrogate pair.

    >>> tokenizer = train_tokenizer(TokenizerConfig(kind="word"), ["the soup was good", "the bread was good"])
    >>> tokenizer.decode(tokenizer.encode("the bread was good"))
    'the bread was good'
    """
    if config.kind == IMPORTED_KIND:
        raise ConfigError(
            f"tokenizer.kind={IMPORTED_KIND} cannot be trained on texts; set tokenizer.file to its file"
        )
    assert config.kind in TOKENIZERS, f"tokenizer.kind={config.kind} must be chosen before training"
    return TOKENIZERS[config.kind].train(config, TrainingText(texts, name, n_characters))


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer of any kind from the file that `Tokenizer.save` wrote.

    Args:
        path: The file, such as `tokenizer.json` of a run folder.

    Returns:
        The tokenizer, which encodes every text as the saved one did.

    Raises:
        CheckpointError: The file is missing, damaged, or was written by a newer Triform.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        header, body = content["triform"], content["tokenizer"]
        version, kind = int(header["format"]), str(header["kind"])
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such tokenizer file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{path} is not a Triform tokenizer, or is damaged") from None
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {version}, and this Triform reads formats up to {FORMAT_VERSION}; upgrade Triform"
        )
    if kind not in (*TOKENIZERS, IMPORTED_KIND):
        raise CheckpointError(
            f"{path}: unknown tokenizer kind {kind!r}; choose from {', '.join((*TOKENIZERS, IMPORTED_KIND))}"
        )
    try:
        return _load_imported(header, body) if kind == IMPORTED_KIND else TOKENIZERS[kind](parse_backend(body))
    except TriformError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path}: the tokenizer is damaged ({error})") from None


def _load_imported(header: dict[str, Any], body: dict[str, Any]) -> Tokenizer:
    """Load an imported tokenizer."""
    if header["model"] == "sentencepiece":
        model, ids = parse_saved_model(body)
        return SentencePieceTokenizer(model, parse_special_tokens(header["special"], 1 << 31), ids)
    backend = parse_backend(body)
    return wrap_backend(backend, parse_special_tokens(header["special"], backend.get_vocab_size()))
