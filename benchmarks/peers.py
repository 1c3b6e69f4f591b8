"""Peers of the decoding benchmarks: `transformers` models with random weights, also in Triform and CTranslate2.

Random weights end a text by chance or never. The end token is therefore banned for all, and all generate the same
number of tokens. In float32 they all give the same answer, which the benchmarks check.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.quality import supported_precisions
from benchmarks.report import BenchmarkReport
from triform.config import TokenizerConfig
from triform.nn.kernels.precision import cast_model
from triform.pretrained.ctranslate2_export import write_specification
from triform.tasks.generate import Generate
from triform.tasks.translate import Translate
from triform.text import BOS, EOS, PAD, UNK, Tokenizer, train_tokenizer
from triform.text.tokens import SPECIAL_TOKENS

BANNED_TOKENS = (PAD, UNK, BOS, EOS)
TokenRows = list[list[int]]
DecodeFn = Callable[[list[str]], Any]


def import_peer(name: str) -> Any:
    """Import the package of a peer without its warnings and downloads; return None if it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return __import__(name)
        except ImportError:
            return None


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """Build a tokenizer with this number of tokens, which are words of four letters."""
    words = map("".join, itertools.product("abcdefghijklmnopqrst", repeat=4))
    return train_tokenizer(TokenizerConfig(kind="word"), itertools.islice(words, vocab_size - len(SPECIAL_TOKENS)))


def generate_texts(tokenizer: Tokenizer, lengths: Sequence[int]) -> list[str]:
    rng = random.Random(0)
    rows = [[rng.randrange(len(SPECIAL_TOKENS), tokenizer.vocab_size) for _ in range(length)] for length in lengths]
    return [tokenizer.decode(row) for row in rows]


def without_end_token(predict: Callable[[list[str]], Any]) -> Callable[[list[str]], list[str]]:
    """Return a function that predicts with the end token banned, as for the peers."""

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
    """Copy the weights of GPT-2 into Triform's decoder."""
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
    """Build Marian. Its padding is an additional token with a vector of zeros, and it starts each translation."""
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
    """Copy the weights of Marian into Triform's encoder-decoder, whose start token gets the vector of zeros."""
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


@torch.no_grad()
def copy_torch_transformer(peer_model: nn.Transformer, model: Any) -> None:
    """Copy the weights of nn.Transformer, which has no embeddings, into the stacks of Triform's encoder-decoder."""
    for stack, peer_stack in ((model.encoder, peer_model.encoder), (model, peer_model.decoder)):
        stack.final_norm.load_state_dict(peer_stack.norm.state_dict())
        for block, peer_layer in zip(stack.blocks, peer_stack.layers, strict=True):
            norms = {"attn_norm": peer_layer.norm1, "ffn_norm": peer_layer.norm2}
            _copy_torch_attention(peer_layer.self_attn, block.attn)
            if stack is model:
                norms |= {"cross_attn_norm": peer_layer.norm2, "ffn_norm": peer_layer.norm3}
                _copy_torch_attention(peer_layer.multihead_attn, block.cross_attn)
            for name, norm in norms.items():
                getattr(block, name).load_state_dict(norm.state_dict())
            _copy_linear(block.ffn.up_proj, peer_layer.linear1.weight, peer_layer.linear1.bias)
            _copy_linear(block.ffn.down_proj, peer_layer.linear2.weight, peer_layer.linear2.bias)


def _copy_torch_attention(peer_attention: Any, attention: Any) -> None:
    weight, bias = peer_attention.in_proj_weight, peer_attention.in_proj_bias
    d_model = weight.shape[1]
    _copy_linear(attention.q_proj, weight[:d_model], bias[:d_model])
    _copy_linear(attention.kv_proj, weight[d_model:], bias[d_model:])
    _copy_linear(attention.out_proj, peer_attention.out_proj.weight, peer_attention.out_proj.bias)


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


