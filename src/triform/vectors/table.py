"""Words with their vectors: who is near whom, and who is to one as another is to a third."""

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

LOOKED_AT = 50_000  # words, the most frequent ones, among which a misspelled one is looked for


class WordVectors:
    """Words, most frequent first, and a row of numbers for each."""

    def __init__(self, words: Sequence[str], matrix: ArrayLike, about: dict[str, Any] | None = None) -> None:
        """`about` says how they were made; safetensors keep it."""
        try:
            self.words, self.matrix = list(words), files.singles(matrix)
        except (TypeError, ValueError):
            raise ConfigError("vectors must be numbers, a row of the same length for each word") from None
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            shape = self.matrix.shape
            raise ConfigError(f"{len(self.words)} words need a matrix of as many rows, not one of shape {shape}")
        if not self.matrix.size or not np.isfinite(self.matrix).all():
            raise ConfigError("word vectors must be at least one, and finite")
        if not all(isinstance(word, str) for word in self.words):
            raise ConfigError("words must be text")
        self.about = about or {}
        self.places = {word: place for place, word in enumerate(self.words)}
        if len(self.places) < len(self.words):
            raise ConfigError("each word can have one vector only")

    @classmethod
    def train(
        cls, *texts: str | Path, text_column: str = "", say: word2vec.Say = word2vec.silent, **how: Any
    ) -> Self:
        """Learn vectors from files (or `builtin:NAME`); `how` are the fields of `Recipe`, such as size=200."""
        made = word2vec.learn(
            [str(path) for path in texts], word2vec.Recipe(**how), text_column=text_column, say=say
        )
        say(str(made))
        return cls(made.words, made.matrix, made.about)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read word2vec's text (.txt, .vec) or binary (.bin) format, as gensim writes them, or safetensors."""
        return cls(*files.read(Path(path)))

    def save(self, path: str | Path) -> None:
        """Write the format that the ending says: .txt, .bin or .safetensors."""
        files.write(Path(path), self.words, self.matrix, self.about)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.places

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        return self.matrix[self.place(word)]

    @property
    def width(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        """The vectors, each one long; one of nothing but zeros stays as it is."""
        lengths = np.sqrt(np.einsum("wd,wd->w", self.matrix, self.matrix, dtype=np.float64))[:, None]
        lengths[lengths == 0] = 1
        return np.divide(self.matrix, lengths, out=np.empty_like(self.matrix), casting="same_kind")

    def place(self, word: str) -> int:
        """The row of a word; a DataError that offers similar ones where there is none."""
        if word not in self.places:
            raise DataError(f"no vector for {word!r}; {self._similar_names(word)}")
        return self.places[word]

    def _similar_names(self, word: str) -> str:
        folded = word.casefold()
        some = self.words[:LOOKED_AT]
        found = [each for each in some if each.casefold() == folded][:3]
        if not found:
            alike = [each for each in some if abs(len(each) - len(word)) <= 2]
            found = difflib.get_close_matches(word, alike, n=3, cutoff=0.7)
        if not found:
            return f"the most frequent of {len(self):,} words are {', '.join(map(repr, some[:5]))}"
        return f"did you mean {' or '.join(map(repr, found))}?"

    def similarity(self, first: str, second: str) -> float:
        """The cosine between two words."""
        return float(self.unit[self.place(first)] @ self.unit[self.place(second)])

    def nearest(self, word: str, n: int = 10) -> list[tuple[str, float]]:
        """The words whose vectors point most nearly the same way, with cosines."""
        return self._near(self.unit[self.place(word)], [self.place(word)], n)

    def analogy(self, a: str, b: str, c: str, n: int = 10) -> list[tuple[str, float]]:
        """What is to c as b is to a: the nearest to b - a + c, all of length one, none of the three."""
        first, second, third = (self.place(word) for word in (a, b, c))
        query = self.unit[second] - self.unit[first] + self.unit[third]
        return self._near(query / (np.linalg.norm(query) or 1.0), [first, second, third], n)

    def _near(self, query: NDArray[np.float32], but: Sequence[int], n: int) -> list[tuple[str, float]]:
        if n < 1:
            raise ConfigError(f"--top {n}: give how many words to show, 1 or more")
        cosines = self.unit @ query
        cosines[list(but)] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: min(n, len(self) - len(set(but)))]
        return [(self.words[place], float(cosines[place])) for place in best]
