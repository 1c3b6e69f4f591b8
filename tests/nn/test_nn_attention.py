"""Gradients of every part against finite differences, and what the parts promise on their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from triform.config import ModelConfig
from triform.nn.attention import Attention
from triform.nn.block import Block, CrossBlock
from triform.nn.cache import NO_CACHE, NoCache
from triform.nn.embedding import Embedding
from triform.nn.feedforward import FeedForward
from triform.nn.kernels import Kernel, explicit, fused
from triform.nn.masks import causal, everything, real, window

TINY = ModelConfig(d_model=4, d_ff=6, n_layers=1, n_heads=2, dropout=0.0)
RULE = causal & window(2) & real(torch.tensor([[True, True, True], [False, True, True]]))
SOURCE_RULE = real(torch.tensor([[True, True, False, True], [True, False, False, False]]))


def gradients_are_right(module: nn.Module, forward: Callable[..., Tensor], *inputs: Tensor) -> bool:
    """Finite differences in every parameter and every input; `forward` calls its first argument."""
    names = [name for name, _ in module.named_parameters()]

    def function(*values: Tensor) -> Tensor:
        parameters = dict(zip(names, values[: len(names)], strict=True))
        return forward(lambda *arguments: functional_call(module, parameters, arguments), *values[len(names) :])

    values = [p.detach().clone() for p in module.parameters()] + list(inputs)
    return torch.autograd.gradcheck(function, [value.requires_grad_() for value in values])


@pytest.mark.parametrize("kernel", [explicit, fused])
@pytest.mark.parametrize("biased", [True, False])
def test_attention_has_the_gradients_of_what_it_computes(kernel: Kernel, biased: bool) -> None:
    attention = Attention(replace(TINY, bias=biased, qkv_bias=biased), kernel)
    x, source = torch.randn(2, 3, 4), torch.randn(2, 4, 4)
    assert gradients_are_right(attention, lambda call, x: call(x, x, RULE, NoCache()), x)
    assert gradients_are_right(
        attention, lambda call, x, source: call(x, source, SOURCE_RULE, NoCache()), x, source
    )


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_block_has_the_gradients_of_what_it_computes(norm_position: str, activation: str) -> None:
    block = Block(replace(TINY, norm_position=norm_position, activation=activation))
    assert gradients_are_right(block, lambda call, x: call(x, RULE, NO_CACHE), torch.randn(2, 3, 4))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_cross_block_has_the_gradients_of_what_it_computes(norm_position: str) -> None:
    block = CrossBlock(replace(TINY, norm_position=norm_position))
    x, source = torch.randn(2, 3, 4), torch.randn(2, 4, 4)
    assert gradients_are_right(
        block, lambda call, x, source: call(x, RULE, source, SOURCE_RULE, NO_CACHE), x, source
    )


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
    attention = Attention(TINY)
    with torch.no_grad():
        attention.out.weight.copy_(torch.eye(4))
        attention.out.bias.zero_()
    x = torch.randn(1, 3, 4)
    before = attention(x, x, causal, NoCache())
    with torch.no_grad():
        attention.key_value.weight[4:6] += 1.0  # values of head 0
    after = attention(x, x, causal, NoCache())
    assert not torch.isclose(before[..., :2], after[..., :2]).any()
    assert torch.equal(before[..., 2:], after[..., 2:])


def test_without_positions_attention_does_not_see_order() -> None:
    attention, x = Attention(TINY), torch.randn(1, 6, 4)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    straight, shuffled = (attention(y, y, everything, NoCache()) for y in (x, x[:, order]))
    torch.testing.assert_close(shuffled, straight[:, order], rtol=0, atol=1e-12)


def test_attention_dropout_acts_in_training_only() -> None:
    attention, x = Attention(replace(TINY, attention_dropout=0.5)), torch.randn(1, 6, 4)
    assert not torch.equal(*(attention(x, x, everything, NoCache()) for _ in range(2)))
    attention.eval()
    assert torch.equal(*(attention(x, x, everything, NoCache()) for _ in range(2)))
    plain = Attention(TINY)
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, x, everything, NoCache()), plain(x, x, everything, NoCache()))


def test_dropout_of_a_block_acts_in_training_only() -> None:
    block, x = Block(replace(TINY, dropout=0.5)), torch.randn(1, 6, 4)
    assert not torch.equal(*(block(x, everything, NO_CACHE) for _ in range(2)))
    block.eval()
    assert torch.equal(*(block(x, everything, NO_CACHE) for _ in range(2)))


def test_a_mask_made_for_inference_serves_training_too() -> None:
    """`causal` is one object for the whole program; what inference left in it must not break autograd."""
    attention, past = Attention(TINY), torch.randn(1, 5, 4)
    with torch.inference_mode():
        attention(past[:, 3:], past, causal, NoCache())
    attention(past[:, 3:], past, causal, NoCache()).sum().backward()
    assert attention.query.weight.grad.isfinite().all()


def test_bias_settings_say_which_biases_there_are() -> None:
    def biased(config: ModelConfig) -> set[str]:
        return {name for name, _ in Block(config).named_parameters() if name.endswith("bias")}

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
