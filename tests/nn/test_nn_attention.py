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
from triform.nn import kernels
from triform.nn.attention import Attention
from triform.nn.block import Block, CrossBlock, Here
from triform.nn.cache import NO_CACHE, NoCache
from triform.nn.choice import automatic
from triform.nn.embedding import Embedding
from triform.nn.feedforward import FeedForward
from triform.nn.kernels import Kernel, explicit, frugal, fused
from triform.nn.masks import Rule, causal, everything, real, window
from triform.nn.positions import Relation, relation
from triform.nn.rows import Packed

TINY = ModelConfig(d_model=4, d_ff=6, n_layers=1, n_heads=2, dropout=0.0)
RULE = causal & window(2) & real(torch.tensor([[True, True, True], [False, True, True]]))
SOURCE_RULE = real(torch.tensor([[True, True, False, True], [True, False, False, False]]))
NO_RELATION = Relation(TINY, 0, causal=False)
PLACES = torch.arange(3)


def here(rule: Rule, t: int = 3) -> Here:
    return Here(rule, torch.arange(t), NO_CACHE)


def gradients_are_right(
    module: nn.Module, forward: Callable[..., Tensor], *inputs: Tensor, fast: bool = False
) -> bool:
    """Finite differences in every parameter and every input (fast: in one direction of all of them at once).

    `forward` calls its first argument.
    """
    names = [name for name, _ in module.named_parameters()]

    def function(*values: Tensor) -> Tensor:
        parameters = dict(zip(names, values[: len(names)], strict=True))
        return forward(lambda *arguments: functional_call(module, parameters, arguments), *values[len(names) :])

    values = [p.detach().clone() for p in module.parameters()] + list(inputs)
    return torch.autograd.gradcheck(function, [value.requires_grad_() for value in values], fast_mode=fast)


@pytest.mark.parametrize("kernel", [explicit, fused, frugal, automatic])
@pytest.mark.parametrize("biased", [True, False])
def test_attention_has_the_gradients_of_what_it_computes(kernel: Kernel, biased: bool) -> None:
    attention = Attention(replace(TINY, bias=biased, qkv_bias=biased), NO_RELATION, kernel)
    x, source = torch.randn(2, 3, 4), torch.randn(2, 4, 4)
    assert gradients_are_right(attention, lambda call, x: call(x, x, RULE, PLACES, NoCache()), x)
    assert gradients_are_right(
        attention, lambda call, x, source: call(x, source, SOURCE_RULE, PLACES, NoCache()), x, source
    )


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_block_has_the_gradients_of_what_it_computes(norm_position: str, activation: str) -> None:
    block = Block(replace(TINY, norm_position=norm_position, activation=activation), NO_RELATION)
    assert gradients_are_right(block, lambda call, x: call(x, here(RULE)), torch.randn(2, 3, 4))


RULES = {"one window": RULE, "packed": causal & Packed([2, 1]).rule, "both ways": everything}
VARIANTS = [
    ({"score": score, "positions": positions}, rule)
    for score in get_args(ScoreKind)
    for positions in get_args(PositionKind)
    for rule in RULES
    if not (score == "additive" and positions in ("rotary", "relative"))
]
VARIANTS += [
    ({"norm": norm, "activation": activation}, "one window")
    for norm in get_args(NormKind)
    for activation in get_args(ActivationKind)
]


@pytest.mark.parametrize(
    ("settings", "rule"), VARIANTS, ids=lambda x: x if isinstance(x, str) else "-".join(x.values())
)
def test_every_variant_of_a_block_has_the_gradients_of_what_it_computes(settings: dict, rule: str) -> None:
    config = replace(TINY, n_kv_heads=1, n_buckets=6, **settings)
    block = Block(config, relation(config, 8, causal=rule != "both ways"))
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.7)
    x = torch.randn(1 if rule == "packed" else 2, 3, 4)
    assert gradients_are_right(block, lambda call, x: call(x, here(RULES[rule])), x, fast=True)


