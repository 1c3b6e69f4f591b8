"""What a prediction depends on: never on the future, never on padding, never on what a window hides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier, Encoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.rows import Padded

V, MAX_LEN = 13, 40
SMALL = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2, dropout=0.0)
SIZES = Sizes(vocab_size=V, max_len=MAX_LEN, n_labels=3)
WINDOWS = [-1, 1, 3]
ORDERS = ["pre", "post"]


def draw(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def with_other(tokens: Tensor, place: int) -> Tensor:
    """The same tokens, but a different one at `place`."""
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % V
    return changed


def embedded(model: nn.Module, embedding: nn.Module, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    """The model's answer, and the embedded input that it can be differentiated by."""
    seen: list[Tensor] = []
    hook = embedding.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    answer = model(*arguments)
    hook.remove()
    return answer, seen[0]


def influence(answer: Tensor, x: Tensor, place: int) -> Tensor:
    """For each input position, whether it moves the answer at `place`."""
    weights = torch.randn_like(answer[:, place])
    (grad,) = torch.autograd.grad((answer[:, place] * weights).sum(), x, retain_graph=True)
    return (grad != 0).any(-1).any(0)


# ------------------------------------------------------------------------------------------ the future


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("window", WINDOWS)
def test_the_future_cannot_be_seen(order: str, window: int) -> None:
    model, tokens = Decoder(replace(SMALL, norm_position=order, window=window), SIZES), draw(2, 9)
    logits = model(tokens)
    for place in range(9):
        changed = model(with_other(tokens, place))
        torch.testing.assert_close(changed[:, :place], logits[:, :place], rtol=0, atol=1e-12)
        assert not torch.isclose(changed[:, place], logits[:, place]).all()


def test_no_gradient_comes_from_the_future() -> None:
    model = Decoder(SMALL, SIZES)
    logits, x = embedded(model, model.embedding, draw(2, 9))
    for place in range(9):
        assert influence(logits, x, place).tolist() == [other <= place for other in range(9)]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_translation_does_not_see_its_own_future(window: int) -> None:
    model, source, target = Seq2Seq(replace(SMALL, window=window), SIZES), draw(2, 5), draw(2, 8)
    logits = model(source, target)
    for place in range(8):
        changed = model(source, with_other(target, place))
        torch.testing.assert_close(changed[:, :place], logits[:, :place], rtol=0, atol=1e-12)
        assert not torch.isclose(changed[:, place], logits[:, place]).all()


def test_no_gradient_comes_from_the_future_of_a_translation() -> None:
    model = Seq2Seq(replace(SMALL, tie_embeddings=False), SIZES)
    logits, x = embedded(model, model.embedding, draw(2, 5), draw(2, 8))
    for place in range(8):
        assert influence(logits, x, place).tolist() == [other <= place for other in range(8)]


def test_every_target_position_sees_the_whole_source() -> None:
    model = Seq2Seq(replace(SMALL, tie_embeddings=False), SIZES)
    logits, x = embedded(model, model.encoder.embedding, draw(2, 3), draw(2, 8), torch.ones(2, 3).bool())
    for place in range(8):
        assert influence(logits, x, place).all()


def test_an_encoder_sees_everything() -> None:
    encoder = Encoder(SMALL, SIZES)
    states, x = embedded(encoder, encoder.embedding, draw(2, 6))
    for place in range(6):
        assert influence(states, x, place).all()


# ------------------------------------------------------------------------------------------ windows


@pytest.mark.parametrize(("window", "n_layers"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1)])
def test_a_window_reaches_back_its_width_less_one_a_layer(window: int, n_layers: int) -> None:
    model = Decoder(replace(SMALL, window=window, n_layers=n_layers), SIZES)
    reach = n_layers * (window - 1)
    logits, x = embedded(model, model.embedding, draw(2, 12))
    for place in range(12):
        assert influence(logits, x, place).tolist() == [place - reach <= k <= place for k in range(12)]


