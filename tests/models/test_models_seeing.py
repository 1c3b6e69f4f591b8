"""What a prediction depends on: never on the future, never on padding, never on what a window hides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.generation.adapters import LeftPaddedLayout
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier, Encoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.layouts import PaddedLayout

V, MAX_LEN = 13, 40
SMALL = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2, dropout=0.0)
SIZES = DataSizes(vocab_size=V, max_len=MAX_LEN, n_labels=3)
WINDOWS = [-1, 1, 3]
ORDERS = ["pre", "post"]


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def replace_token(tokens: Tensor, position: int) -> Tensor:
    """The same tokens, but a different one at `place`."""
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % V
    return changed


def output_and_embedding(model: nn.Module, embedding: nn.Module, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    """The model's answer, and the embedded input that it can be differentiated by."""
    captured: list[Tensor] = []
    hook = embedding.register_forward_hook(lambda _module, _inputs, hook_output: captured.append(hook_output))
    output = model(*arguments)
    hook.remove()
    return output, captured[0]


def influences(output: Tensor, x: Tensor, position: int) -> Tensor:
    """For each input position, whether it moves the answer at `place`."""
    weights = torch.randn_like(output[:, position])
    (grad,) = torch.autograd.grad((output[:, position] * weights).sum(), x, retain_graph=True)
    return (grad != 0).any(-1).any(0)


# ------------------------------------------------------------------------------------------ the future


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("window", WINDOWS)
def test_the_future_cannot_be_seen(order: str, window: int) -> None:
    model, tokens = Decoder(replace(SMALL, norm_position=order, window=window), SIZES), random_tokens(2, 9)
    logits = model(tokens)
    for position in range(9):
        changed = model(replace_token(tokens, position))
        torch.testing.assert_close(changed[:, :position], logits[:, :position], rtol=0, atol=1e-12)
        assert not torch.isclose(changed[:, position], logits[:, position]).all()


def test_no_gradient_comes_from_the_future() -> None:
    model = Decoder(SMALL, SIZES)
    logits, x = output_and_embedding(model, model.embedding, random_tokens(2, 9))
    for position in range(9):
        assert influences(logits, x, position).tolist() == [other <= position for other in range(9)]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_translation_does_not_see_its_own_future(window: int) -> None:
    model, source, target = Seq2Seq(replace(SMALL, window=window), SIZES), random_tokens(2, 5), random_tokens(2, 8)
    logits = model(source, target)
    for position in range(8):
        changed = model(source, replace_token(target, position))
        torch.testing.assert_close(changed[:, :position], logits[:, :position], rtol=0, atol=1e-12)
        assert not torch.isclose(changed[:, position], logits[:, position]).all()


def test_no_gradient_comes_from_the_future_of_a_translation() -> None:
    model = Seq2Seq(replace(SMALL, tie_embeddings=False), SIZES)
    logits, x = output_and_embedding(model, model.embedding, random_tokens(2, 5), random_tokens(2, 8))
    for position in range(8):
        assert influences(logits, x, position).tolist() == [other <= position for other in range(8)]


def test_every_target_position_sees_the_whole_source() -> None:
    model = Seq2Seq(replace(SMALL, tie_embeddings=False), SIZES)
    logits, x = output_and_embedding(
        model, model.encoder.embedding, random_tokens(2, 3), random_tokens(2, 8), torch.ones(2, 3).bool()
    )
    for position in range(8):
        assert influences(logits, x, position).all()


def test_an_encoder_sees_everything() -> None:
    encoder = Encoder(SMALL, SIZES)
    states, x = output_and_embedding(encoder, encoder.embedding, random_tokens(2, 6))
    for position in range(6):
        assert influences(states, x, position).all()


# ------------------------------------------------------------------------------------------ windows


@pytest.mark.parametrize(("window", "n_layers"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1)])
def test_a_window_reaches_back_its_width_less_one_a_layer(window: int, n_layers: int) -> None:
    model = Decoder(replace(SMALL, window=window, n_layers=n_layers), SIZES)
    span = n_layers * (window - 1)
    logits, x = output_and_embedding(model, model.embedding, random_tokens(2, 12))
    for position in range(12):
        assert influences(logits, x, position).tolist() == [position - span <= k <= position for k in range(12)]


