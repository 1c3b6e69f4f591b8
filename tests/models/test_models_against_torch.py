"""Attention, blocks and whole models equal torch.nn's own, weights copied over, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import Decoder
from triform.models.encoder import Encoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.attention import Attention, RelativePosition
from triform.nn.block import Block, CrossBlock, LayerContext
from triform.nn.masks import AttentionMask, PaddingMask, causal_mask, full_mask

D, HEADS, D_FF, LAYERS, V, MAX_LEN = 8, 2, 20, 3, 11, 16
SMALL = ModelConfig(d_model=D, d_ff=D_FF, n_layers=LAYERS, n_heads=HEADS, dropout=0.0, tie_embeddings=False)
SIZES = DataSizes(vocab_size=V, max_len=MAX_LEN)
NO_POSITION = RelativePosition()
KEEP = torch.tensor([[True] * 5, [True, True, True, False, False], [True, False, True, True, False]])
styles = [
    pytest.param({"norm_position": order, "activation": activation}, id=f"{order}-{activation}")
    for order in ("pre", "post")
    for activation in ("relu", "gelu")
]
TORCH_NAMES = {
    "attn": "self_attn",
    "cross_attn": "multihead_attn",
    "blocks": "layers",
    "attn_norm": "norm1",
    "final_norm": "norm",
}


def to_torch_names(ours: Mapping[str, Tensor], has_cross_attn: bool = False) -> dict[str, Tensor]:
    """Our weights (or their gradients) as torch.nn calls them; it holds q, k and v as one matrix."""
    theirs = {}
    norms = {"cross_attn_norm": "norm2", "ffn_norm": "norm3"} if has_cross_attn else {"ffn_norm": "norm2"}
    names = TORCH_NAMES | norms
    for name, tensor in ours.items():
        if "kv_proj" in name:
            continue
        if "q_proj" in name:
            tensor = torch.cat([tensor, ours[name.replace("q_proj", "kv_proj")]])
        name = name.replace("ffn.up_proj", "linear1").replace("ffn.down_proj", "linear2")
        name = ".".join(names.get(part, part) for part in name.split("."))
        theirs[name.replace("q_proj.", "in_proj_")] = tensor
    return theirs


def weights_by_name(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def gradients_by_name(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_close(ours: Tensor, theirs: Tensor, name: str = "") -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda text: f"{name}: {text}")


def assert_all_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert set(ours) == set(theirs)
    for name in theirs:
        assert_close(ours[name], theirs[name], name)


def randomise(module: Any) -> Any:
    """Random biases and norms too: where they are 0 and 1, a mistake in them would not show."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def assert_same_output(ours: Tensor, theirs: Tensor) -> None:
    """Outputs are equal, and the same uneven cotangent is sent back through both."""
    assert_close(ours, theirs, "forward")
    cotangent = torch.randn_like(ours)
    ours.backward(cotangent)
    theirs.backward(cotangent)


def leaf_pair(*shape: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(*shape)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def future_mask(size: int) -> Tensor:
    """torch's masks say True for what is hidden."""
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def torch_style(config: ModelConfig) -> dict[str, Any]:
    return {
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "activation": config.activation,
        "batch_first": True,
        "norm_first": config.norm_position == "pre",
    }


def torch_encoder(config: ModelConfig) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(D, HEADS, **torch_style(config))
    norm = nn.LayerNorm(D) if config.final_norm else None
    return nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False)


# ------------------------------------------------------------------------------------------ attention


@pytest.mark.parametrize(
    ("mask", "masks"),
    [
        (full_mask, {}),
        (causal_mask, {"attn_mask": future_mask(5)}),
        (PaddingMask(KEEP), {"key_padding_mask": ~KEEP}),
        (causal_mask & PaddingMask(KEEP), {"attn_mask": future_mask(5), "key_padding_mask": ~KEEP}),
    ],
    ids=["full", "causal", "padding", "causal-padding"],
)
@pytest.mark.parametrize("biased", [True, False])
def test_self_attention_equals_torch(mask: AttentionMask, masks: dict[str, Tensor], biased: bool) -> None:
    ours = randomise(Attention(replace(SMALL, bias=biased, qkv_bias=biased), NO_POSITION))
    theirs = nn.MultiheadAttention(D, HEADS, bias=biased, batch_first=True)
    theirs.load_state_dict(to_torch_names(weights_by_name(ours)))
    x, same_x = leaf_pair(3, 5, D)
    assert_same_output(
        ours(x, x, mask, torch.arange(5)),
        theirs(same_x, same_x, same_x, need_weights=False, **masks)[0],
    )
    assert_close(x.grad, same_x.grad, "input")
    assert_all_close(to_torch_names(gradients_by_name(ours)), gradients_by_name(theirs))