@pytest.mark.parametrize("kernel", [explicit, frugal])
@pytest.mark.parametrize("settings", [{"score": "additive", "positions": "t5"}, {"score": "cosine"}])
def test_learned_scores_have_the_gradients_of_what_they_compute(
    kernel: Kernel, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MOST_AT_ONCE", 1)  # a query at a time
    config = replace(TINY, n_buckets=4, **settings)
    attention = Attention(config, relation(config, 8, causal=True), kernel)
    assert gradients_are_right(
        attention, lambda call, x: call(x, x, RULE, PLACES, NoCache()), torch.randn(2, 3, 4), fast=True
    )


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_cross_block_has_the_gradients_of_what_it_computes(norm_position: str) -> None:
    block = CrossBlock(replace(TINY, norm_position=norm_position), NO_RELATION)
    x, source = torch.randn(2, 3, 4), torch.randn(2, 4, 4)
    assert gradients_are_right(block, lambda call, x, source: call(x, here(RULE), source, SOURCE_RULE), x, source)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("scale", [True, False])
def test_an_embedding_has_the_gradients_of_what_it_computes(positions: str, scale: bool) -> None:
    embedding = Embedding(replace(TINY, positions=positions, scale_embeddings=scale), vocab_size=5, max_len=4)
    tokens, places = torch.tensor([[0, 3, 3], [4, 1, 0]]), torch.tensor([0, 1, 3])
    assert gradients_are_right(embedding, lambda call: call(tokens, places))


def test_embeddings_are_the_scaled_token_plus_the_position() -> None:
    embedding = Embedding(replace(TINY, scale_embeddings=True), vocab_size=5, max_len=4)
    tokens, places = torch.tensor([[1, 2], [4, 0]]), torch.tensor([[0, 1], [3, 2]])
    got = embedding(tokens, places)
    for b in range(2):
        for t in range(2):
            token, place = (
                embedding.tokens.weight[tokens[b, t]],
                embedding.positions.table.weight[places[b, t]],
            )
            torch.testing.assert_close(got[b, t], token * 2.0 + place)  # sqrt(4) = 2


def test_positions_alike_for_all_rows_may_be_given_once() -> None:
    embedding = Embedding(TINY, vocab_size=5, max_len=4)
    tokens, places = torch.tensor([[1, 2], [4, 0]]), torch.tensor([1, 3])
    assert torch.equal(embedding(tokens, places), embedding(tokens, places.expand(2, 2)))


def test_heads_do_not_mix_before_the_output_projection() -> None:
    """Values of head 0 alone reach the first half of what the output projection reads."""
    attention = Attention(TINY, NO_RELATION)
    with torch.no_grad():
        attention.out.weight.copy_(torch.eye(4))
        attention.out.bias.zero_()
    x = torch.randn(1, 3, 4)
    before = attention(x, x, causal, PLACES, NoCache())
    with torch.no_grad():
        attention.key_value.weight[4:6] += 1.0  # values of head 0
    after = attention(x, x, causal, PLACES, NoCache())
    assert not torch.isclose(before[..., :2], after[..., :2]).any()
    assert torch.equal(before[..., 2:], after[..., 2:])


def test_without_positions_attention_does_not_see_order() -> None:
    attention, x = Attention(TINY, NO_RELATION), torch.randn(1, 6, 4)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    straight, shuffled = (attention(y, y, everything, torch.arange(6), NoCache()) for y in (x, x[:, order]))
    torch.testing.assert_close(shuffled, straight[:, order], rtol=0, atol=1e-12)


def test_attention_dropout_acts_in_training_only() -> None:
    places = torch.arange(6)
    attention, x = Attention(replace(TINY, attention_dropout=0.5), NO_RELATION), torch.randn(1, 6, 4)
    assert not torch.equal(*(attention(x, x, everything, places, NoCache()) for _ in range(2)))
    attention.eval()
    assert torch.equal(*(attention(x, x, everything, places, NoCache()) for _ in range(2)))
    plain = Attention(TINY, NO_RELATION)
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, x, everything, places, NoCache()), plain(x, x, everything, places, NoCache()))


def test_dropout_of_a_block_acts_in_training_only() -> None:
    block, x = Block(replace(TINY, dropout=0.5), NO_RELATION), torch.randn(1, 6, 4)
    assert not torch.equal(*(block(x, here(everything, 6)) for _ in range(2)))
    block.eval()
    assert torch.equal(*(block(x, here(everything, 6)) for _ in range(2)))


def test_a_mask_made_for_inference_serves_training_too() -> None:
    """`causal` is one object for the whole program; what inference left in it must not break autograd."""
    attention, past = Attention(TINY, NO_RELATION), torch.randn(1, 5, 4)
    with torch.inference_mode():
        attention(past[:, 3:], past, causal, torch.arange(3, 5), NoCache())
    attention(past[:, 3:], past, causal, torch.arange(3, 5), NoCache()).sum().backward()
    assert attention.query.weight.grad.isfinite().all()


def test_bias_settings_say_which_biases_there_are() -> None:
    def biased(config: ModelConfig) -> set[str]:
        return {name for name, _ in Block(config, NO_RELATION).named_parameters() if name.endswith("bias")}

    qkv = {"attention.query.bias", "attention.key_value.bias"}
    rest = {"attention.out.bias", "feedforward.up.bias", "feedforward.down.bias"}
    rest |= {"attend.norm.bias", "think.norm.bias"}
    assert biased(TINY) == qkv | rest
    assert biased(replace(TINY, qkv_bias=False)) == rest
    assert biased(replace(TINY, bias=False)) == qkv


def test_feedforward_treats_each_position_alone() -> None:
    feedforward, x = FeedForward(TINY), torch.randn(2, 5, 4)
    changed = x.clone()
    changed[:, 2] += 1.0
    same = torch.tensor([0, 1, 3, 4])
    assert torch.equal(feedforward(x)[:, same], feedforward(changed)[:, same])
    assert not torch.isclose(feedforward(x)[:, 2], feedforward(changed)[:, 2]).any()
