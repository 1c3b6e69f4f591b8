"""Attributions equal gradients taken another way, add up to what they promise, and leave the model as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.explain.attribute import attributions
from triform.explain.maps import Attribution
from triform.models.encoder import Classifier
from triform.text import UNK

V, LABELS = 20, 3
TEXT = [7, 12, 5, 9, 19, 4]
KINDS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary"},
    {"positions": "none", "norm_position": "post"},
    {"norm_position": "post", "final_norm": False, "activation": "relu"},
    {"norm": "rms", "activation": "swiglu", "scale_embeddings": True},
    {"pair_rows": 40},
    {"score": "cosine", "positions": "relative", "head_hidden": 5},
    {"window": 2, "n_kv_heads": 1},
]
EVERY_KIND = pytest.mark.parametrize("chosen", KINDS, ids=str)


def made(**chosen: Any) -> Classifier:
    torch.manual_seed(0)
    shape = {"d_model": 16, "d_ff": 32, "n_layers": 2, "n_heads": 2, "dropout": 0.3, "max_distance": 6}
    model = Classifier(ModelConfig(**shape | chosen), Sizes(vocab_size=V, max_len=32, n_labels=LABELS))
    return model.eval()


def trained(model: Classifier) -> Classifier:
    """Sure of itself: the label is the largest token modulo three."""
    numbers = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, V, (32, len(TEXT)), generator=numbers)
    labels = tokens.amax(1) % LABELS
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return model


def explained(model: Classifier, text: list[int] = TEXT, label: int = 1) -> tuple[Attribution, Attribution]:
    pieces = [f"t{token}" for token in text]
    integrated, by_input = attributions(
        model, torch.tensor([text]), label, unknown=UNK, pieces=pieces, name=f"label {label}"
    )
    return integrated, by_input


def score(model: Classifier, tokens: list[int], label: int) -> float:
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0, label].item()


@EVERY_KIND
def test_gradient_times_input_equals_the_gradient_of_the_embedding_table(chosen: dict[str, Any]) -> None:
    model = made(**chosen)
    table = model.encoder.embedding.tokens.weight
    (gradient,) = torch.autograd.grad(model(torch.tensor([TEXT]))[0, 1], table)  # every token comes once
    expected = [(gradient[token] @ table[token]).item() for token in TEXT]
    assert explained(model)[1].values == pytest.approx(expected, abs=1e-6)


def test_a_token_that_comes_twice_has_two_values_of_its_own() -> None:
    model, text = made(), [7, 5, 7]
    table = model.encoder.embedding.tokens.weight
    (gradient,) = torch.autograd.grad(model(torch.tensor([text]))[0, 1], table)
    first, _, second = explained(model, text)[1].values
    assert first + second == pytest.approx((gradient[7] @ table[7]).item(), abs=1e-6)
    assert first != second


@EVERY_KIND
@pytest.mark.parametrize("label", range(LABELS))
def test_integrated_gradients_add_up_to_the_gain_before_training(chosen: dict[str, Any], label: int) -> None:
    assert_adds_up(made(**chosen), label)


@EVERY_KIND
def test_integrated_gradients_add_up_to_the_gain_after_training(chosen: dict[str, Any]) -> None:
    model = trained(made(**chosen))
    for label in range(LABELS):
        assert_adds_up(model, label)


def assert_adds_up(model: Classifier, label: int) -> None:
    gain = score(model, TEXT, label) - score(model, [UNK] * len(TEXT), label)
    integrated, by_input = explained(model, label=label)
    assert integrated.total == pytest.approx(gain, abs=1e-5)
    assert sum(integrated.values) == pytest.approx(gain, rel=0.01, abs=1e-5)
    assert math.isnan(by_input.total)


def linear(**chosen: Any) -> Classifier:
    """Blocks that add nothing and no norm after them: the score is a mean of embeddings, weighed."""
    model = made(final_norm=False, positions="none", **chosen)
    for name, parameter in model.named_parameters():
        if ".out." in name or ".down." in name:
            nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize("scaled", [False, True])
def test_both_are_exact_where_the_model_is_linear(scaled: bool) -> None:
    model = linear(scale_embeddings=scaled)
    table, weight = model.encoder.embedding.tokens.weight.detach(), model.head.weight.detach()
    factor = (4.0 if scaled else 1.0) / len(TEXT)  # sqrt(16)
    for label in range(LABELS):
        integrated, by_input = explained(model, label=label)
        against = [(weight[label] @ (table[token] - table[UNK]) * factor).item() for token in TEXT]
        assert integrated.values == pytest.approx(against, abs=1e-5)
        assert integrated.total == pytest.approx(sum(against), abs=1e-5)
        alone = [(weight[label] @ table[token] * factor).item() for token in TEXT]
        assert by_input.values == pytest.approx(alone, abs=1e-5)


def test_labels_have_their_own_values_and_names() -> None:
    model = made()
    found = [explained(model, label=label)[0] for label in range(LABELS)]
    assert [each.label for each in found] == ["label 0", "label 1", "label 2"]
    assert len({each.values for each in found}) == LABELS


def test_each_piece_has_a_value_and_each_method_its_name() -> None:
    integrated, by_input = explained(made())
    assert (integrated.method, by_input.method) == ("integrated gradients", "gradient × input")
    assert integrated.pieces == by_input.pieces == tuple(f"t{token}" for token in TEXT)
    assert len(integrated.values) == len(by_input.values) == len(TEXT)


def test_unknown_words_neither_speak_for_nor_against() -> None:
    integrated, _ = explained(made(), [UNK, UNK, UNK])
    assert integrated.total == 0
    assert integrated.values == (0, 0, 0)


@pytest.mark.parametrize("length", [1, 32])
def test_the_shortest_and_the_longest_text_are_explained(length: int) -> None:
    integrated, _ = explained(made(), (TEXT * 6)[:length])
    assert sum(integrated.values) == pytest.approx(integrated.total, rel=0.01, abs=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    model = made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = score(model, TEXT, 0)
    explained(model)
    assert not model.encoder.embedding.tokens._forward_hooks
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert score(model, TEXT, 0) == expected


def test_no_hook_is_left_where_the_model_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()

    def broken(self: Classifier, tokens: Tensor) -> Tensor:
        raise ZeroDivisionError

    monkeypatch.setattr(Classifier, "forward", broken)
    with pytest.raises(ZeroDivisionError):
        explained(model)
    assert not model.encoder.embedding.tokens._forward_hooks


def test_gradients_are_taken_where_the_caller_takes_none() -> None:
    model = made()
    expected = explained(model)
    with torch.no_grad():
        assert [each.values for each in explained(model)] == [each.values for each in expected]


def test_long_texts_are_taken_in_parts_with_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    at_once = explained(model)[0].values
    monkeypatch.setattr("triform.explain.attribute.TOKENS_AT_ONCE", 1)
    assert explained(model)[0].values == pytest.approx(at_once, abs=1e-6)
