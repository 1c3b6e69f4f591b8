"""Encode the chunks of a text as tokens, with an end token after each document."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from triform.data.readers import TextChunk
from triform.text import Tokenizer, TokenRows, encode_stream

MAX_CHUNK_CHARACTERS = 1 << 20

Item = TypeVar("Item")


class EncodedChunks(NamedTuple):
    """Chunks of text with their tokens, one row for each chunk."""

    chunks: list[TextChunk]
    rows: TokenRows


def encode_chunks(tokenizer: Tokenizer, chunks: Iterable[TextChunk], workers: int = 0) -> Iterator[EncodedChunks]:
    """Yield the tokens of chunks in order. A chunk that ends a document also has the end token.

    Args:
        tokenizer: The tokenizer. If it has neither an end token nor a start token, nothing is added.
        chunks: The chunks of one or more texts.
        workers: The number of processes; see `encode_stream`.
    """
    pending: deque[list[TextChunk]] = deque()

    def text_parts() -> Iterator[list[str]]:
        for part in iter_chunks(chunks, count_characters=lambda chunk: len(chunk.text)):
            pending.append(part)
            yield [chunk.text for chunk in part]

    end = tokenizer.special_tokens.eos_or_bos
    for rows in encode_stream(tokenizer, text_parts(), workers):
        part = pending.popleft()
        if end is not None:
            rows = rows.append_token(end, np.array([chunk.ends_document for chunk in part], bool))
        yield EncodedChunks(part, rows)


def iter_chunks(
    items: Iterable[Item], size: int = 2048, *, count_characters: Callable[[Item], int] = lambda item: 0
) -> Iterator[list[Item]]:
    """Yield lists of up to `size` items, or fewer if they have a million characters."""
    chunk: list[Item] = []
    n_characters = 0
    for item in items:
        chunk.append(item)
        n_characters += count_characters(item)
        if len(chunk) == size or n_characters >= MAX_CHUNK_CHARACTERS:
            yield chunk
            chunk, n_characters = [], 0
    if chunk:
        yield chunk
