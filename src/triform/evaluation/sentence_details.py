"""Details of an evaluation of a translator: the sentences with the lowest chrF.

Sentences are ordered by chrF, because BLEU of one sentence is mostly decided by smoothing: most short sentences
have no 4-gram in common with their reference, however good they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ScoredSentence:
    """A translation with the chrF of this sentence alone. The line is that of the source in its file."""

    line: int
    source: str
    reference: str
    output: str
    chrf: float


@dataclass(frozen=True, kw_only=True)
class SentenceDetails:
    """Details of an evaluation of a translator.

    Attributes:
        pairs: The number of pairs.
        signature: The sacreBLEU signature of chrF.
        mean_chrf: The mean over sentences. It differs from corpus chrF, which counts n-grams of all sentences.
        n_empty: The number of empty translations.
        worst: The sentences with the lowest chrF, the lowest first, equal ones in the order of the data.
    """

    pairs: int
    signature: str
    mean_chrf: float
    n_empty: int
    worst: list[ScoredSentence]


def build_sentence_details(
    lines: Sequence[int], sources: Sequence[str], references: Sequence[str], outputs: Sequence[str], n_worst: int
) -> SentenceDetails:
    """Return the details of an evaluation from its translations.

    Args:
        lines: The line of each source in its file.
        sources: The sources.
        references: Their translations in the data.
        outputs: The translations of the model.
        n_worst: The number of sentences to return.
    """
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    rows = zip(outputs, references, strict=True)
    scores = [metric.sentence_score(output, [reference]).score for output, reference in rows]
    order = sorted(range(len(scores)), key=lambda row: (scores[row], row))[:n_worst]
    return SentenceDetails(
        pairs=len(scores),
        signature=str(metric.get_signature()) if scores else "",
        mean_chrf=sum(scores) / max(1, len(scores)),
        n_empty=sum(not output.strip() for output in outputs),
        worst=[
            ScoredSentence(
                line=lines[row],
                source=sources[row],
                reference=references[row],
                output=outputs[row],
                chrf=scores[row],
            )
            for row in order
        ],
    )
