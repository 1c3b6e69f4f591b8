"""Peers that decode: `transformers` models with random weights, the same weights in ours and in CTranslate2's.

Random weights hardly ever end a text, or end it by chance. So nobody may: the end token is banned for all, and
each writes as many tokens as it is told. All give the same answer in float32, which the benchmarks check.
"""

from __future__ import annotations

import itertools
import os
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from triform.config import TokenizerConfig
from triform.text import BOS, EOS, PAD, UNK, Tokenizer, train_tokenizer
from triform.text.base import SPECIALS

NEVER = (PAD, UNK, BOS, EOS)
Tokens = list[list[int]]


def installed(name: str) -> Any:
    """A peer's package, or None; its warnings at import are not ours to show, and nothing is downloaded."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return __import__(name)
        except ImportError:
            return None


def vocabulary(size: int) -> Tokenizer:
    """A tokenizer of so many tokens: words of four letters."""
    words = map("".join, itertools.product("abcdefghijklmnopqrst", repeat=4))
    return train_tokenizer(TokenizerConfig(kind="word"), itertools.islice(words, size - len(SPECIALS)))


def texts(tokenizer: Tokenizer, lengths: Sequence[int]) -> list[str]:
    numbers = random.Random(0)
    rows = [[numbers.randrange(len(SPECIALS), tokenizer.vocab_size) for _ in range(length)] for length in lengths]
    return [tokenizer.decode(row) for row in rows]


def ours(predict: Callable[[list[str]], Any]) -> Callable[[list[str]], list[str]]:
    """Our answers, the end token banned as it is for the others."""

    def answer(texts: list[str]) -> list[str]:
        with mock.patch.object(Tokenizer, "never_written", NEVER):
            return [made.output for made in predict(texts)]

    return answer


def gpt2(width: int, layers: int, heads: int, vocab_size: int, max_len: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocab_size, n_positions=max_len,
        bos_token_id=BOS, eos_token_id=None, pad_token_id=PAD,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def copy_gpt2(theirs: Any, model: Any) -> None:
    """Their weights into our decoder."""
    body = theirs.transformer
    model.embedding.tokens.weight.copy_(body.wte.weight)
    model.embedding.positions.table.weight.copy_(body.wpe.weight)
    model.norm.load_state_dict(body.ln_f.state_dict())
    for block, other in zip(model.blocks, body.h, strict=True):
        block.attend.norm.load_state_dict(other.ln_1.state_dict())
        block.think.norm.load_state_dict(other.ln_2.state_dict())
        width = other.attn.c_proj.weight.shape[0]
        weight, bias = other.attn.c_attn.weight.T, other.attn.c_attn.bias
        _fill(block.attention.query, weight[:width], bias[:width])
        _fill(block.attention.key_value, weight[width:], bias[width:])
        _fill(block.attention.out, other.attn.c_proj.weight.T, other.attn.c_proj.bias)
        _fill(block.feedforward.up, other.mlp.c_fc.weight.T, other.mlp.c_fc.bias)
        _fill(block.feedforward.down, other.mlp.c_proj.weight.T, other.mlp.c_proj.bias)


def marian(width: int, layers: int, heads: int, vocab_size: int, max_len: int) -> Any:
    """Its padding, the token after the last of ours, has a vector of zeros and begins each translation."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        vocab_size=vocab_size + 1, pad_token_id=vocab_size, eos_token_id=EOS, decoder_start_token_id=vocab_size,
        forced_eos_token_id=None, max_position_embeddings=max_len, activation_function="relu",
        scale_embedding=True, dropout=0.0, bos_token_id=BOS,
    )  # fmt: skip
    return MarianMTModel(config).eval()


@torch.no_grad()
def copy_marian(theirs: Any, model: Any) -> None:
    """Their weights into our encoder-decoder; its begin token takes the vector of zeros."""
    body = theirs.model
    table = model.embedding.tokens.weight
    table.copy_(body.shared.weight[: len(table)])
    table[BOS] = 0.0
    nn.init.zeros_(model.head.bias)
    for side, other in ((model.encoder, body.encoder), (model, body.decoder)):
        side.embedding.positions.table.weight.copy_(other.embed_positions.weight)
        for block, layer in zip(side.blocks, other.layers, strict=True):
            _copy_attention(layer.self_attn, block.attention)
            block.attend.norm.load_state_dict(layer.self_attn_layer_norm.state_dict())
            if side is model:
                _copy_attention(layer.encoder_attn, block.cross)
                block.consult.norm.load_state_dict(layer.encoder_attn_layer_norm.state_dict())
            _fill(block.feedforward.up, layer.fc1.weight, layer.fc1.bias)
            _fill(block.feedforward.down, layer.fc2.weight, layer.fc2.bias)
            block.think.norm.load_state_dict(layer.final_layer_norm.state_dict())


def _copy_attention(theirs: Any, attention: Any) -> None:
    both = theirs.k_proj, theirs.v_proj
    _fill(attention.query, theirs.q_proj.weight, theirs.q_proj.bias)
    _fill(attention.key_value, torch.cat([x.weight for x in both]), torch.cat([x.bias for x in both]))
    _fill(attention.out, theirs.out_proj.weight, theirs.out_proj.bias)


def _fill(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def converted(model: Any, words: list[str], folder: Path) -> str:
    """The model as CTranslate2 reads it; it is quantised when it is opened."""
    from ctranslate2.converters import transformers as converters

    loader = {"gpt2": converters.GPT2Loader, "marian": converters.MarianMTLoader}[model.config.model_type]()
    spec = loader.get_model_spec(model)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = words[UNK], words[BOS], words[EOS]
    if hasattr(spec.config, "decoder_start_token"):
        spec.config.decoder_start_token = words[EOS]
    loader.set_vocabulary(spec, words)
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir()
    spec.save(str(folder))
    return str(folder)


def agreement(one: Tokens, other: Tokens) -> float:
    """The share of tokens that are the same at the same place."""
    pairs = [same for mine, theirs in zip(one, other, strict=True) for same in zip(mine, theirs, strict=False)]
    return sum(mine == theirs for mine, theirs in pairs) / max(1, sum(map(len, other)))
