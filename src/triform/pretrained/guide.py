"""The README of an exported folder: what it holds, and a few lines of Python that load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triform.config import Config, TaskName
from triform.text import Tokenizer
from triform.text.spm import SentencePieces

TRANSFORMERS: dict[TaskName, str] = {
    "generate": """\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
given = tokenizer([{text!r}], return_tensors="pt")
written = model.generate(**given, max_length={limit})
print(tokenizer.decode(written[0], skip_special_tokens=True))
""",
    "classify": """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder)
given = tokenizer([{text!r}], truncation=True, return_tensors="pt")
best = model(**given).logits.argmax(-1)
print(model.config.id2label[best.item()])
""",
    "translate": """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
given = tokenizer([{text!r}], truncation=True, return_tensors="pt")
written = model.generate(**given, max_length={limit})
print(tokenizer.decode(written[0], skip_special_tokens=True))
""",
}
BY_TOKEN = """\
from transformers import AutoModelForTokenClassification, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForTokenClassification.from_pretrained(folder)
given = tokenizer([{text!r}], truncation=True, return_tensors="pt")
real = given["attention_mask"][:, :, None]
logits = (model(**given).logits * real).sum(1) / real.sum(1)  # the mean over the tokens of each text
print(model.config.id2label[logits.argmax(-1)[0].item()])
"""
AUTO: dict[TaskName, str] = {
    "generate": "AutoModelForCausalLM",
    "classify": "AutoModelForSequenceClassification",
    "translate": "AutoModelForSeq2SeqLM",
}
BY_NUMBERS = """\
import torch
{opening}
from transformers import {auto}

folder = {folder!r}
{reading}
model = {auto}.from_pretrained(folder)
given = torch.tensor([{numbers}])
{asking}
"""
WRITTEN = """\
written = model.generate(given, max_length={limit})[0].tolist()
print(target.decode([number for number in written if number < target.get_piece_size()]))"""
WRITTEN_IN_PIECES = """\
written = model.generate(given, max_length={limit})[0].tolist()
pieces = {{number: piece for piece, number in ids.items() if number not in {special}}}
print(target.decode_pieces([pieces[number] for number in written if number in pieces]))"""
NAMED = """\
print(model.config.id2label[model(given).logits.argmax(-1).item()])"""
NAMED_BY_TOKEN = """\
logits = model(given).logits.mean(1)  # over the tokens
print(model.config.id2label[logits.argmax(-1).item()])"""
CTRANSLATE2: dict[TaskName, str] = {
    "generate": """\
import ctranslate2
{opening}

folder = {folder!r}
{reading}
generator = ctranslate2.Generator(folder)
pieces = {source}
answer = generator.generate_batch(
    [pieces], max_length={limit} - len(pieces), sampling_topk=1, include_prompt_in_result=False,
    suppress_sequences={never!r},
)
written = pieces + answer[0].sequences[0]
print({decoded})
""",
    "translate": """\
import ctranslate2
{opening}

folder = {folder!r}
{reading}
translator = ctranslate2.Translator(folder)
pieces = {source}
answer = translator.translate_batch(
    [pieces], beam_size=1, min_decoding_length=0, max_decoding_length={limit} - 1,
    suppress_sequences={never!r},
)
written = answer[0].hypotheses[0]
print({decoded})
""",
}
ONNX = """\
import json

import numpy as np
import onnxruntime
{opening}

