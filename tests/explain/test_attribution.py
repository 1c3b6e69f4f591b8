"""Attributions equal gradients taken another way, add up to what they promise, and leave the model as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.explain.attention_maps import Attribution
from triform.explain.attribution import compute_attributions
from triform.models.encoder import Classifier
from triform.text import UNK

VOCAB_SIZE, N_LABELS = 20, 3
TOKENS = [7, 12, 5, 9, 19, 4]
MODEL_SETTINGS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary"},
    {"positions": "none", "norm_position": "post"},
    {"norm_position": "post", "final_norm": False, "activation": "relu"},
    {"norm": "rms", "activation": "swiglu", "scale_embeddings": True},
    {"bigram_buckets": 40},
    {"attention_score": "cosine", "positions": "relative", "head_hidden": 5},
    {"window": 2, "n_kv_heads": 1},
]
EVERY_SETTING = pytest.mark.parametrize("settings", MODEL_SETTINGS, ids=str)


def build_model(**settings: Any) -> Classifier:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "n_layers": 2, "n_heads": 2, "dropout": 0.3, "max_distance": 6}
    model = Classifier(
        ModelConfig(**sizes | settings), DataSizes(vocab_size=VOCAB_SIZE, max_len=32, n_labels=N_LABELS)
    )
    return model.eval()


def train_model(model: Classifier) -> Classifier:
    """Sure of itself: the label is the largest token modulo three."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, VOCAB_SIZE, (32, len(TOKENS)), generator=generator)
    labels = tokens.amax(1) % N_LABELS
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return model


def attribute(model: Classifier, text: list[int] = TOKENS, label: int = 1) -> tuple[Attribution, Attribution]:
    pieces = [f"t{token}" for token in text]
    integrated, by_input = compute_attributions(
        model, torch.tensor([text]), label, unknown_token=UNK, pieces=pieces, label_name=f"label {label}"
    )
    return integrated, by_input


def label_logit(model: Classifier, tokens: list[int], label: int) -> float:
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0, label].item()


@EVERY_SETTING
def test_gradient_times_input_equals_the_gradient_of_the_embedding_table(settings: dict[str, Any]) -> None:
    model = build_model(**settings)
    table = model.encoder.embedding.token_embedding.weight
    (gradient,) = torch.autograd.grad(model(torch.tensor([TOKENS]))[0, 1], table)  # every token comes once
    expected = [(gradient[token] @ table[token]).item() for token in TOKENS]
    assert attribute(model)[1].values == pytest.approx(expected, abs=1e-6)


def test_a_token_that_comes_twice_has_two_values_of_its_own() -> None:
    model, text = build_model(), [7, 5, 7]
    table = model.encoder.embedding.token_embedding.weight
    (gradient,) = torch.autograd.grad(model(torch.tensor([text]))[0, 1], table)
    first, _, second = attribute(model, text)[1].values
    assert first + second == pytest.approx((gradient[7] @ table[7]).item(), abs=1e-6)
    assert first != second


@EVERY_SETTING
@pytest.mark.parametrize("label", range(N_LABELS))
def test_integrated_gradients_add_up_to_the_gain_before_training(settings: dict[str, Any], label: int) -> None:
    assert_adds_up(build_model(**settings), label)


@EVERY_SETTING
def test_integrated_gradients_add_up_to_the_gain_after_training(settings: dict[str, Any]) -> None:
    model = train_model(build_model(**settings))
    for label in range(N_LABELS):
        assert_adds_up(model, label)


def assert_adds_up(model: Classifier, label: int) -> None:
    gain = label_logit(model, TOKENS, label) - label_logit(model, [UNK] * len(TOKENS), label)
    integrated, by_input = attribute(model, label=label)
    assert integrated.total == pytest.approx(gain, abs=1e-5)
    assert sum(integrated.values) == pytest.approx(gain, rel=0.01, abs=1e-5)
    assert math.isnan(by_input.total)


def build_linear_model(**settings: Any) -> Classifier:
    """Blocks that add nothing and no norm after them: the score is a mean of embeddings, weighed."""
    model = build_model(final_norm=False, positions="none", **settings)
    for name, parameter in model.named_parameters():
        if ".out_proj." in name or ".down_proj." in name:
            nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize("scaled", [False, True])
def test_both_are_exact_where_the_model_is_linear(scaled: bool) -> None:
    model = build_linear_model(scale_embeddings=scaled)
    table, weight = (
        model.encoder.embedding.token_embedding.weight.detach(),
        model.classification_head.weight.detach(),
    )
    factor = (4.0 if scaled else 1.0) / len(TOKENS)  # sqrt(16)
    for label in range(N_LABELS):
        integrated, by_input = attribute(model, label=label)
        against = [(weight[label] @ (table[token] - table[UNK]) * factor).item() for token in TOKENS]
        assert integrated.values == pytest.approx(against, abs=1e-5)
        assert integrated.total == pytest.approx(sum(against), abs=1e-5)
        expected = [(weight[label] @ table[token] * factor).item() for token in TOKENS]
        assert by_input.values == pytest.approx(expected, abs=1e-5)


def test_labels_have_their_own_values_and_names() -> None:
    model = build_model()
    attributions_by_label = [attribute(model, label=label)[0] for label in range(N_LABELS)]
    assert [attribution.label for attribution in attributions_by_label] == ["label 0", "label 1", "label 2"]
    assert len({attribution.values for attribution in attributions_by_label}) == N_LABELS


def test_each_piece_has_a_value_and_each_method_its_name() -> None:
    integrated, by_input = attribute(build_model())
    assert (integrated.method, by_input.method) == ("integrated gradients", "gradient × input")
    assert integrated.pieces == by_input.pieces == tuple(f"t{token}" for token in TOKENS)
    assert len(integrated.values) == len(by_input.values) == len(TOKENS)


def test_unknown_words_neither_speak_for_nor_against() -> None:
    integrated, _ = attribute(build_model(), [UNK, UNK, UNK])
    assert integrated.total == 0
    assert integrated.values == (0, 0, 0)


@pytest.mark.parametrize("length", [1, 32])
def test_the_shortest_and_the_longest_text_are_explained(length: int) -> None:
    integrated, _ = attribute(build_model(), (TOKENS * 6)[:length])
    assert sum(integrated.values) == pytest.approx(integrated.total, rel=0.01, abs=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    model = build_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = label_logit(model, TOKENS, 0)
    attribute(model)
    assert not model.encoder.embedding.token_embedding._forward_hooks
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert label_logit(model, TOKENS, 0) == expected


def test_no_hook_is_left_where_the_model_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model()

    def broken(self: Classifier, tokens: Tensor) -> Tensor:
        raise ZeroDivisionError

    monkeypatch.setattr(Classifier, "forward", broken)
    with pytest.raises(ZeroDivisionError):
        attribute(model)
    assert not model.encoder.embedding.token_embedding._forward_hooks


def test_gradients_are_taken_where_the_caller_takes_none() -> None:
    model = build_model()
    expected = attribute(model)
    with torch.no_grad():
        assert [attribution.values for attribution in attribute(model)] == [
            attribution.values for attribution in expected
        ]


def test_long_texts_are_taken_in_parts_with_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model()
    at_once = attribute(model)[0].values
    monkeypatch.setattr("triform.explain.attribution.MAX_TOKENS_PER_CHUNK", 1)
    assert attribute(model)[0].values == pytest.approx(at_once, abs=1e-6)