@pytest.mark.parametrize("t", [2, 5, 9])
@pytest.mark.parametrize("padded", [True, False])
def test_cross_attention_equals_torch_for_targets_of_any_length(t: int, padded: bool) -> None:
    ours, theirs = randomise(Attention(SMALL, NO_POSITION)), nn.MultiheadAttention(D, HEADS, batch_first=True)
    theirs.load_state_dict(to_torch_names(weights_by_name(ours)))
    (x, same_x), (source, same_source) = leaf_pair(3, t, D), leaf_pair(3, 5, D)
    mask, torch_mask = (PaddingMask(KEEP), ~KEEP) if padded else (full_mask, None)
    expected = theirs(same_x, same_source, same_source, key_padding_mask=torch_mask, need_weights=False)[0]
    assert_same_output(ours(x, source, mask, torch.arange(t)), expected)
    assert_close(x.grad, same_x.grad, "queries")
    assert_close(source.grad, same_source.grad, "source")
    assert_all_close(to_torch_names(gradients_by_name(ours)), gradients_by_name(theirs))


# ------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("masked", [True, False])
def test_a_block_equals_torchs_encoder_layer(style: dict[str, Any], masked: bool) -> None:
    config = replace(SMALL, **style)
    ours, theirs = (
        randomise(Block(config, NO_POSITION)),
        nn.TransformerEncoderLayer(D, HEADS, **torch_style(config)),
    )
    theirs.load_state_dict(to_torch_names(weights_by_name(ours)))
    x, same_x = leaf_pair(3, 5, D)
    mask = causal_mask & PaddingMask(KEEP) if masked else full_mask
    masks = {"src_mask": future_mask(5), "src_key_padding_mask": ~KEEP} if masked else {}
    assert_same_output(ours(x, LayerContext(mask, torch.arange(5))), theirs(same_x, **masks))
    assert_close(x.grad, same_x.grad, "input")
    assert_all_close(to_torch_names(gradients_by_name(ours)), gradients_by_name(theirs))


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("t", [4, 7])
def test_a_cross_block_equals_torchs_decoder_layer(style: dict[str, Any], t: int) -> None:
    config = replace(SMALL, **style)
    ours, theirs = (
        randomise(CrossBlock(config, NO_POSITION)),
        nn.TransformerDecoderLayer(D, HEADS, **torch_style(config)),
    )
    theirs.load_state_dict(to_torch_names(weights_by_name(ours), has_cross_attn=True))
    (x, same_x), (source, same_source) = leaf_pair(3, t, D), leaf_pair(3, 5, D)
    expected = theirs(same_x, same_source, tgt_mask=future_mask(t), memory_key_padding_mask=~KEEP)
    assert_same_output(ours(x, LayerContext(causal_mask, torch.arange(t)), source, PaddingMask(KEEP)), expected)
    assert_close(x.grad, same_x.grad, "target")
    assert_close(source.grad, same_source.grad, "source")
    assert_all_close(to_torch_names(gradients_by_name(ours), has_cross_attn=True), gradients_by_name(theirs))


# ------------------------------------------------------------------------------------------ models


