"""The Python in an exported folder's README says what `predict` says, whatever the tokenizer."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from published import run_readme, stir
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

import triform
from triform.config import TokenizerConfig
from triform.pretrained import export
from triform.settings import build
from triform.tasks import TASKS, Task
from triform.text import Tokenizer, read_tokenizer, train_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "text"))  # where vocabularies of other libraries are made
from foreign_cases import (
    learned_ranks,
    sentencepiece_model,
    write_bert,
    write_gpt2,
    write_marian,
    write_ranks,
)

TEXTS = ["A wonderful film.", "the cat sat on the mat", "one hundred and two cats", "the end of the film."] * 5
SHAPE = {"model.d_model": 16, "model.d_ff": 24, "model.n_layers": 1, "model.n_heads": 2, "data.max_len": 16}
BERT: dict[str, Any] = {
    "norm_position": "post", "final_norm": False, "embedding_norm": True, "pooling": "first", "head_hidden": 16,
    "head_activation": "tanh",
}  # fmt: skip
MARIAN: dict[str, Any] = {"positions": "sinusoidal_halves", "norm_position": "post", "final_norm": False}
DEFAULT: dict[str, Any] = {}
PROMPTS = {"generate": "the", "classify": "A wonderful film.", "translate": "one hundred and two"}


def own(kind: Any) -> Callable[[Path], Tokenizer]:
    return lambda folder: train_tokenizer(TokenizerConfig(kind=kind), TEXTS)


def gpt2(folder: Path) -> Tokenizer:
    return read_tokenizer(write_gpt2(folder))


def tiktoken(folder: Path) -> Tokenizer:
    ranks = learned_ranks(40)
    del ranks[b" zzqy"]
    path = write_ranks(folder / "my.tiktoken", ranks)
    return read_tokenizer(path, pattern=r"\s?\S+|\s+", special={"<|endoftext|>": len(ranks)})


def wordpiece(folder: Path) -> Tokenizer:
    return read_tokenizer(write_bert(folder, lowercase=True))


def unigram(folder: Path) -> Tokenizer:
    """As T5 and ALBERT have it in a tokenizer.json: an end token after each text."""
    core = Core(models.Unigram())
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    core.train_from_iterator(
        TEXTS,
        trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    core.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder)


def with_bos(folder: Path) -> Tokenizer:
    """As Llama 3 has it: byte-level BPE, and a BOS token before each text."""
    core = Core.from_str(read_core(gpt2(folder)))
    core.add_special_tokens(["<|begin_of_text|>"])
    number = core.token_to_id("<|begin_of_text|>")
    core.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", number)]
    )
    core.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder)


def read_core(tokenizer: Tokenizer) -> str:
    return json.dumps(json.loads(tokenizer.to_json())["tokenizer"])


def llama(folder: Path) -> Tokenizer:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    sentencepiece_model(folder, "tokenizer.model", "bpe", TEXTS, byte_fallback=True, vocab_size=320)
    return read_tokenizer(folder)


def sentencepieces(folder: Path) -> Tokenizer:
    sentencepiece_model(folder, "tokenizer.model", "unigram", TEXTS, vocab_size=60)
    return read_tokenizer(folder)


def marian(folder: Path) -> Tokenizer:
    return read_tokenizer(write_marian(folder))


TOKENIZERS: dict[str, Callable[[Path], Tokenizer]] = {
    "char": own("char"), "word": own("word"), "bpe": own("bpe"), "gpt2": gpt2, "tiktoken": tiktoken,
    "wordpiece": wordpiece, "unigram": unigram, "with bos": with_bos, "llama": llama,
    "sentencepiece": sentencepieces, "marian": marian,
}  # fmt: skip
WAYS = [
    ("generate", DEFAULT, "hf"), ("generate", DEFAULT, "ctranslate2"),
    ("classify", DEFAULT, "hf"), ("classify", BERT, "hf"), ("classify", DEFAULT, "onnx"),
    ("translate", DEFAULT, "hf"), ("translate", MARIAN, "hf"), ("translate", DEFAULT, "ctranslate2"),
]  # fmt: skip


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return TOKENIZERS[request.param](tmp_path_factory.mktemp("vocabulary"))


def written_by(ours: Any, tokens: list[int]) -> tuple[list[int], float]:
    """Greedy tokens by plain forward passes, and by how much each was ahead of the next best, at the least."""
    special, length = (
        ours.target.special if ours.name == "translate" else ours.tokenizer.special,
        SHAPE["data.max_len"],
    )
    never = list(ours.target.never_written if ours.name == "translate" else ours.tokenizer.never_written)
    start = [special.start] if ours.name == "translate" else tokens
    written, lead = [*start], math.inf
    while len(written) < length:
        rows = torch.tensor([written])
        logits = ours.model(torch.tensor([tokens]), rows) if ours.name == "translate" else ours.model(rows)
        logits[0, -1, never] = -math.inf
        best = logits[0, -1].topk(2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        written.append(int(best.indices[0]))
        if written[-1] == special.blank:
            break
    return written[len(start) :], lead


@torch.no_grad()
def decided(task: str, model: dict[str, Any], tokenizer: Tokenizer) -> Task:
    """A random model whose answer to the prompt hangs on no near tie, and has no special token inside."""
    length = SHAPE["data.max_len"]
    labels = {"data.labels": ("bad", "good", "neither")} if task == "classify" else {}
    settings = {f"model.{name}": value for name, value in model.items()}
    special, tokens = tokenizer.special, tokenizer.encode(PROMPTS[task])
    tokens = [*special.before, *tokens] if task == "generate" else special.whole(tokens, length)
    limit = length - (len(tokens) if task == "generate" else 1)
    decode = {"decode.strategy": "greedy", "decode.max_new_tokens": limit}
    config = build({"task": task, "tokenizer.kind": tokenizer.kind, **SHAPE, **settings, **labels, **decode})
    for seed in range(100):
        torch.manual_seed(seed)
        made: Any = TASKS[task](config, *[tokenizer] * (2 if task == "translate" else 1))  # type: ignore[index]
        stir(made.model.eval())
        if task == "classify":
            best = made.model(torch.tensor([tokens]))[0].topk(2).values
            if best[0] - best[1] > 0.1:
                return made
            continue
        written, lead = written_by(made, tokens)
        inner = written[:-1] if written[-1] == special.blank else written
        if lead > 1e-2 and inner and not {*inner} & {*special[:4], *special.before, *special.after}:
            return made
    raise AssertionError("no model is clear about its answer")


def bare(text: str) -> str:
    """Without spaces: where they go between words is guessed, there and here. ▁ is a space in pieces."""
    return "".join(text.replace("▁", " ").split())


@pytest.mark.parametrize(("task", "model", "to"), WAYS)
def test_the_readme_says_what_predict_says(
    task: str,
    model: dict[str, Any],
    to: str,
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = decided(task, model, tokenizer)
    if to == "onnx":  # writing a graph takes seconds, and other tests compare graphs: here the model answers itself
        monkeypatch.setattr("triform.pretrained.exported.write_onnx", lambda *given: None)
        monkeypatch.setattr("onnxruntime.InferenceSession", lambda path: Answering(ours))
    export(ours, to, tmp_path / "out")
    prompt = PROMPTS[task]
    wanted = ours.predict([prompt])[0].output
    whole = prompt + wanted if task == "generate" else wanted
    assert bare(run_readme(tmp_path / "out")) == bare(whole)


class Answering:
    """Has the method of onnxruntime's sessions that the README calls."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @torch.no_grad()
    def run(self, names: list[str], given: dict[str, Any]) -> list[Any]:
        tokens, mask = (torch.from_numpy(given[name]) for name in ("input_ids", "attention_mask"))
        return [self.task.model(tokens, mask != 0).numpy()]


def test_a_generator_trained_here_reads_no_special_tokens_that_it_never_saw(tmp_path: Path) -> None:
    write_bert(tmp_path / "bert", lowercase=True)
    (tmp_path / "story.txt").write_text("the cat sat on the mat.\n" * 40)
    run = triform.train(
        "generate", data=str(tmp_path / "story.txt"), out=tmp_path / "run", device="cpu", quiet=True,
        tokenizer={"file": str(tmp_path / "bert")}, train={"max_steps": 2, "eval_every": 100},
        model={"d_model": 16, "n_layers": 1, "n_heads": 2},
    )  # fmt: skip
    assert read_tokenizer(tmp_path / "bert").special.after
    for opened in (run, triform.load(run.path)):
        special = opened.task.tokenizer.special
        assert (special.before, special.after) == ((), ())
    run.export("hf", tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("the cat sat")["input_ids"] == run.task.tokenizer.encode("the cat sat")
