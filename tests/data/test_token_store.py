"""Token storage: the same in memory and mapped, written in little, refused when damaged."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triform.data import token_store as store_module
from triform.data.token_store import TokenStore
from triform.errors import CheckpointError
from triform.text import TokenRows

SEQUENCES = [[1, 2, 3], [], [4], [5, 6]]


def to_lists(store: TokenStore) -> list[list[int]]:
    return [store[index].tolist() for index in range(len(store))]


@settings(deadline=None)  # files on a busy disk
@given(
    sequences=st.lists(st.lists(st.integers(0, 99_999), max_size=9), max_size=9),
    flush=st.integers(1, 12),
)
def test_what_goes_in_comes_out_from_memory_and_from_disk(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[list[int]], flush: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "train"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "FLUSH_TOKENS", flush)
        mapped = TokenStore.build(iter(sequences), vocab_size=100_000, path=path)
    for store in (mapped, TokenStore.open(path), TokenStore.build(sequences, vocab_size=100_000)):
        assert to_lists(store) == sequences
        assert store.lengths.tolist() == [len(sequence) for sequence in sequences]
        assert store.lengths.dtype == np.int64
        assert store.tokens.tolist() == [token for sequence in sequences for token in sequence]
        assert store.n_tokens == len(store.tokens)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(65_536, 2), (65_537, 4)])
def test_tokens_are_as_small_as_the_vocabulary_allows(
    tmp_path: Path, on_disk: bool, vocab_size: int, bytes_each: int
) -> None:
    path = tmp_path / "train" if on_disk else None
    store = TokenStore.build([[0, vocab_size - 1]], vocab_size=vocab_size, path=path)
    assert store.tokens.itemsize == bytes_each
    assert store[0].tolist() == [0, vocab_size - 1]


def test_a_sequence_is_a_view_and_can_be_counted_from_the_end() -> None:
    store = TokenStore.build(SEQUENCES, vocab_size=10)
    assert np.shares_memory(store[0], store.tokens)
    assert store[-1].tolist() == [5, 6]
    for index in (4, -5):
        with pytest.raises(IndexError):
            store[index]


@given(start=st.integers(0, 7), stop=st.integers(0, 7))
def test_a_slice_is_a_store_of_a_stretch_of_tokens(start: int, stop: int) -> None:
    store = TokenStore.build(SEQUENCES, vocab_size=10)
    part = store.slice(start, stop)
    assert part.tokens.tolist() == store.tokens[start:stop].tolist()
    assert [token for sequence in to_lists(part) for token in sequence] == part.tokens.tolist()
    assert part.n_tokens == part.lengths.sum()
    assert to_lists(store.slice(0, store.n_tokens)) == SEQUENCES


@pytest.mark.parametrize("flush", [1, 2, 100])
def test_a_token_is_counted_wherever_it_stands(flush: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FLUSH_TOKENS", flush)
    store = TokenStore.build([[1, 2, 1], [], [1]], vocab_size=10)
    assert [store.count(token) for token in (0, 1, 2)] == [0, 3, 1]
    assert TokenStore.build([], vocab_size=10).count(1) == 0


def test_rows_that_come_many_at_a_time_are_the_same_sequences(tmp_path: Path) -> None:
    lengths = [np.array([3, 0]), np.array([], np.int64), np.array([1, 2])]
    tokens = [np.array([1, 2, 3], np.uint32), np.array([], np.uint16), np.array([4, 5, 6], np.uint16)]
    too_large = TokenRows(np.array([70_000], np.uint32), np.array([1]))
    for path in (None, tmp_path / "train"):
        batches = (TokenRows(*arrays) for arrays in zip(tokens, lengths, strict=True))
        assert to_lists(TokenStore.build_from_batches(batches, vocab_size=10, path=path)) == SEQUENCES
        with pytest.raises(OverflowError):
            TokenStore.build_from_batches([too_large], vocab_size=10, path=path)


def test_arrays_are_sequences_too(tmp_path: Path) -> None:
    arrays = [np.array(sequence, dtype=np.int64) for sequence in SEQUENCES]
    assert to_lists(TokenStore.build(arrays, vocab_size=10, path=tmp_path / "train")) == SEQUENCES


def test_a_token_that_does_not_fit_is_never_stored_as_another(tmp_path: Path) -> None:
    for path in (None, tmp_path / "train"):
        with pytest.raises(OverflowError):
            TokenStore.build([[70_000]], vocab_size=100, path=path)
    assert list(tmp_path.iterdir()) == []


def test_building_again_replaces_and_a_failure_leaves_the_old_store_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "v1.train"

    def failing_sequences() -> Iterator[list[int]]:
        yield [9]
        raise RuntimeError("the tokenizer fell over")

    TokenStore.build(SEQUENCES, vocab_size=10, path=path)
    with pytest.raises(RuntimeError):
        TokenStore.build(failing_sequences(), vocab_size=10, path=path)
    assert to_lists(TokenStore.open(path)) == SEQUENCES
    TokenStore.build([[7]], vocab_size=10, path=path)
    assert to_lists(TokenStore.open(path)) == [[7]]
    assert sorted(file.name for file in path.parent.iterdir()) == ["v1.train.bin", "v1.train.idx"]


def test_a_store_that_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train"
    with pytest.raises(CheckpointError, match=r"train\.idx: no such token store"):
        TokenStore.open(path)
    TokenStore.build(SEQUENCES, vocab_size=10, path=path)
    tokens, index = tmp_path / "train.bin", tmp_path / "train.idx"
    valid_tokens, valid_index = tokens.read_bytes(), index.read_bytes()
    for raw_tokens, raw_index in [
        (valid_tokens[:-2], valid_index),
        (valid_tokens + b"\0\0", valid_index),
        (b"", valid_index),
        (valid_tokens, valid_index[:-8]),
        (valid_tokens, valid_index[:-3]),
        (valid_tokens, valid_index[:16]),
        (valid_tokens, valid_index[:7]),
        (valid_tokens, b""),
        (valid_tokens, b"FOREIGN!" + valid_index[8:]),
    ]:
        tokens.write_bytes(raw_tokens)
        index.write_bytes(raw_index)
        with pytest.raises(CheckpointError, match=r"train\.(bin|idx) .*remove it to build it again"):
            TokenStore.open(path)
    tokens.unlink()
    index.write_bytes(valid_index)
    with pytest.raises(CheckpointError, match=r"train\.bin: no such token store"):
        TokenStore.open(path)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        TokenStore.build(SEQUENCES, vocab_size=10, path=tmp_path / "file" / "train")


def test_a_set_larger_than_the_memory_allowed_is_built_and_read_in_little(tmp_path: Path) -> None:
    sequence = list(range(5000))
    tracemalloc.start()
    try:
        store = TokenStore.build((sequence for _ in range(5000)), vocab_size=5000, path=tmp_path / "train")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert store.n_tokens * store.tokens.itemsize == 50_000_000
    assert peak < 4_000_000
    assert store[4999][-1] == 4999
