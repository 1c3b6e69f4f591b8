"""Training that begins with word vectors (`--embeddings`): rows of an embedding, found by the text of their pieces.

All vectors are multiplied by one number, so that they are as large, on the whole, as the rows that they replace:
the rest of the model was drawn for inputs of that size, and how long one word's vector is beside another's stays.
Nothing random is drawn here, so a model with vectors differs from one without in these rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from triform.errors import ConfigError, DataError
from triform.nn.embedding import Embedding
from triform.settings import Settings
from triform.tasks import Task
from triform.text import Tokenizer
from triform.vectors.files import read, width_of

Found = TypeVar("Found")


class Matched(NamedTuple):
    """Which pieces have a vector, and those vectors."""

    places: NDArray[np.int64]
    rows: NDArray[np.float32]


def with_width(asked: Settings) -> Settings:
    """A width left open is that of the vectors."""
    if asked.get("model.d_model"):
        return asked
    return asked | {"model.d_model": _of_file(width_of, Path(str(asked["train.embeddings"])))}


def fill(task: Task) -> str:
    """Give each table of tokens the vectors that its pieces have; what came of it, for the user."""
    path = Path(task.config.train.embeddings)
    told: dict[str, int] = {}
    done: set[int] = set()
    for name, module in task.model.named_modules():
        if not isinstance(module, Embedding) or id(module.tokens.weight) in done:
            continue
        done.add(id(module.tokens.weight))
        words = words_of(task.tokenizer_of(name))
        matched = _matched(str(path), path.stat().st_mtime_ns if path.exists() else 0, words)
        _put(matched, module.tokens, path)
        told[f"{len(matched.places):,} of {len(words):,} pieces have a vector"] = len(matched.places)
    if not any(told.values()):
        raise ConfigError(f"{path}: {_nothing(path, words)}")
    return f"{path}: {'; '.join(told)}; the others begin at random"


def words_of(tokenizer: Tokenizer) -> tuple[str, ...]:
    """For each piece the word whose vector it may have; empty for one that only goes on with a word.

    Where pieces that begin a word are told by a space, the others have no word of their own, but for marks.
    """
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    spaced = any(piece[0] == " " and piece.strip() for piece in pieces if piece)
    return tuple(
        piece.strip() if not spaced or piece[:1] == " " or not piece[:1].isalnum() else "" for piece in pieces
    )


@lru_cache(maxsize=2)  # several seeds have the same pieces
def _matched(path: str, changed: int, words: tuple[str, ...]) -> Matched:
    """By the very word; where no piece has a capital, also by the most frequent word that differs in case only."""
    content = _of_file(read, Path(path))
    places = {word: place for place, word in enumerate(content.words)}
    if folds_case(words):
        for place, word in enumerate(content.words):
            places.setdefault(word.lower(), place)
    found = [(piece, places[word]) for piece, word in enumerate(words) if word in places]
    pieces, rows = np.array(found, np.int64).reshape(-1, 2).T
    return Matched(pieces, content.matrix[rows])


def folds_case(words: Sequence[str]) -> bool:
    """Whether a vocabulary knows no capitals, those in names of special tokens ([CLS], <S>) aside."""
    return all(word == word.lower() for word in words if word[:1].isalnum())


def _put(matched: Matched, table: nn.Embedding, path: Path) -> None:
    width = matched.rows.shape[1]
    if width != table.embedding_dim:
        raise ConfigError(
            f"{path}: its vectors have {width} numbers and model.d_model={table.embedding_dim}: set model.d_model="
            f"{width}, or learn vectors with --size {table.embedding_dim}"
        )
    if not len(matched.places):
        return
    with torch.no_grad():
        rows = torch.from_numpy(matched.rows)
        size = rows.double().pow(2).mean().sqrt()
        if size:
            rows = rows * (table.weight.double().pow(2).mean().sqrt().cpu() / size)
        table.weight[torch.from_numpy(matched.places)] = rows.to(table.weight)


def _nothing(path: Path, words: Sequence[str]) -> str:
    """Why no piece has a vector, as far as that can be told."""
    known = {word.lower() for word in _of_file(read, path).words}
    if n := sum(word.lower() in known for word in words):
        return f"no piece of the vocabulary has a vector; {n:,} would if both were learned in lower case"
    ours, theirs = (", ".join(repr(word) for word in some) for some in (_some(words), _some(sorted(known))))
    return f"no piece of the vocabulary has a vector: its pieces are such as {ours}, the vectors' words {theirs}"


def _some(words: Sequence[str]) -> list[str]:
    return [word for word in words if word[:1].isalnum()][-3:]


def _of_file(ask: Callable[[Path], Found], path: Path) -> Found:
    """What is wrong with the file is wrong with the setting."""
    try:
        return ask(path)
    except DataError as error:
        raise ConfigError(f"train.embeddings={error}") from None
