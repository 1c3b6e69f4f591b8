"""Statistics of several runs: means with intervals, paired tests, corrections for many comparisons, verdicts.

Runs are paired by their seeds. The test flips the signs of the differences: if two variants do not differ, each
difference is as likely with the opposite sign, and p is the share of sign patterns that are at least as extreme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triform.errors import ConfigError
from triform.formatting import metric_info

Numbers = npt.NDArray[np.float64]

ALPHA = 0.05  # a corrected p-value at or below this counts as evidence
MAX_EXACT_PAIRS = 20  # up to this number of pairs, all sign patterns (at most a million) are enumerated
N_SIGN_FLIPS = 99_999  # random sign patterns for more pairs; the observed pattern is added to them
N_BOOTSTRAP_SAMPLES = 10_000
BOOTSTRAP_SEED = 12_345  # the seed of sacreBLEU, so that the samples are the same
MAX_CHUNK_NUMBERS = 1 << 22  # random numbers held in memory at once


class SampleSummary(NamedTuple):
    """The mean and the standard deviation of several runs, and the 95 % confidence interval of the mean.

    Wherever a mean is shown with ±, the number after it is `half_width`, never the standard deviation.
    """

    mean: float
    deviation: float  # 0 for a single run
    low: float  # the 95 % interval, from Student's t
    high: float

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean; infinite for a single run."""
        return (self.high - self.low) / 2


def summarise(values: Sequence[float]) -> SampleSummary:
    """Summarise the values of several runs; the interval of a single run is infinite.

    Args:
        values: A metric of each run; at least one.

    Returns:
        The mean, the standard deviation and the 95 % interval of the mean.

    >>> summary = summarise([0.80, 0.82, 0.81])
    >>> round(summary.mean, 2), round(summary.half_width, 3)
    (0.81, 0.025)
    """
    n, mean = len(values), sum(values) / len(values)
    if n == 1 or not math.isfinite(mean):
        return SampleSummary(mean, 0.0 if n == 1 else math.nan, -math.inf, math.inf)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half_width = student_t_quantile(n - 1) * deviation / math.sqrt(n)
    return SampleSummary(mean, deviation, mean - half_width, mean + half_width)


