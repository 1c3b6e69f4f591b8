"""The order of the windows of token shards: each once per epoch, an exact position, no memory for windows."""

from __future__ import annotations

import numpy as np
import pytest

from triform.data.shuffled_windows import ShuffledWindowSampler, permute

SHARDS = [7, 0, 12, 5, 9, 9, 9, 3, 30, 1, 11]


def draw(sampler: ShuffledWindowSampler, n_batches: int) -> list[int]:
    return [int(window) for _ in range(n_batches) for window in sampler.next_batch()]


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 1000])
def test_numbers_are_permuted(size: int) -> None:
    keys = np.random.default_rng(size).integers(0, 1 << 64, size=6, dtype=np.uint64)
    assert sorted(permute(np.arange(size), size, keys)) == list(range(size))


def test_every_window_is_drawn_once_per_epoch_in_another_order() -> None:
    sampler = ShuffledWindowSampler(SHARDS, batch_size=8, seed=1)
    epochs = [draw(sampler, sampler.steps_per_epoch) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(sum(SHARDS)))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert draw(ShuffledWindowSampler(SHARDS, batch_size=8, seed=2), sampler.steps_per_epoch) != epochs[0]


def test_a_position_is_two_integers_and_continues_exactly_with_any_batch_size() -> None:
    expected = draw(ShuffledWindowSampler(SHARDS, batch_size=1, seed=3), 2 * sum(SHARDS))
    for batch_size in (1, 7, 96):
        sampler = ShuffledWindowSampler(SHARDS, batch_size=batch_size, seed=3)
        before = draw(sampler, 5)
        state = sampler.state_dict()
        assert set(map(type, state.values())) == {int}
        resumed = ShuffledWindowSampler(SHARDS, batch_size=batch_size, seed=3)
        resumed.load_state_dict(state)
        after = draw(resumed, 5)
        assert after == draw(sampler, 5)
        assert (before + after)[: len(expected)] == expected[: len(before + after)]
    with pytest.raises(ValueError, match="an epoch has 96 windows"):
        sampler.load_state_dict({"epoch": 0, "position": 97})


def test_a_trillion_windows_need_no_memory() -> None:
    sampler = ShuffledWindowSampler([1 << 36] * 20, batch_size=1000, seed=0)
    sampler.load_state_dict({"epoch": 2, "position": (1 << 40) + 12345})
    windows = sampler.next_batch()
    assert len(set(windows.tolist())) == 1000
    spread = np.histogram(windows % (1 << 36), bins=4, range=(0, 1 << 36))[0]
    assert spread.min() > 200  # a quarter of the windows is 250


def test_neighbours_are_far_apart_and_every_shard_of_a_pool_is_drawn_evenly() -> None:
    sampler = ShuffledWindowSampler([1000] * 8, batch_size=800, seed=0)
    windows = sampler.next_batch()
    assert np.bincount(windows // 1000).min() > 70
    assert abs(np.corrcoef(windows[1:], windows[:-1])[0, 1]) < 0.15


def test_the_shards_of_the_next_pool_are_announced() -> None:
    announced: list[list[int]] = []
    sampler = ShuffledWindowSampler(
        [4] * 20, batch_size=4, seed=0, on_pool=lambda shards: announced.append([*shards])
    )
    windows = draw(sampler, sampler.steps_per_epoch)
    assert [len(shards) for shards in announced] == [16, 12, 4]
    assert {window // 4 for window in windows[:32]} == set(announced[0][:8])
    assert announced[0][8:] == announced[1][:8]
