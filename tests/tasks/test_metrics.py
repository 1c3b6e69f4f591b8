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

from triform.evaluation import metrics
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.evaluation import token_metric_sums

rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)


@given(rows)
def test_label_metrics_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(pairs).T
    confusion = confusion_matrix(labels, predictions, labels=range(5))
    assert metrics.accuracy(confusion) == pytest.approx(accuracy_score(labels, predictions))
    expected = f1_score(labels, predictions, average="macro", zero_division=0)
    assert metrics.macro_f1(confusion) == pytest.approx(expected)


def test_translation_metrics_are_sacrebleus() -> None:
    references = sentences()[:30]
    translations = [" ".join(text.split()[: 2 + n % 9]) for n, text in enumerate(references)]
    translation_metrics = metrics.compute_translation_metrics(translations, references)
    assert translation_metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(translations, [references]).score)
    assert translation_metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(translations, [references]).score)
    sentence_bleus = [
        sacrebleu.sentence_bleu(translation, [reference]).score
        for translation, reference in zip(translations, references, strict=True)
    ]
    assert translation_metrics["sentence_bleu"] == pytest.approx(np.mean(sentence_bleus))
    assert translation_metrics["exact_match"] == np.mean(
        [translation == reference for translation, reference in zip(translations, references, strict=True)]
    )
    assert metrics.bleu_signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_perplexity_and_bits_by_hand() -> None:
    assert metrics.perplexity(math.log(50)) == pytest.approx(50)
    assert metrics.perplexity(1e6) == math.inf
    assert metrics.bits_per_byte(8 * math.log(2), 4) == pytest.approx(2)


def test_logits_of_a_large_vocabulary_are_counted_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, states = torch.nn.Linear(8, 50, dtype=torch.float64), torch.randn(3, 7, 8, dtype=torch.float64)
    targets = torch.randint(50, (3, 7))
    targets[1, 4:] = IGNORE_INDEX
    sums = token_metric_sums(states, head, targets, 50)
    n_logits: list[int] = []
    head.register_forward_hook(lambda module, inputs, logits: n_logits.append(logits.numel()))
    monkeypatch.setattr("triform.tasks.evaluation.MAX_EVAL_LOGITS", 210)
    torch.testing.assert_close(token_metric_sums(states, head, targets, 50), sums, rtol=1e-12, atol=0)
    assert max(n_logits) <= 210
    assert sums[2] == 18
