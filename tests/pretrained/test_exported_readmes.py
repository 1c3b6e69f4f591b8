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
from published import randomise_weights, run_readme
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

import triform
from triform.config import TokenizerConfig
from triform.config.settings import build_config
from triform.pretrained import export
from triform.tasks import TASKS, Task
from triform.text import Tokenizer, read_tokenizer, train_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "text"))  # where vocabularies of other libraries are made
from importing_cases import (
    build_ranks,
    write_bert,
    write_gpt2,
    write_marian,
    write_ranks,
    write_sentencepiece_model,
)

TEXTS = ["A wonderful film.", "the cat sat on the mat", "one hundred and two cats", "the end of the film."] * 5
BASE_SETTINGS = {"model.d_model": 16, "model.d_ff": 24, "model.n_layers": 1, "model.n_heads": 2, "data.max_len": 16}
BERT_SETTINGS: dict[str, Any] = {
    "norm_position": "post", "final_norm": False, "embedding_norm": True, "pooling": "first", "head_hidden": 16,
    "head_activation": "tanh",
}  # fmt: skip
MARIAN_SETTINGS: dict[str, Any] = {"positions": "sinusoidal_halves", "norm_position": "post", "final_norm": False}
DEFAULT_SETTINGS: dict[str, Any] = {}
PROMPTS = {"generate": "the", "classify": "A wonderful film.", "translate": "one hundred and two"}


def own_tokenizer(kind: Any) -> Callable[[Path], Tokenizer]:
    return lambda folder: train_tokenizer(TokenizerConfig(kind=kind), TEXTS)


def gpt2_tokenizer(folder: Path) -> Tokenizer:
    return read_tokenizer(write_gpt2(folder))


def tiktoken_tokenizer(folder: Path) -> Tokenizer:
    ranks = build_ranks(40)
    del ranks[b" zzqy"]
    path = write_ranks(folder / "my.tiktoken", ranks)
    return read_tokenizer(path, pattern=r"\s?\S+|\s+", special_tokens={"<|endoftext|>": len(ranks)})


def wordpiece_tokenizer(folder: Path) -> Tokenizer:
    return read_tokenizer(write_bert(folder, lowercase=True))


def unigram_tokenizer(folder: Path) -> Tokenizer:
    """As T5 and ALBERT have it in a tokenizer.json: an end token after each text."""
    hf_tokenizer = Core(models.Unigram())
    hf_tokenizer.normalizer = normalizers.NFKC()
    hf_tokenizer.pre_tokenizer, hf_tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    hf_tokenizer.train_from_iterator(
        TEXTS,
        trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    hf_tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    hf_tokenizer.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder)


def bos_tokenizer(folder: Path) -> Tokenizer:
    """As Llama 3 has it: byte-level BPE, and a BOS token before each text."""
    hf_tokenizer = Core.from_str(core_json(gpt2_tokenizer(folder)))
    hf_tokenizer.add_special_tokens(["<|begin_of_text|>"])
    bos_id = hf_tokenizer.token_to_id("<|begin_of_text|>")
    hf_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos_id)]
    )
    hf_tokenizer.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder)


def core_json(tokenizer: Tokenizer) -> str:
    return json.dumps(json.loads(tokenizer.to_json())["tokenizer"])


def llama_tokenizer(folder: Path) -> Tokenizer:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    write_sentencepiece_model(folder, "tokenizer.model", "bpe", TEXTS, byte_fallback=True, vocab_size=320)
    return read_tokenizer(folder)


def sentencepiece_tokenizer(folder: Path) -> Tokenizer:
    write_sentencepiece_model(folder, "tokenizer.model", "unigram", TEXTS, vocab_size=60)
    return read_tokenizer(folder)


def marian_tokenizer(folder: Path) -> Tokenizer:
    return read_tokenizer(write_marian(folder))


TOKENIZER_BUILDERS: dict[str, Callable[[Path], Tokenizer]] = {
    "char": own_tokenizer("char"), "word": own_tokenizer("word"), "bpe": own_tokenizer("bpe"),
    "gpt2": gpt2_tokenizer, "tiktoken": tiktoken_tokenizer, "wordpiece": wordpiece_tokenizer,
    "unigram": unigram_tokenizer, "with bos": bos_tokenizer, "llama": llama_tokenizer,
    "sentencepiece": sentencepiece_tokenizer, "marian": marian_tokenizer,
}  # fmt: skip
EXPORT_CASES = [
    ("generate", DEFAULT_SETTINGS, "hf"), ("generate", DEFAULT_SETTINGS, "ctranslate2"),
    ("classify", DEFAULT_SETTINGS, "hf"), ("classify", BERT_SETTINGS, "hf"), ("classify", DEFAULT_SETTINGS, "onnx"),
    ("translate", DEFAULT_SETTINGS, "hf"), ("translate", MARIAN_SETTINGS, "hf"),
    ("translate", DEFAULT_SETTINGS, "ctranslate2"),
]  # fmt: skip


