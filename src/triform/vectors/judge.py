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

from triform.data.files import numbered_lines
from triform.errors import DataError
from triform.vectors.table import WordVectors

MOST_FREQUENT = 300_000  # words among which an answer is looked for
CANDIDATES = 5  # answers looked at: one that repeats the question in another case does not count
Numbers = Sequence[float] | NDArray[np.float64]
AT_ONCE = 1 << 24  # cosines computed together


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a file of questions came to. Analogies have a share of right answers, pairs two correlations."""

    name: str
    covered: int  # questions all of whose words have a vector
    asked: int
    scores: dict[str, float]


class Question(NamedTuple):
    """Rows of a, b, c and of what is to c as b is to a."""

    a: int
    b: int
    c: int
    expected: int


def known_words(vectors: WordVectors) -> dict[str, int]:
    """The row of each word in capitals; of words that differ only in case, the most frequent one's."""
    some = vectors.words[:MOST_FREQUENT]
    return {word.upper(): place for place, word in reversed(list(enumerate(some)))}


def judge_analogies(vectors: WordVectors, path: str) -> list[Judged]:
    """The share of right answers in each section of a file (": NAME", then lines of four words), and in all."""
    known, sections = known_words(vectors), list(_sections(path))
    folded = [word.upper() for word in vectors.words[:MOST_FREQUENT]]
    found, right, covered = [], 0, 0
    for name, questions in sections:
        rows = [Question(*(known[word] for word in each)) for each in questions if all(w in known for w in each)]
        hits = _right(vectors, rows, folded)
        right, covered = right + hits, covered + len(rows)
        found.append(_share(name, hits, len(rows), len(questions)))
    asked = sum(len(questions) for _, questions in sections)
    if not asked:
        raise DataError("holds no analogies: lines of four words, in sections that begin with ': NAME'", path=path)
    return [*found, _share("all analogies", right, covered, asked)]


def _share(name: str, right: int, covered: int, asked: int) -> Judged:
    return Judged(name=name, covered=covered, asked=asked, scores={"accuracy": right / covered if covered else 0.0})


def _sections(path: str) -> Iterator[tuple[str, list[list[str]]]]:
    name = ""
    questions: list[list[str]] = []
    for number, line in numbered_lines(path):
        if line.startswith(": "):
            if name:
                yield name, questions
            name, questions = line[1:].strip(), []
        elif not name:
            raise DataError("comes before any section; one begins with ': NAME'", path=path, line=number)
        elif len(words := line.upper().split()) == 4:
            questions.append(words)
    if name:
        yield name, questions


def _right(vectors: WordVectors, questions: Sequence[Question], folded: Sequence[str]) -> int:
    """How many are answered as expected: the nearest to b - a + c that is none of the three."""
    unit = vectors.unit[:MOST_FREQUENT]
    hits, step = 0, max(1, AT_ONCE // len(unit))
    for start in range(0, len(questions), step):
        some = questions[start : start + step]
        a, b, c, _ = np.array(some).T
        cosines = (unit[b] + unit[c] - unit[a]) @ unit.T  # (questions, words)
        for row, question in zip(cosines, some, strict=True):
            row[list(question[:3])] = -np.inf
            hits += _answer(row, question, folded) == folded[question.expected]
    return hits


def _answer(cosines: NDArray[np.float32], question: Question, folded: Sequence[str]) -> str:
    n = min(CANDIDATES, len(cosines) - len(set(question[:3])))
    best = np.argpartition(-cosines, max(n - 1, 0))[:n]
    answers = [folded[place] for place in best[np.argsort(-cosines[best])]]
    ignored = {folded[place] for place in question[:3]}
    return next((answer for answer in answers if answer not in ignored), answers[-1] if answers else "")


def judge_pairs(vectors: WordVectors, path: str) -> Judged:
    """How cosines go with what people said of pairs: lines of two words and a number, between tabs."""
    known, people, ours, asked = known_words(vectors), [], [], 0
    for _, line in numbered_lines(path):
        parts = line.upper().split("\t")
        if line.startswith("#") or len(parts) != 3:
            continue
        try:
            said = float(parts[2])
        except ValueError:
            continue
        asked += 1
        if parts[0] in known and parts[1] in known:
            people.append(said)
            ours.append(float(vectors.unit[known[parts[0]]] @ vectors.unit[known[parts[1]]]))
    if not asked:
        raise DataError("holds no pairs: lines of two words and a number, between tabs", path=path)
    name = path.replace("\\", "/").rpartition("/")[2].partition(".")[0]
    scores = {"spearman": correlation(ranks(people), ranks(ours)), "pearson": correlation(people, ours)}
    return Judged(name=name, covered=len(ours), asked=asked, scores=scores)


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Places in order of size; equal values share the mean of theirs."""
    _, group, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    found: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return found


def correlation(first: Numbers, second: Numbers) -> float:
    """Pearson's; not a number where there are fewer than two pairs, or where one side never changes."""
    x, y = (np.asarray(side, np.float64) - np.mean(side) if len(side) else np.zeros(0) for side in (first, second))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else float("nan")
