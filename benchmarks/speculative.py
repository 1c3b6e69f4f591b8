"""Generate given texts with a decoder of GPT-2's shape, with speculative decoding and without.

How much drafts save depends on the text. The position embedding and the head of the model are set so that it
generates the next words of a file of this repository; all other weights are random and cost what they cost in a
trained model. It runs on the CPU, in float32.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform.config import DataSizes, DecodeConfig, ModelConfig
from triform.generation.adapters import DecoderAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.scheduler import generate
from triform.models.decoder import Decoder
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.nn.kernels.precision import cast_model

ROOT = Path(__file__).parents[1]
DRAFT_TOKENS = (7, 15)


class Size(NamedTuple):
    width: int
    layers: int
    heads: int
    vocab_size: int
    n_prompt: int
    n_new: int


SMOKE = Size(64, 1, 2, 100, 24, 24)
FULL = Size(768, 12, 12, 6_000, 300, 120)  # 90M parameters


def read_words(path: str, size: Size) -> list[int]:
    """Return the words, spaces and signs of a file as tokens."""
    words = re.findall(r" ?\w+|\s+|[^\w\s]", (ROOT / path).read_text(encoding="utf-8"))
    ids: dict[str, int] = {}
    return [ids.setdefault(word, len(ids)) % size.vocab_size for word in words][: size.n_prompt + size.n_new]


def build_texts(size: Size) -> dict[str, list[int]]:
    """Return texts of equal length: prose, code, and code that is copied with one name changed."""
    code = read_words("src/triform/generation/backend.py", size)
    original = code[: size.n_prompt]
    renamed = [size.vocab_size - 1 if token == original[9] else token for token in original]
    return {
        "prose": read_words("docs/architecture.md", size),
        "code": code,
        "a copy with one name changed": original + renamed[: size.n_new],
    }


def build_model(size: Size, text: list[int]) -> Decoder:
    """Return a model that generates the text from any beginning of it."""
    config = ModelConfig(
        d_model=size.width, d_ff=4 * size.width, n_layers=size.layers, n_heads=size.heads, dropout=0.0,
        positions="learned", tie_embeddings=False, head_bias=False,
    )  # fmt: skip
    model = use_fast_kernels(Decoder(config, DataSizes(vocab_size=size.vocab_size, max_len=len(text))))
    states = torch.nn.init.orthogonal_(torch.empty(len(text), size.width))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "out_proj" in name or "token_embedding" in name or ".ffn." in name:
                parameter.mul_(1e-3)  # the position decides
        model.embedding.position_embedding.table.weight.copy_(30 * states)
        model.lm_head.weight.zero_().index_add_(0, torch.tensor(text[1:]), states[:-1])
    cast_model(model.eval(), "fp32")
    return model


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("speculative", parse_options(__doc__, [*(arguments or []), "--device", "cpu"]))
    size = SMOKE if report.smoke else FULL
    for name, text in build_texts(size).items():
        adapter = DecoderAdapter(build_model(size, text), len(text))
        expected = text[size.n_prompt :]

        def decode(draft_tokens: int, adapter: DecoderAdapter, text: list[int]) -> list[int]:
            config = DecodeConfig(strategy="greedy", draft_tokens=draft_tokens)
            request = Request(text[: size.n_prompt], size.n_new, decode=config)
            return generate(adapter, [request], TokenConstraints(eos=-1))[0]

        contestants = {f"triform, {n} drafted": partial(decode, n, adapter, text) for n in DRAFT_TOKENS}
        contestants["without drafts"] = partial(decode, 0, adapter, text)
        equal = all(decode_text() == expected for decode_text in contestants.values())
        report.add_figures(name, equal_to_the_text=equal)
        report.measure(name, contestants, 1 if report.smoke else 2, units=len(expected), unit="tokens")
    report.write()


if __name__ == "__main__":
    main()
