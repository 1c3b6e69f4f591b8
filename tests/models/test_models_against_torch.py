"""Attention, blocks and whole models equal torch.nn's own, weights copied over, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.models.decoder import Decoder
from triform.models.encoder import Encoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.attention import Attention
from triform.nn.block import Block, CrossBlock, Here
from triform.nn.cache import NO_CACHE, NoCache
from triform.nn.masks import Rule, causal, everything, real
from triform.nn.positions import Relation

D, HEADS, D_FF, LAYERS, V, MAX_LEN = 8, 2, 20, 3, 11, 16
SMALL = ModelConfig(d_model=D, d_ff=D_FF, n_layers=LAYERS, n_heads=HEADS, dropout=0.0, tie_embeddings=False)
SIZES = Sizes(vocab_size=V, max_len=MAX_LEN)
NO_RELATION = Relation(SMALL, MAX_LEN, causal=False)
KEEP = torch.tensor([[True] * 5, [True, True, True, False, False], [True, False, True, True, False]])
styles = [
    pytest.param({"norm_position": order, "activation": activation}, id=f"{order}-{activation}")
    for order in ("pre", "post")
    for activation in ("relu", "gelu")
]
RENAMED = {
    "attention.": "self_attn.",
    "cross.": "multihead_attn.",
    "blocks.": "layers.",
    "feedforward.up": "linear1",
    "feedforward.down": "linear2",
    "attend.norm": "norm1",
}


def in_torch_names(ours: Mapping[str, Tensor], crossing: bool = False) -> dict[str, Tensor]:
    """Our weights (or their gradients) as torch.nn calls them; it holds q, k and v as one matrix."""
    theirs = {}
    norms = {"consult.norm": "norm2", "think.norm": "norm3"} if crossing else {"think.norm": "norm2"}
    for name, tensor in ours.items():
        if "key_value" in name:
            continue
        if "query" in name:
            tensor = torch.cat([tensor, ours[name.replace("query", "key_value")]])
        name = name.replace("query.", "in_proj_").replace("out.", "out_proj.")
        for old, new in (RENAMED | norms).items():
            name = name.replace(old, new)
        theirs[name] = tensor
    return theirs


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def close(ours: Tensor, theirs: Tensor, what: str = "") -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda text: f"{what}: {text}")


def all_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert set(ours) == set(theirs)
    for name in theirs:
        close(ours[name], theirs[name], name)


def stirred(module: Any) -> Any:
    """Random biases and norms too: where they are 0 and 1, a mistake in them would not show."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def agree(ours: Tensor, theirs: Tensor) -> None:
    """Outputs are equal, and the same uneven cotangent is sent back through both."""
    close(ours, theirs, "forward")
    cotangent = torch.randn_like(ours)
    ours.backward(cotangent)
    theirs.backward(cotangent)


def twice(*shape: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(*shape)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def upper(size: int) -> Tensor:
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
    ("rule", "masks"),
    [
        (everything, {}),
        (causal, {"attn_mask": upper(5)}),
        (real(KEEP), {"key_padding_mask": ~KEEP}),
        (causal & real(KEEP), {"attn_mask": upper(5), "key_padding_mask": ~KEEP}),
    ],
    ids=["full", "causal", "padding", "causal-padding"],
)
@pytest.mark.parametrize("biased", [True, False])
def test_self_attention_equals_torch(rule: Rule, masks: dict[str, Tensor], biased: bool) -> None:
    ours = stirred(Attention(replace(SMALL, bias=biased, qkv_bias=biased), NO_RELATION))
    theirs = nn.MultiheadAttention(D, HEADS, bias=biased, batch_first=True)
    theirs.load_state_dict(in_torch_names(weights_of(ours)))
    x, same_x = twice(3, 5, D)
    agree(
        ours(x, x, rule, torch.arange(5), NoCache()), theirs(same_x, same_x, same_x, need_weights=False, **masks)[0]
    )
    close(x.grad, same_x.grad, "input")
    all_close(in_torch_names(gradients_of(ours)), gradients_of(theirs))


@pytest.mark.parametrize("t", [2, 5, 9])
@pytest.mark.parametrize("padded", [True, False])
def test_cross_attention_equals_torch_for_targets_of_any_length(t: int, padded: bool) -> None:
    ours, theirs = stirred(Attention(SMALL, NO_RELATION)), nn.MultiheadAttention(D, HEADS, batch_first=True)
    theirs.load_state_dict(in_torch_names(weights_of(ours)))
    (x, same_x), (source, same_source) = twice(3, t, D), twice(3, 5, D)
    rule, mask = (real(KEEP), ~KEEP) if padded else (everything, None)
    expected = theirs(same_x, same_source, same_source, key_padding_mask=mask, need_weights=False)[0]
    agree(ours(x, source, rule, torch.arange(t), NoCache()), expected)
    close(x.grad, same_x.grad, "queries")
    close(source.grad, same_source.grad, "source")
    all_close(in_torch_names(gradients_of(ours)), gradients_of(theirs))