def student_t_quantile(degrees_of_freedom: int, confidence: float = 0.95) -> float:
    """Return half the width of a confidence interval of a mean, in standard errors, from Student's t.

    Args:
        degrees_of_freedom: The number of runs minus one.
        confidence: The probability that the interval contains the true mean.

    Returns:
        The factor by which a standard error is multiplied.

    >>> round(student_t_quantile(4), 3)
    2.776
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, (1 + confidence) / 2))


# -- pairs


class PairedDifference(NamedTuple):
    """The difference of two variants, second minus first, over the seeds or sentences that pair them."""

    pairs: int
    mean: float
    low: float  # the 95 % interval
    high: float
    p: float  # two-sided
    floor: float  # the smallest p-value that is possible with this number of pairs
    test: str

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """Compare runs that are paired by their seeds: interval from Student's t, p-value from the sign-flip test.

    Args:
        first: A metric of the first variant, one value per seed.
        second: The same metric of the second variant, with the same seeds in the same order.

    Returns:
        The mean difference, second minus first, with its interval and the p-value.

    Raises:
        ValueError: The variants have different numbers of values.
        ConfigError: There are no values, or a value is not finite.

    >>> difference = paired_test([3.1, 2.9, 3.0, 3.2, 3.1, 3.0], [2.8, 2.7, 2.9, 2.8, 2.9, 2.7])
    >>> round(difference.mean, 3), difference.p
    (-0.25, 0.03125)
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    summary, n = summarise(differences), len(differences)
    exact = n <= MAX_EXACT_PAIRS
    min_p = 2.0 ** (1 - n) if exact else 1 / (N_SIGN_FLIPS + 1)
    test_name = (
        f"exact sign-flip test over {n} seeds"
        if exact
        else f"sign-flip test over {n} seeds with {N_SIGN_FLIPS + 1:,} random sign patterns"
    )
    return PairedDifference(n, summary.mean, summary.low, summary.high, sign_flip(differences), min_p, test_name)


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> float:
    """Return the two-sided p-value of paired differences: exact up to 20 pairs, then from random sign patterns.

    Args:
        differences: One difference per pair.
        seed: The random seed of the sign patterns, for more than 20 pairs.

    Returns:
        The share of sign patterns whose sum is at least as far from 0 as the observed one.

    Raises:
        ConfigError: There are no differences, or one is not finite.

    >>> sign_flip([0.3, 0.2, 0.1])  # all have the same sign: 2 of 8 patterns are as extreme
    0.25
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise ConfigError("a paired test needs at least one difference, and all differences must be finite")
    observed = abs(values.sum())
    threshold = observed - 1e-9 * np.abs(values).sum()  # tolerance for rounding errors of sums
    if len(values) <= MAX_EXACT_PAIRS:
        sums = values[:1]  # flipping the first sign as well only mirrors all sums
        for value in values[1:]:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= threshold))
    rng, n_extreme, remaining = np.random.default_rng(seed), 1, N_SIGN_FLIPS  # the observed pattern is one of them
    while remaining:
        chunk_size = min(remaining, max(1, MAX_CHUNK_NUMBERS // len(values)))
        signs = rng.integers(0, 2, size=(chunk_size, len(values)), dtype=np.int8) * 2.0 - 1
        n_extreme += int(np.sum(np.abs(signs @ values) >= threshold))
        remaining -= chunk_size
    return n_extreme / (N_SIGN_FLIPS + 1)


def min_pairs_needed(comparisons: int = 1) -> int:
    """Return the smallest number of pairs whose p-value can reach `ALPHA` after correction for `comparisons`.

    Args:
        comparisons: The number of comparisons whose p-values are corrected together.

    Returns:
        The number of seeds below which no difference can be significant, however large it is.

    >>> min_pairs_needed(), min_pairs_needed(3)
    (6, 7)
    """
    return math.ceil(1 + math.log2(comparisons / ALPHA))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons by Holm's method, which controls the family-wise error rate.

    Args:
        p_values: The p-values of all comparisons.

    Returns:
        The corrected p-values in the same order, at most 1.

    >>> holm([0.01, 0.04, 0.3])
    [0.03, 0.08, 0.3]
    """
    corrected, running_max = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        running_max = max(running_max, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = running_max
    return corrected


# -- BLEU over sentences


def corpus_bleu(counts: Numbers) -> Numbers:  # (..., 10) -> (...)
    """Compute corpus BLEU from summed counts, as sacreBLEU does.

    The ten counts are: length, reference length, matching n-grams for n = 1 to 4, and all n-grams for n = 1 to 4.

    Args:
        counts: Ten counts, summed over sentences; any leading axes are kept.

    Returns:
        BLEU between 0 and 100.
    """
    length, reference_length, matches, totals = counts[..., 0], counts[..., 1], counts[..., 2:6], counts[..., 6:10]
    # Smoothing: each order without a match counts half as much as the one before.
    n_unmatched_orders = np.cumsum((matches == 0) & (totals > 0), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(matches > 0, matches, 0.5**n_unmatched_orders) / totals
        brevity_penalty = np.where(length < reference_length, np.exp(1 - reference_length / length), 1.0)
        bleu = 100 * brevity_penalty * np.exp(np.log(precisions).mean(axis=-1))
    usable = (matches.sum(axis=-1) > 0) & (totals > 0).all(axis=-1)
    return np.where(usable, bleu, 0.0)


def bootstrap_bleu(
    first: Numbers, second: Numbers, *, n_samples: int = N_BOOTSTRAP_SAMPLES, seed: int = BOOTSTRAP_SEED
) -> PairedDifference:
    """Compare the corpus BLEU of two variants by a paired bootstrap over sentences.

    Each sample draws as many sentences as there are, with replacement and the same for both, and averages BLEU over
    the seeds. With one seed this is the paired bootstrap of sacreBLEU, except that p is two-sided here.

    Args:
        first: Counts of each sentence as `bleu_statistics` returns them, (seeds, sentences, 10).
        second: The same for the second variant, with the same sentences.
        n_samples: Number of bootstrap samples.
        seed: Random seed of the samples.

    Returns:
        The difference of BLEU, second minus first, with its interval and the p-value.

    Raises:
        ConfigError: The variants do not have the same sentences.
    """
    if first.shape[1:] != second.shape[1:] or first.ndim != 3:
        raise ConfigError("a paired bootstrap needs the same sentences for both variants")
    n = first.shape[1]
    observed = float(corpus_bleu(second.sum(axis=1)).mean() - corpus_bleu(first.sum(axis=1)).mean())
    rng, chunks = np.random.default_rng(seed), []
    for start in range(0, n_samples, max(1, MAX_CHUNK_NUMBERS // n)):
        chunk_size = min(n_samples - start, max(1, MAX_CHUNK_NUMBERS // n))
        sample_indices = rng.choice(n, size=(chunk_size, n), replace=True)
        sample_counts = np.stack([np.bincount(row, minlength=n) for row in sample_indices]).astype(
            np.float64
        )  # (chunk, n)
        first_bleu, second_bleu = (corpus_bleu(sample_counts @ counts).mean(axis=0) for counts in (first, second))
        chunks.append(second_bleu - first_bleu)
    differences = np.concatenate(chunks)
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    extreme = np.abs(differences - differences.mean()) >= abs(observed) - 1e-9
    p = (1 + int(extreme.sum())) / (1 + n_samples)
    test_name = f"paired bootstrap over {n:,} sentences"
    return PairedDifference(first.shape[0], observed, low, high, p, 1 / (1 + n_samples), test_name)


# -- in words


def verdict(
    first: str, second: str, difference: PairedDifference, metric: str, *, corrected: float, comparisons: int = 1
) -> str:
    """Say in words whether two variants differ.

    Args:
        first: The name of the first variant.
        second: The name of the second variant.
        difference: The paired difference, second minus first.
        metric: The name of the metric, which decides whether higher is better.
        corrected: The p-value after correction for multiple comparisons.
        comparisons: The number of comparisons that it was corrected for.

    Returns:
        A text such as "b is better by 1.9 ± 0.6 accuracy points (p = 0.031)".

    >>> first, second = [0.80, 0.82, 0.81, 0.80, 0.83, 0.81], [0.82, 0.83, 0.83, 0.81, 0.85, 0.83]
    >>> difference = paired_test(first, second)
    >>> verdict("small", "large", difference, "accuracy", corrected=difference.p)
    'large is better by 1.7 ± 0.5 accuracy points (p = 0.031)'
    """
    info, size = metric_info(metric), format_difference(difference, metric)
    if difference.low == difference.mean == difference.high == 0:
        return "no difference"
    leader = second if (difference.mean > 0) == info.higher_is_better else first
    ahead = f"{leader} is ahead by {size}" if difference.mean else "the means are equal"
    if difference.pairs == 1 and difference.floor > ALPHA:
        return f"one seed gives no interval and no test ({ahead})"
    p_text = f"{'corrected ' if comparisons > 1 else ''}{describe_p_value(corrected)}"
    if corrected <= ALPHA:
        return f"{leader} is better by {size} ({p_text})"
    if difference.floor * comparisons > ALPHA:
        limit_text = f"{difference.pairs} seeds cannot give p below {difference.floor:.3g}"
        correction_text = (
            f", or {min(1, difference.floor * comparisons):.3g} corrected for {comparisons} comparisons"
        )
        limit_text += correction_text if comparisons > 1 else ""
        advice = f"{limit_text}; use {min_pairs_needed(comparisons)} or more seeds"
        return f"too few seeds to tell ({ahead}, {p_text}; {advice})"
    return f"no evidence of a difference ({size}, {p_text})"


def format_difference(difference: PairedDifference, metric: str) -> str:
    """Format the size of a difference with half of its interval, such as 1.9 ± 0.6 accuracy points.

    Args:
        difference: The difference; its sign is not shown.
        metric: The name of the metric, which decides the unit.

    Returns:
        The size, ±, half of the interval and the unit.
    """
    info = metric_info(metric)
    size, half_width = abs(difference.mean) * info.scale, difference.half_width * info.scale
    if not math.isfinite(half_width):
        return f"{size:.3g} {info.unit}"
    n_decimals = decimals_for_uncertainty(half_width or size)
    return f"{size:.{n_decimals}f} ± {half_width:.{n_decimals}f} {info.unit}"


def decimals_for_uncertainty(uncertainty: float) -> int:
    """Return the number of decimals to show for an uncertainty, which then reads 12, 3, 1.2, 0.6 or 0.12.

    Args:
        uncertainty: Half of an interval, in the unit in which it is shown.

    Returns:
        The number of decimals, from 0 to 6.

    >>> decimals_for_uncertainty(0.123), decimals_for_uncertainty(0.6)
    (2, 1)
    """
    if not uncertainty:
        return 2
    power = math.floor(math.log10(uncertainty))
    two_digits = uncertainty < 2.95 * 10**power  # 0.12 has two digits, 0.6 has one
    return min(6, max(0, two_digits - power))


def describe_p_value(p: float) -> str:
    """Format a p-value, such as `p = 0.012` or `p < 0.001`.

    Args:
        p: The p-value.

    Returns:
        The p-value with two significant digits, or that it is below 0.001.
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
