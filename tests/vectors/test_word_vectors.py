"""Vectors that gensim learns for us: alike where contexts are alike, the same again, from any text we read."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from vector_cases import GROUPS, random_vectors, sentences

from triform.config import TokenizerConfig
from triform.errors import ConfigError, DataError, TriformError, install_command
from triform.text import WordTokenizer, split_words
from triform.text.base import TrainingText
from triform.vectors import WordVectors

SMALL_SETTINGS = {"size": 12, "min_count": 2, "epochs": 6}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(sentences()) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def learned(text: Path) -> WordVectors:
    return WordVectors.train(text, **SMALL_SETTINGS)


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_words_of_one_group_are_near_one_another(text: Path, kind: str) -> None:
    vectors = WordVectors.train(text, **SMALL_SETTINGS | {"kind": kind, "epochs": 12})
    for words, context in GROUPS.values():
        for word in words:
            assert {neighbour for neighbour, _ in vectors.nearest(word, 3)} <= {*words, *context}
        assert vectors.similarity(words[0], words[1]) > vectors.similarity(
            words[0], "wall" if words[0] != "red" else "sum"
        )


def test_one_worker_and_a_seed_give_the_same_vectors_again(text: Path, learned: WordVectors) -> None:
    retrained = WordVectors.train(text, **SMALL_SETTINGS)
    assert retrained.words == learned.words
    assert np.array_equal(retrained.matrix, learned.matrix)
    assert not np.array_equal(WordVectors.train(text, **SMALL_SETTINGS, seed=1).matrix, learned.matrix)


def test_any_file_that_train_reads_gives_the_same_vectors(text: Path, learned: WordVectors, tmp_path: Path) -> None:
    lines = sentences()
    (tmp_path / "a.tsv").write_text(
        "".join(f"x{n % 2}\t{line}\n" for n, line in enumerate(lines)), encoding="utf-8"
    )
    rows = "".join(json.dumps({"id": n, "text": line}) + "\n" for n, line in enumerate(lines))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "a.en").write_text(text.read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("a.tsv", "a.jsonl.gz", "a.en"):
        assert np.array_equal(WordVectors.train(tmp_path / name, **SMALL_SETTINGS).matrix, learned.matrix), name


def test_a_line_of_any_length_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triform.vectors.word2vec.BLOCK_SIZE", 1 << 10)
    monkeypatch.setattr("triform.data.files.BLOCK_SIZE", 1 << 8)
    path = tmp_path / "one-line.txt"
    path.write_text(" ".join(f"word{n % 50}" for n in range(25_000)), encoding="utf-8")
    messages: list[str] = []
    WordVectors.train(path, size=4, epochs=1, log=messages.append)
    assert messages[0].startswith("25,000 words in ")
    assert "trained 50 vectors of width 4 on 25,000 words of text for 1 epoch in" in messages[-1]


def test_builtin_sets_are_text_too() -> None:
    assert "the" in WordVectors.train("builtin:stories/valid", size=4, epochs=1)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.booleans())
def test_words_are_cut_as_the_word_tokenizer_cuts_them(text: str, lowercase: bool) -> None:
    config = TokenizerConfig(kind="word", lowercase=lowercase)
    words = split_words(text, lowercase=lowercase)
    if not words:
        return
    tokenizer = WordTokenizer.train(config, TrainingText([text], "it"))
    assert [tokenizer.format_piece(token) for token in tokenizer.encode(text)] == words


def test_words_that_belong_together_are_joined_and_marks_never(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    rng = random.Random(0)
    fillers = [" ".join(f"word{rng.randrange(900)}" for _ in range(5)) for _ in range(800)]
    names = ["new york city", "by", "by", "by"]
    lines = [
        f"{a} {names[n % 4]} {b}, we." for n, (a, b) in enumerate(zip(fillers[::2], fillers[1::2], strict=True))
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    one_pass = WordVectors.train(path, **SMALL_SETTINGS, phrases=1)
    two_passes = WordVectors.train(path, **SMALL_SETTINGS, phrases=2)
    assert "new_york" in one_pass
    assert "new_york_city" in two_passes
    assert not [word for word in two_passes.words if "_" in word and ("," in word or "." in word)]


def test_the_nearest_words_are_gensims(learned: WordVectors, tmp_path: Path) -> None:
    from gensim.models import KeyedVectors

    for vectors in (learned, random_vectors()):
        vectors.save(tmp_path / "v.bin")
        keyed_vectors = KeyedVectors.load_word2vec_format(str(tmp_path / "v.bin"), binary=True)
        word = vectors.words[3]
        ours, expected = vectors.nearest(word), keyed_vectors.most_similar(word)
        assert [name for name, _ in ours] == [name for name, _ in expected]
        assert_allclose([value for _, value in ours], [value for _, value in expected], atol=1e-6)


# -- bad input


def test_ctrl_c_leaves_no_thread_at_work(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes while Python ends brings it down; one that waits does not."""
    gensim = pytest.importorskip("gensim.models")
    long_text = tmp_path / "much.txt"
    long_text.write_text(text.read_text(encoding="utf-8") * 100, encoding="utf-8")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # where it waits for its threads

    monkeypatch.setattr(gensim.Word2Vec, "_log_epoch_progress", interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        WordVectors.train(long_text, size=200)
    remaining, frames = set(threading.enumerate()) - before, sys._current_frames()
    assert {frames[thread.ident].f_code.co_name for thread in remaining if thread.ident in frames} <= {"wait"}


def test_a_vocabulary_that_is_left_empty_says_what_would_fit(text: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--min-count 9999999 leaves no words: the most frequent word, '\.', occurs 1500"
    ):
        WordVectors.train(text, min_count=9_999_999)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "glove"}, "choose from skipgram, cbow"),
        ({"size": 0}, "--size 0 is too small"),
        ({"min_count": 0}, "--min-count 0 is too small"),
        ({"lr": 0.0}, "--lr"),
        ({"sample": float("nan")}, "--sample nan must be at least 0"),
        ({"sample": float("inf")}, "--sample inf must be at least 0"),
        *(({name: 99_999_999_999}, "is too large") for name in ("window", "negative", "seed", "size", "workers")),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(text: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WordVectors.train(text, **settings)


def test_a_thread_that_fails_ends_learning_with_a_line(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gensim = pytest.importorskip("gensim.models")

    def fail(*_: object) -> None:
        raise OverflowError("too large for C")

    before = threading.active_count()
    monkeypatch.setattr(gensim.Word2Vec, "_do_train_job", fail)
    with pytest.raises(TriformError, match=r"training failed: OverflowError\('too large for C'\)"):
        WordVectors.train(text, workers=2)
    assert threading.active_count() == before, "and leaves none behind"


def test_vectors_that_do_not_fit_memory_are_told(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gensim = pytest.importorskip("gensim.models")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(gensim.Word2Vec, "build_vocab_from_freq", fail)
    with pytest.raises(ConfigError, match="--size 100: the vectors do not fit into memory"):
        WordVectors.train(text)


def test_text_that_is_not_there_or_empty_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n\n", encoding="utf-8")
    with pytest.raises(DataError, match="the text contains no words"):
        WordVectors.train(tmp_path / "empty.txt")
    with pytest.raises(DataError, match="no such file"):
        WordVectors.train(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes("été\n".encode("latin1"))
    with pytest.raises(DataError, match="is not UTF-8"):
        WordVectors.train(tmp_path / "latin.txt", phrases=1)


def test_a_word_without_a_vector_is_told_with_its_like(learned: WordVectors) -> None:
    with pytest.raises(DataError, match="no vector for 'hrose'; did you mean 'horse'"):
        learned.nearest("hrose")
    with pytest.raises(DataError, match="did you mean 'cat'"):
        learned.nearest("CAT")
    with pytest.raises(DataError, match="the most frequent of"):
        learned.index_of("qqqqqqqqqqqqq")
    with pytest.raises(ConfigError, match="--top 0"):
        learned.nearest("cat", 0)


def test_without_gensim_the_extra_is_named(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("vectors"))):
        WordVectors.train(text)


def test_vectors_that_do_not_fit_their_words_are_refused() -> None:
    ones = np.ones((1, 2))
    cases: list[tuple[list[Any], Any, str]] = [
        (["a", "b"], ones, "as many rows"),
        (["a"], ones * np.nan, "finite"),
        (["a"], ones * 1e60, "finite"),
        (["a"], np.ones((1, 0)), "at least one"),
        (["a", "a"], np.ones((2, 2)), "only one vector"),
        (["a", "b"], [[1, 2], [3]], "must be numbers"),
        (["a"], np.array([["x", "y"]]), "must be numbers"),
        ([1], ones, "words must be strings"),
    ]
    for words, matrix, message in cases:
        with pytest.raises(ConfigError, match=message):
            WordVectors(words, matrix)


def test_a_plain_list_of_rows_will_do() -> None:
    assert WordVectors(["a", "b"], [[1, 0], [1, 1]]).similarity("a", "b") == pytest.approx(0.5**0.5)