folder = {folder!r}
{reading}
session = onnxruntime.InferenceSession(folder + "/model.onnx")
numbers = {numbers}
given = {{"input_ids": np.array([numbers]), "attention_mask": np.ones((1, len(numbers)), dtype=np.int64)}}
logits = session.run(["logits"], given)[0]
labels = json.load(open(folder + "/config.json", encoding="utf-8"))["id2label"]
print(labels[str(logits.argmax(-1)[0])])
"""
NEEDED = {"hf": "transformers torch", "ctranslate2": "ctranslate2 tokenizers", "onnx": "onnxruntime tokenizers"}
TEXTS: dict[TaskName, str] = {
    "generate": "the",
    "classify": "A wonderful film.",
    "translate": "one hundred and two",
}


_HOW_BY_TOKEN = " It scores the labels for each token, and the logits of a text are the mean over its tokens."


def guide(to: str, config: Config, tokenizers: Sequence[Tokenizer], out: Path) -> str:
    """The text; its Python runs as it stands."""
    first = tokenizers[0]
    by_pieces = isinstance(first, SentencePieces)
    words = (_by_sentencepiece if by_pieces else _by_tokenizers)(tokenizers, TEXTS[config.task], config)
    spelled = tokenizers[-1].vocabulary
    numbered = isinstance(first, SentencePieces) and first.ids is not None  # by vocab.json, as Marian's are
    by_token = to == "hf" and config.task == "classify" and config.model.pooling == "mean"
    asking = WRITTEN_IN_PIECES if numbered else WRITTEN
    if config.task == "classify":
        asking = NAMED_BY_TOKEN if by_token else NAMED
    special = sorted({token for token in tokenizers[-1].special[:4] if token is not None})
    asking = asking.format(limit=config.data.max_len, special=special)
    auto = "AutoModelForTokenClassification" if by_token else AUTO[config.task]
    form = _form(to, config.task, first)
    code = (BY_TOKEN if by_token and form == TRANSFORMERS["classify"] else form).format(
        folder=str(out), text=TEXTS[config.task], limit=config.data.max_len, auto=auto, asking=asking,
        never=[[spelled[token]] for token in tokenizers[-1].never_written], **words,
    )  # fmt: skip
    needed = NEEDED[to].replace("tokenizers", "sentencepiece") if by_pieces else NEEDED[to]
    needed += " sentencepiece" if by_pieces and to == "hf" else ""
    asks = {"classify": "names a label for", "generate": "goes on with", "translate": "translates"}
    return (
        f"# {out.name}\n\nA model that {asks[config.task]} a text, made with Triform and written for {to}. "
        f"It reads at most {config.data.max_len} tokens.{_HOW_BY_TOKEN if by_token else ''}\n\n"
        f"```sh\npip install {needed}\n```\n\n```python\n{code}```\n"
    )


def _form(to: str, task: TaskName, tokenizer: Tokenizer) -> str:
    """What transformers makes of a SentencePiece model is not always what it says: there it is asked itself."""
    if to == "hf":
        as_marian = task == "translate" and isinstance(tokenizer, SentencePieces) and tokenizer.ids is not None
        return BY_NUMBERS if isinstance(tokenizer, SentencePieces) and not as_marian else TRANSFORMERS[task]
    return ONNX if to == "onnx" else CTRANSLATE2[task]


def _by_tokenizers(tokenizers: Sequence[Tokenizer], text: str, config: Config) -> dict[str, str]:
    target = "/target/tokenizer.json" if len(tokenizers) == 2 else ""
    second = f'\ntarget = Tokenizer.from_file(folder + "{target}")' if target else ""
    reader = "target" if target else "tokenizer"
    cut = f"\ntokenizer.enable_truncation({config.data.max_len})" if config.task != "generate" else ""
    return {
        "opening": "from tokenizers import Tokenizer",
        "reading": f'tokenizer = Tokenizer.from_file(folder + "/tokenizer.json"){second}{cut}',
        "source": f"tokenizer.encode({text!r}).tokens",
        "numbers": f"tokenizer.encode({text!r}).ids",
        "decoded": f"{reader}.decode([{reader}.token_to_id(piece) for piece in written])",
    }


def _by_sentencepiece(tokenizers: Sequence[Tokenizer], text: str, config: Config) -> dict[str, str]:
    first = tokenizers[0]
    assert isinstance(first, SentencePieces)
    name = "source.spm" if first.ids else "tokenizer.model"
    alike = len(tokenizers) == 1 or first.vocabulary == tokenizers[1].vocabulary
    target = name if len(tokenizers) == 1 else "target.spm" if alike else "target/target.spm"
    before = [first.vocabulary[token] for token in first.special.before]
    ends = list(first.special.after) if config.task != "generate" else []
    most = config.data.max_len - len(before) - len(ends)
    after = [first.vocabulary[token] for token in ends]
    most_pieces = f"[:{most}]" if config.task != "generate" else ""
    encoded, ids, json = f"source.encode({text!r})", "", ""
    if first.ids:
        json = "import json\n\n"
        ids = '\nids = json.load(open(folder + "/vocab.json", encoding="utf-8"))'
        unknown = first.special.nothing
        encoded = f"[ids.get(piece, {unknown}) for piece in source.encode({text!r}, out_type=str)]"
    return {
        "opening": f"{json}from sentencepiece import SentencePieceProcessor",
        "reading": f'source = SentencePieceProcessor(model_file=folder + "/{name}")\n'
        f'target = SentencePieceProcessor(model_file=folder + "/{target}"){ids}',
        "source": f"[*{before!r}, *source.encode({text!r}, out_type=str){most_pieces}, *{after!r}]",
        "numbers": f"[*{list(first.special.before)!r}, *{encoded}[:{most}], *{ends!r}]",
        "decoded": "target.decode_pieces(written)",
    }