def token_agreement(tokens: TokenRows, expected: TokenRows) -> float:
    """Return the share of tokens that are equal at the same position."""
    pairs = [
        same
        for token, expected_token in zip(tokens, expected, strict=True)
        for same in zip(token, expected_token, strict=False)
    ]
    return sum(token == expected_token for token, expected_token in pairs) / max(1, sum(map(len, expected)))


def build_contestants(
    report: BenchmarkReport,
    task: Generate | Translate,
    folder: Path,
    build_ctranslate2: Callable[[Any], DecodeFn],
    build_transformers: Callable[[], DecodeFn],
) -> dict[str, DecodeFn]:
    """Return the functions to time: Triform in each precision, CTranslate2 on a CPU, and `transformers`.

    Args:
        report: The report, which knows the device.
        task: Triform's task with the weights of the peer.
        folder: A folder for the converted model.
        build_ctranslate2: Builds a contestant from a model of CTranslate2, whose tokens are named by their ids.
        build_transformers: Builds the contestant of `transformers`. It is called last, because it casts the model.
    """
    contestants = _build_own_contestants(report, task)
    if report.cuda:
        report.add_skipped("ctranslate2", "compared only on the CPU")
    elif import_peer("ctranslate2"):
        for compute_type in ("float32", "int8"):
            contestants[f"ctranslate2 {compute_type}"] = build_ctranslate2(_convert(task, folder, compute_type))
    else:
        report.add_skipped("ctranslate2", "not installed")
    contestants["transformers"] = build_transformers()
    return contestants


def _build_own_contestants(report: BenchmarkReport, task: Generate | Translate) -> dict[str, DecodeFn]:
    """Return Triform in each precision, or only in bf16 on CUDA, where the peers use bf16."""
    runners = {}
    for precision in ["bf16"] if report.cuda else supported_precisions(report.device):
        model = copy.deepcopy(task.model).to(report.device)
        cast_model(model, precision)
        runners[f"triform {precision}"] = _build_own_contestant(task, model)
    return runners


def _convert(task: Generate | Translate, folder: Path, compute_type: str) -> Any:
    """Return the model of a task as CTranslate2 has loaded it; its tokens are named by their ids."""
    ctranslate2 = import_peer("ctranslate2")
    vocabulary = list(map(str, range(task.target_tokenizer.vocab_size)))
    special = task.target_tokenizer.special_tokens
    (folder / "ct2").mkdir(exist_ok=True)
    write_specification(task.model, task.config, [vocabulary], special, folder / "ct2")
    model_class = ctranslate2.Translator if task.name == "translate" else ctranslate2.Generator
    return model_class(str(folder / "ct2"), compute_type=compute_type, intra_threads=torch.get_num_threads())


def _build_own_contestant(task: Generate | Translate, model: nn.Module) -> DecodeFn:
    """Return a function that decodes with a copy of a task that has another model."""
    variant = copy.copy(task)
    vars(variant)["model"] = model
    decode_texts = without_end_token(variant.predictor.predict)
    return lambda texts: task.target_tokenizer.encode_batch(decode_texts(texts))


def slowing_contestants(contestants: Collection[str]) -> list[str]:
    """Return those that use CTranslate2. After it has run, torch takes up to twice as long in the same process."""
    return [name for name in contestants if "ctranslate2" in name]


def report_agreement(
    report: BenchmarkReport, contestants: Mapping[str, DecodeFn], texts: list[str], n_tokens: int
) -> None:
    """Check that all contestants generate `n_tokens`, and report how many equal those of `transformers`."""
    expected = contestants["transformers"](texts)
    for name, decode_texts in contestants.items():
        output = decode_texts(texts)
        assert all(len(tokens) == n_tokens for tokens in output), f"{name} generated another number of tokens"
        report.add_figures(
            "tokens equal to those of transformers", who=name, share=token_agreement(output, expected)
        )
