"""Find the words of a vocabulary that are spelled like a word that is not in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

MAX_WORDS = 3  # that are offered for an unknown word
MIN_SIMILARITY = 0.6  # as `difflib` measures it, from 0 to 1
MAX_WORD_CHARS = 100  # of an unknown word: `difflib` takes minutes for a word of a million letters
MAX_CANDIDATES = 50  # words with the largest share of letter pairs in common, which are compared letter by letter


class WordIndex:
    """An index of words by their pairs of letters, so that few of 100,000 words are compared letter by letter."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        indices: dict[str, list[int]] = defaultdict(list)
        for index, word in enumerate(words):
            for pair in _letter_pairs(word):
                indices[pair].append(index)
        self._words_with = {pair: np.array(values) for pair, values in indices.items()}
        self._n_pairs = np.array([len(word) + 1 for word in words])

    def nearest(self, word: str) -> tuple[str, ...]:
        """Return the most similar words, the most similar first. Case does not count."""
        if len(word) > MAX_WORD_CHARS:
            return ()
        pairs = _letter_pairs(word)
        postings = [self._words_with[pair] for pair in pairs if pair in self._words_with]
        if not postings:
            return ()
        shared = np.bincount(np.concatenate(postings), minlength=len(self._words))
        overlap: NDArray[np.float64] = shared / (self._n_pairs + len(word) + 1)
        n_candidates = min(MAX_CANDIDATES, len(self._words))
        candidates = np.sort(np.argpartition(-overlap, n_candidates - 1)[:n_candidates])  # frequent words first
        similarities = [(_similarity(word, self._words[index]), self._words[index]) for index in candidates]
        ranking = sorted((item for item in similarities if item[0] >= MIN_SIMILARITY), key=lambda item: -item[0])
        return tuple(candidate for _, candidate in ranking[:MAX_WORDS])


def _letter_pairs(word: str) -> set[str]:
    framed = f" {word.casefold()} "
    return {framed[index : index + 2] for index in range(len(framed) - 1)}


def _similarity(first: str, second: str) -> float:
    return SequenceMatcher(None, first.casefold(), second.casefold()).ratio()
