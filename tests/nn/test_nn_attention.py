"""Gradients of every part against finite differences, and what the parts promise on their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from triform.config import ActivationKind, ModelConfig, NormKind, PositionKind, ScoreKind
from triform.nn.attention import Attention, AttentionKernel, RelativePosition, naive_attention
from triform.nn.block import Block, CrossBlock, FeedForward, LayerContext
from triform.nn.embedding import InputEmbedding
from triform.nn.kernels import tiling
from triform.nn.kernels.dispatch import dispatch_attention
from triform.nn.kernels.packing import PackedLayout
from triform.nn.kernels.sdpa import sdpa_attention
from triform.nn.kernels.tiling import chunked_attention
from triform.nn.masks import AttentionMask, PaddingMask, causal_mask, full_mask, window_mask
from triform.nn.positions import build_relative_position
from triform.nn.scores import SCORES

TINY = ModelConfig(d_model=4, d_ff=6, n_layers=1, n_heads=2, dropout=0.0)
MASK = causal_mask & window_mask(2) & PaddingMask(torch.tensor([[True, True, True], [False, True, True]]))
SOURCE_MASK = PaddingMask(torch.tensor([[True, True, False, True], [True, False, False, False]]))
NO_POSITION = RelativePosition()
POSITIONS = torch.arange(3)


def layer_context(mask: AttentionMask, t: int = 3) -> LayerContext:
    return LayerContext(mask, torch.arange(t))


def gradients_match(module: nn.Module, forward: Callable[..., Tensor], *inputs: Tensor, fast: bool = False) -> bool:
    """Finite differences in every parameter and every input (fast: in one direction of all of them at once).

    `forward` calls its first argument.
    """
    names = [name for name, _ in module.named_parameters()]

    def function(*values: Tensor) -> Tensor:
        parameters = dict(zip(names, values[: len(names)], strict=True))
        return forward(lambda *arguments: functional_call(module, parameters, arguments), *values[len(names) :])

    values = [p.detach().clone() for p in module.parameters()] + list(inputs)
    return torch.autograd.gradcheck(function, [value.requires_grad_() for value in values], fast_mode=fast)


@pytest.mark.parametrize("kernel", [naive_attention, sdpa_attention, chunked_attention, dispatch_attention])
@pytest.mark.parametrize("biased", [True, False])
def test_attention_has_the_gradients_of_what_it_computes(kernel: AttentionKernel, biased: bool) -> None:
    attention = Attention(replace(TINY, bias=biased, qkv_bias=biased), NO_POSITION)
    attention.kernel = kernel
    x, source = torch.randn(2, 3, 4), torch.randn(2, 4, 4)
    assert gradients_match(attention, lambda call, x: call(x, x, MASK, POSITIONS), x)
    assert gradients_match(attention, lambda call, x, source: call(x, source, SOURCE_MASK, POSITIONS), x, source)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_block_has_the_gradients_of_what_it_computes(norm_position: str, activation: str) -> None:
    block = Block(replace(TINY, norm_position=norm_position, activation=activation), NO_POSITION)
    assert gradients_match(block, lambda call, x: call(x, layer_context(MASK)), torch.randn(2, 3, 4))


MASKS = {"one window": MASK, "packed": causal_mask & PackedLayout([2, 1]).mask, "both ways": full_mask}
VARIANTS = [
    ({"attention_score": score, "positions": positions}, rule)
    for score in get_args(ScoreKind)
    for positions in get_args(PositionKind)
    for rule in MASKS
    if not (score == "additive" and positions in ("rotary", "relative"))
]
VARIANTS += [
    ({"norm": norm, "activation": activation}, "one window")
    for norm in get_args(NormKind)
    for activation in get_args(ActivationKind)
]


@pytest.mark.parametrize(
    ("settings", "mask"), VARIANTS, ids=lambda x: x if isinstance(x, str) else "-".join(x.values())
)
def test_every_variant_of_a_block_has_the_gradients_of_what_it_computes(settings: dict, mask: str) -> None:
    config = replace(TINY, n_kv_heads=1, n_buckets=6, **settings)
    block = Block(config, build_relative_position(config, 8, causal=mask != "both ways"))
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.7)
    x = torch.randn(1 if mask == "packed" else 2, 3, 4)
    assert gradients_match(block, lambda call, x: call(x, layer_context(MASKS[mask])), x, fast=True)


@pytest.mark.parametrize("kernel", [naive_attention, chunked_attention])
@pytest.mark.parametrize(
    "settings", [{"attention_score": "additive", "positions": "t5"}, {"attention_score": "cosine"}]
)
def test_learned_scores_have_the_gradients_of_what_they_compute(
    kernel: AttentionKernel, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "MAX_CHUNK_ELEMENTS_CPU", 1)  # a query at a time
    config = replace(TINY, n_buckets=4, **settings)
    position = build_relative_position(config, 8, causal=True)
    attention = Attention(config, position, SCORES[config.attention_score])
    attention.kernel = kernel
    assert gradients_match(attention, lambda call, x: call(x, x, MASK, POSITIONS), torch.randn(2, 3, 4), fast=True)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_cross_block_has_the_gradients_of_what_it_computes(norm_position: str) -> None:
    block = CrossBlock(replace(TINY, norm_position=norm_position), NO_POSITION)
    x, source = torch.randn(2, 3, 4), torch.randn(2, 4, 4)
    assert gradients_match(
        block, lambda call, x, source: call(x, layer_context(MASK), source, SOURCE_MASK), x, source
    )


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("scale", [True, False])
def test_an_embedding_has_the_gradients_of_what_it_computes(positions: str, scale: bool) -> None:
    embedding = InputEmbedding(replace(TINY, positions=positions, scale_embeddings=scale), vocab_size=5, max_len=4)
    tokens, token_positions = torch.tensor([[0, 3, 3], [4, 1, 0]]), torch.tensor([0, 1, 3])
    assert gradients_match(embedding, lambda call: call(tokens, token_positions))


def test_embeddings_are_the_scaled_token_plus_the_position() -> None:
    embedding = InputEmbedding(replace(TINY, scale_embeddings=True), vocab_size=5, max_len=4)
    tokens, positions = torch.tensor([[1, 2], [4, 0]]), torch.tensor([[0, 1], [3, 2]])
    actual = embedding(tokens, positions)
    for b in range(2):
        for t in range(2):
            token_vector, position_vector = (
                embedding.token_embedding.weight[tokens[b, t]],
                embedding.position_embedding.table.weight[positions[b, t]],
            )
            torch.testing.assert_close(actual[b, t], token_vector * 2.0 + position_vector)  # sqrt(4) = 2


def test_positions_alike_for_all_rows_may_be_given_once() -> None:
    embedding = InputEmbedding(TINY, vocab_size=5, max_len=4)
    tokens, positions = torch.tensor([[1, 2], [4, 0]]), torch.tensor([1, 3])
    assert torch.equal(embedding(tokens, positions), embedding(tokens, positions.expand(2, 2)))


def test_heads_do_not_mix_before_the_output_projection() -> None:
    """Values of head 0 alone reach the first half of what the output projection reads."""
    attention = Attention(TINY, NO_POSITION)
    with torch.no_grad():
        attention.out_proj.weight.copy_(torch.eye(4))
        attention.out_proj.bias.zero_()
    x = torch.randn(1, 3, 4)
    before = attention(x, x, causal_mask, POSITIONS)
    with torch.no_grad():
        attention.kv_proj.weight[4:6] += 1.0  # values of head 0
    after = attention(x, x, causal_mask, POSITIONS)
    assert not torch.isclose(before[..., :2], after[..., :2]).any()
    assert torch.equal(before[..., 2:], after[..., 2:])


def test_without_positions_attention_does_not_see_order() -> None:
    attention, x = Attention(TINY, NO_POSITION), torch.randn(1, 6, 4)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    ordered, shuffled = (attention(y, y, full_mask, torch.arange(6)) for y in (x, x[:, order]))
    torch.testing.assert_close(shuffled, ordered[:, order], rtol=0, atol=1e-12)


def test_attention_dropout_acts_in_training_only() -> None:
    positions = torch.arange(6)
    attention, x = Attention(replace(TINY, attention_dropout=0.5), NO_POSITION), torch.randn(1, 6, 4)
    assert not torch.equal(*(attention(x, x, full_mask, positions) for _ in range(2)))
    attention.eval()
    assert torch.equal(*(attention(x, x, full_mask, positions) for _ in range(2)))
    plain = Attention(TINY, NO_POSITION)
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, x, full_mask, positions), plain(x, x, full_mask, positions))


def test_dropout_of_a_block_acts_in_training_only() -> None:
    block, x = Block(replace(TINY, dropout=0.5), NO_POSITION), torch.randn(1, 6, 4)
    assert not torch.equal(*(block(x, layer_context(full_mask, 6)) for _ in range(2)))
    block.eval()
    assert torch.equal(*(block(x, layer_context(full_mask, 6)) for _ in range(2)))


def test_a_mask_made_for_inference_serves_training_too() -> None:
    """`causal` is one object for the whole program; what inference left in it must not break autograd."""
    attention, past = Attention(TINY, NO_POSITION), torch.randn(1, 5, 4)
    with torch.inference_mode():
        attention(past[:, 3:], past, causal_mask, torch.arange(3, 5))
    attention(past[:, 3:], past, causal_mask, torch.arange(3, 5)).sum().backward()
    assert attention.q_proj.weight.grad.isfinite().all()


def test_bias_settings_say_which_biases_there_are() -> None:
    def bias_names(config: ModelConfig) -> set[str]:
        return {name for name, _ in Block(config, NO_POSITION).named_parameters() if name.endswith("bias")}

    qkv = {"attn.q_proj.bias", "attn.kv_proj.bias"}
    rest = {"attn.out_proj.bias", "ffn.up_proj.bias", "ffn.down_proj.bias"}
    rest |= {"attn_norm.bias", "ffn_norm.bias"}
    assert bias_names(TINY) == qkv | rest
    assert bias_names(replace(TINY, qkv_bias=False)) == rest
    assert bias_names(replace(TINY, bias=False)) == qkv


def test_feedforward_treats_each_position_alone() -> None:
    feedforward, x = FeedForward(TINY), torch.randn(2, 5, 4)
    changed = x.clone()
    changed[:, 2] += 1.0
    same = torch.tensor([0, 1, 3, 4])
    assert torch.equal(feedforward(x)[:, same], feedforward(changed)[:, same])
    assert not torch.isclose(feedforward(x)[:, 2], feedforward(changed)[:, 2]).any()
