"""What a cache keeps between steps, and what `select` does to its rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triform.generation.kv_cache import CrossKVStore, DynamicKVStore, KVCache
from triform.nn.attention import KeyValue


def random_kv(length: int, rows: int = 3) -> KeyValue:
    return torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4)


def concat_pairs(pairs: list[KeyValue]) -> list[Tensor]:
    return [torch.cat(parts, dim=2) for parts in zip(*pairs, strict=True)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_growing_gives_back_all_it_was_given_in_order(lengths: list[int]) -> None:
    past, pairs = DynamicKVStore(), []
    for length in lengths:
        pairs.append(random_kv(length))
        actual = past.update(lambda: pairs[-1])
        for ours, expected in zip(actual, concat_pairs(pairs), strict=True):
            assert torch.equal(ours, expected)
        assert past.length == sum(lengths[: len(pairs)])


def test_growing_moves_house_seldom() -> None:
    past, buffers = DynamicKVStore(), set()
    for _ in range(200):
        past.update(lambda: random_kv(1))
        buffers.add(past.buffer.data_ptr())
        assert past.buffer.shape[3] >= past.length
    assert len(buffers) <= 4  # 32, 66, 134, 270


def test_what_was_read_stays_as_it_was_when_more_is_appended() -> None:
    past, first = DynamicKVStore(), random_kv(3)
    k, v = past.update(lambda: first)
    past.update(lambda: random_kv(100))
    assert torch.equal(k, first[0])
    assert torch.equal(v, first[1])


@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [0, 0, 2, 2, 1], [2, 2]])
def test_growing_selects_rows_and_goes_on(rows: list[int]) -> None:
    past, first, second = DynamicKVStore(), random_kv(5), random_kv(40, len(rows))
    past.update(lambda: first)
    past.select(torch.tensor(rows))
    actual = past.update(lambda: second)
    for ours, old, new in zip(actual, first, second, strict=True):
        assert torch.equal(ours, torch.cat([old[rows], new], dim=2))


def test_repeated_rows_part_ways_after_selection() -> None:
    past = DynamicKVStore()
    past.update(lambda: random_kv(2, rows=1))
    past.select(torch.tensor([0, 0]))
    new = random_kv(1, rows=2)
    k, _ = past.update(lambda: new)
    assert torch.equal(k[0, :, :2], k[1, :, :2])
    assert torch.equal(k[:, :, 2:], new[0])


def test_once_projects_the_source_a_single_time() -> None:
    calls = []
    source = CrossKVStore()

    def project() -> KeyValue:
        calls.append(1)
        return random_kv(4)

    first = source.update(project)
    assert source.update(project) is first
    assert len(calls) == 1


@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [0, 0, 2]])
def test_once_selects_rows(rows: list[int]) -> None:
    source, source_kv = CrossKVStore(), random_kv(4)
    source.update(lambda: source_kv)
    source.select(torch.tensor(rows))
    for ours, expected in zip(source.update(lambda: random_kv(1)), source_kv, strict=True):
        assert torch.equal(ours, expected[rows])


def test_selecting_from_an_empty_cache_is_harmless() -> None:
    cache = KVCache(2)
    cache.select(torch.tensor([1, 0]))
    assert cache.length == 0
    for past, _ in cache.stores:
        past.update(lambda: random_kv(3))
    assert cache.length == 3


def test_layers_do_not_share_their_past() -> None:
    cache, first, second = KVCache(2), random_kv(1), random_kv(1)
    assert torch.equal(cache.stores[0][0].update(lambda: first)[0], first[0])
    assert torch.equal(cache.stores[1][0].update(lambda: second)[0], second[0])
