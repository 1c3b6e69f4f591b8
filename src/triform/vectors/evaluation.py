"""How good word vectors are, by questions that people answered: analogies, and how alike two words are.

Asked and counted as gensim does, so that figures can be compared: among the most frequent words, whatever their
case, and only questions all of whose words have a vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triform.data.files import iter_numbered_lines
from triform.errors import DataError
from triform.vectors.word_vectors import WordVectors

MAX_SEARCH_WORDS = 300_000  # words among which an answer is looked for
N_CANDIDATES = 5  # answers looked at: one that repeats the question in another case does not count
MAX_BATCH_COSINES = 1 << 24  # cosines computed together


@dataclass(frozen=True, kw_only=True)
class VectorEvaluation:
    """What a file of questions came to. Analogies have a share of right answers, pairs two correlations."""

    name: str
    n_covered: int  # questions all of whose words have a vector
    n_questions: int
    metrics: dict[str, float]


class Question(NamedTuple):
    """Rows of a, b, c and of what is to c as b is to a."""

    a: int
    b: int
    c: int
    expected: int


def index_uppercase_words(vectors: WordVectors) -> dict[str, int]:
    """The row of each word in capitals; of words that differ only in case, the most frequent one's."""
    words = vectors.words[:MAX_SEARCH_WORDS]
    return {word.upper(): index for index, word in reversed(list(enumerate(words)))}


def evaluate_analogies(vectors: WordVectors, path: str) -> list[VectorEvaluation]:
    """The share of right answers in each section of a file (": NAME", then lines of four words), and in all."""
    index_by_word, sections = index_uppercase_words(vectors), list(_read_sections(path))
    uppercase_words = [word.upper() for word in vectors.words[:MAX_SEARCH_WORDS]]
    results, n_correct, n_covered = [], 0, 0
    for name, questions in sections:
        rows = [
            Question(*(index_by_word[word] for word in question))
            for question in questions
            if all(part in index_by_word for part in question)
        ]
        n_hits = _count_correct(vectors, rows, uppercase_words)
        n_correct, n_covered = n_correct + n_hits, n_covered + len(rows)
        results.append(_build_accuracy(name, n_hits, len(rows), len(questions)))
    n_questions = sum(len(questions) for _, questions in sections)
    if not n_questions:
        raise DataError("holds no analogies: lines of four words, in sections that begin with ': NAME'", path=path)
    return [*results, _build_accuracy("all analogies", n_correct, n_covered, n_questions)]


def _build_accuracy(name: str, n_correct: int, n_covered: int, n_questions: int) -> VectorEvaluation:
    return VectorEvaluation(
        name=name,
        n_covered=n_covered,
        n_questions=n_questions,
        metrics={"accuracy": n_correct / n_covered if n_covered else 0.0},
    )


def _read_sections(path: str) -> Iterator[tuple[str, list[list[str]]]]:
    name = ""
    questions: list[list[str]] = []
    for line_number, line in iter_numbered_lines(path):
        if line.startswith(": "):
            if name:
                yield name, questions
            name, questions = line[1:].strip(), []
        elif not name:
            raise DataError("comes before any section; one begins with ': NAME'", path=path, line=line_number)
        elif len(words := line.upper().split()) == 4:
            questions.append(words)
    if name:
        yield name, questions


def _count_correct(vectors: WordVectors, questions: Sequence[Question], uppercase_words: Sequence[str]) -> int:
    """How many are answered as expected: the nearest to b - a + c that is none of the three."""
    unit = vectors.unit_vectors[:MAX_SEARCH_WORDS]
    n_hits, batch_size = 0, max(1, MAX_BATCH_COSINES // len(unit))
    for start in range(0, len(questions), batch_size):
        batch = questions[start : start + batch_size]
        a, b, c, _ = np.array(batch).T
        cosines = (unit[b] + unit[c] - unit[a]) @ unit.T  # (questions, words)
        for row, question in zip(cosines, batch, strict=True):
            row[list(question[:3])] = -np.inf
            n_hits += _find_answer(row, question, uppercase_words) == uppercase_words[question.expected]
    return n_hits


def _find_answer(cosines: NDArray[np.float32], question: Question, uppercase_words: Sequence[str]) -> str:
    n = min(N_CANDIDATES, len(cosines) - len(set(question[:3])))
    best = np.argpartition(-cosines, max(n - 1, 0))[:n]
    answers = [uppercase_words[index] for index in best[np.argsort(-cosines[best])]]
    ignored = {uppercase_words[index] for index in question[:3]}
    return next((answer for answer in answers if answer not in ignored), answers[-1] if answers else "")


def evaluate_similarity(vectors: WordVectors, path: str) -> VectorEvaluation:
    """How cosines go with what people said of pairs: lines of two words and a number, between tabs."""
    index_by_word, human_ratings, cosines, n_questions = index_uppercase_words(vectors), [], [], 0
    for _, line in iter_numbered_lines(path):
        parts = line.upper().split("\t")
        if line.startswith("#") or len(parts) != 3:
            continue
        try:
            rating = float(parts[2])
        except ValueError:
            continue
        n_questions += 1
        if parts[0] in index_by_word and parts[1] in index_by_word:
            human_ratings.append(rating)
            cosines.append(
                float(vectors.unit_vectors[index_by_word[parts[0]]] @ vectors.unit_vectors[index_by_word[parts[1]]])
            )
    if not n_questions:
        raise DataError("holds no pairs: lines of two words and a number, between tabs", path=path)
    name = path.replace("\\", "/").rpartition("/")[2].partition(".")[0]
    metrics = correlate(human_ratings, cosines)
    return VectorEvaluation(name=name, n_covered=len(cosines), n_questions=n_questions, metrics=metrics)


def correlate(ratings: Sequence[float], cosines: Sequence[float]) -> dict[str, float]:
    """Spearman's and Pearson's correlation; NaN for fewer than two pairs, or if one side is constant."""
    from scipy.stats import pearsonr, spearmanr

    if len(set(ratings)) < 2 or len(set(cosines)) < 2:
        return {"spearman": float("nan"), "pearson": float("nan")}
    return {
        "spearman": float(spearmanr(ratings, cosines).statistic),
        "pearson": float(pearsonr(ratings, cosines).statistic),
    }
