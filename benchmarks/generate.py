"""Generate text with a decoder of GPT-2's shape, compared with `transformers` and CTranslate2.

All have the same random weights and generate the same number of tokens by greedy decoding.
On a CPU: 90M parameters, one text, float32 and int8, and the share of the memory bandwidth that each reaches.
On CUDA: GPT-2's 124M in bf16, batches of 1 and 32 texts.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import peers, quality
from benchmarks.bandwidth import count_linear_weights, report_bandwidth_shares
from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform.config import Config
from triform.config.settings import build_config
from triform.tasks.generate import Generate
from triform.text import PAD, Tokenizer

PROMPT_LEN = 16


class Size(NamedTuple):
    width: int
    layers: int
    heads: int
    vocab_size: int
    max_len: int
    n_new: int


SMOKE = Size(32, 1, 2, 100, 64, 6)
CPU = Size(768, 12, 12, 6_000, 256, 64)  # 90M parameters
GPU = Size(768, 12, 12, 50_257, 1024, 256)  # GPT-2's 124M


def build_task(size: Size, tokenizer: Tokenizer, peer_model: Any) -> Generate:
    settings = {
        "task": "generate", "data.max_len": size.max_len, "tokenizer.kind": "word",
        "model.d_model": size.width, "model.d_ff": 4 * size.width, "model.n_layers": size.layers,
        "model.n_heads": size.heads, "model.activation": "gelu_tanh", "model.head_bias": False,
        "decode.strategy": "greedy", "decode.max_new_tokens": size.n_new,
    }  # fmt: skip
    task = Generate(build_config(settings, Config()), tokenizer)
    peers.copy_gpt2(peer_model, task.model)
    task.model.eval()
    return task


def build_transformers_runner(
    report: BenchmarkReport, peer_model: Any, tokenizer: Tokenizer, max_new_tokens: int
) -> peers.DecodeFn:
    peer_model = peer_model.to(report.device, torch.bfloat16 if report.cuda else torch.float32)

    @torch.inference_mode()
    def decode_texts(texts: list[str]) -> peers.TokenRows:
        prompts = torch.tensor(tokenizer.encode_batch(texts), device=report.device)
        generated = peer_model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=max_new_tokens,
            min_new_tokens=max_new_tokens, suppress_tokens=list(peers.BANNED_TOKENS), pad_token_id=PAD,
        )  # fmt: skip
        return generated[:, prompts.shape[1] :].tolist()

    return decode_texts


def build_ctranslate2_runner(model: Any, tokenizer: Tokenizer, max_new_tokens: int) -> peers.DecodeFn:
    def decode_texts(texts: list[str]) -> peers.TokenRows:
        prompts = [list(map(str, tokens)) for tokens in tokenizer.encode_batch(texts)]
        results = model.generate_batch(
            prompts,
            max_length=max_new_tokens,
            min_length=max_new_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
            suppress_sequences=[[str(token)] for token in peers.BANNED_TOKENS],
        )
        return [result.sequences_ids[0] for result in results]

    return decode_texts


def compare(report: BenchmarkReport, folder: Path) -> None:
    size = SMOKE if report.smoke else GPU if report.cuda else CPU
    tokenizer = peers.build_tokenizer(size.vocab_size)
    if not peers.import_peer("transformers"):
        report.add_skipped("transformers", "not installed, but the benchmark needs its weights")
        return
    peer_model = peers.build_gpt2(size.width, size.layers, size.heads, tokenizer.vocab_size, size.max_len)
    task = build_task(size, tokenizer, peer_model)
    report.add_figures(
        "the decoder", parameters=sum(parameter.numel() for parameter in task.model.parameters()), **size._asdict()
    )
    n_weights = count_linear_weights(task.model)
    contestants = peers.build_contestants(
        report,
        task,
        folder,
        lambda model: build_ctranslate2_runner(model, tokenizer, size.n_new),
        lambda: build_transformers_runner(report, peer_model, tokenizer, size.n_new),
    )
    for rows in (1, 32) if report.cuda else (1,):
        prompts = peers.generate_texts(tokenizer, [PROMPT_LEN] * rows)
        runs = {name: partial(decode_texts, prompts) for name, decode_texts in contestants.items()}
        repeats = 1 if report.smoke else 5
        title = f"{size.n_new} tokens, batch {rows}"
        timings = report.measure(
            title, runs, repeats, units=size.n_new * rows, unit="tokens", timed_last=peers.slowing_contestants(runs)
        )
        peers.report_agreement(report, contestants, prompts, size.n_new)
        if not report.cuda:
            report_bandwidth_shares(report, timings, n_weights, size.n_new)


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("generate", parse_options(__doc__, arguments))
    with tempfile.TemporaryDirectory() as folder:
        compare(report, Path(folder))
    quality.report_quality(report, "generate", "perplexity", "bits_per_byte")
    report.write()


if __name__ == "__main__":
    main()
