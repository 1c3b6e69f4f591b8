"""Models that learn: a batch by heart, the same however the batch is cut, tied weights as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig, PositionKind, ScoreKind
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq

V, LABELS = 12, 3
SMALL = ModelConfig(d_model=16, d_ff=32, n_layers=2, n_heads=2, dropout=0.0)
SIZES = DataSizes(vocab_size=V, max_len=12, n_labels=LABELS)


@dataclass(frozen=True)
class Batch:
    """Something for every form to read and to say, padded on the right."""

    tokens: Tensor
    keep: Tensor
    target: Tensor
    target_keep: Tensor
    labels: Tensor

    def select(self, rows: slice) -> Batch:
        """Some rows, cut down to the longest of them."""
        width, target_width = (int(k[rows].sum(1).max()) for k in (self.keep, self.target_keep))
        return Batch(
            self.tokens[rows, :width],
            self.keep[rows, :width],
            self.target[rows, :target_width],
            self.target_keep[rows, :target_width],
            self.labels[rows],
        )


def lengths_to_keep(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@pytest.fixture
def batch() -> Batch:
    """Four sources of 9, 7, 3 and 4 tokens; their targets of 3, 4, 8 and 2."""
    return Batch(
        torch.randint(V, (4, 9)),
        lengths_to_keep([9, 7, 3, 4]),
        torch.randint(V, (4, 8)),
        lengths_to_keep([3, 4, 8, 2]),
        torch.tensor([0, 1, 2, 1]),
    )


def next_token_loss(logits: Tensor, tokens: Tensor, keep: Tensor) -> Tensor:
    """Summed loss of predicting each real token but the first from those before it."""
    return F.cross_entropy(logits[:, :-1][keep[:, 1:]], tokens[:, 1:][keep[:, 1:]], reduction="sum")


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.tokens, batch.keep), batch.labels, reduction="sum")


def generation_loss(model: nn.Module, batch: Batch) -> Tensor:
    return next_token_loss(model(batch.tokens, batch.keep), batch.tokens, batch.keep)


def translation_loss(model: nn.Module, batch: Batch) -> Tensor:
    return next_token_loss(model(batch.tokens, batch.target, batch.keep), batch.target, batch.target_keep)


Loss = Callable[[nn.Module, Batch], Tensor]
forms = pytest.mark.parametrize(
    ("form", "loss"),
    [(Classifier, classification_loss), (Decoder, generation_loss), (Seq2Seq, translation_loss)],
    ids=["classify", "generate", "translate"],
)


@forms
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_how_a_batch_is_cut_does_not_matter(form: type[nn.Module], loss: Loss, cut: int, batch: Batch) -> None:
    model = form(SMALL, SIZES)
    full_loss = loss(model, batch)
    expected = torch.autograd.grad(full_loss, list(model.parameters()))
    split_loss = sum(loss(model, batch.select(rows)) for rows in (slice(0, cut), slice(cut, 4)))
    torch.testing.assert_close(split_loss, full_loss, rtol=0, atol=1e-11)
    actual = torch.autograd.grad(split_loss, list(model.parameters()))
    for (name, _), ours, theirs in zip(model.named_parameters(), actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11, msg=name)


@forms
@pytest.mark.parametrize("style", [{}, {"norm_position": "post", "activation": "relu", "window": 3}])
def test_one_batch_is_learned_by_heart(form: type[nn.Module], loss: Loss, style: dict, batch: Batch) -> None:
    model = form(replace(SMALL, **style), SIZES)
    if form is Decoder:  # distinct first tokens: nothing else could tell the rows apart
        batch = replace(batch, tokens=torch.cat([torch.arange(4)[:, None], batch.tokens[:, 1:]], dim=1))
    predictions = {Classifier: len(batch.labels), Decoder: 19, Seq2Seq: 13}[form]
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), [1.0]
    while losses[-1] > 0.005 and len(losses) < 300:
        optimizer.zero_grad()
        mean = loss(model, batch) / predictions
        mean.backward()
        optimizer.step()
        losses.append(mean.item())
    assert losses[-1] < 0.01


MODERN = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "n_kv_heads": 1}


@pytest.mark.parametrize(
    "style",
    [
        MODERN,
        {"positions": "relative", "attention_score": "cosine", "layer_windows": (2, -1)},
        {"positions": "t5", "attention_score": "additive"},
        {"attention_score": "dot", "activation": "gelu_tanh"},
    ],
    ids=["modern", "relative-cosine-layers", "t5-additive", "dot"],
)
def test_every_kind_of_attention_can_learn_a_batch_by_heart(style: dict, batch: Batch) -> None:
    test_one_batch_is_learned_by_heart(Decoder, generation_loss, style, batch)


@forms
@pytest.mark.parametrize("precision", ["autocast", "cast"])
@pytest.mark.parametrize("score", get_args(ScoreKind))
@pytest.mark.parametrize("positions", get_args(PositionKind))
def test_half_precision_gives_nearly_the_same_and_finite_gradients(
    form: type[nn.Module], loss: Loss, positions: str, score: str, precision: str, batch: Batch
) -> None:
    if score == "additive" and positions in ("rotary", "relative"):
        return
    config = replace(
        SMALL, n_layers=1, norm="rms", n_kv_heads=1, window=4, positions=positions, attention_score=score
    )
    model = form(config, SIZES).float()
    expected = loss(model, batch).item()
    if precision == "cast":
        model.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        actual = loss(model, batch)
    actual.backward()
    assert actual.item() == pytest.approx(expected, rel=0.05)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@forms
def test_every_parameter_gets_a_gradient(form: type[nn.Module], loss: Loss, batch: Batch) -> None:
    model = form(SMALL, SIZES)
    loss(model, batch).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


# ------------------------------------------------------------------------------------------ tying


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_a_tied_head_is_the_embedding_read_the_other_way() -> None:
    tied, untied = (Decoder(replace(SMALL, tie_embeddings=tie), SIZES) for tie in (True, False))
    assert tied.lm_head.weight is tied.embedding.token_embedding.weight
    assert untied.lm_head.weight is not untied.embedding.token_embedding.weight
    assert count_parameters(untied) - count_parameters(tied) == V * SMALL.d_model


def test_a_tied_translator_has_one_table_for_source_target_and_head() -> None:
    tied, untied = (Seq2Seq(replace(SMALL, tie_embeddings=tie), SIZES) for tie in (True, False))
    table = tied.embedding.token_embedding.weight
    assert tied.encoder.embedding.token_embedding.weight is table
    assert tied.lm_head.weight is table
    assert count_parameters(untied) - count_parameters(tied) == 2 * V * SMALL.d_model


def test_two_vocabularies_are_tied_on_the_target_side_only() -> None:
    model = Seq2Seq(SMALL, replace(SIZES, target_vocab_size=7))
    assert model.lm_head.weight is model.embedding.token_embedding.weight
    assert model.embedding.token_embedding.weight.shape == (7, SMALL.d_model)
    assert model.encoder.embedding.token_embedding.weight.shape == (V, SMALL.d_model)
    assert model(torch.randint(V, (1, 3)), torch.randint(7, (1, 2))).shape == (1, 2, 7)


@pytest.mark.parametrize(
    ("form", "loss", "uses"),
    [
        (Decoder, generation_loss, ("embedding.token_embedding", "lm_head")),
        (Seq2Seq, translation_loss, ("encoder.embedding.token_embedding", "embedding.token_embedding", "lm_head")),
    ],
    ids=["generate", "translate"],
)
def test_the_gradient_of_a_tied_weight_is_the_sum_over_its_uses(
    form: type[nn.Module], loss: Loss, uses: tuple[str, ...], batch: Batch
) -> None:
    tied, untied = (form(replace(SMALL, tie_embeddings=tie), SIZES) for tie in (True, False))
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        loss(model, batch).backward()
    parts = [untied.get_submodule(use).weight.grad for use in uses]
    assert all(part.abs().sum() > 0 for part in parts)
    torch.testing.assert_close(tied.lm_head.weight.grad, torch.stack(parts).sum(0), rtol=0, atol=1e-11)


def test_tied_weights_stay_tied_when_moved_and_loaded() -> None:
    model = Decoder(SMALL, SIZES)
    model.load_state_dict(Decoder(SMALL, SIZES).state_dict())
    model.to(torch.float32)
    assert model.lm_head.weight.data_ptr() == model.embedding.token_embedding.weight.data_ptr()


# ------------------------------------------------------------------------------------------ dropout


@forms
def test_dropout_acts_in_training_only(form: type[nn.Module], loss: Loss, batch: Batch) -> None:
    model = form(replace(SMALL, dropout=0.3, attention_dropout=0.3), SIZES)
    assert loss(model, batch) != loss(model, batch)
    model.eval()
    assert loss(model, batch) == loss(model, batch)