@pytest.fixture(scope="module", params=TOKENIZER_BUILDERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return TOKENIZER_BUILDERS[request.param](tmp_path_factory.mktemp("vocabulary"))


def decode_greedily(task_object: Any, tokens: list[int]) -> tuple[list[int], float]:
    """Greedy tokens by plain forward passes, and by how much each was ahead of the next best, at the least."""
    special, length = (
        task_object.target_tokenizer.special_tokens
        if task_object.name == "translate"
        else task_object.tokenizer.special_tokens,
        BASE_SETTINGS["data.max_len"],
    )
    suppressed = list(
        task_object.target_tokenizer.banned_tokens
        if task_object.name == "translate"
        else task_object.tokenizer.banned_tokens
    )
    start = [special.start_token] if task_object.name == "translate" else tokens
    generated, min_margin = [*start], math.inf
    while len(generated) < length:
        rows = torch.tensor([generated])
        logits = (
            task_object.model(torch.tensor([tokens]), rows)
            if task_object.name == "translate"
            else task_object.model(rows)
        )
        logits[0, -1, suppressed] = -math.inf
        top_two = logits[0, -1].topk(2)
        min_margin = min(min_margin, float(top_two.values[0] - top_two.values[1]))
        generated.append(int(top_two.indices[0]))
        if generated[-1] == special.end_token:
            break
    return generated[len(start) :], min_margin


@torch.no_grad()
def build_decided_task(task: str, model: dict[str, Any], tokenizer: Tokenizer) -> Task:
    """A random model whose answer to the prompt hangs on no near tie, and has no special token inside."""
    length = BASE_SETTINGS["data.max_len"]
    labels = {"data.labels": ("bad", "good", "neither")} if task == "classify" else {}
    settings = {f"model.{name}": value for name, value in model.items()}
    special, tokens = tokenizer.special_tokens, tokenizer.encode(PROMPTS[task])
    tokens = [*special.before, *tokens] if task == "generate" else special.wrap(tokens, length)
    max_new_tokens = length - (len(tokens) if task == "generate" else 1)
    decode = {"decode.strategy": "greedy", "decode.max_new_tokens": max_new_tokens}
    config = build_config(
        {"task": task, "tokenizer.kind": tokenizer.kind, **BASE_SETTINGS, **settings, **labels, **decode}
    )
    for seed in range(100):
        torch.manual_seed(seed)
        task_object: Any = TASKS[task](config, *[tokenizer] * (2 if task == "translate" else 1))  # type: ignore[index]
        randomise_weights(task_object.model.eval())
        if task == "classify":
            top_two = task_object.model(torch.tensor([tokens]))[0].topk(2).values
            if top_two[0] - top_two[1] > 0.1:
                return task_object
            continue
        generated, min_margin = decode_greedily(task_object, tokens)
        body = generated[:-1] if generated[-1] == special.end_token else generated
        if min_margin > 1e-2 and body and not {*body} & {*special[:4], *special.before, *special.after}:
            return task_object
    raise AssertionError("no model is clear about its answer")


def remove_spaces(text: str) -> str:
    """Without spaces: where they go between words is guessed, there and here. ▁ is a space in pieces."""
    return "".join(text.replace("▁", " ").split())


@pytest.mark.parametrize(("task", "model", "to"), EXPORT_CASES)
def test_the_readme_says_what_predict_says(
    task: str,
    model: dict[str, Any],
    to: str,
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task_object = build_decided_task(task, model, tokenizer)
    if to == "onnx":  # writing a graph takes seconds, and other tests compare graphs: here the model answers itself
        monkeypatch.setattr("triform.pretrained.run_export.write_onnx", lambda *arguments: None)
        monkeypatch.setattr("onnxruntime.InferenceSession", lambda path: FakeSession(task_object))
    export(task_object, to, tmp_path / "out")
    prompt = PROMPTS[task]
    expected = task_object.predictor.predict([prompt])[0].output
    full_text = prompt + expected if task == "generate" else expected
    assert remove_spaces(run_readme(tmp_path / "out")) == remove_spaces(full_text)


class FakeSession:
    """Has the method of onnxruntime's sessions that the README calls."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @torch.no_grad()
    def run(self, names: list[str], inputs: dict[str, Any]) -> list[Any]:
        tokens, mask = (torch.from_numpy(inputs[name]) for name in ("input_ids", "attention_mask"))
        return [self.task.model(tokens, mask != 0).numpy()]


def test_a_generator_trained_here_reads_no_special_tokens_that_it_never_saw(tmp_path: Path) -> None:
    write_bert(tmp_path / "bert", lowercase=True)
    (tmp_path / "story.txt").write_text("the cat sat on the mat.\n" * 40)
    run = triform.train(
        "generate", data=str(tmp_path / "story.txt"), out=tmp_path / "run", device="cpu", quiet=True,
        tokenizer={"file": str(tmp_path / "bert")}, train={"max_steps": 2, "eval_every": 100},
        model={"d_model": 16, "n_layers": 1, "n_heads": 2},
    )  # fmt: skip
    assert read_tokenizer(tmp_path / "bert").special_tokens.after
    for loaded_run in (run, triform.load(run.path)):
        special = loaded_run.task.tokenizer.special_tokens
        assert (special.before, special.after) == ((), ())
    run.export("hf", tmp_path / "out")
    hf_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert hf_tokenizer("the cat sat")["input_ids"] == run.task.tokenizer.encode("the cat sat")
