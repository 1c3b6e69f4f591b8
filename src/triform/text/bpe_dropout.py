"""BPE dropout: split the same word in different ways, so that a model learns from several encodings of a text.

Merges are left out at random (arXiv:1910.13267). This applies only to training text.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import Any
from zlib import crc32

from tokenizers import Tokenizer as Core

from triform.text.bpe import BpeTokenizer, WordCache

N_VERSIONS = 10  # encodings of a training set; each epoch uses the next one


class BpeDropoutCache(WordCache):
    """Word cache with BPE dropout. The word and the version determine how a word is split."""

    def __init__(self, backend: Core, typecode: str, dropout: float, version: int) -> None:
        super().__init__(backend, typecode)
        self.dropout, self.version = dropout, version
        self._ids: Mapping[str, int] = backend.get_vocab()
        merges = json.loads(backend.to_str())["model"]["merges"]
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}

    def tokenize(self, symbols: str) -> array[int]:
        rng = Random(crc32(symbols.encode(), self.version))
        pieces = list(symbols)
        while True:
            candidates = [
                (self._ranks[pair], index)
                for index, pair in enumerate(pairwise(pieces))
                if pair in self._ranks and rng.random() >= self.dropout
            ]
            if not candidates:
                return array(self._typecode, [self._ids[piece] for piece in pieces])
            index = min(candidates)[1]
            pieces[index : index + 2] = ["".join(pieces[index : index + 2])]


class BpeDropoutTokenizer(BpeTokenizer):
    """Byte-level BPE that leaves out merges at random. Each version splits words in another way."""

    def __init__(self, backend: Core, dropout: float, version: int) -> None:
        super().__init__(backend)
        self.dropout, self.version = dropout, version
        self._word_cache = BpeDropoutCache(backend, self.dtype.char, dropout, version)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._backend, self.dropout, self.version)


def build_dropout_versions(tokenizer: BpeTokenizer, dropout: float) -> list[BpeDropoutTokenizer]:
    """Return a tokenizer with BPE dropout for each encoding of the training set."""
    return [BpeDropoutTokenizer(tokenizer._backend, dropout, version) for version in range(N_VERSIONS)]
