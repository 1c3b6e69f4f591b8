"""Is a difference real? Means with intervals, paired tests, corrections for many comparisons, verdicts in words.

Runs are paired by their seeds. The test flips the signs of the differences: if the two are alike, each pair might
as well have come out the other way round, and p is the share of sign patterns that look at least as extreme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triform.errors import ConfigError
from triform.formatting import metric_label, metric_scale

Numbers = npt.NDArray[np.float64]

LEVEL = 0.05  # a corrected p at or below it counts as evidence
MOST_EXACT = 20  # pairs of which all sign patterns are looked at, a million at most
FLIPS = 99_999  # random sign patterns beyond that; the observed one is the hundred-thousandth
DRAWS = 10_000  # of the bootstrap
BOOTSTRAP_SEED = 12_345  # sacreBLEU's, so that its draws are ours
AT_ONCE = 1 << 22  # numbers of a bootstrap held at once


class Spread(NamedTuple):
    """Several runs of one thing: their mean, their standard deviation, and where the true mean is likely to be.

    Wherever a mean is shown with ±, what follows is `half_width`, never the standard deviation.
    """

    mean: float
    deviation: float  # 0 for a single run, of which nothing more is known
    low: float  # the 95 % interval, from Student's t
    high: float

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean; infinite for a single run."""
        return (self.high - self.low) / 2


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


# -- pairs


