"""Intervals and tests against scipy and sacreBLEU, and by simulation: a test that cries wolf would be seen here."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats as scipy_stats

from triform.errors import ConfigError
from triform.evaluation import statistics as stats
from triform.evaluation.metrics import bleu_statistics
from triform.evaluation.statistics import PairedDifference
from triform.formatting import METRICS, metric_info
from triform.tasks import TASKS

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 33, 200])
def test_the_spread_of_seeds_is_scipys_t_interval(n: int) -> None:
    values = np.random.default_rng(n).normal(3.0, 2.0, size=n).tolist()
    mean, deviation, low, high = stats.summarise(values)
    assert (mean, deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    expected = scipy_stats.t.interval(0.95, n - 1, loc=mean, scale=deviation / math.sqrt(n))
    assert (low, high) == pytest.approx(expected, rel=1e-12)
    assert stats.summarise(values).half_width == pytest.approx((expected[1] - expected[0]) / 2)


def test_of_a_single_run_no_interval_is_known() -> None:
    assert stats.summarise([2.0]) == (2.0, 0.0, -math.inf, math.inf)
    assert stats.summarise([2.0]).half_width == math.inf
    assert math.isnan(stats.summarise([2.0, math.inf]).deviation)


@pytest.mark.parametrize("n", [2, 5, 9, 13])
def test_the_exact_sign_flip_test_is_scipys_permutation_test(n: int) -> None:
    values = np.random.default_rng(n).normal(0.4, 1.0, size=n)
    expected = scipy_stats.permutation_test(
        (values,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert stats.sign_flip(values.tolist()) == pytest.approx(expected.pvalue)


@given(st.lists(NUMBERS, min_size=1, max_size=7))
def test_the_exact_sign_flip_test_counts_every_pattern(values: list[float]) -> None:
    limit = abs(math.fsum(values)) - 1e-9 * sum(map(abs, values))
    patterns = list(product([-1, 1], repeat=len(values)))
    extreme = sum(abs(math.fsum(s * v for s, v in zip(signs, values, strict=True))) >= limit for signs in patterns)
    assert stats.sign_flip(values) == pytest.approx(extreme / len(patterns))


def test_random_sign_flips_agree_with_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(7).normal(0.35, 1.0, size=18).tolist()
    exact = stats.sign_flip(values)
    monkeypatch.setattr(stats, "MAX_EXACT_PAIRS", 10)
    assert 0.02 < exact < 0.5
    assert stats.sign_flip(values) == pytest.approx(exact, rel=0.03)
    assert stats.sign_flip(values) == stats.sign_flip(values)  # the draws have a seed
    assert stats.sign_flip([1.0] * 40) == 1 / 100_000  # the observed pattern alone


def test_the_smallest_p_of_five_pairs_is_a_sixteenth() -> None:
    difference = stats.paired_test([1, 2, 3, 4, 5], [2, 4, 5, 6, 7])
    assert difference.p == difference.floor == 0.0625
    assert stats.min_pairs_needed() == 6
    assert [stats.min_pairs_needed(n) for n in (2, 3, 6)] == [7, 7, 8]
    assert stats.sign_flip([0.0, 0.0]) == 1.0


def test_without_a_difference_five_of_a_hundred_tests_find_one() -> None:
    rng = np.random.default_rng(11)
    for n in (8, 12):
        p_values = [stats.sign_flip(rng.standard_t(3, size=n).tolist()) for _ in range(2000)]
        false_positive_rate = np.mean(np.array(p_values) <= 0.05)
        assert 0.035 < false_positive_rate < 0.06


def test_a_large_difference_is_found_and_its_interval_holds_the_truth() -> None:
    rng = np.random.default_rng(5)
    n_found = n_covered = 0
    for _ in range(400):
        seed_effect = rng.normal(0, 5, size=10)  # what a seed does to both
        result = stats.paired_test(seed_effect + rng.normal(0, 1, 10), seed_effect + rng.normal(2, 1, 10))
        n_found += result.p <= 0.05
        n_covered += result.low <= 2 <= result.high
    assert n_found > 380
    assert 0.92 < n_covered / 400 < 0.98


def test_a_test_needs_finite_numbers() -> None:
    for values in ([], [1.0, math.nan]):
        with pytest.raises(ConfigError, match="must be finite"):
            stats.sign_flip(values)


def test_holm_by_hand_and_in_any_order() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.03, 0.01, 0.04]) == pytest.approx([0.06, 0.03, 0.06])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([0.2]) == [0.2]
    assert stats.holm([]) == []


def test_after_holm_one_family_in_twenty_holds_a_false_find() -> None:
    rng = np.random.default_rng(3)
    families = [min(stats.holm(rng.uniform(size=6).tolist())) <= 0.05 for _ in range(4000)]
    assert 0.04 < np.mean(families) < 0.06


# -- BLEU


def make_translations(n: int, error_rate: float, seed: int) -> list[str]:
    """Sentences of which each word is wrong so often."""
    rng, words = np.random.default_rng(1), [f"w{i}" for i in range(30)]
    sentences = [rng.choice(words, size=rng.integers(1, 20)).tolist() for _ in range(n)]
    rng = np.random.default_rng(seed)
    return [" ".join("wrong" if rng.random() < error_rate else word for word in sentence) for sentence in sentences]


@pytest.mark.parametrize("error_rate", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 3, 80])
def test_bleu_from_sentence_statistics_is_sacrebleus(n: int, error_rate: float) -> None:
    references = make_translations(n, 0.0, 0)
    hypotheses = [
        text if k % 3 else text[: len(text) // 2] for k, text in enumerate(make_translations(n, error_rate, 2))
    ]
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert stats.corpus_bleu(bleu_statistics(hypotheses, references).sum(axis=0)) == pytest.approx(expected)


def test_an_empty_translation_has_no_bleu() -> None:
    assert stats.corpus_bleu(bleu_statistics([""], ["a b c d e"]).sum(axis=0)) == 0.0


@pytest.mark.parametrize("error_rate", [0.30, 0.33, 0.36, 0.38])
def test_the_bootstrap_draws_as_sacrebleus_does(error_rate: float) -> None:
    references = make_translations(150, 0.0, 0)
    first, second = make_translations(150, 0.3, 2), make_translations(150, error_rate, 3)
    systems = [("first", first), ("second", second)]
    test = PairedTest(systems, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000)
    expected = test()[1]["BLEU"]
    first_statistics, second_statistics = (
        bleu_statistics(hypotheses, references)[None] for hypotheses in (first, second)
    )
    result = stats.bootstrap_bleu(first_statistics, second_statistics, n_samples=1000)
    assert result.mean == pytest.approx(expected[1].score - expected[0].score)
    # Against nothing: the score itself.
    against_zero = stats.bootstrap_bleu(np.zeros_like(second_statistics), second_statistics, n_samples=1000)
    # So near only because the same sentences are drawn.
    assert against_zero.half_width == pytest.approx(expected[1].ci, rel=1e-3)
    # sacreBLEU centres the size of the difference and counts one side: half of the two-sided p, where p is small
    assert expected[1].p_value < result.p < 3.2 * expected[1].p_value
    if error_rate > 0.35:
        assert result.p == pytest.approx(2 * expected[1].p_value, rel=0.1)


def test_the_bootstrap_finds_no_difference_where_there_is_none() -> None:
    references = make_translations(60, 0.0, 0)
    statistics = bleu_statistics(make_translations(60, 0.3, 2), references)[None]
    assert stats.bootstrap_bleu(statistics, statistics, n_samples=200).p == 1.0
    n_found = 0
    for seed in range(150):
        first, second = (
            bleu_statistics(make_translations(60, 0.3, 1000 + 2 * seed + k), references)[None] for k in (0, 1)
        )
        n_found += stats.bootstrap_bleu(first, second, n_samples=300).p <= 0.05
    assert n_found / 150 < 0.1


def test_seeds_are_averaged_in_the_bootstrap() -> None:
    references = make_translations(80, 0.0, 0)
    first, second = (
        np.stack([bleu_statistics(make_translations(80, errors, seed), references) for seed in (2, 3, 4)])
        for errors in (0.3, 0.25)
    )
    single_seeds = [stats.bootstrap_bleu(first[k : k + 1], second[k : k + 1], n_samples=500) for k in range(3)]
    pooled = stats.bootstrap_bleu(first, second, n_samples=500)
    assert pooled.mean == pytest.approx(np.mean([result.mean for result in single_seeds]))
    assert pooled.half_width < max(result.half_width for result in single_seeds)
    with pytest.raises(ConfigError, match="same sentences"):
        stats.bootstrap_bleu(first, second[:, :5])


# -- in words


def make_difference(mean: float, half_width: float, n: int = 12, floor: float | None = None) -> PairedDifference:
    return PairedDifference(
        n, mean, mean - half_width, mean + half_width, 0.5, 2.0 ** (1 - n) if floor is None else floor, ""
    )


def test_verdicts_are_said_in_words_and_units() -> None:
    gain, none = make_difference(0.019, 0.006), make_difference(0.003, 0.009)
    text = stats.verdict("A", "B", gain, "accuracy", corrected=0.002)
    assert text == "B is better by 1.9 ± 0.6 accuracy points (p = 0.002)"
    text = stats.verdict("A", "B", none, "accuracy", corrected=0.41)
    assert text == "no evidence of a difference (0.3 ± 0.9 accuracy points, p = 0.41)"
    text = stats.verdict("A", "B", make_difference(-6.4, 3.1), "perplexity", corrected=0.0002, comparisons=3)
    assert text == "B is better by 6 ± 3 perplexity (corrected p < 0.001)"
    text = stats.verdict("A", "B", make_difference(-1.27, 0.12), "bleu", corrected=0.01)
    assert text == "A is better by 1.27 ± 0.12 BLEU (p = 0.01)"


def test_too_few_seeds_are_said_to_be_too_few() -> None:
    text = stats.verdict("A", "B", make_difference(0.019, 0.006, n=5), "accuracy", corrected=0.0625)
    assert text.startswith("too few seeds to tell (B is ahead by 1.9 ± 0.6 accuracy points, p = 0.062;")
    assert text.endswith("5 seeds cannot give p below 0.0625; use 6 or more seeds)")
    text = stats.verdict("A", "B", make_difference(0.1, 0.1, n=6), "accuracy", corrected=0.09, comparisons=3)
    assert "or 0.0938 corrected for 3 comparisons; use 7 or more" in text
    text = stats.verdict("A", "B", make_difference(-2.0, math.inf, n=1), "perplexity", corrected=1.0)
    assert text == "one seed gives no interval and no test (B is ahead by 2 perplexity)"
    assert stats.verdict("A", "B", make_difference(0.0, 0.0), "loss", corrected=1.0) == "no difference"


def test_one_seed_is_enough_for_a_bootstrap_over_sentences() -> None:
    text = stats.verdict("A", "B", make_difference(1.9, 0.6, n=1, floor=1e-4), "bleu", corrected=0.003)
    assert text == "B is better by 1.9 ± 0.6 BLEU (p = 0.003)"


@pytest.mark.parametrize(
    ("uncertainty", "decimals"), [(12, 0), (3, 0), (1.2, 1), (0.6, 1), (0.12, 2), (0.06, 2), (0.0012, 4), (0.0, 2)]
)
def test_as_many_digits_as_mean_something(uncertainty: float, decimals: int) -> None:
    assert stats.decimals_for_uncertainty(uncertainty) == decimals


def test_which_way_is_better_is_known_of_every_tasks_metric() -> None:
    for task in TASKS.values():
        assert metric_info(task.metric).higher_is_better == task.higher_is_better
    assert [name for name, info in METRICS.items() if not info.higher_is_better] == [
        *("loss", "training loss", "perplexity", "bits_per_byte"),
    ]
    with pytest.raises(ConfigError, match="'wings' is not a known metric; choose one of accuracy, f1"):
        metric_info("wings")
