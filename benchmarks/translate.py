"""Translating with beam search beside `transformers` Marian and CTranslate2.

All have the same weights, drawn at random, and write the same number of tokens for each sentence. `transformers`
gets sentences sorted by length in batches of 32, CTranslate2 sorts and cuts batches of 64 by itself.
On a CPU: 200 sentences, 6 + 6 layers, width 512, beam 4. On CUDA: 1,300 sentences, beam 5, bf16.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import peers, quality
from benchmarks.board import Board, asked
from triform.config import Config
from triform.nn.precision import cast_model
from triform.nn.rows import pad
from triform.settings import build
from triform.tasks.translate import Translate
from triform.text import Tokenizer

LONGEST = 64
Answer = Callable[[list[str]], Any]


class Size(NamedTuple):
    width: int
    layers: int
    heads: int
    vocab_size: int
    sentences: int
    beam: int
    n_new: int


QUICK = Size(32, 1, 2, 100, 6, 2, 5)
CPU = Size(512, 6, 8, 8_000, 200, 4, 20)
GPU = Size(512, 6, 8, 8_000, 1300, 5, 24)


def our_task(size: Size, tokenizer: Tokenizer, theirs: Any) -> Translate:
    settings = {
        "task": "translate", "data.max_len": LONGEST, "tokenizer.kind": "word",
        "model.d_model": size.width, "model.d_ff": 4 * size.width, "model.n_layers": size.layers,
        "model.n_heads": size.heads, "model.activation": "relu", "model.norm_position": "post",
        "model.final_norm": False, "model.scale_embeddings": True, "model.dropout": 0.0,
        "decode.strategy": "beam", "decode.beam_size": size.beam, "decode.max_new_tokens": size.n_new,
    }  # fmt: skip
    task = Translate(build(settings, Config()), tokenizer, tokenizer)
    peers.copy_marian(theirs, task.model)
    task.model.eval()
    return task


def own(board: Board, task: Translate) -> dict[str, Answer]:
    """Ours in each precision; on CUDA in bf16 alone, as the others there."""
    found = {}
    for precision in ["bf16"] if board.cuda else quality.precisions(board.device):
        mine = copy.copy(task)
        mine.model = copy.deepcopy(task.model).to(board.device)
        cast_model(mine.model, precision)
        answer = peers.ours(mine.predict)
        found[f"triform {precision}"] = lambda texts, answer=answer: task.target.encode_batch(answer(texts))
    return found


def of_transformers(board: Board, theirs: Any, tokenizer: Tokenizer, size: Size) -> Answer:
    theirs = theirs.to(board.device, torch.bfloat16 if board.cuda else torch.float32)

    @torch.inference_mode()
    def answer(texts: list[str]) -> peers.Tokens:
        rows = tokenizer.encode_batch(texts)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        found: dict[int, list[int]] = {}
        for start in range(0, len(order), 32):
            part = order[start : start + 32]
            source, keep = pad([rows[row] for row in part], fill=theirs.config.pad_token_id)
            keep = torch.ones_like(source, dtype=torch.bool) if keep is None else keep
            made = theirs.generate(
                source.to(board.device), attention_mask=keep.long().to(board.device), num_beams=size.beam,
                do_sample=False, max_new_tokens=size.n_new, min_new_tokens=size.n_new,
                suppress_tokens=[*peers.NEVER, theirs.config.pad_token_id],
            )  # fmt: skip
            found |= dict(zip(part, made[:, 1:].tolist(), strict=True))
        return [found[row] for row in range(len(rows))]

    return answer


def of_ctranslate2(folder: str, kind: str, tokenizer: Tokenizer, size: Size) -> Answer:
    import ctranslate2

    model = ctranslate2.Translator(folder, compute_type=kind, intra_threads=torch.get_num_threads())

    def answer(texts: list[str]) -> peers.Tokens:
        sources = [tokenizer.pieces(tokens) for tokens in tokenizer.encode_batch(texts)]
        made = model.translate_batch(
            sources, beam_size=size.beam, max_decoding_length=size.n_new, min_decoding_length=size.n_new,
            max_batch_size=64, suppress_sequences=[[piece] for piece in tokenizer.pieces(peers.NEVER)],
        )  # fmt: skip
        return [tokenizer.encode(" ".join(result.hypotheses[0])) for result in made]

    return answer


def compare(board: Board, folder: Path) -> None:
    size = QUICK if board.quick else GPU if board.cuda else CPU
    tokenizer = peers.vocabulary(size.vocab_size)
    if not peers.installed("transformers"):
        board.skip("transformers", "not installed; without its weights there is nothing to compare")
        return
    theirs = peers.marian(size.width, size.layers, size.heads, tokenizer.vocab_size, LONGEST)
    task = our_task(size, tokenizer, theirs)
    board.note("the model", parameters=sum(p.numel() for p in task.model.parameters()), **size._asdict())
    who: dict[str, Answer] = own(board, task)
    if board.cuda:
        board.skip("ctranslate2", "compared on the CPU only")
    elif peers.installed("ctranslate2"):
        made = peers.converted(theirs, tokenizer.pieces(range(tokenizer.vocab_size)), folder / "ct2")
        for kind in ("float32", "int8"):
            who[f"ctranslate2 {kind}"] = of_ctranslate2(made, kind, tokenizer, size)
    else:
        board.skip("ctranslate2", "not installed")
    who["transformers"] = of_transformers(board, theirs, tokenizer, size)
    numbers = random.Random(0)
    lengths = [max(4, min(LONGEST, int(numbers.lognormvariate(2.8, 0.5)))) for _ in range(size.sentences)]
    sources = peers.texts(tokenizer, lengths)
    expected = who["transformers"](sources[:20])
    for name, answer in who.items():
        made = answer(sources[:20])
        assert all(len(tokens) == size.n_new for tokens in made), f"{name} wrote another number of tokens"
        board.note("tokens as transformers writes them", who=name, share=peers.agreement(made, expected))
    works = {name: partial(answer, sources) for name, answer in who.items()}
    what = f"{size.sentences} sentences, beam {size.beam}, {size.n_new} tokens each"
    repeats = 1 if board.quick else 3
    board.race(what, works, repeats, units=size.sentences, unit="sentences")


def main(arguments: list[str] | None = None) -> None:
    board = Board("translate", asked(__doc__, arguments))
    with tempfile.TemporaryDirectory() as folder:
        compare(board, Path(folder))
    quality.scores(board, "translate", "bleu", "exact_match")
    board.write()


if __name__ == "__main__":
    main()
