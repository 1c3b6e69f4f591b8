"""Metrics. Fractions are between 0 and 1; BLEU and chrF are between 0 and 100, as sacreBLEU computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Metrics = dict[str, float]


def accuracy(confusion: npt.NDArray[np.int64]) -> float:
    """Compute the accuracy from a confusion matrix.

    Args:
        confusion: The number of rows with label i that were predicted as j, at (i, j).

    Returns:
        The fraction of rows whose label was predicted; 0 if there are no rows.

    >>> accuracy(np.array([[8, 2], [1, 9]]))
    0.85
    """
    return float(np.trace(confusion) / max(1, confusion.sum()))


def macro_f1(confusion: npt.NDArray[np.int64]) -> float:
    """Compute the mean F1 over the labels that occur as a target or as a prediction.

    Args:
        confusion: The number of rows with label i that were predicted as j, at (i, j).

    Returns:
        A number between 0 and 1, in which every label counts the same, however rare it is.

    >>> round(macro_f1(np.array([[8, 2], [1, 9]])), 4)
    0.8496
    """
    n_true_and_predicted = confusion.sum(axis=0) + confusion.sum(axis=1)
    present = n_true_and_predicted > 0
    return float(np.mean(2 * np.diag(confusion)[present] / n_true_and_predicted[present])) if present.any() else 0.0


def perplexity(nats_per_token: float) -> float:
    """Compute the perplexity, the exponential of the loss per token. It is infinite if that overflows.

    Args:
        nats_per_token: The mean loss per token, as a natural logarithm.

    Returns:
        The number of equally likely tokens among which the model would be as uncertain.

    >>> round(perplexity(1.0397), 2)
    2.83
    """
    return math.exp(nats_per_token) if nats_per_token < 700 else math.inf


def bits_per_byte(nats: float, n_bytes: float) -> float:
    """Compute the loss in bits per byte of text, which is comparable between models with different tokenizers.

    Args:
        nats: The summed loss of a text, as a natural logarithm.
        n_bytes: The number of bytes of the text in UTF-8.

    Returns:
        The loss in bits, divided by the number of bytes.

    >>> round(bits_per_byte(693.147, 500), 3)
    2.0
    """
    return nats / math.log(2) / max(1, n_bytes)


def compute_translation_metrics(hypotheses: Sequence[str], references: Sequence[str]) -> Metrics:
    """Compute corpus BLEU and chrF, the mean of smoothed sentence BLEU, and the fraction of exact matches.

    Args:
        hypotheses: The translations of a model.
        references: The correct translations, in the same order.

    Returns:
        `bleu`, `chrf` and `sentence_bleu` between 0 and 100, and `exact_match` between 0 and 1.

    Raises:
        ValueError: The numbers of hypotheses and references differ.

    >>> metrics = compute_translation_metrics(["deux chats noirs"], ["deux chats blancs"])
    >>> round(metrics["chrf"], 1), metrics["exact_match"]
    (54.2, 0.0)
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    sentence_bleu = BLEU(effective_order=True)
    rows = list(zip(hypotheses, references, strict=True))
    return {
        "bleu": BLEU().corpus_score(hypotheses, [references]).score,
        "chrf": CHRF().corpus_score(hypotheses, [references]).score,
        "sentence_bleu": sum(sentence_bleu.sentence_score(h, [r]).score for h, r in rows) / max(1, len(rows)),
        "exact_match": sum(h == r for h, r in rows) / max(1, len(rows)),
    }


def lowercase_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Compute corpus BLEU without regard to case, for comparison with figures on lower-cased text.

    Args:
        hypotheses: The translations of a model.
        references: The correct translations, in the same order.

    Returns:
        Corpus BLEU between 0 and 100.
    """
    from sacrebleu.metrics.bleu import BLEU

    return float(BLEU(lowercase=True).corpus_score(hypotheses, [references]).score)


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> npt.NDArray[np.float64]:
    """Count what each sentence adds to corpus BLEU.

    Args:
        hypotheses: The translations of a model.
        references: The correct translations, in the same order.

    Returns:
        Ten counts per sentence, (sentences, 10), in the order of `triform.evaluation.statistics.corpus_bleu`.
    """
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(effective_order=True)
    sentence_scores = [bleu.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]
    rows = [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in sentence_scores]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 10)


def bleu_signature() -> str:
    """Return the sacreBLEU signature of `bleu`, to be quoted with a result.

    Returns:
        The version and the options of sacreBLEU, such as `nrefs:1|case:mixed|eff:no|tok:13a|...`.
    """
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
