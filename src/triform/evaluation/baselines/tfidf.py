"""The TF-IDF baseline: logistic regression over words, or words and bigrams, which is strong on small datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from triform.data.readers import LabelledText
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.labels import FloatArray, LabelBaseline
from triform.evaluation.baselines.words import WORD_PATTERN

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

IntArray = npt.NDArray[np.int64]
SparseMatrix = Any  # scipy.sparse.csr_matrix, which has no types
C_GRID = (1.0, 10.0, 100.0)  # candidates for the inverse regularisation strength; held-out rows select one
MIN_BIGRAM_DF = 2  # a bigram must occur in this number of documents; most occur in one and carry little information
MAX_WORK = 1_000_000_000  # labels × characters; 15,000 reviews with two labels are 4 % of it
VALID_EVERY = 10  # every tenth training row is held out to select C
TOLERANCE = 1e-6  # of the gradient; at 1e-5 the rounding of the BLAS library changes the accuracy
MAX_ITERATIONS = 1000


class TfidfBaseline(LabelBaseline):
    """A fitted TF-IDF baseline."""

    def __init__(self, vectorizer: TfidfVectorizer, classifier: LogisticRegression, labels: Sequence[str]) -> None:
        self.vectorizer, self.classifier, self.labels = vectorizer, classifier, labels

    @classmethod
    def fit(cls, train: Sequence[LabelledText], *, c: float = 0.0, bigrams: bool = True) -> Self:
        """Fit the baseline to labelled texts.

        Args:
            train: The training rows.
            c: Inverse regularisation strength. 0 chooses the best of `C_GRID` on a tenth of the rows.
            bigrams: Whether pairs of neighbouring words are features too.

        Raises:
            BaselineError: There are fewer than two labels, no words, or too much text for the number of labels.
        """
        labels = sorted({row.label for row in train})
        if len(labels) < 2:
            raise BaselineError(
                f"all rows have the label {labels[0]!r}" if labels else "there are no training rows"
            )
        if (work := len(labels) * sum(len(row.text) for row in train)) > MAX_WORK:
            raise BaselineError(f"{len(labels)} labels and {work // len(labels):,} characters of text are too much")
        label_ids = {label: label_id for label_id, label in enumerate(labels)}
        targets = np.array([label_ids[row.label] for row in train])
        texts = [row.text for row in train]
        vectorizer = build_vectorizer(texts, bigrams=bigrams)
        features = vectorizer.fit_transform(texts)
        classifier = build_classifier(c or select_c(features, targets)).fit(features, targets)
        return cls(vectorizer, classifier, labels)

    def predict(self, texts: Sequence[str]) -> FloatArray:  # (texts, labels)
        """Return the probability of each label for each text."""
        if not texts:
            return np.zeros((0, len(self.labels)))
        probs: FloatArray = self.classifier.predict_proba(self.vectorizer.transform(texts))
        return probs


def build_vectorizer(texts: Sequence[str], *, bigrams: bool = True) -> TfidfVectorizer:
    """Build a vectorizer with every word of the texts, and every bigram that occurs in at least two of them."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    if not any(WORD_PATTERN.search(text) for text in texts):
        raise BaselineError("the training texts contain no words")
    options = {"token_pattern": WORD_PATTERN.pattern, "ngram_range": (1, 2 if bigrams else 1)}
    counter = CountVectorizer(**options)
    document_frequency = counter.fit_transform(texts).getnnz(axis=0)
    terms = counter.get_feature_names_out()
    is_kept = (document_frequency >= MIN_BIGRAM_DF) | np.array([" " not in term for term in terms])
    return TfidfVectorizer(**options, sublinear_tf=True, vocabulary=terms[is_kept])


def build_classifier(c: float) -> LogisticRegression:
    """Build an untrained logistic regression."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, tol=TOLERANCE, max_iter=MAX_ITERATIONS)


def select_c(features: SparseMatrix, targets: IntArray) -> float:
    """Return the inverse regularisation strength that is best on every tenth row by accuracy, then by loss."""
    is_valid = np.arange(len(targets)) % VALID_EVERY == VALID_EVERY - 1
    if not is_valid.any() or len(set(targets[~is_valid])) < 2:
        return C_GRID[len(C_GRID) // 2]
    scores = {}
    for c in C_GRID:
        classifier = build_classifier(c).fit(features[~is_valid], targets[~is_valid])
        probs = np.zeros((is_valid.sum(), targets.max() + 1))
        probs[:, classifier.classes_] = classifier.predict_proba(features[is_valid])  # rare labels may be missing
        target_probs = probs[np.arange(len(probs)), targets[is_valid]]
        accuracy = float((probs.argmax(1) == targets[is_valid]).mean())
        scores[c] = accuracy, float(np.log(target_probs + 1e-300).mean())
    return max(scores, key=scores.__getitem__)
