"""The noise of pretraining: which tokens are masked, dropped and moved, and how many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from triform.data.token_store import TokenStore
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.noise import MASK_SHARE, MAX_MOVE, RANDOM_SHARE, Noise, count_masked
from triform.tasks.pretraining_data import split_rows
from triform.text import SpecialTokens

FRAMED = SpecialTokens(pad=0, before=(2,), after=(3,))
MASK, VOCABULARY = 0, 1_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build_rows(n_rows: int, width: int) -> torch.Tensor:
    """Rows of the tokens 10, 11, …, which are all different."""
    return (10 + torch.arange(width)).expand(n_rows, width)


def test_the_given_number_of_tokens_of_each_text_is_masked() -> None:
    tokens = build_rows(3, 20)
    keep = torch.arange(20) < torch.tensor([20, 10, 3])[:, None]
    tokens = torch.where(keep, tokens, 0)
    n_masked = torch.tensor(count_masked(np.array([20, 10, 3]), 0.15, SpecialTokens()))
    assert n_masked.tolist() == [3, 2, 1]
    noise = Noise(MASK, VOCABULARY, SpecialTokens(), 0.15)
    masked = noise.mask_tokens(tokens, keep, n_masked, generator())
    is_target = masked.targets != IGNORE_INDEX
    assert is_target.sum(dim=1).tolist() == n_masked.tolist()
    originals = tokens.gather(1, masked.positions)
    assert masked.targets[is_target].tolist() == originals[is_target].tolist()
    assert bool(keep.gather(1, masked.positions)[is_target].all()), "padding is never masked"
    untouched = torch.ones_like(keep).scatter(
        1, torch.where(is_target, masked.positions, masked.positions[:, :1]), 0
    )
    assert masked.tokens[untouched.bool()].tolist() == tokens[untouched.bool()].tolist()
    states = tokens[:, :, None].float()
    assert masked.select(states)[:, :, 0].long().tolist() == originals.tolist()


def test_of_ten_masked_tokens_eight_become_the_mask_and_one_a_random_token() -> None:
    noise = Noise(MASK, VOCABULARY, SpecialTokens(), 0.5)
    tokens = build_rows(400, 50)
    masked = noise.mask_tokens(tokens, None, torch.full((400,), 25), generator())
    replaced = masked.tokens.gather(1, masked.positions)
    share_masked = (replaced == MASK).float().mean().item()
    share_kept = (replaced == masked.targets).float().mean().item()
    # Standard deviations of 10,000 draws are below 0.005.
    assert share_masked == pytest.approx(MASK_SHARE, abs=0.02)
    assert share_kept == pytest.approx(1 - MASK_SHARE - RANDOM_SHARE, abs=0.02)
    counts = torch.zeros(50).index_add(0, masked.positions.flatten(), torch.ones(masked.positions.numel()))
    assert bool((counts > 120).all()), "every position is masked about 200 times"


def test_special_tokens_are_neither_masked_nor_moved() -> None:
    row = torch.tensor([[2, 10, 11, 12, 13, 14, 15, 3]]).expand(200, -1)
    noise = Noise(MASK, VOCABULARY, FRAMED, 0.4)
    n_masked = torch.tensor(count_masked(np.full(200, 8), 0.4, FRAMED))
    masked = noise.mask_tokens(row, None, n_masked, generator())
    is_target = masked.targets != IGNORE_INDEX
    assert int(is_target.sum()) == 2 * 200
    assert not set(masked.targets[is_target].tolist()) & {2, 3}
    noisy, keep = noise.corrupt(row, None, generator())
    assert bool((noisy[:, 0] == 2).all())
    assert bool((noisy.gather(1, keep.sum(dim=1, keepdim=True) - 1) == 3).all()), "the end stays at the end"


def test_noisy_texts_lose_and_mask_tokens_and_move_the_others_a_little() -> None:
    noise, width = Noise(MASK, VOCABULARY, SpecialTokens(), 0.2), 30
    tokens = build_rows(300, width)
    keep = (torch.arange(width) < 25).expand(300, width)
    noisy, noisy_keep = noise.corrupt(torch.where(keep, tokens, 0), keep, generator())
    lengths = noisy_keep.sum(dim=1)
    assert bool((noisy_keep == (torch.arange(width) < lengths[:, None])).all()), "padding is at the end"
    assert (25 - lengths).float().mean().item() == pytest.approx(0.1 * 24, abs=0.4)
    is_masked = (noisy == MASK) & noisy_keep
    assert (is_masked.sum() / noisy_keep.sum()).item() == pytest.approx(0.2, abs=0.03)
    for row, length in zip(noisy.tolist(), lengths.tolist(), strict=True):
        read = [token for token in row[:length] if token != MASK]
        assert len(set(read)) == len(read)
        assert set(read) <= set(range(10, 35))
        latest = 0
        for token in read:  # no token comes after one that was more than MAX_MOVE positions behind it
            assert token > latest - MAX_MOVE
            latest = max(latest, token)


def test_the_same_random_numbers_give_the_same_noise() -> None:
    noise, tokens = Noise(MASK, VOCABULARY, SpecialTokens(), 0.15), build_rows(4, 12)
    n_masked = torch.full((4,), 2)
    first, second = (noise.mask_tokens(tokens, None, n_masked, generator(5)) for _ in range(2))
    assert first.tokens.equal(second.tokens)
    torch.manual_seed(5)
    third = noise.mask_tokens(tokens, None, n_masked)
    assert first.tokens.equal(third.tokens), "without a generator, the random numbers are those of torch"
    assert noise.corrupt(tokens, None, generator(6))[0].equal(noise.corrupt(tokens, None, generator(6))[0])


def test_long_texts_are_split_and_nothing_is_lost() -> None:
    store = TokenStore(np.arange(23), np.array([0, 2, 12, 12, 23]))
    split = split_rows(store, 4)
    assert split.lengths.max() <= 4
    assert split.tokens.tolist() == store.tokens.tolist()
    assert set(store.offsets.tolist()) <= set(split.offsets.tolist())
    assert split_rows(store, 11) is store
