"""Analogies and pairs, judged as gensim judges them; and the map."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from vector_cases import random_vectors

from triform.errors import DataError
from triform.vectors import WordVectors, evaluate_analogies, evaluate_similarity

REAL_QUESTIONS = Path(__file__).parents[3] / "shared" / "data" / "word_eval"


def write_questions(words: list[str], path: Path) -> tuple[Path, Path]:
    rng = random.Random(0)
    candidates = [*words, "never", "Seen"]
    lines = []
    for section in range(3):
        lines.append(f": section {section}")
        lines += [" ".join(rng.choice(candidates) for _ in range(4)) for _ in range(120)]
        lines.append("three words only")
    (path / "analogies.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = [f"{rng.choice(candidates)}\t{rng.choice(candidates)}\t{rng.randint(0, 9)}" for _ in range(80)]
    text = "# a comment\tx\t1\n" + "\n".join(pairs) + "\nno number\there\tx\n"
    (path / "pairs.tsv").write_text(text, encoding="utf-8")
    return path / "analogies.txt", path / "pairs.tsv"


def assert_agrees_with_gensim(vectors: WordVectors, analogies: list[Path], pairs: list[Path], folder: Path) -> None:
    from gensim.models import KeyedVectors

    vectors.save(folder / "v.bin")
    theirs = KeyedVectors.load_word2vec_format(str(folder / "v.bin"), binary=True)
    for path in analogies:
        ours = evaluate_analogies(vectors, str(path))
        accuracy, sections = theirs.evaluate_word_analogies(str(path))
        assert ours[-1].metrics["accuracy"] == pytest.approx(accuracy)
        assert [section.n_covered for section in ours] == [
            len(section["correct"]) + len(section["incorrect"]) for section in sections
        ]
        assert [round(section.metrics["accuracy"] * section.n_covered) for section in ours] == [
            len(section["correct"]) for section in sections
        ]
    for path in pairs:
        result = evaluate_similarity(vectors, str(path))
        pearson, spearman, unknown = theirs.evaluate_word_pairs(str(path))
        assert result.metrics["spearman"] == pytest.approx(spearman[0], abs=1e-6)
        assert result.metrics["pearson"] == pytest.approx(pearson[0], abs=1e-6)
        assert 100 * (1 - result.n_covered / result.n_questions) == pytest.approx(unknown)


def test_scores_are_those_of_gensim(tmp_path: Path) -> None:
    vectors = random_vectors()
    # one sum that comes out, so that some answers are right
    for index in range(0, 40, 4):
        vectors.matrix[index + 3] = (
            vectors.unit_vectors[index + 1] - vectors.unit_vectors[index] + vectors.unit_vectors[index + 2]
        )
    vectors = WordVectors(vectors.words, vectors.matrix)
    analogies, pairs = write_questions(vectors.words, tmp_path)
    correct_lines = [f"w{n} W{n + 1} w{n + 2} w{n + 3}" for n in range(0, 40, 4)]
    analogies.write_text(
        analogies.read_text(encoding="utf-8") + ": sums\n" + "\n".join(correct_lines) + "\n", encoding="utf-8"
    )
    assert evaluate_analogies(vectors, str(analogies))[-2].metrics["accuracy"] > 0.5
    assert_agrees_with_gensim(vectors, [analogies], [pairs], tmp_path)


@pytest.mark.skipif(not REAL_QUESTIONS.is_dir(), reason="the real questions are not here")
def test_scores_on_the_real_questions_are_those_of_gensim(tmp_path: Path) -> None:
    lines = (REAL_QUESTIONS / "questions-words.txt").read_text(encoding="utf-8").splitlines()
    words = sorted({word.lower() for line in lines if line[0] != ":" for word in line.split()[:2]})[::3]
    pair_lines = (
        line
        for name in ("simlex999.txt", "wordsim353.tsv")
        for line in (REAL_QUESTIONS / name).read_text().splitlines()
    )
    pair_words = {word for line in pair_lines if line[0] != "#" for word in line.split("\t")[:2]}
    words = list(dict.fromkeys([*words, *sorted(pair_words)]))
    vectors = WordVectors(words, np.random.default_rng(0).normal(size=(len(words), 6)))
    pairs = [REAL_QUESTIONS / "simlex999.txt", REAL_QUESTIONS / "wordsim353.tsv"]
    assert_agrees_with_gensim(vectors, [REAL_QUESTIONS / "questions-words.txt"], pairs, tmp_path)


def test_questions_that_are_none_are_told(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_text("a b c d\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: this line comes before the first section"):
        evaluate_analogies(random_vectors(), str(path))
    with pytest.raises(DataError, match="no pairs found"):
        evaluate_similarity(random_vectors(), str(path))
    path.write_text(": empty\n", encoding="utf-8")
    with pytest.raises(DataError, match="no analogies found"):
        evaluate_analogies(random_vectors(), str(path))


def test_nothing_covered_is_no_score_but_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("never\tseen\t3\n", encoding="utf-8")
    result = evaluate_similarity(random_vectors(), str(path))
    assert (result.n_covered, result.n_questions) == (0, 1)
    assert np.isnan(result.metrics["spearman"])
