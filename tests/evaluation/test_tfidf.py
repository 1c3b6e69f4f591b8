"""The majority baseline and the TF-IDF baseline, against scikit-learn and numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss

from triform.data.readers import LabelledText
from triform.evaluation.baselines import BaselineError
from triform.evaluation.baselines.labels import MajorityBaseline
from triform.evaluation.baselines.tfidf import C_GRID, TfidfBaseline, build_vectorizer, select_c

LABEL_WORDS = {"good": "fine warm lovely bright", "bad": "cold awful dull don't", "so-so": "plain grey usual mid"}
NEUTRAL_WORDS = [
    "the",
    "soup",
    "was",
    "a",
    "bit",
    "and",
    "then",
    "it",
    "had",
    "no",
    "L’orange",
    "in",
    "Straße",
    "7",
]


def make_reviews(n: int, labels: tuple[str, ...], seed: int = 0) -> list[LabelledText]:
    """Texts of which some words lean towards a label."""
    rng = np.random.default_rng(seed)
    rows = []
    for line in range(1, n + 1):
        label = labels[int(rng.integers(len(labels)))]
        label_words = LABEL_WORDS[label if rng.random() < 0.8 else labels[0]].split()
        words = [*rng.choice(NEUTRAL_WORDS, 6), *rng.choice(label_words, 3)]
        rows.append(LabelledText(", ".join(map(str, rng.permutation(words))), label, line))
    return rows


def test_the_vocabulary_has_every_word_and_the_pairs_that_two_texts_share() -> None:
    texts = ["The soup was warm", "the SOUP wasn't cold", "don't"]
    vectorizer = build_vectorizer(texts).fit(texts)
    assert set(vectorizer.vocabulary_) == {"the", "soup", "was", "warm", "wasn't", "cold", "don't", "the soup"}


def test_weights_are_logarithms_of_counts_and_of_document_frequencies() -> None:
    texts = ["a a b", "b c"]
    vectorizer = build_vectorizer(texts).fit(texts)
    weights = vectorizer.transform(["a a b"]).toarray()[0]
    row = dict(zip(vectorizer.get_feature_names_out(), weights, strict=True))
    rare, common = 1 + math.log(3 / 2), 1 + math.log(3 / 3)  # 1 + ln((1 + texts) / (1 + texts with the word))
    a, b = (1 + math.log(2)) * rare, common
    assert row == pytest.approx({"a": a / math.hypot(a, b), "b": b / math.hypot(a, b), "c": 0})
    assert not vectorizer.transform(["", "nothing known"]).toarray().any()


@pytest.mark.parametrize("labels", [("good", "bad"), ("good", "bad", "so-so")])
@pytest.mark.parametrize("c", [0.5, 10.0])
def test_the_fit_is_the_minimum_of_the_regularised_loss(labels: tuple[str, ...], c: float) -> None:
    train, test = make_reviews(120, labels), make_reviews(50, labels, seed=1)
    ours = TfidfBaseline.fit(train, c=c)
    x = ours.vectorizer.transform([row.text for row in train]).toarray()
    one_hot = np.array([[row.label == label for label in ours.labels] for row in train], np.float64)
    # Two labels have one weight vector, for the second label; its gradient is that of the logit of this label.
    errors = (ours.predict([row.text for row in train]) - one_hot)[:, -len(ours.classifier.coef_) :]
    gradient = errors.T @ x + ours.classifier.coef_ / c
    assert np.abs(gradient).max() / len(train) < 1e-5
    assert np.abs(errors.sum(axis=0)).max() / len(train) < 1e-5  # the intercept is not regularised
    probs = ours.predict([row.text for row in test])
    metrics = ours.evaluate(test)
    targets = [row.label for row in test]
    assert metrics["accuracy"] == pytest.approx(accuracy_score(targets, np.array(ours.labels)[probs.argmax(1)]))
    assert metrics["loss"] == pytest.approx(log_loss(targets, probs, labels=ours.labels))


def test_held_out_rows_choose_the_regularisation() -> None:
    rng = np.random.default_rng(0)
    clear = make_reviews(200, ("good", "bad"))
    noise = [LabelledText(row.text, str(rng.choice(["good", "bad"])), row.line) for row in clear]
    for rows in (clear, noise):
        texts = [row.text for row in rows]
        features = build_vectorizer(texts).fit_transform(texts)
        targets = np.array([row.label == "good" for row in rows], np.int64)
        is_valid = np.arange(len(targets)) % 10 == 9
        accuracies = {
            c: LogisticRegression(C=c, tol=1e-6, max_iter=1000)
            .fit(features[~is_valid], targets[~is_valid])
            .score(features[is_valid], targets[is_valid])
            for c in C_GRID
        }
        assert accuracies[select_c(features, targets)] == max(accuracies.values())
        assert select_c(features[:5], targets[:5]) == C_GRID[1], "too few rows to hold any out"


def test_a_label_may_occur_in_held_out_rows_only() -> None:
    rows = [LabelledText("warm" if n % 2 else "cold", "good" if n % 2 else "bad", n) for n in range(20)]
    rows[9] = LabelledText("tepid", "so-so", 9)
    assert TfidfBaseline.fit(rows).evaluate(rows)["accuracy"] > 0.9
    only_there = [LabelledText("warm", "bad" if n == 9 else "good", n) for n in range(10)]
    assert TfidfBaseline.fit(only_there).evaluate(only_there)["accuracy"] == 0.9


def test_the_majority_is_scikit_learns_dummy() -> None:
    train, test = make_reviews(80, ("good", "bad", "so-so")), make_reviews(30, ("good", "bad", "so-so"), seed=1)
    dummy = DummyClassifier(strategy="prior").fit([[0]] * len(train), [row.label for row in train])
    targets, predictions = [row.label for row in test], dummy.predict([[0]] * len(test))
    metrics = MajorityBaseline.fit(train).evaluate(test)
    assert metrics == pytest.approx(
        {
            "loss": log_loss(targets, dummy.predict_proba([[0]] * len(test))),
            "accuracy": accuracy_score(targets, predictions),
            "f1": f1_score(targets, predictions, average="macro", zero_division=0),
            "rows": 30,
        }
    )


def test_a_label_that_was_never_trained_on_is_wrong_and_costs_without_end() -> None:
    train = [LabelledText("warm", "good", 1), LabelledText("cold", "bad", 2)]
    metrics = TfidfBaseline.fit(train).evaluate([LabelledText("warm", "good", 1), LabelledText("tepid", "new", 2)])
    assert metrics["accuracy"] == 0.5
    assert metrics["loss"] == math.inf


def test_what_cannot_be_fitted_says_why() -> None:
    single_label = [LabelledText("warm", "good", 1), LabelledText("cold", "good", 2)]
    with pytest.raises(BaselineError, match="all rows have the label 'good'"):
        TfidfBaseline.fit(single_label)
    with pytest.raises(BaselineError, match="there are no training rows"):
        TfidfBaseline.fit([])
    with pytest.raises(BaselineError, match="no words"):
        TfidfBaseline.fit([LabelledText("?!", "good", 1), LabelledText("", "bad", 2)])
    with pytest.raises(BaselineError, match="there are no training rows"):
        MajorityBaseline.fit([])
    with pytest.raises(BaselineError, match="there are no rows to evaluate"):
        MajorityBaseline.fit(single_label).evaluate([])