class Surroundings(nn.Module):
    """What surrounds the stack: an embedding before it, written in other words than ours, a head behind."""

    def __init__(self, embedding: nn.Module, head: nn.Linear | None = None) -> None:
        super().__init__()
        self.tokens = nn.Parameter(embedding.token_embedding.weight.detach().clone())
        self.position_table = nn.Parameter(embedding.position_embedding.table.weight.detach().clone())
        self.head = nn.Linear(D, V)
        if head is not None:
            self.head.load_state_dict(head.state_dict())

    def embed(self, tokens: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(tokens, len(self.tokens)).to(self.tokens.dtype)
        return one_hot @ self.tokens + self.position_table[: tokens.shape[1]]

    def assert_same_gradients(self, embedding: nn.Module, head: nn.Linear | None = None) -> None:
        assert_close(embedding.token_embedding.weight.grad, self.tokens.grad, "token embedding")
        assert_close(embedding.position_embedding.table.weight.grad, self.position_table.grad, "position embedding")
        if head is not None:
            assert_close(head.weight.grad, self.head.weight.grad, "head")
            assert_close(head.bias.grad, self.head.bias.grad, "head's bias")


def stack_weights(named: Mapping[str, Tensor], has_cross_attn: bool = False) -> dict[str, Tensor]:
    return to_torch_names(
        {name: tensor for name, tensor in named.items() if name.startswith(("blocks", "final_norm"))},
        has_cross_attn,
    )


def strip_prefix(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("final_norm", [True, False])
def test_the_encoder_equals_torchs_with_padding(style: dict[str, Any], final_norm: bool) -> None:
    config = replace(SMALL, final_norm=final_norm, **style)
    ours, theirs = randomise(Encoder(config, SIZES)), torch_encoder(config)
    theirs.load_state_dict(stack_weights(weights_by_name(ours)))
    surroundings, tokens = Surroundings(ours.embedding), torch.randint(V, KEEP.shape)
    assert_same_output(ours(tokens, KEEP), theirs(surroundings.embed(tokens), src_key_padding_mask=~KEEP))
    assert_all_close(stack_weights(gradients_by_name(ours)), gradients_by_name(theirs))
    surroundings.assert_same_gradients(ours.embedding)


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("padded", [True, False])
def test_the_decoder_equals_torchs_encoder_under_a_causal_mask(style: dict[str, Any], padded: bool) -> None:
    config = replace(SMALL, **style)
    ours, theirs = randomise(Decoder(config, SIZES)), torch_encoder(config)
    theirs.load_state_dict(stack_weights(weights_by_name(ours)))
    surroundings, tokens = Surroundings(ours.embedding, ours.lm_head), torch.randint(V, KEEP.shape)
    keep, hidden = (KEEP, ~KEEP) if padded else (None, None)
    states = theirs(surroundings.embed(tokens), mask=future_mask(tokens.shape[1]), src_key_padding_mask=hidden)
    assert_same_output(ours(tokens, keep), surroundings.head(states))
    assert_all_close(stack_weights(gradients_by_name(ours)), gradients_by_name(theirs))
    surroundings.assert_same_gradients(ours.embedding, ours.lm_head)


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("t", [3, 5, 8])
def test_the_encoder_decoder_equals_torchs_transformer(style: dict[str, Any], t: int) -> None:
    config = replace(SMALL, **style)
    ours = randomise(Seq2Seq(config, SIZES))
    theirs = nn.Transformer(D, HEADS, LAYERS, LAYERS, custom_encoder=torch_encoder(config), **torch_style(config))
    theirs.encoder.load_state_dict(stack_weights(strip_prefix("encoder.", weights_by_name(ours))))
    theirs.decoder.load_state_dict(stack_weights(weights_by_name(ours), has_cross_attn=True))
    source_side, target_side = Surroundings(ours.encoder.embedding), Surroundings(ours.embedding, ours.lm_head)
    source, target = torch.randint(V, KEEP.shape), torch.randint(V, (len(KEEP), t))
    states = theirs(
        source_side.embed(source),
        target_side.embed(target),
        tgt_mask=future_mask(t),
        src_key_padding_mask=~KEEP,
        memory_key_padding_mask=~KEEP,
    )
    assert_same_output(ours(source, target, KEEP), target_side.head(states))
    assert_all_close(
        stack_weights(strip_prefix("encoder.", gradients_by_name(ours))), gradients_by_name(theirs.encoder)
    )
    assert_all_close(stack_weights(gradients_by_name(ours), has_cross_attn=True), gradients_by_name(theirs.decoder))
    source_side.assert_same_gradients(ours.encoder.embedding)
    target_side.assert_same_gradients(ours.embedding, ours.lm_head)