@pytest.mark.parametrize(("window", "n_layers"), [(1, 2), (2, 2), (3, 1)])
def test_an_encoders_window_reaches_both_ways(window: int, n_layers: int) -> None:
    encoder = Encoder(replace(SMALL, window=window, n_layers=n_layers), SIZES)
    span = n_layers * (window - 1)
    states, x = output_and_embedding(encoder, encoder.embedding, random_tokens(2, 10))
    for position in range(10):
        assert influences(states, x, position).tolist() == [abs(position - k) <= span for k in range(10)]


def test_tokens_beyond_the_windows_reach_change_nothing() -> None:
    model, tokens = Decoder(replace(SMALL, window=3), SIZES), random_tokens(2, 12)  # two layers: four back
    logits = model(tokens)
    changed = model(replace_token(tokens, 5))
    torch.testing.assert_close(changed[:, 10:], logits[:, 10:], rtol=0, atol=1e-12)
    for position in range(5, 10):
        assert not torch.isclose(changed[:, position], logits[:, position]).all()


def test_a_window_as_wide_as_the_text_is_no_window() -> None:
    tokens, full = random_tokens(2, 7), Decoder(SMALL, SIZES)
    wide, narrow = (Decoder(replace(SMALL, window=width), SIZES) for width in (7, 6))
    for model in (wide, narrow):
        model.load_state_dict(full.state_dict())
    assert torch.equal(wide(tokens), full(tokens))
    assert not torch.isclose(narrow(tokens)[:, 6], full(tokens)[:, 6]).all()


# ------------------------------------------------------------------------------------------ padding


def pad_rows(rows: list[Tensor], length: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of different lengths in one batch; padding is random tokens, which nobody may read."""
    tokens, keep = random_tokens(len(rows), length), torch.zeros(len(rows), length, dtype=torch.bool)
    for b, row in enumerate(rows):
        columns = slice(length - len(row), length) if left else slice(0, len(row))
        tokens[b, columns], keep[b, columns] = row, True
    return tokens, keep


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [6, 11])
def test_padding_does_not_change_a_label(order: str, window: int, length: int) -> None:
    model = Classifier(replace(SMALL, norm_position=order, window=window, head_hidden=5), SIZES)
    rows = [random_tokens(6), random_tokens(2), random_tokens(1)]
    scores = model(*pad_rows(rows, length))
    for b, row in enumerate(rows):
        torch.testing.assert_close(scores[b], model(row[None])[0], rtol=0, atol=1e-12)


def test_padding_gets_no_gradient() -> None:
    model = Classifier(SMALL, SIZES)
    tokens, keep = pad_rows([random_tokens(6), random_tokens(2)], 6)
    scores, x = output_and_embedding(model, model.encoder.embedding, tokens, keep)
    (grad,) = torch.autograd.grad(scores.square().sum(), x)
    assert torch.equal((grad != 0).any(-1), keep)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("t", [3, 9])
def test_padding_the_source_does_not_change_a_translation(window: int, t: int) -> None:
    model = Seq2Seq(replace(SMALL, window=window), SIZES)
    rows, target = [random_tokens(5), random_tokens(2)], random_tokens(2, t)
    source, keep = pad_rows(rows, 7)
    logits = model(source, target, keep)
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b], model(row[None], target[b : b + 1])[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("window", WINDOWS)
def test_padding_on_the_left_does_not_change_a_decoder(positions: str, window: int) -> None:
    model = Decoder(replace(SMALL, positions=positions, window=window), SIZES)
    rows = [random_tokens(6), random_tokens(3), random_tokens(1)]
    tokens, keep = pad_rows(rows, 8, left=True)
    logits = model(tokens, LeftPaddedLayout(keep))
    assert logits.isfinite().all()
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b, 8 - len(row) :], model(row[None])[0], rtol=0, atol=1e-12)


def test_padding_on_the_right_does_not_change_a_decoder() -> None:
    model, rows = Decoder(SMALL, SIZES), [random_tokens(6), random_tokens(3)]
    tokens, keep = pad_rows(rows, 8)
    logits = model(tokens, keep)
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b, : len(row)], model(row[None])[0], rtol=0, atol=1e-12)


def test_the_mean_is_over_real_tokens() -> None:
    x = torch.tensor([[[1.0], [3.0], [100.0]], [[5.0], [7.0], [9.0]], [[2.0], [2.0], [2.0]]])
    keep = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    assert PaddedLayout(keep).mean(x).flatten().tolist() == [2.0, 7.0, 0.0]
    assert PaddedLayout(None).mean(x[1:2]).item() == 7.0
