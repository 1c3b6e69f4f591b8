"""The kinds of tokenizer, and the two ways to get one: learn it from texts, or load it from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as Core

from triform.config import TokenizerConfig
from triform.errors import CheckpointError
from triform.text.base import FORMAT, TextStream, Tokenizer
from triform.text.bpe import BpeTokenizer
from triform.text.char import CharTokenizer
from triform.text.word import WordTokenizer

TOKENIZERS: dict[str, type[Tokenizer]] = {"char": CharTokenizer, "word": WordTokenizer, "bpe": BpeTokenizer}


def train_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], *, name: str = "the data", n_characters: int = 0
) -> Tokenizer:
    """Learn a vocabulary; `texts` are read once and never held all together, `name` is for messages.

    Where it is known how long they are, BPE is content with a part of a very long text.
    """
    assert config.kind in TOKENIZERS, f"tokenizer.kind={config.kind} must be chosen before training"
    return TOKENIZERS[config.kind].train(config, TextStream(texts, name, n_characters))


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
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path}: not a Triform tokenizer, or a damaged one") from None
    if version > FORMAT:
        raise CheckpointError(f"{path}: format {version} is newer than this Triform reads ({FORMAT})")
    if kind not in TOKENIZERS:
        raise CheckpointError(f"{path}: unknown tokenizer kind '{kind}'; known are {', '.join(TOKENIZERS)}")
    try:
        return TOKENIZERS[kind](Core.from_str(json.dumps(body)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: a damaged tokenizer ({error})") from None
