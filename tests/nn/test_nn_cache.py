"""What a cache keeps between steps, and what `select` does to its rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triform.nn.cache import Cache, Growing, KeysValues, NoCache, Once


def pair(length: int, rows: int = 3) -> KeysValues:
    return torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4)


def joined(pairs: list[KeysValues]) -> list[Tensor]:
    return [torch.cat(parts, dim=2) for parts in zip(*pairs, strict=True)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_growing_gives_back_all_it_was_given_in_order(lengths: list[int]) -> None:
    past, given_so_far = Growing(), []
    for length in lengths:
        given_so_far.append(pair(length))
        got = past.read(lambda: given_so_far[-1])
        for ours, wanted in zip(got, joined(given_so_far), strict=True):
            assert torch.equal(ours, wanted)
        assert past.length == sum(lengths[: len(given_so_far)])


def test_growing_moves_house_seldom() -> None:
    past, houses = Growing(), set()
    for _ in range(200):
        past.read(lambda: pair(1))
        houses.add(past.room.data_ptr())
        assert past.room.shape[3] >= past.length
    assert len(houses) <= 4  # 32, 66, 134, 270


def test_what_was_read_stays_as_it_was_when_more_is_appended() -> None:
    past, first = Growing(), pair(3)
    k, v = past.read(lambda: first)
    past.read(lambda: pair(100))
    assert torch.equal(k, first[0])
    assert torch.equal(v, first[1])


@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [0, 0, 2, 2, 1], [2, 2]])
def test_growing_selects_rows_and_goes_on(rows: list[int]) -> None:
    past, first, second = Growing(), pair(5), pair(40, len(rows))
    past.read(lambda: first)
    past.select(torch.tensor(rows))
    got = past.read(lambda: second)
    for ours, old, new in zip(got, first, second, strict=True):
        assert torch.equal(ours, torch.cat([old[rows], new], dim=2))


def test_repeated_rows_part_ways_after_selection() -> None:
    past = Growing()
    past.read(lambda: pair(2, rows=1))
    past.select(torch.tensor([0, 0]))
    new = pair(1, rows=2)
    k, _ = past.read(lambda: new)
    assert torch.equal(k[0, :, :2], k[1, :, :2])
    assert torch.equal(k[:, :, 2:], new[0])


def test_once_projects_the_source_a_single_time() -> None:
    calls = []
    source = Once()

    def project() -> KeysValues:
        calls.append(1)
        return pair(4)

    first = source.read(project)
    assert source.read(project) is first
    assert len(calls) == 1


@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [0, 0, 2]])
def test_once_selects_rows(rows: list[int]) -> None:
    source, kept = Once(), pair(4)
    source.read(lambda: kept)
    source.select(torch.tensor(rows))
    for ours, wanted in zip(source.read(lambda: pair(1)), kept, strict=True):
        assert torch.equal(ours, wanted[rows])


def test_no_cache_remembers_nothing() -> None:
    memory, first, second = NoCache(), pair(2), pair(3)
    assert memory.read(lambda: first) is first
    assert memory.read(lambda: second) is second


def test_selecting_from_an_empty_cache_is_harmless() -> None:
    cache = Cache(2)
    cache.select(torch.tensor([1, 0]))
    assert cache.length == 0
    for layer in cache.layers:
        layer.past.read(lambda: pair(3))
    assert cache.length == 3


def test_layers_do_not_share_their_past() -> None:
    cache, first, second = Cache(2), pair(1), pair(1)
    assert torch.equal(cache.layers[0].past.read(lambda: first)[0], first[0])
    assert torch.equal(cache.layers[1].past.read(lambda: second)[0], second[0])