class Difference(NamedTuple):
    """How much more the second of two gave than the first, over what they were paired by."""

    pairs: int
    mean: float
    low: float  # the 95 % interval
    high: float
    p: float  # of a difference at least this large where there is none, either way
    floor: float  # the smallest p that so many pairs could have given
    test: str

    @property
    def reach(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The second minus the first, seed by seed: Student's interval and the sign-flip test."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    known, n = spread(differences), len(differences)
    exact = n <= MOST_EXACT
    floor = 2.0 ** (1 - n) if exact else 1 / (FLIPS + 1)
    how = f"sign flips over {n} seeds, {'exact' if exact else f'{FLIPS + 1:,} at random'}"
    return Difference(n, known.mean, known.low, known.high, sign_flip(differences), floor, how)


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> float:
    """The two-sided p of the mean of paired differences: exact up to 20 pairs, then from random sign patterns."""
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise ConfigError("a paired test needs finite differences, one at least")
    observed = abs(values.sum())
    as_extreme = observed - 1e-9 * np.abs(values).sum()  # sums in another order differ in their last bits
    if len(values) <= MOST_EXACT:
        sums = values[:1]  # the other sign of the first gives the same sums with the other sign
        for value in values[1:]:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= as_extreme))
    rng, hits, left = np.random.default_rng(seed), 1, FLIPS  # the observed pattern is one of them
    while left:
        some = min(left, max(1, AT_ONCE // len(values)))
        signs = rng.integers(0, 2, size=(some, len(values)), dtype=np.int8) * 2.0 - 1
        hits += int(np.sum(np.abs(signs @ values) >= as_extreme))
        left -= some
    return hits / (FLIPS + 1)


def pairs_needed(comparisons: int = 1) -> int:
    """The fewest pairs whose sign flips can give evidence, when so many comparisons are corrected for."""
    return math.ceil(1 + math.log2(comparisons / LEVEL))


def holm(ps: Sequence[float]) -> list[float]:
    """Each p corrected for their number, after Holm: at most so often is any one of all finds false."""
    corrected, so_far = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        so_far = max(so_far, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = so_far
    return corrected


# -- BLEU over sentences


def corpus_bleu(counts: Numbers) -> Numbers:  # (..., 10) -> (...)
    """BLEU of summed sentence statistics, as sacreBLEU computes it.

    They are: length, reference length, then matching n-grams and all n-grams for n = 1 to 4.
    """
    length, wanted, hits, all_ = counts[..., 0], counts[..., 1], counts[..., 2:6], counts[..., 6:10]
    missed = np.cumsum((hits == 0) & (all_ > 0), axis=-1)  # each n without a match counts half as much as the last
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(hits > 0, hits, 0.5**missed) / all_
        brevity = np.where(length < wanted, np.exp(1 - wanted / length), 1.0)
        found = 100 * brevity * np.exp(np.log(shares).mean(axis=-1))
    usable = (hits.sum(axis=-1) > 0) & (all_ > 0).all(axis=-1)
    return np.where(usable, found, 0.0)


def bootstrap_bleu(
    first: Numbers, second: Numbers, *, draws: int = DRAWS, seed: int = BOOTSTRAP_SEED
) -> Difference:
    """The second minus the first in corpus BLEU, were the test made of other sentences.

    Both are sentence statistics, (seeds, sentences, 10), of the same sentences. Each draw takes as many sentences
    with replacement, the same for all, and averages BLEU over the seeds; with one seed it is sacreBLEU's own paired
    bootstrap. p counts both directions, where sacreBLEU's counts one.
    """
    if first.shape[1:] != second.shape[1:] or first.ndim != 3:
        raise ConfigError("a paired bootstrap needs the same sentences on both sides")
    n = first.shape[1]
    observed = float(corpus_bleu(second.sum(axis=1)).mean() - corpus_bleu(first.sum(axis=1)).mean())
    rng, found = np.random.default_rng(seed), []
    for start in range(0, draws, max(1, AT_ONCE // n)):
        some = min(draws - start, max(1, AT_ONCE // n))
        picks = rng.choice(n, size=(some, n), replace=True)
        taken = np.stack([np.bincount(row, minlength=n) for row in picks]).astype(np.float64)  # (some, n)
        one, other = (corpus_bleu(taken @ counts).mean(axis=0) for counts in (first, second))
        found.append(other - one)
    differences = np.concatenate(found)
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    extreme = np.abs(differences - differences.mean()) >= abs(observed) - 1e-9
    p = (1 + int(extreme.sum())) / (1 + draws)
    how = f"paired bootstrap over {n:,} sentences"
    return Difference(first.shape[0], observed, low, high, p, 1 / (1 + draws), how)


# -- in words


class Measure(NamedTuple):
    """How a score is read: its name, the unit of a difference, which way is better, and what it is shown times."""

    name: str
    unit: str
    higher_is_better: bool
    times: float
    percent: str


def _measure(metric: str, unit: str = "", *, higher_is_better: bool) -> Measure:
    label, (times, percent) = metric_label(metric), metric_scale(metric)
    return Measure(label, unit or f"{label} points" if percent else unit or label, higher_is_better, times, percent)


MEASURES = {
    "accuracy": _measure("accuracy", higher_is_better=True),
    "f1": _measure("f1", higher_is_better=True),
    "macro_f1": _measure("macro_f1", higher_is_better=True),
    "exact_match": _measure("exact_match", "exact-match points", higher_is_better=True),
    "token_accuracy": _measure("token_accuracy", higher_is_better=True),
    "loss": _measure("loss", "nats", higher_is_better=False),
    "training loss": _measure("training loss", "nats", higher_is_better=False),
    "perplexity": _measure("perplexity", higher_is_better=False),
    "bits_per_byte": _measure("bits_per_byte", higher_is_better=False),
    "bleu": _measure("bleu", higher_is_better=True),
    "chrf": _measure("chrf", higher_is_better=True),
    "sentence_bleu": _measure("sentence_bleu", higher_is_better=True),
}


def measure(metric: str) -> Measure:
    if metric not in MEASURES:
        raise ConfigError(f"it is not known whether more {metric!r} is better; known are {', '.join(MEASURES)}")
    return MEASURES[metric]


def verdict(
    first: str, second: str, difference: Difference, metric: str, *, corrected: float, comparisons: int = 1
) -> str:
    """What may be said of two, in words; `corrected` is p after correction for so many comparisons."""
    how, size = measure(metric), amount(difference, metric)
    if difference.low == difference.mean == difference.high == 0:
        return "no difference at all"
    ahead = second if (difference.mean > 0) == how.higher_is_better else first
    if difference.pairs == 1 and difference.floor > LEVEL:
        return f"one seed: no interval and no test ({ahead} ahead by {size})"
    named = f"{'corrected ' if comparisons > 1 else ''}{show_p(corrected)}"
    if corrected <= LEVEL:
        return f"{ahead} better by {size}, {named}"
    if difference.floor * comparisons > LEVEL:
        below = f"{difference.pairs} seeds cannot give p below {difference.floor:.3g}"
        many = f", corrected for {comparisons} comparisons {min(1, difference.floor * comparisons):.3g}"
        more = f"{below}{many if comparisons > 1 else ''}: take {pairs_needed(comparisons)} or more"
        return f"too few seeds to tell ({ahead} ahead by {size}, {named}; {more})"
    return f"no evidence of a difference ({size}, {named})"


def amount(difference: Difference, metric: str) -> str:
    """The size of a difference and how far it may be off, such as 1.9 ± 0.6 accuracy points."""
    how = measure(metric)
    size, reach = abs(difference.mean) * how.times, difference.reach * how.times
    if not math.isfinite(reach):
        return f"{size:.3g} {how.unit}"
    places = decimals(reach or size)
    return f"{size:.{places}f} ± {reach:.{places}f} {how.unit}"


def decimals(reach: float) -> int:
    """As many as an uncertainty of this size leaves a meaning: 12, 3, 1.2, 0.6, 0.12."""
    if not reach:
        return 2
    power = math.floor(math.log10(reach))
    small = reach < 2.95 * 10**power  # of 0.12 two digits are told, of 0.6 one
    return min(6, max(0, small - power))


def show_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