# ------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("masked", [True, False])
def test_a_block_equals_torchs_encoder_layer(style: dict[str, Any], masked: bool) -> None:
    config = replace(SMALL, **style)
    ours, theirs = stirred(Block(config, NO_RELATION)), nn.TransformerEncoderLayer(D, HEADS, **torch_style(config))
    theirs.load_state_dict(in_torch_names(weights_of(ours)))
    x, same_x = twice(3, 5, D)
    rule = causal & real(KEEP) if masked else everything
    masks = {"src_mask": upper(5), "src_key_padding_mask": ~KEEP} if masked else {}
    agree(ours(x, Here(rule, torch.arange(5), NO_CACHE)), theirs(same_x, **masks))
    close(x.grad, same_x.grad, "input")
    all_close(in_torch_names(gradients_of(ours)), gradients_of(theirs))


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("t", [4, 7])
def test_a_cross_block_equals_torchs_decoder_layer(style: dict[str, Any], t: int) -> None:
    config = replace(SMALL, **style)
    ours, theirs = (
        stirred(CrossBlock(config, NO_RELATION)),
        nn.TransformerDecoderLayer(D, HEADS, **torch_style(config)),
    )
    theirs.load_state_dict(in_torch_names(weights_of(ours), crossing=True))
    (x, same_x), (source, same_source) = twice(3, t, D), twice(3, 5, D)
    expected = theirs(same_x, same_source, tgt_mask=upper(t), memory_key_padding_mask=~KEEP)
    agree(ours(x, Here(causal, torch.arange(t), NO_CACHE), source, real(KEEP)), expected)
    close(x.grad, same_x.grad, "target")
    close(source.grad, same_source.grad, "source")
    all_close(in_torch_names(gradients_of(ours), crossing=True), gradients_of(theirs))


# ------------------------------------------------------------------------------------------ models


class Around(nn.Module):
    """What surrounds the stack: an embedding before it, written in other words than ours, a head behind."""

    def __init__(self, embedding: nn.Module, head: nn.Linear | None = None) -> None:
        super().__init__()
        self.tokens = nn.Parameter(embedding.tokens.weight.detach().clone())
        self.places = nn.Parameter(embedding.positions.table.weight.detach().clone())
        self.head = nn.Linear(D, V)
        if head is not None:
            self.head.load_state_dict(head.state_dict())

    def before(self, tokens: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(tokens, len(self.tokens)).to(self.tokens.dtype)
        return one_hot @ self.tokens + self.places[: tokens.shape[1]]

    def gradients_agree(self, embedding: nn.Module, head: nn.Linear | None = None) -> None:
        close(embedding.tokens.weight.grad, self.tokens.grad, "token embedding")
        close(embedding.positions.table.weight.grad, self.places.grad, "position embedding")
        if head is not None:
            close(head.weight.grad, self.head.weight.grad, "head")
            close(head.bias.grad, self.head.bias.grad, "head's bias")


def stack(named: Mapping[str, Tensor], crossing: bool = False) -> dict[str, Tensor]:
    return in_torch_names(
        {name: tensor for name, tensor in named.items() if name.startswith(("blocks", "norm"))}, crossing
    )


def under(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("final_norm", [True, False])
def test_the_encoder_equals_torchs_with_padding(style: dict[str, Any], final_norm: bool) -> None:
    config = replace(SMALL, final_norm=final_norm, **style)
    ours, theirs = stirred(Encoder(config, SIZES)), torch_encoder(config)
    theirs.load_state_dict(stack(weights_of(ours)))
    around, tokens = Around(ours.embedding), torch.randint(V, KEEP.shape)
    agree(ours(tokens, KEEP), theirs(around.before(tokens), src_key_padding_mask=~KEEP))
    all_close(stack(gradients_of(ours)), gradients_of(theirs))
    around.gradients_agree(ours.embedding)


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("padded", [True, False])
def test_the_decoder_equals_torchs_encoder_under_a_causal_mask(style: dict[str, Any], padded: bool) -> None:
    config = replace(SMALL, **style)
    ours, theirs = stirred(Decoder(config, SIZES)), torch_encoder(config)
    theirs.load_state_dict(stack(weights_of(ours)))
    around, tokens = Around(ours.embedding, ours.head), torch.randint(V, KEEP.shape)
    keep, hidden = (KEEP, ~KEEP) if padded else (None, None)
    states = theirs(around.before(tokens), mask=upper(tokens.shape[1]), src_key_padding_mask=hidden)
    agree(ours(tokens, keep), around.head(states))
    all_close(stack(gradients_of(ours)), gradients_of(theirs))
    around.gradients_agree(ours.embedding, ours.head)


@pytest.mark.parametrize("style", styles)
@pytest.mark.parametrize("t", [3, 5, 8])
def test_the_encoder_decoder_equals_torchs_transformer(style: dict[str, Any], t: int) -> None:
    config = replace(SMALL, **style)
    ours = stirred(Seq2Seq(config, SIZES))
    theirs = nn.Transformer(D, HEADS, LAYERS, LAYERS, custom_encoder=torch_encoder(config), **torch_style(config))
    theirs.encoder.load_state_dict(stack(under("encoder.", weights_of(ours))))
    theirs.decoder.load_state_dict(stack(weights_of(ours), crossing=True))
    reader, writer = Around(ours.encoder.embedding), Around(ours.embedding, ours.head)
    source, target = torch.randint(V, KEEP.shape), torch.randint(V, (len(KEEP), t))
    states = theirs(
        reader.before(source),
        writer.before(target),
        tgt_mask=upper(t),
        src_key_padding_mask=~KEEP,
        memory_key_padding_mask=~KEEP,
    )
    agree(ours(source, target, KEEP), writer.head(states))
    all_close(stack(under("encoder.", gradients_of(ours))), gradients_of(theirs.encoder))
    all_close(stack(gradients_of(ours), crossing=True), gradients_of(theirs.decoder))
    reader.gradients_agree(ours.encoder.embedding)
    writer.gradients_agree(ours.embedding, ours.head)
