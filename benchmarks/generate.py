"""Continuing a text with a GPT-2-shaped decoder beside `transformers` and CTranslate2.

All have the same weights, drawn at random, and write the same number of tokens, the most likely one each time.
On a CPU: 90M parameters, one text, float32 and int8. On CUDA: GPT-2's 124M in bf16, one text and 32.
"""

from __future__ import annotations

import copy
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
from triform.settings import build
from triform.tasks.generate import Generate
from triform.text import PAD, Tokenizer

PROMPT = 16
Answer = Callable[[list[str]], Any]


class Size(NamedTuple):
    width: int
    layers: int
    heads: int
    vocab_size: int
    max_len: int
    n_new: int


QUICK = Size(32, 1, 2, 100, 64, 6)
CPU = Size(768, 12, 12, 6_000, 256, 64)  # 90M parameters
GPU = Size(768, 12, 12, 50_257, 1024, 256)  # GPT-2's 124M


def our_task(size: Size, tokenizer: Tokenizer, theirs: Any) -> Generate:
    settings = {
        "task": "generate", "data.max_len": size.max_len, "tokenizer.kind": "word",
        "model.d_model": size.width, "model.d_ff": 4 * size.width, "model.n_layers": size.layers,
        "model.n_heads": size.heads, "model.activation": "gelu_tanh", "model.head_bias": False,
        "decode.strategy": "greedy", "decode.max_new_tokens": size.n_new,
    }  # fmt: skip
    task = Generate(build(settings, Config()), tokenizer)
    peers.copy_gpt2(theirs, task.model)
    task.model.eval()
    return task


def own(board: Board, task: Generate) -> dict[str, Answer]:
    """Ours in each precision; on CUDA in bf16 alone, as the others there."""
    found = {}
    for precision in ["bf16"] if board.cuda else quality.precisions(board.device):
        mine = copy.copy(task)
        mine.model = copy.deepcopy(task.model).to(board.device)
        cast_model(mine.model, precision)
        answer = peers.ours(mine.predict)
        found[f"triform {precision}"] = lambda texts, answer=answer: task.tokenizer.encode_batch(answer(texts))
    return found


def of_transformers(board: Board, theirs: Any, tokenizer: Tokenizer, n_new: int) -> Answer:
    theirs = theirs.to(board.device, torch.bfloat16 if board.cuda else torch.float32)

    @torch.inference_mode()
    def answer(texts: list[str]) -> peers.Tokens:
        prompts = torch.tensor(tokenizer.encode_batch(texts), device=board.device)
        made = theirs.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=n_new,
            min_new_tokens=n_new, suppress_tokens=list(peers.NEVER), pad_token_id=PAD,
        )  # fmt: skip
        return made[:, prompts.shape[1] :].tolist()

    return answer


def of_ctranslate2(folder: str, kind: str, tokenizer: Tokenizer, n_new: int) -> Answer:
    import ctranslate2

    model = ctranslate2.Generator(folder, compute_type=kind, intra_threads=torch.get_num_threads())

    def answer(texts: list[str]) -> peers.Tokens:
        prompts = [tokenizer.pieces(tokens) for tokens in tokenizer.encode_batch(texts)]
        made = model.generate_batch(
            prompts, max_length=n_new, min_length=n_new, sampling_topk=1, include_prompt_in_result=False,
            suppress_sequences=[[piece] for piece in tokenizer.pieces(peers.NEVER)],
        )  # fmt: skip
        return [result.sequences_ids[0] for result in made]

    return answer


def compare(board: Board, folder: Path) -> None:
    size = QUICK if board.quick else GPU if board.cuda else CPU
    tokenizer = peers.vocabulary(size.vocab_size)
    if not peers.installed("transformers"):
        board.skip("transformers", "not installed; without its weights there is nothing to compare")
        return
    theirs = peers.gpt2(size.width, size.layers, size.heads, tokenizer.vocab_size, size.max_len)
    task = our_task(size, tokenizer, theirs)
    board.note("the decoder", parameters=sum(p.numel() for p in task.model.parameters()), **size._asdict())
    who: dict[str, Answer] = own(board, task)
    if board.cuda:
        board.skip("ctranslate2", "compared on the CPU only")
    elif peers.installed("ctranslate2"):
        made = peers.converted(theirs, tokenizer.pieces(range(tokenizer.vocab_size)), folder / "ct2")
        for kind in ("float32", "int8"):
            who[f"ctranslate2 {kind}"] = of_ctranslate2(made, kind, tokenizer, size.n_new)
    else:
        board.skip("ctranslate2", "not installed")
    who["transformers"] = of_transformers(board, theirs, tokenizer, size.n_new)
    for rows in (1, 32) if board.cuda else (1,):
        prompts = peers.texts(tokenizer, [PROMPT] * rows)
        expected = who["transformers"](prompts)
        for name, answer in who.items():
            made = answer(prompts)
            assert all(len(tokens) == size.n_new for tokens in made), f"{name} wrote another number of tokens"
            board.note("tokens as transformers writes them", who=name, share=peers.agreement(made, expected))
        works = {name: partial(answer, prompts) for name, answer in who.items()}
        repeats = 1 if board.quick else 5
        board.race(f"{size.n_new} tokens, batch {rows}", works, repeats, units=size.n_new * rows, unit="tokens")


def main(arguments: list[str] | None = None) -> None:
    board = Board("generate", asked(__doc__, arguments))
    with tempfile.TemporaryDirectory() as folder:
        compare(board, Path(folder))
    quality.scores(board, "generate", "perplexity", "bits_per_byte")
    board.write()


if __name__ == "__main__":
    main()
