"""Analogies and pairs, judged as gensim judges them; and the map."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from grouped import drawn
from matplotlib.image import imread

from triform.errors import ConfigError, DataError
from triform.vectors import WordVectors, judge_analogies, judge_pairs
from triform.vectors.picture import choose, draw, flatten

REAL = Path(__file__).parents[3] / "shared" / "data" / "word_eval"


def questions(words: list[str], path: Path) -> tuple[Path, Path]:
    rng = random.Random(0)
    some = [*words, "never", "Seen"]
    lines = []
    for section in range(3):
        lines.append(f": section {section}")
        lines += [" ".join(rng.choice(some) for _ in range(4)) for _ in range(120)]
        lines.append("three words only")
    (path / "analogies.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = [f"{rng.choice(some)}\t{rng.choice(some)}\t{rng.randint(0, 9)}" for _ in range(80)]
    text = "# a comment\tx\t1\n" + "\n".join(pairs) + "\nno number\there\tx\n"
    (path / "pairs.tsv").write_text(text, encoding="utf-8")
    return path / "analogies.txt", path / "pairs.tsv"


def agree_with_gensim(vectors: WordVectors, analogies: list[Path], pairs: list[Path], folder: Path) -> None:
    from gensim.models import KeyedVectors

    vectors.save(folder / "v.bin")
    theirs = KeyedVectors.load_word2vec_format(str(folder / "v.bin"), binary=True)
    for path in analogies:
        ours = judge_analogies(vectors, str(path))
        share, sections = theirs.evaluate_word_analogies(str(path))
        assert ours[-1].scores["accuracy"] == pytest.approx(share)
        assert [each.covered for each in ours] == [
            len(each["correct"]) + len(each["incorrect"]) for each in sections
        ]
        assert [round(each.scores["accuracy"] * each.covered) for each in ours] == [
            len(each["correct"]) for each in sections
        ]
    for path in pairs:
        judged = judge_pairs(vectors, str(path))
        pearson, spearman, unknown = theirs.evaluate_word_pairs(str(path))
        assert judged.scores["spearman"] == pytest.approx(spearman[0], abs=1e-6)
        assert judged.scores["pearson"] == pytest.approx(pearson[0], abs=1e-6)
        assert 100 * (1 - judged.covered / judged.asked) == pytest.approx(unknown)


def test_scores_are_those_of_gensim(tmp_path: Path) -> None:
    vectors = drawn()
    # one sum that comes out, so that some answers are right
    for place in range(0, 40, 4):
        vectors.matrix[place + 3] = vectors.unit[place + 1] - vectors.unit[place] + vectors.unit[place + 2]
    vectors = WordVectors(vectors.words, vectors.matrix)
    analogies, pairs = questions(vectors.words, tmp_path)
    right = [f"w{n} W{n + 1} w{n + 2} w{n + 3}" for n in range(0, 40, 4)]
    analogies.write_text(
        analogies.read_text(encoding="utf-8") + ": sums\n" + "\n".join(right) + "\n", encoding="utf-8"
    )
    assert judge_analogies(vectors, str(analogies))[-2].scores["accuracy"] > 0.5
    agree_with_gensim(vectors, [analogies], [pairs], tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real questions are not here")
def test_scores_on_the_real_questions_are_those_of_gensim(tmp_path: Path) -> None:
    lines = (REAL / "questions-words.txt").read_text(encoding="utf-8").splitlines()
    words = sorted({word.lower() for line in lines if line[0] != ":" for word in line.split()[:2]})[::3]
    rest = {word for name in ("simlex999.txt", "wordsim353.tsv") for line in (REAL / name).read_text().splitlines()
            if line[0] != "#" for word in line.split("\t")[:2]}  # fmt: skip
    words = list(dict.fromkeys([*words, *sorted(rest)]))
    vectors = WordVectors(words, np.random.default_rng(0).normal(size=(len(words), 6)))
    pairs = [REAL / "simlex999.txt", REAL / "wordsim353.tsv"]
    agree_with_gensim(vectors, [REAL / "questions-words.txt"], pairs, tmp_path)


def test_questions_that_are_none_are_told(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_text("a b c d\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: comes before any section"):
        judge_analogies(drawn(), str(path))
    with pytest.raises(DataError, match="holds no pairs"):
        judge_pairs(drawn(), str(path))
    path.write_text(": empty\n", encoding="utf-8")
    with pytest.raises(DataError, match="holds no analogies"):
        judge_analogies(drawn(), str(path))


def test_nothing_covered_is_no_score_but_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("never\tseen\t3\n", encoding="utf-8")
    judged = judge_pairs(drawn(), str(path))
    assert (judged.covered, judged.asked) == (0, 1)
    assert np.isnan(judged.scores["spearman"])


# -- the map


def test_the_plane_is_that_of_the_two_main_directions() -> None:
    rng = np.random.default_rng(0)
    rows = np.zeros((30, 5), np.float32)
    rows[:, 3], rows[:, 1] = 5 * rng.normal(size=30), rng.normal(size=30)
    places, shares = flatten(rows)
    centred = rows - rows.mean(axis=0)
    distances = [np.linalg.norm(some[:, None] - some[None], axis=-1) for some in (centred, places)]
    np.testing.assert_allclose(*distances, atol=1e-5)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[1]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_map_is_drawn_and_the_same_again(tmp_path: Path, ending: str) -> None:
    first, second = (tmp_path / f"{name}.{ending}" for name in "ab")
    assert draw(drawn(), first, most=40) == 40, "there is room for forty labels"
    draw(drawn(), second, most=40)
    assert first.read_bytes() == second.read_bytes()
    if ending == "png":
        assert imread(first).std() > 0


def test_labels_lie_on_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    kept: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *rest, **more: kept.append(figure))
    close = WordVectors(drawn().words, drawn().matrix * 0.02 + 1)  # all but on one spot
    labelled = draw(close, tmp_path / "map.png", ["w3", "Paris"], most=30)
    axes = kept[0].axes[0]
    boxes = [text.get_window_extent(kept[0].canvas.get_renderer()) for text in axes.texts]  # type: ignore[attr-defined]
    assert len(boxes) == labelled > 20
    for place, box in enumerate(boxes):
        for other in boxes[:place]:
            apart = (
                box.x1 <= other.x0 + 1 or other.x1 <= box.x0 + 1 or box.y1 <= other.y0 + 1 or other.y1 <= box.y0 + 1
            )
            assert apart


def test_words_that_are_asked_for_come_with_their_nearest() -> None:
    vectors = drawn()
    chosen = choose(vectors, ["w3", "Paris"], 12)
    assert [each.word for each in chosen[:2]] == ["w3", "Paris"]
    assert {each.word for each in chosen if each.group == 0} <= {
        "w3",
        *(word for word, _ in vectors.nearest("w3", 5)),
    }
    assert len(chosen) > 8


def test_a_map_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw(drawn(), tmp_path / "map.gif")
    with pytest.raises(ConfigError, match="at least 2 words"):
        draw(drawn(), tmp_path / "map.png", most=1)
