"""Word vectors in memory: look-up, nearest words and analogies."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triform.errors import ConfigError, DataError
from triform.vectors import files, word2vec

MAX_SUGGESTION_WORDS = 50_000  # suggestions for an unknown word come from this many of the most frequent words


class WordVectors:
    """Words with their vectors, most frequent word first.

    Args:
        words: The words, without duplicates.
        matrix: The vectors, one row per word.
        metadata: How the vectors were made. Only safetensors files store it.

    >>> vectors = WordVectors(["cat", "dog", "car"], [[1.0, 0.1], [0.9, 0.2], [0.0, 1.0]])
    >>> vectors.nearest("cat", 1)[0][0]
    'dog'
    """

    def __init__(self, words: Sequence[str], matrix: ArrayLike, metadata: dict[str, Any] | None = None) -> None:
        try:
            self.words, self.matrix = list(words), files.to_float32(matrix)
        except (TypeError, ValueError):
            raise ConfigError("vectors must be numbers, with one row of the same length for each word") from None
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            shape = self.matrix.shape
            raise ConfigError(
                f"{len(self.words)} words need a matrix with as many rows, found one of shape {shape}"
            )
        if not self.matrix.size or not np.isfinite(self.matrix).all():
            raise ConfigError("there must be at least one word vector, and all numbers must be finite")
        if not all(isinstance(word, str) for word in self.words):
            raise ConfigError("words must be strings")
        self.metadata = metadata or {}
        self.index_by_word = {word: index for index, word in enumerate(self.words)}
        if len(self.index_by_word) < len(self.words):
            raise ConfigError("each word can have only one vector")

    @classmethod
    def train(
        cls,
        *texts: str | Path,
        text_column: str = "",
        log: word2vec.LogFn = word2vec.discard_message,
        **settings: Any,
    ) -> Self:
        """Train vectors on text files or built-in sets.

        Args:
            *texts: Text files, tables, or built-in sets such as `builtin:stories`.
            text_column: The text column of tables. If it is empty, the column is found automatically.
            log: Called with progress messages.
            **settings: Settings of `Word2VecConfig`, such as `size=200`.

        Returns:
            Vectors for all words that occur often enough.

        Raises:
            ConfigError: A setting is out of range, or leaves no words.
            DataError: A file cannot be read or contains no words.
        """
        result = word2vec.train_word2vec(
            [str(path) for path in texts], word2vec.Word2VecConfig(**settings), text_column=text_column, log=log
        )
        log(str(result))
        return cls(result.words, result.matrix, result.metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read vectors in the text (.txt, .vec) or binary (.bin) format of word2vec, or from safetensors.

        Args:
            path: The file; text and binary files may also be compressed (.gz).

        Returns:
            The vectors, with the metadata of a safetensors file.

        Raises:
            ConfigError: The suffix is not known.
            DataError: The file is missing or damaged.
        """
        return cls(*files.read_vectors(Path(path)))

    def save(self, path: str | Path) -> None:
        """Write the vectors as .txt, .bin or .safetensors, depending on the suffix.

        Args:
            path: The file, which is replaced if it exists.

        Raises:
            ConfigError: The suffix is not known, or the format cannot store a word.
            CheckpointError: The file cannot be written.
        """
        files.write_vectors(Path(path), self.words, self.matrix, self.metadata)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index_by_word

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        return self.matrix[self.index_of(word)]

    @property
    def width(self) -> int:
        """The dimension of the vectors."""
        return int(self.matrix.shape[1])

    @cached_property
    def unit_vectors(self) -> NDArray[np.float32]:
        """The vectors scaled to length one. A vector of zeros is not changed."""
        norms = np.sqrt(np.einsum("wd,wd->w", self.matrix, self.matrix, dtype=np.float64))[:, None]
        norms[norms == 0] = 1
        return np.divide(self.matrix, norms, out=np.empty_like(self.matrix), casting="same_kind")

    def index_of(self, word: str) -> int:
        """Return the row of a word.

        Args:
            word: The word, in the same case as in `words`.

        Returns:
            The index in `words` and `matrix`.

        Raises:
            DataError: The word has no vector. The message suggests similar words.
        """
        if word not in self.index_by_word:
            raise DataError(f"no vector for {word!r}; {self._suggest_words(word)}")
        return self.index_by_word[word]

    def _suggest_words(self, word: str) -> str:
        casefolded = word.casefold()
        frequent_words = self.words[:MAX_SUGGESTION_WORDS]
        suggestions = [candidate for candidate in frequent_words if candidate.casefold() == casefolded][:3]
        if not suggestions:
            similar_length = [candidate for candidate in frequent_words if abs(len(candidate) - len(word)) <= 2]
            suggestions = difflib.get_close_matches(word, similar_length, n=3, cutoff=0.7)
        if not suggestions:
            return f"the most frequent of {len(self):,} words are {', '.join(map(repr, frequent_words[:5]))}"
        return f"did you mean {' or '.join(map(repr, suggestions))}?"

    def similarity(self, first: str, second: str) -> float:
        """Return the cosine between the vectors of two words.

        Args:
            first: A word.
            second: Another word.

        Returns:
            A number between -1 and 1.

        Raises:
            DataError: One of the words has no vector.
        """
        return float(self.unit_vectors[self.index_of(first)] @ self.unit_vectors[self.index_of(second)])

    def nearest(self, word: str, n: int = 10) -> list[tuple[str, float]]:
        """Return the `n` words with the most similar vectors, with their cosines.

        Args:
            word: The word whose neighbours are searched.
            n: The number of neighbours.

        Returns:
            Words and their cosines, the nearest first. The word itself is left out.

        Raises:
            DataError: The word has no vector.
        """
        return self._find_nearest(self.unit_vectors[self.index_of(word)], [self.index_of(word)], n)

    def _find_nearest(self, query: NDArray[np.float32], excluded: Sequence[int], n: int) -> list[tuple[str, float]]:
        if n < 1:
            raise ConfigError(f"--top {n} is too small: it must be at least 1")
        cosines = self.unit_vectors @ query
        cosines[list(excluded)] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: min(n, len(self) - len(set(excluded)))]
        return [(self.words[index], float(cosines[index])) for index in best]
