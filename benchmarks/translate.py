"""Translate with beam search, compared with `transformers` Marian and CTranslate2.

All have the same random weights and generate the same number of tokens for each sentence. `transformers` gets
sentences sorted by length in batches of 32; CTranslate2 sorts them and makes batches of 64.
On a CPU: 200 sentences, 6 + 6 layers, width 512, beam 4. On CUDA: 1,300 sentences, beam 5, bf16.
"""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import peers, quality
from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform.config import Config
from triform.config.settings import build_config
from triform.nn.layouts import pad
from triform.tasks.translate import Translate
from triform.text import Tokenizer

MAX_LEN = 64


class Size(NamedTuple):
    width: int
    layers: int
    heads: int
    vocab_size: int
    sentences: int
    beam: int
    n_new: int


SMOKE = Size(32, 1, 2, 100, 6, 2, 5)
CPU = Size(512, 6, 8, 8_000, 200, 4, 20)
GPU = Size(512, 6, 8, 8_000, 1300, 5, 24)


def build_task(size: Size, tokenizer: Tokenizer, peer_model: Any) -> Translate:
    settings = {
        "task": "translate", "data.max_len": MAX_LEN, "tokenizer.kind": "word",
        "model.d_model": size.width, "model.d_ff": 4 * size.width, "model.n_layers": size.layers,
        "model.n_heads": size.heads, "model.activation": "relu", "model.norm_position": "post",
        "model.final_norm": False, "model.scale_embeddings": True, "model.dropout": 0.0,
        "decode.strategy": "beam", "decode.beam_size": size.beam, "decode.max_new_tokens": size.n_new,
    }  # fmt: skip
    task = Translate(build_config(settings, Config()), tokenizer, tokenizer)
    peers.copy_marian(peer_model, task.model)
    task.model.eval()
    return task


def build_transformers_runner(
    report: BenchmarkReport, peer_model: Any, tokenizer: Tokenizer, size: Size
) -> peers.DecodeFn:
    peer_model = peer_model.to(report.device, torch.bfloat16 if report.cuda else torch.float32)

    @torch.inference_mode()
    def decode_texts(texts: list[str]) -> peers.TokenRows:
        rows = tokenizer.encode_batch(texts)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        translations: dict[int, list[int]] = {}
        for start in range(0, len(order), 32):
            batch_rows = order[start : start + 32]
            source, keep = pad([rows[row] for row in batch_rows], fill=peer_model.config.pad_token_id)
            keep = torch.ones_like(source, dtype=torch.bool) if keep is None else keep
            generated = peer_model.generate(
                source.to(report.device), attention_mask=keep.long().to(report.device), num_beams=size.beam,
                do_sample=False, max_new_tokens=size.n_new, min_new_tokens=size.n_new,
                suppress_tokens=[*peers.BANNED_TOKENS, peer_model.config.pad_token_id],
            )  # fmt: skip
            translations |= dict(zip(batch_rows, generated[:, 1:].tolist(), strict=True))
        return [translations[row] for row in range(len(rows))]

    return decode_texts


def build_ctranslate2_runner(model: Any, tokenizer: Tokenizer, size: Size) -> peers.DecodeFn:
    def decode_texts(texts: list[str]) -> peers.TokenRows:
        sources = [list(map(str, tokens)) for tokens in tokenizer.encode_batch(texts)]
        results = model.translate_batch(
            sources, beam_size=size.beam, max_decoding_length=size.n_new, min_decoding_length=size.n_new,
            max_batch_size=64, suppress_sequences=[[str(token)] for token in peers.BANNED_TOKENS],
        )  # fmt: skip
        return [list(map(int, result.hypotheses[0])) for result in results]

    return decode_texts


def compare(report: BenchmarkReport, folder: Path) -> None:
    size = SMOKE if report.smoke else GPU if report.cuda else CPU
    tokenizer = peers.build_tokenizer(size.vocab_size)
    if not peers.import_peer("transformers"):
        report.add_skipped("transformers", "not installed, but the benchmark needs its weights")
        return
    peer_model = peers.build_marian(size.width, size.layers, size.heads, tokenizer.vocab_size, MAX_LEN)
    task = build_task(size, tokenizer, peer_model)
    report.add_figures(
        "the model", parameters=sum(parameter.numel() for parameter in task.model.parameters()), **size._asdict()
    )
    contestants = peers.build_contestants(
        report,
        task,
        folder,
        lambda model: build_ctranslate2_runner(model, tokenizer, size),
        lambda: build_transformers_runner(report, peer_model, tokenizer, size),
    )
    rng = random.Random(0)
    lengths = [max(4, min(MAX_LEN, int(rng.lognormvariate(2.8, 0.5)))) for _ in range(size.sentences)]
    sources = peers.generate_texts(tokenizer, lengths)
    runs = {name: partial(decode_texts, sources) for name, decode_texts in contestants.items()}
    title = f"{size.sentences} sentences, beam {size.beam}, {size.n_new} tokens each"
    repeats = 1 if report.smoke else 3
    report.measure(
        title, runs, repeats, units=size.sentences, unit="sentences", timed_last=peers.slowing_contestants(runs)
    )
    peers.report_agreement(report, contestants, sources[:20], size.n_new)


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("translate", parse_options(__doc__, arguments))
    with tempfile.TemporaryDirectory() as folder:
        compare(report, Path(folder))
    quality.report_quality(report, "translate", "bleu", "exact_match")
    report.write()


if __name__ == "__main__":
    main()
