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

from triform import report, stats
from triform.errors import ConfigError
from triform.metrics import bleu_statistics
from triform.stats import Difference
from triform.tasks import TASKS

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 33, 200])
def test_the_spread_of_seeds_is_scipys_t_interval(n: int) -> None:
    values = np.random.default_rng(n).normal(3.0, 2.0, size=n).tolist()
    mean, deviation, low, high = stats.spread(values)
    assert (mean, deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    wanted = scipy_stats.t.interval(0.95, n - 1, loc=mean, scale=deviation / math.sqrt(n))
    assert (low, high) == pytest.approx(wanted, rel=1e-12)
    assert stats.spread(values).half_width == pytest.approx((wanted[1] - wanted[0]) / 2)


def test_of_a_single_run_no_interval_is_known() -> None:
    assert stats.spread([2.0]) == (2.0, 0.0, -math.inf, math.inf)
    assert stats.spread([2.0]).half_width == math.inf
    assert math.isnan(stats.spread([2.0, math.inf]).deviation)


@pytest.mark.parametrize("n", [2, 5, 9, 13])
def test_the_exact_sign_flip_test_is_scipys_permutation_test(n: int) -> None:
    values = np.random.default_rng(n).normal(0.4, 1.0, size=n)
    wanted = scipy_stats.permutation_test(
        (values,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert stats.sign_flip(values.tolist()) == pytest.approx(wanted.pvalue)


@given(st.lists(NUMBERS, min_size=1, max_size=7))
def test_the_exact_sign_flip_test_counts_every_pattern(values: list[float]) -> None:
    limit = abs(math.fsum(values)) - 1e-9 * sum(map(abs, values))
    patterns = list(product([-1, 1], repeat=len(values)))
    extreme = sum(abs(math.fsum(s * v for s, v in zip(signs, values, strict=True))) >= limit for signs in patterns)
    assert stats.sign_flip(values) == pytest.approx(extreme / len(patterns))


def test_random_sign_flips_agree_with_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(7).normal(0.35, 1.0, size=18).tolist()
    exact = stats.sign_flip(values)
    monkeypatch.setattr(stats, "MOST_EXACT", 10)
    assert 0.02 < exact < 0.5
    assert stats.sign_flip(values) == pytest.approx(exact, rel=0.03)
    assert stats.sign_flip(values) == stats.sign_flip(values)  # the draws have a seed
    assert stats.sign_flip([1.0] * 40) == 1 / 100_000  # the observed pattern alone


def test_the_smallest_p_of_five_pairs_is_a_sixteenth() -> None:
    difference = stats.paired([1, 2, 3, 4, 5], [2, 4, 5, 6, 7])
    assert difference.p == difference.floor == 0.0625
    assert stats.pairs_needed() == 6
    assert [stats.pairs_needed(n) for n in (2, 3, 6)] == [7, 7, 8]
    assert stats.sign_flip([0.0, 0.0]) == 1.0


def test_without_a_difference_five_of_a_hundred_tests_find_one() -> None:
    rng = np.random.default_rng(11)
    for n in (8, 12):
        ps = [stats.sign_flip(rng.standard_t(3, size=n).tolist()) for _ in range(2000)]
        share = np.mean(np.array(ps) <= 0.05)
        assert 0.035 < share < 0.06


def test_a_large_difference_is_found_and_its_interval_holds_the_truth() -> None:
    rng = np.random.default_rng(5)
    found = held = 0
    for _ in range(400):
        common = rng.normal(0, 5, size=10)  # what a seed does to both
        found_now = stats.paired(common + rng.normal(0, 1, 10), common + rng.normal(2, 1, 10))
        found += found_now.p <= 0.05
        held += found_now.low <= 2 <= found_now.high
    assert found > 380
    assert 0.92 < held / 400 < 0.98


def test_a_test_needs_finite_numbers() -> None:
    for values in ([], [1.0, math.nan]):
        with pytest.raises(ConfigError, match="finite differences"):
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


def translations(n: int, errors: float, seed: int) -> list[str]:
    """Sentences of which each word is wrong so often."""
    rng, words = np.random.default_rng(1), [f"w{i}" for i in range(30)]
    wanted = [rng.choice(words, size=rng.integers(1, 20)).tolist() for _ in range(n)]
    rng = np.random.default_rng(seed)
    return [" ".join("wrong" if rng.random() < errors else word for word in sentence) for sentence in wanted]


@pytest.mark.parametrize("errors", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 3, 80])
def test_bleu_from_sentence_statistics_is_sacrebleus(n: int, errors: float) -> None:
    references = translations(n, 0.0, 0)
    made = [text if k % 3 else text[: len(text) // 2] for k, text in enumerate(translations(n, errors, 2))]
    wanted = sacrebleu.corpus_bleu(made, [references]).score
    assert stats.corpus_bleu(bleu_statistics(made, references).sum(axis=0)) == pytest.approx(wanted)


def test_an_empty_translation_has_no_bleu() -> None:
    assert stats.corpus_bleu(bleu_statistics([""], ["a b c d e"]).sum(axis=0)) == 0.0


@pytest.mark.parametrize("worse", [0.30, 0.33, 0.36, 0.38])
def test_the_bootstrap_draws_as_sacrebleus_does(worse: float) -> None:
    references = translations(150, 0.0, 0)
    first, second = translations(150, 0.3, 2), translations(150, worse, 3)
    named = [("first", first), ("second", second)]
    test = PairedTest(named, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000)
    theirs = test()[1]["BLEU"]
    one, other = (bleu_statistics(made, references)[None] for made in (first, second))
    ours = stats.bootstrap_bleu(one, other, draws=1000)
    assert ours.mean == pytest.approx(theirs[1].score - theirs[0].score)
    alone = stats.bootstrap_bleu(np.zeros_like(other), other, draws=1000)  # against nothing: the score itself
    assert alone.reach == pytest.approx(theirs[1].ci, rel=1e-3)  # so near only because the same sentences are drawn
    # sacreBLEU centres the size of the difference and counts one side: half of the two-sided p, where p is small
    assert theirs[1].p_value < ours.p < 3.2 * theirs[1].p_value
    if worse > 0.35:
        assert ours.p == pytest.approx(2 * theirs[1].p_value, rel=0.1)


def test_the_bootstrap_finds_no_difference_where_there_is_none() -> None:
    references = translations(60, 0.0, 0)
    same = bleu_statistics(translations(60, 0.3, 2), references)[None]
    assert stats.bootstrap_bleu(same, same, draws=200).p == 1.0
    finds = 0
    for seed in range(150):
        first, second = (
            bleu_statistics(translations(60, 0.3, 1000 + 2 * seed + k), references)[None] for k in (0, 1)
        )
        finds += stats.bootstrap_bleu(first, second, draws=300).p <= 0.05
    assert finds / 150 < 0.1


def test_seeds_are_averaged_in_the_bootstrap() -> None:
    references = translations(80, 0.0, 0)
    first, second = (
        np.stack([bleu_statistics(translations(80, errors, seed), references) for seed in (2, 3, 4)])
        for errors in (0.3, 0.25)
    )
    alone = [stats.bootstrap_bleu(first[k : k + 1], second[k : k + 1], draws=500) for k in range(3)]
    pooled = stats.bootstrap_bleu(first, second, draws=500)
    assert pooled.mean == pytest.approx(np.mean([each.mean for each in alone]))
    assert pooled.reach < max(each.reach for each in alone)
    with pytest.raises(ConfigError, match="same sentences"):
        stats.bootstrap_bleu(first, second[:, :5])


# -- in words


def difference(mean: float, reach: float, n: int = 12, floor: float | None = None) -> Difference:
    return Difference(n, mean, mean - reach, mean + reach, 0.5, 2.0 ** (1 - n) if floor is None else floor, "")


def test_verdicts_are_said_in_words_and_units() -> None:
    gain, none = difference(0.019, 0.006), difference(0.003, 0.009)
    said = stats.verdict("A", "B", gain, "accuracy", corrected=0.002)
    assert said == "B better by 1.9 ± 0.6 accuracy points, p = 0.002"
    said = stats.verdict("A", "B", none, "accuracy", corrected=0.41)
    assert said == "no evidence of a difference (0.3 ± 0.9 accuracy points, p = 0.41)"
    said = stats.verdict("A", "B", difference(-6.4, 3.1), "perplexity", corrected=0.0002, comparisons=3)
    assert said == "B better by 6 ± 3 perplexity, corrected p < 0.001"
    said = stats.verdict("A", "B", difference(-1.27, 0.12), "bleu", corrected=0.01)
    assert said == "A better by 1.27 ± 0.12 BLEU, p = 0.01"


def test_too_few_seeds_are_said_to_be_too_few() -> None:
    said = stats.verdict("A", "B", difference(0.019, 0.006, n=5), "accuracy", corrected=0.0625)
    assert said.startswith("too few seeds to tell (B ahead by 1.9 ± 0.6 accuracy points, p = 0.062;")
    assert said.endswith("5 seeds cannot give p below 0.0625: take 6 or more)")
    said = stats.verdict("A", "B", difference(0.1, 0.1, n=6), "accuracy", corrected=0.09, comparisons=3)
    assert "corrected for 3 comparisons 0.0938: take 7 or more" in said
    said = stats.verdict("A", "B", difference(-2.0, math.inf, n=1), "perplexity", corrected=1.0)
    assert said == "one seed: no interval and no test (B ahead by 2 perplexity)"
    assert stats.verdict("A", "B", difference(0.0, 0.0), "loss", corrected=1.0) == "no difference at all"


def test_one_seed_is_enough_for_a_bootstrap_over_sentences() -> None:
    said = stats.verdict("A", "B", difference(1.9, 0.6, n=1, floor=1e-4), "bleu", corrected=0.003)
    assert said == "B better by 1.9 ± 0.6 BLEU, p = 0.003"


@pytest.mark.parametrize(
    ("reach", "places"), [(12, 0), (3, 0), (1.2, 1), (0.6, 1), (0.12, 2), (0.06, 2), (0.0012, 4), (0.0, 2)]
)
def test_as_many_digits_as_mean_something(reach: float, places: int) -> None:
    assert stats.decimals(reach) == places


def test_which_way_is_better_is_known_of_every_tasks_metric() -> None:
    for task in TASKS.values():
        assert stats.measure(task.metric).higher_is_better == task.higher_is_better
    for name in report.LOWER_IS_BETTER:
        assert not stats.measure(name).higher_is_better
    assert set(report.SCORES) <= stats.MEASURES.keys()
    with pytest.raises(ConfigError, match="whether more 'wings' is better"):
        stats.measure("wings")
