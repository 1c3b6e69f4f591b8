"""How large the reference systems are, and how a model stands before it has learned anything."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.config.presets import REPORTED_SIZES, preset
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq

FORMS = {"classify": Classifier, "generate": Decoder, "translate": Seq2Seq}
WIDE = ModelConfig(d_model=128, d_ff=512, n_layers=2, n_heads=4, dropout=0.0)
SIZES = DataSizes(vocab_size=1000, max_len=32, n_labels=5)


def build_on_meta(name: str) -> nn.Module:
    config = preset(name)
    with torch.device("meta"):
        return FORMS[config.task](config.model, REPORTED_SIZES[name])


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# ------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize("name", REPORTED_SIZES)
def test_every_preset_of_reported_size_can_be_built_without_memory(name: str) -> None:
    model, sizes = build_on_meta(name), REPORTED_SIZES[name]
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    tokens = torch.zeros(2, sizes.max_len, dtype=torch.long, device="meta")
    output = model(tokens, tokens) if isinstance(model, Seq2Seq) else model(tokens)
    expected = (2, sizes.n_labels) if sizes.n_labels else (2, sizes.max_len, sizes.vocab_size)
    assert output.shape == expected


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("speeches-classifier", 576_467),  # as reported
        ("speeches-lm", 863_243),  # as reported
        ("speeches-window", 863_243),  # a window has no parameters
        ("gpt2-small", 124_439_808),  # as published: openai-community/gpt2
        ("transformer-base", 37_000 * 512 + 18 * 1_050_624 + 12 * 2_099_712 + 30 * 1_024),
    ],
)
def test_models_have_the_reported_number_of_parameters(name: str, parameters: int) -> None:
    assert count_parameters(build_on_meta(name)) == parameters


# ------------------------------------------------------------------------------------------ first weights


def all_forms(**settings: object) -> list[nn.Module]:
    config = replace(WIDE, **settings)
    return [form(config, SIZES) for form in FORMS.values()]


def test_biases_start_at_zero_and_norms_at_one() -> None:
    for model in all_forms(head_hidden=7):
        biases = {name: p for name, p in model.named_parameters() if name.endswith("bias")}
        assert biases
        for name, bias in biases.items():
            assert not bias.any(), name
        norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
        assert norms
        assert all((norm.weight == 1).all() for norm in norms)


def test_embeddings_that_are_not_tied_start_at_one_over_sqrt_d() -> None:
    for model in all_forms(tie_embeddings=False):
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                assert module.weight.std().item() == pytest.approx(WIDE.d_model**-0.5, rel=0.05)


def residual_variances(model: Decoder, tokens: Tensor) -> list[float]:
    """The variance of the residual stream behind each block."""
    variances: list[float] = []
    hooks = [
        block.register_forward_hook(lambda _module, _inputs, y: variances.append(y.var().item()))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return variances


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_residual_stream_neither_grows_nor_fades_with_depth(order: str) -> None:
    tokens = torch.randint(SIZES.vocab_size, (4, 32))
    last = {}
    for depth in (2, 24):
        variances = residual_variances(Decoder(replace(WIDE, n_layers=depth, norm_position=order), SIZES), tokens)
        assert len(variances) == depth
        assert all(1 / WIDE.d_model < variance < 1.1 for variance in variances)
        last[depth] = variances[-1]
    assert 0.5 < last[24] / last[2] < 2


@pytest.mark.parametrize("depth", [2, 24])
def test_gradients_reach_the_first_layer_as_they_reach_the_last(depth: int) -> None:
    model, tokens = Decoder(replace(WIDE, n_layers=depth), SIZES), torch.randint(SIZES.vocab_size, (4, 33))
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    first, last = (model.blocks[n].ffn.up_proj.weight.grad.norm().item() for n in (0, -1))
    assert 0.1 < first / last < 10


@pytest.mark.parametrize("style", [{}, {"positions": "sinusoidal", "scale_embeddings": True}])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("d_model", [64, 256])
def test_a_fresh_decoder_guesses_about_evenly(style: dict, tie: bool, d_model: int) -> None:
    config = replace(WIDE, d_model=d_model, d_ff=4 * d_model, tie_embeddings=tie, **style)
    model, tokens = Decoder(config, SIZES), torch.randint(SIZES.vocab_size, (8, 33))
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(SIZES.vocab_size), abs=1.0)


def test_the_same_seed_gives_the_same_weights() -> None:
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(Decoder(WIDE, SIZES))
    first, same, other = ([p.detach() for p in model.parameters()] for model in models)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not torch.equal(first[0], other[0])
