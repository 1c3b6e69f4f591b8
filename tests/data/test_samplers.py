"""Samplers: every example once an epoch, budgets kept, and a position that two numbers can bring back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triform.data.samplers import (
    BucketSampler,
    Indices,
    RandomWindowSampler,
    Sampler,
    batch_by_budget,
    batch_by_length,
)

length_arrays = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(lambda row: np.array(row, dtype=np.int64))
budgets = st.one_of(
    st.integers(1, 20).map(lambda rows: {"batch_size": rows}),
    st.integers(1, 200).map(lambda tokens: {"batch_tokens": tokens}),
)


def collect_epoch(sampler: BucketSampler, epoch_number: int = 0) -> list[Indices]:
    """All batches of one epoch; later ones may have a batch more or less than the first."""
    sampler.load_state_dict({"epoch": epoch_number, "position": 0})
    batches = []
    while sampler.state_dict()["epoch"] == epoch_number:
        batches.append(sampler.next_batch())
    return batches[:-1]


def draw_batches(sampler: Sampler, n: int) -> list[list[int]]:
    return [sampler.next_batch().tolist() for _ in range(n)]


def skewed_lengths(n: int, seed: int = 0) -> Indices:
    """Many short texts and a few very long ones."""
    return np.random.default_rng(seed).lognormal(3.0, 1.0, n).astype(np.int64) + 1


def check_budget(batch: Indices, lengths: Indices, *, batch_size: int = 0, batch_tokens: int = 0) -> None:
    if batch_size:
        assert 1 <= len(batch) <= batch_size
    else:
        assert len(batch) == 1 or lengths[batch].max() * len(batch) <= batch_tokens


@given(length_arrays, budgets, st.integers(0, 5))
def test_every_example_comes_exactly_once_an_epoch_within_the_budget(
    lengths: Indices, budget: dict[str, int], seed: int
) -> None:
    sampler = BucketSampler(lengths, seed=seed, **budget)
    assert sampler.steps_per_epoch == len(collect_epoch(sampler))
    for number in range(3):
        batches = collect_epoch(sampler, number)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        for batch in batches:
            check_budget(batch, lengths, **budget)


def test_epochs_follow_each_other_without_a_seam() -> None:
    lengths, sampler = skewed_lengths(100), BucketSampler(skewed_lengths(100), batch_size=7, seed=1)
    assert sampler.steps_per_epoch == 15  # of 7 rows, the last of 2
    for number in range(4):
        indices = np.concatenate([sampler.next_batch() for _ in range(15)])
        assert sampler.state_dict() == {"epoch": number, "position": 15}
        assert sorted(indices.tolist()) == list(range(len(lengths)))


def test_an_example_longer_than_the_budget_goes_alone() -> None:
    lengths = np.array([3, 500, 4, 5, 900, 2], dtype=np.int64)
    batches = [batch.tolist() for batch in collect_epoch(BucketSampler(lengths, batch_tokens=32, seed=0))]
    assert [1] in batches
    assert [4] in batches
    assert len(batches) == 3


@pytest.mark.parametrize(("budget", "share"), [({"batch_tokens": 4096}, 0.06), ({"batch_size": 64}, 0.25)])
def test_little_is_padded_however_skewed_the_lengths(budget: dict[str, int], share: float) -> None:
    lengths = skewed_lengths(20_000)
    batches = collect_epoch(BucketSampler(lengths, seed=0, **budget))
    padded = sum(int(lengths[batch].max()) * len(batch) for batch in batches)
    assert 1 - lengths.sum() / padded < share
    shuffled = np.random.default_rng(0).permutation(len(lengths)).reshape(-1, 50)
    unsorted_padded = sum(int(lengths[batch].max()) * len(batch) for batch in shuffled)
    assert 1 - lengths.sum() / unsorted_padded > 0.5  # without buckets most of it would be padding


def test_token_batches_are_well_filled() -> None:
    lengths = skewed_lengths(20_000)
    sampler = BucketSampler(lengths, batch_tokens=4096, seed=0)
    assert lengths.sum() / (4096 * sampler.steps_per_epoch) > 0.8  # lengths count as their rungs


def test_epochs_and_seeds_differ_in_their_batches_and_in_their_order() -> None:
    lengths = skewed_lengths(300)
    first, other = (BucketSampler(lengths, batch_size=10, seed=seed) for seed in (0, 1))
    orders = [draw_batches(first, 30), draw_batches(first, 30), draw_batches(other, 30)]
    for left, right in ((0, 1), (0, 2), (1, 2)):
        assert orders[left] != orders[right]
        assert sorted(map(sorted, orders[left])) != sorted(map(sorted, orders[right]))
    assert draw_batches(BucketSampler(lengths, batch_size=10, seed=0), 30) == orders[0]


def test_batches_do_not_come_in_order_of_length() -> None:
    lengths = skewed_lengths(5_000)
    widths = [int(lengths[batch].max()) for batch in collect_epoch(BucketSampler(lengths, batch_size=10, seed=0))]
    n_rising = sum(before <= after for before, after in pairwise(widths))
    assert 0.4 < n_rising / len(widths) < 0.6


@given(length_arrays, budgets, st.integers(0, 60), st.integers(0, 3))
def test_a_sampler_goes_on_from_wherever_it_stood(
    lengths: Indices, budget: dict[str, int], steps: int, seed: int
) -> None:
    unbroken = BucketSampler(lengths, seed=seed, **budget)
    draw_batches(unbroken, steps)
    state = dict(unbroken.state_dict())
    resumed = BucketSampler(lengths, seed=seed, **budget)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert draw_batches(resumed, 25) == draw_batches(unbroken, 25)
    assert resumed.state_dict() == unbroken.state_dict()


# -- windows


@given(st.integers(1, 500), st.integers(1, 16), st.integers(0, 3), st.integers(0, 20))
def test_windows_start_within_bounds_and_go_on_from_wherever_they_stood(
    n_starts: int, batch_size: int, seed: int, steps: int
) -> None:
    unbroken = RandomWindowSampler(n_starts, width=8, batch_size=batch_size, seed=seed)
    for _ in range(steps):
        starts = unbroken.next_batch()
        assert len(starts) == batch_size
        assert starts.min() >= 0
        assert starts.max() < n_starts
    resumed = RandomWindowSampler(n_starts, width=8, batch_size=batch_size, seed=seed)
    resumed.load_state_dict(dict(unbroken.state_dict()))
    assert draw_batches(resumed, 5) == draw_batches(unbroken, 5)


def test_every_window_is_drawn_about_as_often_and_seeds_differ() -> None:
    windows = RandomWindowSampler(10, width=4, batch_size=100, seed=0)
    counts = np.bincount(np.concatenate([windows.next_batch() for _ in range(100)]), minlength=10)
    assert counts.sum() == 10_000
    assert (np.abs(counts - 1000) < 150).all()
    assert draw_batches(RandomWindowSampler(1000, width=4, batch_size=8, seed=0), 3) != draw_batches(
        RandomWindowSampler(1000, width=4, batch_size=8, seed=1), 3
    )


def test_an_epoch_of_windows_is_about_one_reading_of_the_text() -> None:
    assert RandomWindowSampler(10_000 - 50, width=50, batch_size=10, seed=0).steps_per_epoch == 20
    assert RandomWindowSampler(3, width=50, batch_size=10, seed=0).steps_per_epoch == 1


# -- cutting


def test_cutting_by_rows_leaves_the_rest_in_the_last_batch() -> None:
    order = np.array([4, 2, 0, 1, 3], dtype=np.int64)
    assert [batch.tolist() for batch in batch_by_budget(order, np.ones(5, np.int64), batch_size=2)] == [
        [4, 2],
        [0, 1],
        [3],
    ]


def test_cutting_by_tokens_counts_the_padding() -> None:
    """Widths 2 2 3 | 3 3 | 9: three rows of 3 are 9 tokens; a fourth would make 12 of 10."""
    order, lengths = np.arange(6), np.array([2, 2, 3, 3, 3, 9])
    assert [batch.tolist() for batch in batch_by_budget(order, lengths, batch_tokens=10)] == [
        [0, 1, 2],
        [3, 4],
        [5],
    ]


@given(length_arrays, st.integers(1, 200))
def test_any_order_is_cut_as_late_as_the_budget_allows(lengths: Indices, budget: int) -> None:
    order = np.arange(len(lengths))
    batches = batch_by_budget(order, lengths, batch_tokens=budget)
    assert np.concatenate(batches).tolist() == order.tolist()
    for batch, following in pairwise(batches):
        check_budget(batch, lengths, batch_tokens=budget)
        extended = np.append(batch, following[0])
        assert lengths[extended].max() * len(extended) > budget


def test_nothing_is_cut_into_no_batches() -> None:
    empty = np.zeros(0, np.int64)
    assert batch_by_budget(empty, empty, batch_tokens=5) == batch_by_budget(empty, empty, batch_size=5) == []
    assert batch_by_length(empty, batch_tokens=5) == []


@given(length_arrays, st.integers(1, 200))
def test_evaluation_goes_from_short_to_long_and_misses_no_one(lengths: Indices, budget: int) -> None:
    batches = batch_by_length(lengths, batch_tokens=budget)
    order = np.concatenate(batches)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(lengths[order]) >= 0).all()
    for batch in batches:
        check_budget(batch, lengths, batch_tokens=budget)