@pytest.mark.parametrize(("window", "n_layers"), [(1, 2), (2, 2), (3, 1)])
def test_an_encoders_window_reaches_both_ways(window: int, n_layers: int) -> None:
    encoder = Encoder(replace(SMALL, window=window, n_layers=n_layers), SIZES)
    reach = n_layers * (window - 1)
    states, x = embedded(encoder, encoder.embedding, draw(2, 10))
    for place in range(10):
        assert influence(states, x, place).tolist() == [abs(place - k) <= reach for k in range(10)]


def test_tokens_beyond_the_windows_reach_change_nothing() -> None:
    model, tokens = Decoder(replace(SMALL, window=3), SIZES), draw(2, 12)  # two layers: four back
    logits = model(tokens)
    changed = model(with_other(tokens, 5))
    torch.testing.assert_close(changed[:, 10:], logits[:, 10:], rtol=0, atol=1e-12)
    for place in range(5, 10):
        assert not torch.isclose(changed[:, place], logits[:, place]).all()


def test_a_window_as_wide_as_the_text_is_no_window() -> None:
    tokens, full = draw(2, 7), Decoder(SMALL, SIZES)
    wide, narrow = (Decoder(replace(SMALL, window=width), SIZES) for width in (7, 6))
    for model in (wide, narrow):
        model.load_state_dict(full.state_dict())
    assert torch.equal(wide(tokens), full(tokens))
    assert not torch.isclose(narrow(tokens)[:, 6], full(tokens)[:, 6]).all()


# ------------------------------------------------------------------------------------------ padding


def padded(rows: list[Tensor], length: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of different lengths in one batch; padding is random tokens, which nobody may read."""
    tokens, keep = draw(len(rows), length), torch.zeros(len(rows), length, dtype=torch.bool)
    for b, row in enumerate(rows):
        place = slice(length - len(row), length) if left else slice(0, len(row))
        tokens[b, place], keep[b, place] = row, True
    return tokens, keep


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [6, 11])
def test_padding_does_not_change_a_label(order: str, window: int, length: int) -> None:
    model = Classifier(replace(SMALL, norm_position=order, window=window, head_hidden=5), SIZES)
    rows = [draw(6), draw(2), draw(1)]
    scores = model(*padded(rows, length))
    for b, row in enumerate(rows):
        torch.testing.assert_close(scores[b], model(row[None])[0], rtol=0, atol=1e-12)


def test_padding_gets_no_gradient() -> None:
    model = Classifier(SMALL, SIZES)
    tokens, keep = padded([draw(6), draw(2)], 6)
    scores, x = embedded(model, model.encoder.embedding, tokens, keep)
    (grad,) = torch.autograd.grad(scores.square().sum(), x)
    assert torch.equal((grad != 0).any(-1), keep)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("t", [3, 9])
def test_padding_the_source_does_not_change_a_translation(window: int, t: int) -> None:
    model = Seq2Seq(replace(SMALL, window=window), SIZES)
    rows, target = [draw(5), draw(2)], draw(2, t)
    source, keep = padded(rows, 7)
    logits = model(source, target, keep)
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b], model(row[None], target[b : b + 1])[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("window", WINDOWS)
def test_padding_on_the_left_does_not_change_a_decoder(positions: str, window: int) -> None:
    model = Decoder(replace(SMALL, positions=positions, window=window), SIZES)
    rows = [draw(6), draw(3), draw(1)]
    tokens, keep = padded(rows, 8, left=True)
    logits = model(tokens, keep, (keep.cumsum(1) - 1).clamp(min=0))
    assert logits.isfinite().all()
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b, 8 - len(row) :], model(row[None])[0], rtol=0, atol=1e-12)


def test_padding_on_the_right_does_not_change_a_decoder() -> None:
    model, rows = Decoder(SMALL, SIZES), [draw(6), draw(3)]
    tokens, keep = padded(rows, 8)
    logits = model(tokens, keep)
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b, : len(row)], model(row[None])[0], rtol=0, atol=1e-12)


def test_the_mean_is_over_real_tokens() -> None:
    x = torch.tensor([[[1.0], [3.0], [100.0]], [[5.0], [7.0], [9.0]], [[2.0], [2.0], [2.0]]])
    keep = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    assert Padded(keep).mean(x).flatten().tolist() == [2.0, 7.0, 0.0]
    assert Padded(None).mean(x[1:2]).item() == 7.0
