"""Scores against scikit-learn, against sacreBLEU, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from task_cases import sentences

from triform import metrics

rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)


@given(rows)
def test_label_scores_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    truth, guess = np.array(pairs).T
    table = confusion_matrix(truth, guess, labels=range(5))
    assert metrics.accuracy(table) == pytest.approx(accuracy_score(truth, guess))
    wanted = f1_score(truth, guess, average="macro", zero_division=0)
    assert metrics.macro_f1(table) == pytest.approx(wanted)


def test_translation_scores_are_sacrebleus() -> None:
    references = sentences()[:30]
    made = [" ".join(text.split()[: 2 + n % 9]) for n, text in enumerate(references)]
    scores = metrics.translation_scores(made, references)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(made, [references]).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(made, [references]).score)
    single = [sacrebleu.sentence_bleu(one, [other]).score for one, other in zip(made, references, strict=True)]
    assert scores["sentence_bleu"] == pytest.approx(np.mean(single))
    assert scores["exact_match"] == np.mean([one == other for one, other in zip(made, references, strict=True)])
    assert metrics.bleu_signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 33, 200])
def test_the_spread_of_seeds_is_scipys_t_interval(n: int) -> None:
    values = np.random.default_rng(n).normal(3.0, 2.0, size=n).tolist()
    mean, deviation, low, high = metrics.spread(values)
    assert (mean, deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    wanted = stats.t.interval(0.95, n - 1, loc=mean, scale=deviation / math.sqrt(n))
    assert (low, high) == pytest.approx(wanted, rel=1e-12)


def test_of_a_single_run_no_interval_is_known() -> None:
    assert metrics.spread([2.0]) == (2.0, 0.0, -math.inf, math.inf)
    assert math.isnan(metrics.spread([2.0, math.inf]).deviation)


def test_perplexity_and_bits_by_hand() -> None:
    assert metrics.perplexity(math.log(50)) == pytest.approx(50)
    assert metrics.perplexity(1e6) == math.inf
    assert metrics.bits_per_byte(8 * math.log(2), 4) == pytest.approx(2)
