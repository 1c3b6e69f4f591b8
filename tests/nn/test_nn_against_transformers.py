"""Norms, activations and relations equal those of the `transformers` library, forward and backward."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import LlamaConfig, T5Config
    from transformers.activations import NewGELUActivation
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.llama.modeling_llama import (
        LlamaMLP,
        LlamaRMSNorm,
        LlamaRotaryEmbedding,
        apply_rotary_pos_emb,
    )
    from transformers.models.t5.modeling_t5 import T5Attention

from triform.config import ModelConfig
from triform.nn.block import ACTIVATIONS, FeedForward
from triform.nn.masks import full_mask
from triform.nn.norm import NORMS
from triform.nn.positions import AlibiBias, RotaryPosition, T5Bias, alibi_slopes

D, HEADS, MAX_DISTANCE = 24, 4, 300


def config(**settings: object) -> ModelConfig:
    return ModelConfig(**{"d_model": D, "n_heads": HEADS, "d_ff": 40, **settings})


def assert_close(ours: Tensor, theirs: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def assert_same_gradients(ours: Tensor, theirs: Tensor, x: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
    assert_close(ours, theirs)
    cotangent = torch.randn_like(ours)
    actual = torch.autograd.grad(ours, [x, *(ours_grad for ours_grad, _ in pairs)], cotangent)
    expected = torch.autograd.grad(theirs, [x, *(theirs_grad for _, theirs_grad in pairs)], cotangent)
    for ours_grad, theirs_grad in zip(actual, expected, strict=True):
        assert_close(ours_grad, theirs_grad)


def test_rms_norm_equals_llamas() -> None:
    ours, theirs, x = NORMS["rms"](config()), LlamaRMSNorm(D, eps=1e-6), torch.randn(3, 5, D, requires_grad=True)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    theirs.weight.data = ours.weight.detach().clone()
    # Llama's norm computes in float32, whatever it is given
    assert_close(ours(x), theirs(x), atol=1e-5)
    assert_close(ours(x), ours.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt())
    x32 = x.detach().float().requires_grad_()
    ours, theirs = ours.float(), theirs.float()
    actual, expected = (
        torch.autograd.grad(norm(x32).square().sum(), [x32, norm.weight]) for norm in (ours, theirs)
    )
    for ours_grad, theirs_grad in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_equals_the_formula(bias: bool) -> None:
    norm, x = NORMS["layer"](config(bias=bias)), torch.randn(3, 5, D)
    nn.init.normal_(norm.weight)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    expected = (x - mean) / (variance + 1e-5).sqrt() * norm.weight
    if bias:
        nn.init.normal_(norm.bias)
        expected = expected + norm.bias
    assert_close(norm(x), expected)
    assert (norm.bias is None) is not bias


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu_equals_llamas_feedforward(bias: bool) -> None:
    ours = FeedForward(config(activation="swiglu", bias=bias))
    theirs = LlamaMLP(
        LlamaConfig(
            hidden_size=D, num_attention_heads=HEADS, intermediate_size=40, mlp_bias=bias, hidden_act="silu"
        )
    )
    with torch.no_grad():
        for name in ("weight", "bias") if bias else ("weight",):
            gate, value = getattr(ours.up_proj, name).chunk(2)
            getattr(theirs.gate_proj, name).copy_(gate)
            getattr(theirs.up_proj, name).copy_(value)
            getattr(theirs.down_proj, name).copy_(getattr(ours.down_proj, name))
    x = torch.randn(2, 3, D, requires_grad=True)
    assert_same_gradients(ours(x), theirs(x), x, [(ours.down_proj.weight, theirs.down_proj.weight)])
    joined = torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight])
    assert torch.equal(ours.up_proj.weight, joined)
    (ours_grad,) = torch.autograd.grad(ours(x).square().sum(), ours.up_proj.weight)
    theirs_grad = torch.autograd.grad(theirs(x).square().sum(), [theirs.gate_proj.weight, theirs.up_proj.weight])
    assert_close(ours_grad, torch.cat(theirs_grad))


def test_gelu_by_tanh_equals_gpt2s_and_gelu_does_not() -> None:
    x = torch.linspace(-6, 6, 1001, requires_grad=True)
    assert_same_gradients(ACTIVATIONS["gelu_tanh"].build()(x), NewGELUActivation()(x), x, [])
    assert not torch.allclose(ACTIVATIONS["gelu"].build()(x), NewGELUActivation()(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_rotary_positions_equal_llamas(base: float) -> None:
    width, length = D // HEADS, 200
    ours = RotaryPosition(config(positions="rotary", rotary_base=base), length, causal=True)
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=D,
            num_attention_heads=HEADS,
            max_position_embeddings=length,
            rope_parameters={"rope_type": "default", "rope_theta": base},
        )
    )
    assert theirs.inv_freq.numel() == width // 2
    q, k = torch.randn(2, HEADS, 7, width), torch.randn(2, 2, 7, width)
    for positions in (torch.arange(7), torch.arange(190, 197), torch.tensor([[0, 0, 0, 1, 2, 3, 4], range(7)])):
        cos, sin = theirs(q, positions.expand(2, 7))
        expected = apply_rotary_pos_emb(q, k, cos, sin)
        for ours_rotated, theirs_rotated in zip(
            (ours.rotate(q, positions), ours.rotate(k, positions)), expected, strict=True
        ):
            assert_close(ours_rotated, theirs_rotated, atol=1e-4)  # Llama's angles are float32


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (12, 64), (64, 256)])
def test_t5_buckets_equal_t5s_over_all_distances(buckets: int, far: int, causal: bool) -> None:
    ours = T5Bias(config(positions="t5", n_buckets=buckets, max_distance=far), 0, causal=causal)
    distances = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    theirs = T5Attention._relative_position_bucket(
        distances, bidirectional=not causal, num_buckets=buckets, max_distance=far
    )
    assert torch.equal(ours.bucket_index(distances), theirs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("t", "s"), [(9, 9), (200, 200), (3, 150)])
def test_t5_biases_equal_t5s(t: int, s: int, causal: bool) -> None:
    theirs = T5Attention(
        T5Config(d_model=D, d_kv=6, num_heads=HEADS, is_decoder=causal, use_cache=False),
        has_relative_attention_bias=True,
        layer_idx=0,
    )
    ours = T5Bias(config(positions="t5"), 0, causal=causal)
    ours.table.weight.data = theirs.relative_attention_bias.weight.detach().clone()
    expected = theirs.compute_bias(s, s)[:, :, s - t :]  # (1, H, T, S)
    actual = ours.score_bias(torch.randn(1, HEADS, t, 6), full_mask.distances(t, s, torch.device("cpu")))
    assert_close(actual, expected)
    cotangent = torch.randn(1, HEADS, t, s)
    (ours_grad,) = torch.autograd.grad(actual, ours.table.weight, cotangent)
    (theirs_grad,) = torch.autograd.grad(expected, theirs.relative_attention_bias.weight, cotangent)
    assert_close(ours_grad, theirs_grad)


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8, 16, 12, 6, 20])
def test_alibi_slopes_equal_blooms(n_heads: int) -> None:
    biases = build_alibi_tensor(torch.ones(1, 5), n_heads, torch.float64)  # (H, 1, 5): slope times key's place
    assert_close(torch.tensor(alibi_slopes(n_heads)), biases[:, 0, 1], atol=1e-7)
    assert_close(torch.tensor(alibi_slopes(n_heads)) * 4, biases[:, 0, 4], atol=1e-6)


def test_alibi_slopes_are_those_of_the_paper() -> None:
    eight = [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(8) == pytest.approx(eight)
    assert alibi_slopes(16) == pytest.approx([2.0 ** (-n / 2) for n in range(1, 17)])
    assert alibi_slopes(12) == pytest.approx([*eight, *(2.0 ** (-n / 2) for n in (1, 3, 5, 7))])


def test_alibi_differs_from_blooms_biases_by_what_softmax_does_not_see() -> None:
    """Bloom adds slope times the key's place, we minus slope times distance: a constant apart for each query."""
    t = 12
    ours = AlibiBias(config(positions="alibi"), 0, causal=True).score_bias(
        torch.randn(1, HEADS, t, 6), full_mask.distances(t, t, torch.device("cpu"))
    )
    theirs = build_alibi_tensor(torch.ones(1, t), HEADS, torch.float64)  # (H, 1, T)
    hidden = torch.ones(t, t).triu(1).bool()
    weights = [x.masked_fill(hidden, float("-inf")).softmax(-1) for x in (ours[0], theirs.expand(HEADS, t, t))]
    assert_close(*weights, atol=1e-6)
