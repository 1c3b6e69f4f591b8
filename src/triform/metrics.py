"""Scores. Fractions lie between 0 and 1; BLEU and chrF between 0 and 100, as sacreBLEU gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Scores = dict[str, float]


def accuracy(table: npt.NDArray[np.int64]) -> float:
    """The share on the diagonal of a confusion table, where entry (i, j) counts label i taken for label j."""
    return float(np.trace(table) / max(1, table.sum()))


def macro_f1(table: npt.NDArray[np.int64]) -> float:
    """The mean of 2 · hits / (true ones + guessed ones) over the labels that occur as either."""
    total = table.sum(axis=0) + table.sum(axis=1)
    occurs = total > 0
    return float(np.mean(2 * np.diag(table)[occurs] / total[occurs])) if occurs.any() else 0.0


def perplexity(nats_per_token: float) -> float:
    return math.exp(nats_per_token) if nats_per_token < 700 else math.inf


def bits_per_byte(nats: float, n_bytes: float) -> float:
    """Independent of the tokenizer, so models with different vocabularies can be compared."""
    return nats / math.log(2) / max(1, n_bytes)


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Corpus BLEU and chrF, the mean of smoothed sentence BLEU, and the share of exact matches."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    sentence = BLEU(effective_order=True)
    rows = list(zip(hypotheses, references, strict=True))
    return {
        "bleu": BLEU().corpus_score(hypotheses, [references]).score,
        "chrf": CHRF().corpus_score(hypotheses, [references]).score,
        "sentence_bleu": sum(sentence.sentence_score(h, [r]).score for h, r in rows) / max(1, len(rows)),
        "exact_match": sum(h == r for h, r in rows) / max(1, len(rows)),
    }


def lowercase_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU with case folded, as figures on tokenised and lower-cased text are."""
    from sacrebleu.metrics.bleu import BLEU

    return float(BLEU(lowercase=True).corpus_score(hypotheses, [references]).score)


class Spread(NamedTuple):
    """Several runs of one thing: their mean, their standard deviation, and where the true mean is likely to be."""

    mean: float
    deviation: float  # 0 for a single run, of which nothing more is known
    low: float  # the 95 % interval, from Student's t
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.deviation:.4f}"


def spread(values: Sequence[float]) -> Spread:
    n, mean = len(values), sum(values) / len(values)
    if n == 1 or not math.isfinite(mean):
        return Spread(mean, 0.0 if n == 1 else math.nan, -math.inf, math.inf)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    reach = student_t(n - 1) * deviation / math.sqrt(n)
    return Spread(mean, deviation, mean - reach, mean + reach)


def student_t(freedom: int, confidence: float = 0.95) -> float:
    """How many standard errors from the mean the truth lies within, so often; by halving."""
    low, high = 0.0, math.pi / 2  # atan(t / sqrt(freedom))
    while high - low > 1e-15:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) · tan(angle)), the finite series of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (1.0 if freedom % 2 == 0 else cosine), 0.0
    for k in range(2 + freedom % 2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    return sine * total if freedom % 2 == 0 else 2 / math.pi * (angle + sine * total)


def bleu_signature() -> str:
    """What sacreBLEU says of how `bleu` is computed, to be quoted with a result."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
