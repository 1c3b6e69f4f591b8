"""Paired comparisons over shared seeds, corrected for multiple comparisons, for studies and reference systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from triform.evaluation.statistics import PairedDifference, holm, paired_test, verdict


class VariantPair(NamedTuple):
    """Two variants, a metric, and the difference of the second variant from the first."""

    first: str
    second: str
    metric: str
    difference: PairedDifference


class PairVerdict(NamedTuple):
    """The p-value after the correction, and the conclusion in words."""

    corrected_p: float
    text: str


def pair_over_seeds(
    first: Mapping[int, float], second: Mapping[int, float], *, min_pairs: int = 1
) -> PairedDifference | None:
    """Compare values by seed over the seeds that both have; None if there are fewer than `min_pairs`."""
    seeds = [seed for seed in first if seed in second]
    if len(seeds) < min_pairs:
        return None
    return paired_test([first[seed] for seed in seeds], [second[seed] for seed in seeds])


def compare_pairs(pairs: Sequence[VariantPair]) -> list[PairVerdict]:
    """Correct the p-values of all pairs together by Holm's method, and put each result into words."""
    corrected = holm([pair.difference.p for pair in pairs])
    return [
        PairVerdict(
            p,
            verdict(pair.first, pair.second, pair.difference, pair.metric, corrected=p, comparisons=len(pairs)),
        )
        for pair, p in zip(pairs, corrected, strict=True)
    ]
