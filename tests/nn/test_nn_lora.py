"""Adapters: they change nothing at first, learn alone, and become one matrix with what they stand beside."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import DataSizes, LoraLayers, ModelConfig, TrainConfig
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.kernels.bf16_weights import Bf16Weights
from triform.nn.lora import LoraLinear, apply_lora, merge_lora
from triform.training.lora_adapter import merged_weights

CONFIG = ModelConfig(d_model=16, d_ff=32, n_layers=2, n_heads=2, n_kv_heads=1, dropout=0.0)
SIZES = DataSizes(vocab_size=23, max_len=12, n_labels=3)
FORMS: dict[str, type[nn.Module]] = {"classify": Classifier, "generate": Decoder, "translate": Seq2Seq}
TOKENS = torch.arange(20).view(2, 10) % 23
every_form = pytest.mark.parametrize("form", FORMS)


def train_config(**settings: Any) -> TrainConfig:
    return TrainConfig(init_from="a run", **{"lora_rank": 3, "lora_alpha": 5.0, **settings})


def logits_of(model: nn.Module) -> Tensor:
    logits: Tensor = model.eval()(TOKENS, TOKENS) if isinstance(model, Seq2Seq) else model.eval()(TOKENS)
    return logits


def build_model(form: str) -> nn.Module:
    return FORMS[form](CONFIG, SIZES)


def randomise_adapters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            nn.init.normal_(parameter, std=0.3)


@every_form
def test_a_model_starts_exactly_as_its_base(form: str) -> None:
    model = build_model(form)
    before = logits_of(model)
    apply_lora(model, train_config())
    assert any(isinstance(module, LoraLinear) for module in model.modules())
    assert logits_of(model).equal(before)


@every_form
@pytest.mark.parametrize("layers", ["all", "attention"])
def test_merged_weights_give_the_same_scores(form: str, layers: LoraLayers) -> None:
    model = build_model(form)
    plain = {name: parameter.clone() for name, parameter in model.named_parameters()}
    before = logits_of(model)
    apply_lora(model, train_config(lora_layers=layers))
    randomise_adapters(model)
    adapted = logits_of(model)
    assert (adapted - before).abs().max() > 0.01
    weights = {name: tensor.clone() for name, tensor in merged_weights(model).items()}
    merge_lora(model)
    assert list(weights) == list(plain) == [name for name, _ in model.named_parameters()]
    assert (logits_of(model) - adapted).abs().max() <= 1e-9
    assert all(parameter.equal(weights[name]) for name, parameter in model.named_parameters())
    changed = {name for name, tensor in weights.items() if not tensor.equal(plain[name])}
    assert all(("ffn" in name) <= (layers == "all") for name in changed)
    assert len(changed) == sum(
        isinstance(module, nn.Linear) and (layers == "all" or "ffn" not in name) and "blocks" in name
        for name, module in model.named_modules()
    )


def test_an_adapted_layer_is_the_published_formula() -> None:
    owner = nn.ModuleDict({"attn": nn.ModuleDict({"q_proj": nn.Linear(6, 4)})})
    apply_lora(owner, train_config())
    randomise_adapters(owner)
    layer: Any = owner["attn"]["q_proj"]  # type: ignore[index]
    x = torch.randn(5, 6)
    a, b = layer.lora_a.weight, layer.lora_b.weight
    assert a.shape == (3, 6)
    expected = F.linear(x, layer.base.weight, layer.base.bias) + 5.0 / 3 * (x @ a.T) @ b.T
    torch.testing.assert_close(layer(x), expected)


def test_only_adapters_have_gradients() -> None:
    model = build_model("generate")
    apply_lora(model, train_config())
    logits_of(model).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (".lora_" in name), name


def test_dropout_is_of_what_adapters_read_and_only_while_learning() -> None:
    model = build_model("generate")
    apply_lora(model, train_config(lora_dropout=0.5))
    randomise_adapters(model)
    expected = logits_of(model)
    assert logits_of(model).equal(expected)
    assert not model.train()(TOKENS).equal(expected)


def test_adapters_in_half_precision_learn_as_under_autocast() -> None:
    torch.set_default_dtype(torch.float32)
    model = build_model("generate")
    apply_lora(model, train_config())
    randomise_adapters(model)
    other = deepcopy(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with Bf16Weights(model).swapped_in():
            model(TOKENS).float().square().mean().backward()
        other(TOKENS).float().square().mean().backward()
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None), name
        if one.grad is not None and two.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, rtol=0.1, atol=1e-3)
