"""Cached decoding gives the logits of uncached decoding, whatever the pieces and whatever happens to rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from triform.config import DataSizes, ModelConfig
from triform.generation.adapters import LeftPaddedLayout
from triform.generation.kv_cache import KVCache
from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq

V, MAX_LEN = 13, 80
SMALL = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2, dropout=0.0)
SIZES = DataSizes(vocab_size=V, max_len=MAX_LEN)
ROWS = [[2, 0, 1], [1], [0, 0, 2, 2, 1], [2, 2]]
styles = st.fixed_dictionaries(
    {
        "norm_position": st.sampled_from(["pre", "post"]),
        "positions": st.sampled_from(["learned", "sinusoidal"]),
        "window": st.sampled_from([-1, 1, 3, 40]),
    }
)


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def capacity(cache: KVCache) -> int:
    """How many positions fit before the cache must grow."""
    return cache.stores[0][0].buffer.shape[3]


@torch.no_grad()
def run_in_chunks(model: Decoder, tokens: Tensor, lengths: list[int], cache: KVCache) -> Tensor:
    return torch.cat([model(chunk, cache=cache) for chunk in tokens.split(lengths, dim=1)], dim=1)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), styles)
@settings(max_examples=40)
def test_a_decoder_fed_in_pieces_of_any_size_gives_the_same_logits(lengths: list[int], style: dict) -> None:
    model = Decoder(replace(SMALL, **style), DataSizes(vocab_size=V, max_len=100))
    tokens, cache = random_tokens(2, sum(lengths)), KVCache(SMALL.n_layers)
    assert_close(run_in_chunks(model, tokens, lengths, cache), model(tokens))
    assert cache.length == sum(lengths)


@pytest.mark.parametrize("window", [-1, 5])
def test_one_token_at_a_time_past_the_first_room_and_the_second(window: int) -> None:
    model, tokens, cache = (
        Decoder(replace(SMALL, window=window), SIZES),
        random_tokens(2, 75),
        KVCache(SMALL.n_layers),
    )
    actual = run_in_chunks(model, tokens, [1] * 75, cache)
    assert_close(actual, model(tokens))
    assert capacity(cache) > 66 > 32  # it started with 32 and grew twice


@pytest.mark.parametrize("rows", ROWS)
def test_a_decoders_rows_are_reordered_dropped_and_repeated(rows: list[int]) -> None:
    model, before, cache = Decoder(SMALL, SIZES), random_tokens(3, 30), KVCache(SMALL.n_layers)
    run_in_chunks(model, before, [20, 10], cache)
    cache.select(torch.tensor(rows))
    after = random_tokens(len(rows), 12)
    actual = run_in_chunks(model, after, [1, 3, 8], cache)
    assert_close(actual, model(torch.cat([before[rows], after], dim=1))[:, 30:])


def test_rows_can_be_selected_again_and_again() -> None:
    model, cache = Decoder(SMALL, SIZES), KVCache(SMALL.n_layers)
    history = random_tokens(3, 2)
    run_in_chunks(model, history, [2], cache)
    for rows in ([0, 0, 1, 2], [3, 1], [1, 1, 0], [2]):
        cache.select(torch.tensor(rows))
        new = random_tokens(len(rows), 1)
        history = torch.cat([history[rows], new], dim=1)
        assert_close(run_in_chunks(model, new, [1], cache), model(history)[:, -1:])


@pytest.mark.parametrize("window", [-1, 3])
def test_rows_padded_on_the_left_go_on_from_their_own_positions(window: int) -> None:
    """Prompts of different lengths in one batch, continued together: `keep` covers the cached past."""
    model, cache = Decoder(replace(SMALL, window=window), SIZES), KVCache(SMALL.n_layers)
    lengths, width = [6, 2], 6
    prompts, new = [random_tokens(length) for length in lengths], random_tokens(2, 3)
    tokens, keep = random_tokens(2, width), torch.zeros(2, width, dtype=torch.bool)
    for b, prompt in enumerate(prompts):
        tokens[b, width - len(prompt) :], keep[b, width - len(prompt) :] = prompt, True
    with torch.no_grad():
        model(tokens, LeftPaddedLayout(keep), cache)
        for step in range(3):
            keep = torch.cat([keep, torch.ones(2, 1, dtype=torch.bool)], dim=1)
            layout = LeftPaddedLayout(keep)
            positions = layout.positions(cache.length, 1, torch.device("cpu"))
            assert positions.tolist() == [[length + step] for length in lengths]
            actual = model(new[:, step : step + 1], layout, cache)
            for b, prompt in enumerate(prompts):
                alone = torch.cat([prompt, new[b, : step + 1]])[None]
                assert_close(actual[b, 0], model(alone)[0, -1])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), styles)
@settings(max_examples=30)
def test_a_translation_written_in_pieces_has_the_same_logits(lengths: list[int], style: dict) -> None:
    model = Seq2Seq(replace(SMALL, **style), SIZES)
    source, target, cache = random_tokens(2, 9), random_tokens(2, sum(lengths)), KVCache(SMALL.n_layers)
    with torch.no_grad():
        states = model.encoder(source)
        chunks = [
            model.lm_head(model.decoder_states(chunk, states, cache=cache))
            for chunk in target.split(lengths, dim=1)
        ]
    assert_close(torch.cat(chunks, dim=1), model(source, target))


@pytest.mark.parametrize("rows", ROWS)
def test_a_translations_rows_are_reordered_dropped_and_repeated(rows: list[int]) -> None:
    model, cache = Seq2Seq(SMALL, SIZES), KVCache(SMALL.n_layers)
    source, before, after = random_tokens(3, 7), random_tokens(3, 4), random_tokens(len(rows), 2)
    keep = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] * 2 + [False] * 5])
    with torch.no_grad():
        states = model.encoder(source, keep)
        model.lm_head(model.decoder_states(before, states, keep, cache))
        cache.select(torch.tensor(rows))
        actual = model.lm_head(model.decoder_states(after, states[rows], keep[rows], cache))
    assert_close(actual, model(source[rows], torch.cat([before[rows], after], dim=1), keep[rows])[:, 4:])


def test_the_source_is_projected_once_and_not_again() -> None:
    model, cache = Seq2Seq(SMALL, SIZES), KVCache(SMALL.n_layers)
    source, target = random_tokens(2, 5), random_tokens(2, 4)
    with torch.no_grad():
        states = model.encoder(source)
        model.lm_head(model.decoder_states(target[:, :2], states, cache=cache))
        actual = model.decoder_states(target[:, 2:], torch.full_like(states, float("nan")), cache=cache)
    assert_close(model.lm_head(actual), model(source, target)[:, 2:])
