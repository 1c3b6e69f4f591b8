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
from triform.text.base import SPECIAL_TOKENS

BANNED_TOKENS = (PAD, UNK, BOS, EOS)
TokenRows = list[list[int]]


def import_peer(name: str) -> Any:
    """A peer's package, or None; its warnings at import are not ours to show, and nothing is downloaded."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return __import__(name)
        except ImportError:
            return None


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of so many tokens: words of four letters."""
    words = map("".join, itertools.product("abcdefghijklmnopqrst", repeat=4))
    return train_tokenizer(TokenizerConfig(kind="word"), itertools.islice(words, vocab_size - len(SPECIAL_TOKENS)))


def generate_texts(tokenizer: Tokenizer, lengths: Sequence[int]) -> list[str]:
    rng = random.Random(0)
    rows = [[rng.randrange(len(SPECIAL_TOKENS), tokenizer.vocab_size) for _ in range(length)] for length in lengths]
    return [tokenizer.decode(row) for row in rows]


def without_end_token(predict: Callable[[list[str]], Any]) -> Callable[[list[str]], list[str]]:
    """Our answers, the end token banned as it is for the others."""

    def decode_texts(texts: list[str]) -> list[str]:
        with mock.patch.object(Tokenizer, "banned_tokens", BANNED_TOKENS):
            return [prediction.output for prediction in predict(texts)]

    return decode_texts


def build_gpt2(d_model: int, n_layers: int, n_heads: int, vocab_size: int, max_len: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=d_model, n_layer=n_layers, n_head=n_heads, vocab_size=vocab_size, n_positions=max_len,
        bos_token_id=BOS, eos_token_id=None, pad_token_id=PAD,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def copy_gpt2(peer_model: Any, model: Any) -> None:
    """Their weights into our decoder."""
    peer_body = peer_model.transformer
    model.embedding.token_embedding.weight.copy_(peer_body.wte.weight)
    model.embedding.position_embedding.table.weight.copy_(peer_body.wpe.weight)
    model.final_norm.load_state_dict(peer_body.ln_f.state_dict())
    for block, peer_block in zip(model.blocks, peer_body.h, strict=True):
        block.attn_norm.load_state_dict(peer_block.ln_1.state_dict())
        block.ffn_norm.load_state_dict(peer_block.ln_2.state_dict())
        d_model = peer_block.attn.c_proj.weight.shape[0]
        weight, bias = peer_block.attn.c_attn.weight.T, peer_block.attn.c_attn.bias
        _copy_linear(block.attn.q_proj, weight[:d_model], bias[:d_model])
        _copy_linear(block.attn.kv_proj, weight[d_model:], bias[d_model:])
        _copy_linear(block.attn.out_proj, peer_block.attn.c_proj.weight.T, peer_block.attn.c_proj.bias)
        _copy_linear(block.ffn.up_proj, peer_block.mlp.c_fc.weight.T, peer_block.mlp.c_fc.bias)
        _copy_linear(block.ffn.down_proj, peer_block.mlp.c_proj.weight.T, peer_block.mlp.c_proj.bias)


def build_marian(d_model: int, n_layers: int, n_heads: int, vocab_size: int, max_len: int) -> Any:
    """Its padding, the token after the last of ours, has a vector of zeros and begins each translation."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        d_model=d_model, encoder_layers=n_layers, decoder_layers=n_layers, encoder_attention_heads=n_heads,
        decoder_attention_heads=n_heads, encoder_ffn_dim=4 * d_model, decoder_ffn_dim=4 * d_model,
        vocab_size=vocab_size + 1, pad_token_id=vocab_size, eos_token_id=EOS, decoder_start_token_id=vocab_size,
        forced_eos_token_id=None, max_position_embeddings=max_len, activation_function="relu",
        scale_embedding=True, dropout=0.0, bos_token_id=BOS,
    )  # fmt: skip
    return MarianMTModel(config).eval()


@torch.no_grad()
def copy_marian(peer_model: Any, model: Any) -> None:
    """Their weights into our encoder-decoder; its begin token takes the vector of zeros."""
    peer_body = peer_model.model
    token_embedding = model.embedding.token_embedding.weight
    token_embedding.copy_(peer_body.shared.weight[: len(token_embedding)])
    token_embedding[BOS] = 0.0
    nn.init.zeros_(model.lm_head.bias)
    for stack, peer_stack in ((model.encoder, peer_body.encoder), (model, peer_body.decoder)):
        stack.embedding.position_embedding.table.weight.copy_(peer_stack.embed_positions.weight)
        for block, peer_layer in zip(stack.blocks, peer_stack.layers, strict=True):
            _copy_attention(peer_layer.self_attn, block.attn)
            block.attn_norm.load_state_dict(peer_layer.self_attn_layer_norm.state_dict())
            if stack is model:
                _copy_attention(peer_layer.encoder_attn, block.cross_attn)
                block.cross_attn_norm.load_state_dict(peer_layer.encoder_attn_layer_norm.state_dict())
            _copy_linear(block.ffn.up_proj, peer_layer.fc1.weight, peer_layer.fc1.bias)
            _copy_linear(block.ffn.down_proj, peer_layer.fc2.weight, peer_layer.fc2.bias)
            block.ffn_norm.load_state_dict(peer_layer.final_layer_norm.state_dict())


def _copy_attention(peer_attention: Any, attention: Any) -> None:
    kv_projections = peer_attention.k_proj, peer_attention.v_proj
    _copy_linear(attention.q_proj, peer_attention.q_proj.weight, peer_attention.q_proj.bias)
    _copy_linear(
        attention.kv_proj,
        torch.cat([projection.weight for projection in kv_projections]),
        torch.cat([projection.bias for projection in kv_projections]),
    )
    _copy_linear(attention.out_proj, peer_attention.out_proj.weight, peer_attention.out_proj.bias)


def _copy_linear(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def convert_to_ctranslate2(model: Any, words: list[str], folder: Path) -> str:
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


def token_agreement(tokens: TokenRows, expected: TokenRows) -> float:
    """The share of tokens that are the same at the same place."""
    pairs = [
        same
        for token, expected_token in zip(tokens, expected, strict=True)
        for same in zip(token, expected_token, strict=False)
    ]
    return sum(token == expected_token for token, expected_token in pairs) / max(1, sum(map(len, expected)))
