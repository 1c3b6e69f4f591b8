"""Majority, TF-IDF and logistic regression against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss

from triform.baselines import UnfitError
from triform.baselines.labels import Majority
from triform.baselines.logistic import Sparse, fit_logistic
from triform.baselines.tfidf import PAIR_IN, STRENGTHS, Features, Tfidf, best_strength
from triform.data.readers import Row

PATTERN = r"\w+(?:['’]\w+)*"
MOODS = {"good": "fine warm lovely bright", "bad": "cold awful dull don't", "so-so": "plain grey usual mid"}
THINGS = ["the", "soup", "was", "a", "bit", "and", "then", "it", "had", "no", "L’orange", "in", "Straße", "7"]


def reviews(n: int, labels: tuple[str, ...], seed: int = 0) -> list[Row]:
    """Texts of which some words lean towards a label."""
    rng = np.random.default_rng(seed)
    rows = []
    for line in range(1, n + 1):
        label = labels[int(rng.integers(len(labels)))]
        leaning = MOODS[label if rng.random() < 0.8 else labels[0]].split()
        words = [*rng.choice(THINGS, 6), *rng.choice(leaning, 3)]
        rows.append(Row(", ".join(map(str, rng.permutation(words))), label, line))
    return rows


def dense(features: Features, texts: list[str]) -> np.ndarray:
    found = features.of(texts)
    table = np.zeros(found.shape)
    table[found.rows, found.columns] = found.values
    return table


def test_features_are_scikit_learns_words_and_pairs() -> None:
    texts = [row.text for row in reviews(60, ("good", "bad"))]
    new = ["A lovely soup, never seen!", "", "nothing known", "soup soup the soup the soup"]
    theirs = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=PATTERN)
    common = TfidfVectorizer(ngram_range=(1, 2), token_pattern=PATTERN, min_df=PAIR_IN).fit(texts)
    single = set(TfidfVectorizer(token_pattern=PATTERN).fit(texts).vocabulary_)
    theirs.set_params(
        vocabulary=sorted(single | set(common.vocabulary_))
    )  # all words, and pairs of two texts or more
    (features, fitted), wanted = Features.fit(texts), theirs.fit(texts)
    again = features.of(texts)
    assert all(
        np.array_equal(getattr(fitted, name), getattr(again, name)) for name in ("rows", "columns", "values")
    )
    assert fitted.shape[1] == len(wanted.vocabulary_)
    for some in (texts, new):
        ours, sklearns = dense(features, some), wanted.transform(some).toarray()
        assert np.sort(ours, axis=1) == pytest.approx(np.sort(sklearns, axis=1))
        assert ours @ ours.T == pytest.approx(sklearns @ sklearns.T)  # the same whatever the order of the columns


@pytest.mark.parametrize("labels", [("good", "bad"), ("good", "bad", "so-so")])
@pytest.mark.parametrize("strength", [0.5, 10.0])
def test_weights_and_shares_are_those_of_scikit_learns_logistic_regression(
    labels: tuple[str, ...], strength: float
) -> None:
    train, test = reviews(120, labels), reviews(50, labels, seed=1)
    ours = Tfidf.fit(train, strength=strength)
    x = dense(ours.features, [row.text for row in train])
    theirs = LogisticRegression(C=strength, tol=1e-8, max_iter=5000).fit(x, [row.label for row in train])
    wanted = theirs.predict_proba(dense(ours.features, [row.text for row in test]))
    assert list(theirs.classes_) == ours.labels
    assert ours.predict([row.text for row in test]) == pytest.approx(wanted, abs=1e-4)
    assert pytest.approx(theirs.coef_, abs=1e-3) == ours.weights[:-1].T
    found = ours.score(test)
    assert found["accuracy"] == pytest.approx(
        accuracy_score([row.label for row in test], theirs.classes_[wanted.argmax(1)])
    )
    assert found["loss"] == pytest.approx(log_loss([row.label for row in test], wanted), abs=1e-4)


def test_held_out_rows_choose_the_strength() -> None:
    rng = np.random.default_rng(0)
    clear = reviews(200, ("good", "bad"))
    noise = [Row(row.text, str(rng.choice(["good", "bad"])), row.line) for row in clear]
    for rows in (clear, noise):
        x = Features.fit([row.text for row in rows])[1]
        truth = np.array([row.label == "good" for row in rows], np.int64)
        scores = {strength: judged(x, truth, strength) for strength in STRENGTHS}
        assert scores[best_strength(x, truth, 2)[0]] == max(scores.values())
        few = x.some_rows(np.arange(200) < 5)
        assert best_strength(few, truth[:5], 2) == (STRENGTHS[1], None)


def judged(x: Sparse, truth: np.ndarray, strength: float) -> float:
    held = np.arange(len(truth)) % 10 == 9
    weights = fit_logistic(x.some_rows(~held), truth[~held], 2, strength)
    scores = x.some_rows(held).times(weights[:-1]) + weights[-1]
    return float(((scores[:, 0] > 0) == truth[held]).mean())


def test_the_majority_is_scikit_learns_dummy() -> None:
    train, test = reviews(80, ("good", "bad", "so-so")), reviews(30, ("good", "bad", "so-so"), seed=1)
    dummy = DummyClassifier(strategy="prior").fit([[0]] * len(train), [row.label for row in train])
    truth, guess = [row.label for row in test], dummy.predict([[0]] * len(test))
    found = Majority.fit(train).score(test)
    assert found == pytest.approx(
        {
            "loss": log_loss(truth, dummy.predict_proba([[0]] * len(test))),
            "accuracy": accuracy_score(truth, guess),
            "f1": f1_score(truth, guess, average="macro", zero_division=0),
            "rows": 30,
        }
    )


def test_a_label_that_was_never_trained_on_is_wrong_and_costs_without_end() -> None:
    train = [Row("warm", "good", 1), Row("cold", "bad", 2)]
    found = Tfidf.fit(train).score([Row("warm", "good", 1), Row("tepid", "new", 2)])
    assert found["accuracy"] == 0.5
    assert found["loss"] == math.inf


def test_what_cannot_be_fitted_says_why() -> None:
    one = [Row("warm", "good", 1), Row("cold", "good", 2)]
    with pytest.raises(UnfitError, match="only one label, 'good'"):
        Tfidf.fit(one)
    with pytest.raises(UnfitError, match="no rows to learn from"):
        Tfidf.fit([])
    with pytest.raises(UnfitError, match="no words"):
        Tfidf.fit([Row("?!", "good", 1), Row("", "bad", 2)])
    with pytest.raises(UnfitError, match="no rows to learn from"):
        Majority.fit([])
    with pytest.raises(UnfitError, match="no rows to judge by"):
        Majority.fit(one).score([])
