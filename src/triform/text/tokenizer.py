"""The kinds of tokenizer; train one on texts, or load one from a file."""

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

TOKENIZERS: dict[str, type[BpeTokenizer | CharTokenizer | WordTokenizer]] = {
    "char": CharTokenizer,
    "word": WordTokenizer,
    "bpe": BpeTokenizer,
}


def train_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], *, name: str = "the data", n_characters: int = 0
) -> Tokenizer:
    """Learn a vocabulary; `texts` are read once and never held all together, `name` is for messages.

    Where it is known how long they are, BPE is content with a part of a very long text.
    """
    if config.kind == IMPORTED_KIND:
        raise ConfigError(
            f"tokenizer.kind={IMPORTED_KIND} is not learned from texts: name its file in tokenizer.file"
        )
    assert config.kind in TOKENIZERS, f"tokenizer.kind={config.kind} must be chosen before training"
    return TOKENIZERS[config.kind].train(config, TrainingText(texts, name, n_characters))


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer saved in a file, whatever its kind."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        header, body = content["triform"], content["tokenizer"]
        version, kind = int(header["format"]), str(header["kind"])
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no tokenizer file here") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{path}: not a Triform tokenizer, or a damaged one") from None
    if version > FORMAT_VERSION:
        raise CheckpointError(f"{path}: format {version} is newer than this Triform reads ({FORMAT_VERSION})")
    if kind not in (*TOKENIZERS, IMPORTED_KIND):
        raise CheckpointError(
            f"{path}: unknown tokenizer kind '{kind}'; known are {', '.join((*TOKENIZERS, IMPORTED_KIND))}"
        )
    try:
        return _load_imported(header, body) if kind == IMPORTED_KIND else TOKENIZERS[kind](parse_backend(body))
    except TriformError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: a damaged tokenizer ({error})") from None


def _load_imported(header: dict[str, Any], body: dict[str, Any]) -> Tokenizer:
    """One from elsewhere, as it was saved."""
    if header["model"] == "sentencepiece":
        model, ids = parse_saved_model(body)
        return SentencePieceTokenizer(model, parse_special_tokens(header["special"], 1 << 31), ids)
    backend = parse_backend(body)
    return wrap_backend(backend, parse_special_tokens(header["special"], backend.get_vocab_size()))
