"""Majority, TF-IDF and logistic regression against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss

from triform.data.readers import LabelledText
from triform.evaluation.baselines import BaselineError
from triform.evaluation.baselines.labels import MajorityBaseline
from triform.evaluation.baselines.logistic import CooMatrix, fit_logistic
from triform.evaluation.baselines.tfidf import C_GRID, MIN_BIGRAM_DF, TfidfBaseline, TfidfFeatures, select_c

PATTERN = r"\w+(?:['’]\w+)*"
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


def to_dense(features: TfidfFeatures, texts: list[str]) -> np.ndarray:
    matrix = features.transform(texts)
    table = np.zeros(matrix.shape)
    table[matrix.rows, matrix.columns] = matrix.values
    return table


def test_features_are_scikit_learns_words_and_pairs() -> None:
    texts = [row.text for row in make_reviews(60, ("good", "bad"))]
    new_texts = ["A lovely soup, never seen!", "", "nothing known", "soup soup the soup the soup"]
    theirs = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=PATTERN)
    common_ngrams = TfidfVectorizer(ngram_range=(1, 2), token_pattern=PATTERN, min_df=MIN_BIGRAM_DF).fit(texts)
    words = set(TfidfVectorizer(token_pattern=PATTERN).fit(texts).vocabulary_)
    theirs.set_params(
        vocabulary=sorted(words | set(common_ngrams.vocabulary_))
    )  # all words, and pairs of two texts or more
    (features, fitted), expected = TfidfFeatures.fit(texts), theirs.fit(texts)
    transformed = features.transform(texts)
    assert all(
        np.array_equal(getattr(fitted, name), getattr(transformed, name)) for name in ("rows", "columns", "values")
    )
    assert fitted.shape[1] == len(expected.vocabulary_)
    for batch in (texts, new_texts):
        ours, reference = to_dense(features, batch), expected.transform(batch).toarray()
        assert np.sort(ours, axis=1) == pytest.approx(np.sort(reference, axis=1))
        assert ours @ ours.T == pytest.approx(reference @ reference.T)  # the same whatever the order of the columns


@pytest.mark.parametrize("labels", [("good", "bad"), ("good", "bad", "so-so")])
@pytest.mark.parametrize("strength", [0.5, 10.0])
def test_weights_and_shares_are_those_of_scikit_learns_logistic_regression(
    labels: tuple[str, ...], strength: float
) -> None:
    train, test = make_reviews(120, labels), make_reviews(50, labels, seed=1)
    ours = TfidfBaseline.fit(train, c=strength)
    x = to_dense(ours.features, [row.text for row in train])
    theirs = LogisticRegression(C=strength, tol=1e-8, max_iter=5000).fit(x, [row.label for row in train])
    expected_probs = theirs.predict_proba(to_dense(ours.features, [row.text for row in test]))
    assert list(theirs.classes_) == ours.labels
    assert ours.predict([row.text for row in test]) == pytest.approx(expected_probs, abs=1e-4)
    assert pytest.approx(theirs.coef_, abs=1e-3) == ours.weights[:-1].T
    metrics = ours.evaluate(test)
    assert metrics["accuracy"] == pytest.approx(
        accuracy_score([row.label for row in test], theirs.classes_[expected_probs.argmax(1)])
    )
    assert metrics["loss"] == pytest.approx(log_loss([row.label for row in test], expected_probs), abs=1e-4)


def test_held_out_rows_choose_the_strength() -> None:
    rng = np.random.default_rng(0)
    clear = make_reviews(200, ("good", "bad"))
    noise = [LabelledText(row.text, str(rng.choice(["good", "bad"])), row.line) for row in clear]
    for rows in (clear, noise):
        x = TfidfFeatures.fit([row.text for row in rows])[1]
        targets = np.array([row.label == "good" for row in rows], np.int64)
        accuracies = {strength: held_out_accuracy(x, targets, strength) for strength in C_GRID}
        assert accuracies[select_c(x, targets, 2)[0]] == max(accuracies.values())
        few = x.select_rows(np.arange(200) < 5)
        assert select_c(few, targets[:5], 2) == (C_GRID[1], None)


def held_out_accuracy(x: CooMatrix, targets: np.ndarray, c: float) -> float:
    is_valid = np.arange(len(targets)) % 10 == 9
    weights = fit_logistic(x.select_rows(~is_valid), targets[~is_valid], 2, c)
    logits = x.select_rows(is_valid).matmul(weights[:-1]) + weights[-1]
    return float(((logits[:, 0] > 0) == targets[is_valid]).mean())


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
    with pytest.raises(BaselineError, match="only one label, 'good'"):
        TfidfBaseline.fit(single_label)
    with pytest.raises(BaselineError, match="no rows to learn from"):
        TfidfBaseline.fit([])
    with pytest.raises(BaselineError, match="no words"):
        TfidfBaseline.fit([LabelledText("?!", "good", 1), LabelledText("", "bad", 2)])
    with pytest.raises(BaselineError, match="no rows to learn from"):
        MajorityBaseline.fit([])
    with pytest.raises(BaselineError, match="no rows to judge by"):
        MajorityBaseline.fit(single_label).evaluate([])
