"""Scores. Fractions lie between 0 and 1; BLEU and chrF between 0 and 100, as sacreBLEU gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> npt.NDArray[np.float64]:
    """What each sentence adds to corpus BLEU, (sentences, 10), as `stats.corpus_bleu` reads it."""
    from sacrebleu.metrics.bleu import BLEU

    judge = BLEU(effective_order=True)
    found = [judge.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]
    rows = [[each.sys_len, each.ref_len, *each.counts, *each.totals] for each in found]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 10)


def bleu_signature() -> str:
    """What sacreBLEU says of how `bleu` is computed, to be quoted with a result."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
