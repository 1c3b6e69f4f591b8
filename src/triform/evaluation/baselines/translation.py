"""Translating without a model: copy the source, or exchange it word by word (IBM model 1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.data.readers import TextPair
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.words import WORD_PATTERN
from triform.evaluation.metrics import Metrics, compute_translation_metrics

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
EM_ITERATIONS = 5  # of expectation and maximisation
MAX_LINKS = 30_000_000  # places where a word may be another's translation; of more, pairs from all over are taken


class CopyBaseline:
    """The source as it is."""

    def predict(self, texts: Sequence[str]) -> list[str]:
        return list(texts)

    def evaluate(self, test: Sequence[TextPair]) -> Metrics:
        return evaluate_translations(self.predict([pair.source for pair in test]), test)


class WordByWordBaseline:
    """Each word by the one it most likely becomes; words never seen, marks and spaces stay as they are."""

    def __init__(self, translations: dict[str, str]) -> None:
        self.translations = translations

    @classmethod
    def fit(cls, train: Sequence[TextPair]) -> Self:
        sources, source_words = encode_words(WORD_PATTERN.findall(pair.source) for pair in train)
        targets, target_words = encode_words(WORD_PATTERN.findall(pair.target) for pair in train)
        if not source_words or not target_words:
            raise BaselineError("the training pairs have no words on one side")
        source, target, probs = fit_ibm_model_1(sources, targets)
        order = np.lexsort((target, -probs, source))  # at a tie the word that was met first
        best_index = order[np.unique(source[order], return_index=True)[1]]
        best_pairs = zip(source[best_index].tolist(), target[best_index].tolist(), strict=True)
        return cls(
            {
                source_words[source_id - 1]: target_words[target_id]
                for source_id, target_id in best_pairs
                if source_id
            }
        )

    def predict(self, texts: Sequence[str]) -> list[str]:
        return [
            WORD_PATTERN.sub(lambda match: self.translations.get(match.group(), match.group()), text)
            for text in texts
        ]

    def evaluate(self, test: Sequence[TextPair]) -> Metrics:
        if not any(word in self.translations for pair in test for word in WORD_PATTERN.findall(pair.source)):
            raise BaselineError("no word of the sources was seen in training")
        return evaluate_translations(self.predict([pair.source for pair in test]), test)


def evaluate_translations(hypotheses: Sequence[str], test: Sequence[TextPair]) -> Metrics:
    """Scores under the names that `translate` uses."""
    if not test:
        raise BaselineError("no pairs to judge by")
    return {**compute_translation_metrics(hypotheses, [pair.target for pair in test]), "pairs": len(test)}


def encode_words(rows: Iterable[list[str]]) -> tuple[list[IntArray], list[str]]:
    """Rows of words as rows of numbers, and the words in the order of their numbers."""
    word_ids: dict[str, int] = {}
    encoded = [np.array([word_ids.setdefault(word, len(word_ids)) for word in row], np.int64) for row in rows]
    return encoded, list(word_ids)


def fit_ibm_model_1(
    sources: Sequence[IntArray], targets: Sequence[IntArray]
) -> tuple[IntArray, IntArray, FloatArray]:
    """Pairs of words that stand in a pair of sentences, source words counted from 1, and t(target | source).

    Every target word comes from one word of its source, all places being as likely, or from the empty word 0
    (Brown and others, 1993).
    """
    n_links = sum((len(source) + 1) * len(target) for source, target in zip(sources, targets, strict=True))
    stride = -(-n_links // MAX_LINKS)
    sampled_pairs = [(np.append(source + 1, 0), target) for source, target in zip(sources, targets, strict=True)][
        ::stride
    ]
    n_targets = 1 + max(int(target.max(initial=0)) for _, target in sampled_pairs)
    links = np.concatenate([(source * n_targets + target[:, None]).ravel() for source, target in sampled_pairs])
    widths = np.concatenate([np.full(len(target), len(source)) for source, target in sampled_pairs])
    starts = np.cumsum(widths) - widths  # of each target word's links
    keys, link_ids = np.unique(links, return_inverse=True)
    source, target = np.divmod(keys, n_targets)
    probs = np.ones(len(keys))
    for _ in range(EM_ITERATIONS):
        weight = probs[link_ids]
        weight /= np.repeat(np.add.reduceat(weight, starts), widths)
        counts = np.bincount(link_ids, weight, minlength=len(keys))
        probs = counts / np.bincount(source, counts)[source]
    return source, target, probs
