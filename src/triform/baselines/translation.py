"""Translating without a model: copy the source, or exchange it word by word (IBM model 1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.baselines.unfit import UnfitError
from triform.baselines.words import WORD
from triform.data.readers import Pair
from triform.metrics import Scores, translation_scores

Numbers = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]
ROUNDS = 5  # of expectation and maximisation
MOST_LINKS = 30_000_000  # places where a word may be another's translation; of more, pairs from all over are taken


class Copy:
    """The source as it is."""

    def predict(self, texts: Sequence[str]) -> list[str]:
        return list(texts)

    def score(self, test: Sequence[Pair]) -> Scores:
        return pair_scores(self.predict([pair.source for pair in test]), test)


class Wordwise:
    """Each word by the one it most likely becomes; words never seen, marks and spaces stay as they are."""

    def __init__(self, becomes: dict[str, str]) -> None:
        self.becomes = becomes

    @classmethod
    def fit(cls, train: Sequence[Pair]) -> Self:
        sources, source_words = numbered(WORD.findall(pair.source) for pair in train)
        targets, target_words = numbered(WORD.findall(pair.target) for pair in train)
        if not source_words or not target_words:
            raise UnfitError("the training pairs have no words on one side")
        source, target, shares = model_1(sources, targets)
        order = np.lexsort((target, -shares, source))  # at a tie the word that was met first
        best = order[np.unique(source[order], return_index=True)[1]]
        rows = zip(source[best].tolist(), target[best].tolist(), strict=True)
        return cls({source_words[word - 1]: target_words[other] for word, other in rows if word})

    def predict(self, texts: Sequence[str]) -> list[str]:
        return [WORD.sub(lambda found: self.becomes.get(found.group(), found.group()), text) for text in texts]

    def score(self, test: Sequence[Pair]) -> Scores:
        if not any(word in self.becomes for pair in test for word in WORD.findall(pair.source)):
            raise UnfitError("no word of the sources was seen in training")
        return pair_scores(self.predict([pair.source for pair in test]), test)


def pair_scores(written: Sequence[str], test: Sequence[Pair]) -> Scores:
    """Scores under the names that `translate` uses."""
    if not test:
        raise UnfitError("no pairs to judge by")
    return {**translation_scores(written, [pair.target for pair in test]), "pairs": len(test)}


def numbered(rows: Iterable[list[str]]) -> tuple[list[Numbers], list[str]]:
    """Rows of words as rows of numbers, and the words in the order of their numbers."""
    numbers: dict[str, int] = {}
    found = [np.array([numbers.setdefault(word, len(numbers)) for word in row], np.int64) for row in rows]
    return found, list(numbers)


def model_1(sources: Sequence[Numbers], targets: Sequence[Numbers]) -> tuple[Numbers, Numbers, Shares]:
    """Pairs of words that stand in a pair of sentences, source words counted from 1, and t(target | source).

    Every target word comes from one word of its source, all places being as likely, or from the empty word 0
    (Brown and others, 1993).
    """
    n_links = sum((len(source) + 1) * len(target) for source, target in zip(sources, targets, strict=True))
    step = -(-n_links // MOST_LINKS)
    rows = [(np.append(source + 1, 0), target) for source, target in zip(sources, targets, strict=True)][::step]
    n_targets = 1 + max(int(target.max(initial=0)) for _, target in rows)
    links = np.concatenate([(source * n_targets + target[:, None]).ravel() for source, target in rows])
    widths = np.concatenate([np.full(len(target), len(source)) for source, target in rows])
    starts = np.cumsum(widths) - widths  # of each target word's links
    keys, link = np.unique(links, return_inverse=True)
    source, target = np.divmod(keys, n_targets)
    shares = np.ones(len(keys))
    for _ in range(ROUNDS):
        weight = shares[link]
        weight /= np.repeat(np.add.reduceat(weight, starts), widths)
        counts = np.bincount(link, weight, minlength=len(keys))
        shares = counts / np.bincount(source, counts)[source]
    return source, target, shares
