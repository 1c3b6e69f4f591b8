"""Scores against scikit-learn, against sacreBLEU, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from task_cases import sentences

from triform import metrics
from triform.nn.vocabulary import IGNORE
from triform.tasks.task import token_tally

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


def test_perplexity_and_bits_by_hand() -> None:
    assert metrics.perplexity(math.log(50)) == pytest.approx(50)
    assert metrics.perplexity(1e6) == math.inf
    assert metrics.bits_per_byte(8 * math.log(2), 4) == pytest.approx(2)


def test_logits_of_a_large_vocabulary_are_counted_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, states = torch.nn.Linear(8, 50, dtype=torch.float64), torch.randn(3, 7, 8, dtype=torch.float64)
    targets = torch.randint(50, (3, 7))
    targets[1, 4:] = IGNORE
    whole = token_tally(states, head, targets, 50)
    seen: list[int] = []
    head.register_forward_hook(lambda module, given, made: seen.append(made.numel()))
    monkeypatch.setattr("triform.tasks.task.MAX_EVAL_LOGITS", 210)
    torch.testing.assert_close(token_tally(states, head, targets, 50), whole, rtol=1e-12, atol=0)
    assert max(seen) <= 210
    assert whole[2] == 18
