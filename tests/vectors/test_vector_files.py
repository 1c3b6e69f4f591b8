"""Vectors in and out of files: exactly, as gensim reads and writes them, and damage is told."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from vector_cases import random_vectors

from triform.errors import CheckpointError, ConfigError, DataError, TriformError
from triform.vectors import WordVectors
from triform.vectors.files import check_writable, read_width

EVERY_SUFFIX = pytest.mark.parametrize("suffix", ["txt", "bin", "safetensors"])


@EVERY_SUFFIX
def test_vectors_come_back_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    vectors = random_vectors()
    path = tmp_path / "new" / f"v.{suffix}"
    vectors.save(path)
    loaded = WordVectors.load(path)
    assert loaded.words == vectors.words
    assert np.array_equal(loaded.matrix, vectors.matrix)
    assert read_width(path) == vectors.width
    assert not list(path.parent.glob(".*")), "nothing half made is left"


def test_safetensors_keep_how_vectors_were_made(tmp_path: Path) -> None:
    vectors = WordVectors(["a", "b"], np.eye(2), {"kind": "cbow"})
    vectors.save(tmp_path / "v.safetensors")
    assert WordVectors.load(tmp_path / "v.safetensors").metadata == {"kind": "cbow"}


@pytest.mark.parametrize("binary", [False, True])
def test_gensim_and_triform_read_each_other(tmp_path: Path, binary: bool) -> None:
    from gensim.models import KeyedVectors

    vectors = random_vectors()
    ours, theirs = (str(tmp_path / f"{owner}.{'bin' if binary else 'txt'}") for owner in ("ours", "theirs"))
    vectors.save(ours)
    keyed_vectors = KeyedVectors.load_word2vec_format(ours, binary=binary)
    assert keyed_vectors.index_to_key == vectors.words
    assert np.array_equal(keyed_vectors.vectors, vectors.matrix)
    keyed_vectors.save_word2vec_format(theirs, binary=binary)
    loaded = WordVectors.load(theirs)
    assert loaded.words == vectors.words
    assert np.array_equal(loaded.matrix, vectors.matrix)


def test_glove_has_no_first_line_and_word2vec_ends_words_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 0.5 1\nof -1 2e-3\n", encoding="utf-8")
    glove = WordVectors.load(tmp_path / "glove.txt")
    assert (glove.words, glove.width) == (["the", "of"], read_width(tmp_path / "glove.txt"))
    numbers = np.array([1, 2], "<f4").tobytes()
    (tmp_path / "c.bin").write_bytes(b"2 2\nthe " + numbers + b"\nof " + numbers + b"\n")
    assert WordVectors.load(tmp_path / "c.bin").words == ["the", "of"]


def test_the_first_vector_of_a_word_counts(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("3 1\na 1\nb 2\na 3\n", encoding="utf-8")
    vectors = WordVectors.load(tmp_path / "v.txt")
    assert vectors.words == ["a", "b"]
    assert vectors["a"] == 1


def test_an_ending_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown file format '\.npy'; supported formats are \.txt, \.bin, \.safetensors$"
    ):
        random_vectors().save(tmp_path / "v.npy")
    with pytest.raises(ConfigError, match="the file name has no suffix"):
        random_vectors().save(tmp_path / "v")
    with pytest.raises(ConfigError, match=r"'\.model'.*save_word2vec_format"):
        WordVectors.load(tmp_path / "v.model")


@EVERY_SUFFIX
def test_a_file_that_was_cut_short_or_is_not_there_is_told(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"v.{suffix}"
    random_vectors().save(path)
    content = path.read_bytes()
    for size in (len(content) - 20, len(content) // 2, 3, 0):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=r"is incomplete|damaged|not word vectors|expected \d+ numbers"):
            WordVectors.load(path)
    with pytest.raises(DataError, match="no such file"):
        WordVectors.load(tmp_path / f"none.{suffix}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("It was a dark night.\n", "these are not word vectors"),
        ("2 2\na 1 2\nb 1\n", "line 3: expected 2 numbers, found 1"),
        ("2 2\na 1 2\nb 1 x\n", "line 3: expected a word and its numbers"),
        ("2 2\na 1 2\nb 1 nan\n", "the vector of 'b' has a number that is not finite"),
        ("2 2\na 1 inf\nb 1 2\n", "the vector of 'a'"),
        ("0 5\n", "the file contains no vectors"),
        ("99999999999 99999\na 1\n", "the file is incomplete"),
        ("3 2\n 1 2\nb 3 4\nc 1 -4\n", "word 1 is empty"),
        ("1 2\na 1 2\nb 3 4\n\nc 1 -4\n", "declares 1 words, but 2 more lines follow them"),
    ],
)
def test_a_file_that_is_no_vectors_is_told_where(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "v.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        WordVectors.load(path)


def test_other_tensors_are_no_vectors(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="tensors named vectors and words are missing"):
        WordVectors.load(tmp_path / "model.safetensors")
    words = np.frombuffer(b"a\nb\nc", np.uint8)
    save_file({"vectors": np.ones((2, 2), np.float32), "words": words}, tmp_path / "odd.safetensors")
    with pytest.raises(DataError, match="3 words and 2 vectors"):
        WordVectors.load(tmp_path / "odd.safetensors")


def test_a_byte_order_mark_is_no_part_of_a_text_file(tmp_path: Path) -> None:
    for content in ("2 2\na 1 2\nb 3 4\n\n", "a 1 2\nb 3 4\n"):
        (tmp_path / "v.txt").write_text(content, encoding="utf-8-sig")
        assert WordVectors.load(tmp_path / "v.txt").words == ["a", "b"]
        assert read_width(tmp_path / "v.txt") == 2


def test_tensors_of_other_numbers_are_read_or_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    path, words = tmp_path / "v.safetensors", torch.tensor(list(b"a\nb"), dtype=torch.uint8)
    numbers = torch.tensor([[1.5, -2.0], [3.0, 4.0]])
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        save_file({"vectors": numbers.to(dtype), "words": words}, path)
        np.testing.assert_array_equal(WordVectors.load(path).matrix, numbers.numpy())
    for vectors, message in (
        (numbers.to(torch.float8_e4m3fn), "the vectors are F8_E4M3"),
        (numbers.double() * 1e60, "the vector of 'a' has a number that is not finite"),
    ):
        save_file({"vectors": vectors, "words": words}, path)
        with pytest.raises(DataError, match=message):
            WordVectors.load(path)


@EVERY_SUFFIX
def test_a_folder_is_called_one(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"v.{suffix}").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        WordVectors.load(tmp_path / f"v.{suffix}")
    with pytest.raises(CheckpointError, match=r"cannot be written \(is a folder\)"):
        check_writable(tmp_path / f"v.{suffix}")


@EVERY_SUFFIX
def test_a_place_that_cannot_be_written_is_told_before_the_work_and_after(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / f"v.{suffix}", tmp_path / "file" / "new" / f"v.{suffix}"):
        for write in (random_vectors().save, check_writable):
            with pytest.raises(CheckpointError, match=rf"v\.{suffix} cannot be written \(Not a directory\)"):
                write(path)
    check_writable(tmp_path / "new" / f"v.{suffix}")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"], "nothing is left of the question"


@EVERY_SUFFIX
@pytest.mark.parametrize("word", ["a b", "a\nb", "", "\ud800"])
def test_a_word_that_would_not_come_back_is_not_written(tmp_path: Path, suffix: str, word: str) -> None:
    vectors, path = WordVectors([word, "c"], np.eye(2)), tmp_path / f"v.{suffix}"
    if (word, suffix) == ("a b", "safetensors"):
        vectors.save(path)
        assert WordVectors.load(path).words == vectors.words
        return
    with pytest.raises(TriformError, match=r"cannot store the word|surrogates not allowed"):
        vectors.save(path)
    assert not list(tmp_path.iterdir())


def test_text_that_is_called_binary_is_told(tmp_path: Path) -> None:
    random_vectors(20, 4).save(tmp_path / "v.txt")
    (tmp_path / "v.txt").rename(tmp_path / "v.bin")
    with pytest.raises(DataError, match=r"should be named \.txt|is not finite|incomplete"):
        WordVectors.load(tmp_path / "v.bin")


def test_numbers_of_any_finite_size_have_a_direction() -> None:
    vectors = WordVectors(["huge", "zero", "tiny"], np.array([[3e38, 0], [0, 0], [1e-30, 1e-30]]))
    assert vectors.similarity("huge", "tiny") == pytest.approx(0.5**0.5)
    assert vectors.similarity("huge", "zero") == 0


@EVERY_SUFFIX
def test_any_damage_is_an_error_of_ours_or_none(tmp_path: Path, suffix: str) -> None:
    path, rng = tmp_path / f"v.{suffix}", np.random.default_rng(0)
    random_vectors(20, 4).save(path)
    content = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(content)
        for index in rng.integers(0, len(content), 3):
            damaged[index] = int(rng.integers(256))
        path.write_bytes(bytes(damaged))
        with suppress(TriformError):
            assert np.isfinite(WordVectors.load(path).matrix).all()
