"""Byte BPE that splits the same word now one way, now another, so that a model learns from more than one spelling.

Each merge is left out at random (BPE-dropout, arXiv:1910.13267). Only training text is split so.
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

from triform.text.bpe import BpeTokenizer, Words

VERSIONS = 10  # ways in which a training set is split; epochs take them in turn


class VariedWords(Words):
    """A word is split in one way for each version, drawn from the word itself: again is the same again."""

    def __init__(self, core: Core, code: str, dropout: float, version: int) -> None:
        super().__init__(core, code)
        self.dropout, self.version = dropout, version
        self._ids: Mapping[str, int] = core.get_vocab()
        merges = json.loads(core.to_str())["model"]["merges"]
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}

    def tokens(self, spelled: str) -> array[int]:
        chance = Random(crc32(spelled.encode(), self.version))
        pieces = list(spelled)
        while True:
            found = [
                (self._ranks[pair], place)
                for place, pair in enumerate(pairwise(pieces))
                if pair in self._ranks and chance.random() >= self.dropout
            ]
            if not found:
                return array(self._code, [self._ids[piece] for piece in pieces])
            place = min(found)[1]
            pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


class VariedBpe(BpeTokenizer):
    def __init__(self, core: Core, dropout: float, version: int) -> None:
        super().__init__(core)
        self.dropout, self.version = dropout, version
        self._words = VariedWords(core, self.dtype.char, dropout, version)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._core, self.dropout, self.version)


def versions(tokenizer: BpeTokenizer, dropout: float) -> list[VariedBpe]:
    return [VariedBpe(tokenizer._core, dropout, version) for version in range(VERSIONS)]
