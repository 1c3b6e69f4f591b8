"""Evaluate word vectors on analogies and on human ratings of word similarity.

The rules are those of gensim, so that figures can be compared: only the most frequent words are searched, case is
ignored, and questions with a word that has no vector are left out.
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

MAX_SEARCH_WORDS = 300_000  # answers are searched among this many of the most frequent words
N_CANDIDATES = 5  # nearest words considered: words of the question in another case are skipped
MAX_BATCH_COSINES = 1 << 24  # cosines computed at once


@dataclass(frozen=True, kw_only=True)
class VectorEvaluation:
    """The result on a file of questions: accuracy for analogies, two correlations for rated pairs.

    Attributes:
        name: The section of the file, or the name of the file.
        n_covered: The number of questions whose words all have a vector.
        n_questions: The number of questions in the file.
        metrics: `accuracy` for analogies; `spearman` and `pearson` for rated pairs.
    """

    name: str
    n_covered: int  # questions whose words all have a vector
    n_questions: int
    metrics: dict[str, float]


class Question(NamedTuple):
    """The rows of a, b, c and of the expected answer: a is to b as c is to `expected`."""

    a: int
    b: int
    c: int
    expected: int


def index_uppercase_words(vectors: WordVectors) -> dict[str, int]:
    """Map upper-case words to their rows; of words that differ only in case, to the most frequent one.

    Args:
        vectors: The word vectors; only the most frequent words are used.

    Returns:
        The row of each word.
    """
    words = vectors.words[:MAX_SEARCH_WORDS]
    return {word.upper(): index for index, word in reversed(list(enumerate(words)))}


def evaluate_analogies(vectors: WordVectors, path: str) -> list[VectorEvaluation]:
    """Return the accuracy on each section of a file of analogies, and on all of them.

    Args:
        vectors: The word vectors.
        path: A file with sections, each of them a line ": NAME" and lines of four words (a is to b as c is to d).

    Returns:
        One result for each section, and a last one, "all analogies".

    Raises:
        DataError: The file cannot be read or contains no analogies.
    """
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
        raise DataError(
            "no analogies found; expected lines of four words, in sections that start with ': NAME'", path=path
        )
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
            raise DataError(
                "this line comes before the first section; a section starts with ': NAME'",
                path=path,
                line=line_number,
            )
        elif len(words := line.upper().split()) == 4:
            questions.append(words)
    if name:
        yield name, questions


def _count_correct(vectors: WordVectors, questions: Sequence[Question], uppercase_words: Sequence[str]) -> int:
    """Count the questions whose answer, the nearest word to b - a + c other than the three, is as expected."""
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
    """Correlate the cosines of pairs of words with human ratings.

    Args:
        vectors: The word vectors.
        path: A file with two words and a number on each line, separated by tabs.

    Returns:
        The correlations `spearman` and `pearson` over the pairs whose words both have a vector.

    Raises:
        DataError: The file cannot be read or contains no rated pairs.
    """
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
        raise DataError("no pairs found; expected lines of two words and a number, separated by tabs", path=path)
    name = path.replace("\\", "/").rpartition("/")[2].partition(".")[0]
    metrics = correlate(human_ratings, cosines)
    return VectorEvaluation(name=name, n_covered=len(cosines), n_questions=n_questions, metrics=metrics)


def correlate(ratings: Sequence[float], cosines: Sequence[float]) -> dict[str, float]:
    """Return Spearman's and Pearson's correlation; NaN for fewer than two pairs or if one side is constant.

    Args:
        ratings: The human rating of each pair.
        cosines: The cosine of each pair, in the same order.

    Returns:
        `spearman` and `pearson`.
    """
    from scipy.stats import pearsonr, spearmanr

    if len(set(ratings)) < 2 or len(set(cosines)) < 2:
        return {"spearman": float("nan"), "pearson": float("nan")}
    return {
        "spearman": float(spearmanr(ratings, cosines).statistic),
        "pearson": float(pearsonr(ratings, cosines).statistic),
    }
