"""Start from word vectors (`--embeddings`): rows of the token embedding are replaced by the vectors of their words.

All vectors are scaled by one factor, so that their mean size is that of the rows they replace, for which the rest
of the model was initialised. No random numbers are drawn here, so a model with vectors differs from one without
only in these rows.
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

from triform.config.settings import Settings
from triform.errors import ConfigError, DataError
from triform.nn.embedding import InputEmbedding
from triform.tasks import Task
from triform.text import Tokenizer
from triform.vectors.files import read_vectors, read_width

ResultT = TypeVar("ResultT")


class MatchedVectors(NamedTuple):
    """The token ids that have a vector, and their vectors."""

    piece_ids: NDArray[np.int64]
    vectors: NDArray[np.float32]


def infer_d_model(requested: Settings) -> Settings:
    """Set `model.d_model` to the size of the vectors, unless it was requested."""
    if requested.get("model.d_model"):
        return requested
    return requested | {"model.d_model": _read_vectors_file(read_width, Path(str(requested["train.embeddings"])))}


def load_embeddings(task: Task) -> str:
    """Copy vectors into every token embedding of the model.

    Returns:
        A notice for the user that says how many tokens have a vector.

    Raises:
        ConfigError: No token has a vector, the vectors have the wrong width, or the file cannot be read.
    """
    path = Path(task.config.train.embeddings)
    summaries: dict[str, int] = {}
    loaded: set[int] = set()
    for name, module in task.model.named_modules():
        if not isinstance(module, InputEmbedding) or id(module.token_embedding.weight) in loaded:
            continue
        loaded.add(id(module.token_embedding.weight))
        words = piece_words(task.tokenizer_for(name))
        matched = _match_vectors(str(path), path.stat().st_mtime_ns if path.exists() else 0, words)
        _copy_vectors(matched, module.token_embedding, path)
        summaries[f"{len(matched.piece_ids):,} of {len(words):,} pieces have a vector"] = len(matched.piece_ids)
    if not any(summaries.values()):
        raise ConfigError(f"{path}: {_describe_no_match(path, words)}")
    return f"{path}: {'; '.join(summaries)}; the others are initialised at random"


def piece_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return for each token the word whose vector it may use, or an empty string if it only continues a word.

    If the tokenizer marks the start of a word by a space, a token without a space continues a word, unless it is
    punctuation.
    """
    pieces = [tokenizer.format_piece(token) for token in range(tokenizer.vocab_size)]
    has_word_starts = any(piece[0] == " " and piece.strip() for piece in pieces if piece)
    return tuple(
        piece.strip() if not has_word_starts or piece[:1] == " " or not piece[:1].isalnum() else ""
        for piece in pieces
    )


@lru_cache(maxsize=2)  # several seeds have the same pieces
def _match_vectors(path: str, mtime_ns: int, words: tuple[str, ...]) -> MatchedVectors:
    """Match tokens with words, ignoring case if the vocabulary is in lower case. Frequent words take precedence."""
    vectors_file = _read_vectors_file(read_vectors, Path(path))
    row_by_word = {word: row for row, word in enumerate(vectors_file.words)}
    if is_lowercase(words):
        for row, word in enumerate(vectors_file.words):
            row_by_word.setdefault(word.lower(), row)
    matches = [(piece_id, row_by_word[word]) for piece_id, word in enumerate(words) if word in row_by_word]
    piece_ids, vector_rows = np.array(matches, np.int64).reshape(-1, 2).T
    return MatchedVectors(piece_ids, vectors_file.matrix[vector_rows])


def is_lowercase(words: Sequence[str]) -> bool:
    """Return whether a vocabulary has no capital letters, except in special tokens such as [CLS]."""
    return all(word == word.lower() for word in words if word[:1].isalnum())


def _copy_vectors(matched: MatchedVectors, table: nn.Embedding, path: Path) -> None:
    width = matched.vectors.shape[1]
    if width != table.embedding_dim:
        raise ConfigError(
            f"{path}: the vectors have width {width}, but model.d_model={table.embedding_dim}; set model.d_model="
            f"{width}, or train vectors with --size {table.embedding_dim}"
        )
    if not len(matched.piece_ids):
        return
    with torch.no_grad():
        vectors = torch.from_numpy(matched.vectors)
        rms = vectors.double().pow(2).mean().sqrt()
        if rms:
            vectors = vectors * (table.weight.double().pow(2).mean().sqrt().cpu() / rms)
        table.weight[torch.from_numpy(matched.piece_ids)] = vectors.to(table.weight)


def _describe_no_match(path: Path, words: Sequence[str]) -> str:
    """Return the reason why no token has a vector."""
    known = {word.lower() for word in _read_vectors_file(read_vectors, path).words}
    if n := sum(word.lower() in known for word in words):
        return f"no piece of the vocabulary has a vector; {n:,} would have one if both were trained in lower case"
    piece_examples, word_examples = (
        ", ".join(repr(word) for word in examples)
        for examples in (_example_words(words), _example_words(sorted(known)))
    )
    examples = f"it has pieces such as {piece_examples}, and the vectors have words such as {word_examples}"
    return f"no piece of the vocabulary has a vector; {examples}"


def _example_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if word[:1].isalnum()][-3:]


def _read_vectors_file(reader: Callable[[Path], ResultT], path: Path) -> ResultT:
    """Read a vectors file. Errors name the setting."""
    try:
        return reader(path)
    except DataError as error:
        raise ConfigError(f"train.embeddings={error}") from None
