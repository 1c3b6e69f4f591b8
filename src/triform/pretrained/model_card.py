"""The README of an exported folder: what the folder contains, and Python code that loads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triform.config import Config, TaskName
from triform.pretrained.card_metadata import CardInfo, build_metadata, format_front_matter, public_name
from triform.text import Tokenizer
from triform.text.spm import SentencePieceTokenizer

TRANSFORMERS_SNIPPETS: dict[TaskName, str] = {
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
TOKEN_POOLING_SNIPPET = """\
from transformers import AutoModelForTokenClassification, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForTokenClassification.from_pretrained(folder)
given = tokenizer([{text!r}], truncation=True, return_tensors="pt")
real = given["attention_mask"][:, :, None]
logits = (model(**given).logits * real).sum(1) / real.sum(1)  # the mean over the tokens of each text
print(model.config.id2label[logits.argmax(-1)[0].item()])
"""
AUTO_CLASSES: dict[TaskName, str] = {
    "generate": "AutoModelForCausalLM",
    "classify": "AutoModelForSequenceClassification",
    "translate": "AutoModelForSeq2SeqLM",
}
TOKEN_IDS_SNIPPET = """\
import torch
{opening}
from transformers import {auto}

folder = {folder!r}
{reading}
model = {auto}.from_pretrained(folder)
given = torch.tensor([{numbers}])
{asking}
"""
DECODE_IDS_SNIPPET = """\
written = model.generate(given, max_length={limit})[0].tolist()
print(target.decode([number for number in written if number < target.get_piece_size()]))"""
DECODE_PIECES_SNIPPET = """\
written = model.generate(given, max_length={limit})[0].tolist()
pieces = {{number: piece for piece, number in ids.items() if number not in {special}}}
print(target.decode_pieces([pieces[number] for number in written if number in pieces]))"""
LABEL_SNIPPET = """\
print(model.config.id2label[model(given).logits.argmax(-1).item()])"""
TOKEN_POOLING_LABEL_SNIPPET = """\
logits = model(given).logits.mean(1)  # over the tokens
print(model.config.id2label[logits.argmax(-1).item()])"""
CTRANSLATE2_SNIPPETS: dict[TaskName, str] = {
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
ONNX_SNIPPET = """\
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
FORMAT_NAMES = {"hf": "Hugging Face `transformers`", "ctranslate2": "CTranslate2", "onnx": "ONNX Runtime"}
REQUIREMENTS = {
    "hf": "transformers torch",
    "ctranslate2": "ctranslate2 tokenizers",
    "onnx": "onnxruntime tokenizers",
}
EXAMPLE_TEXTS: dict[TaskName, str] = {
    "generate": "the",
    "classify": "A wonderful film.",
    "translate": "one hundred and two",
}


_TOKEN_POOLING_NOTE = " It computes logits for each token, and the logits of a text are the mean over its tokens."


def build_model_card(
    export_format: str, config: Config, tokenizers: Sequence[Tokenizer], out: Path, info: CardInfo | None = None
) -> str:
    """Return the text of the README, which starts with metadata for the Hub. Its code runs without changes."""
    info = info or CardInfo()
    source_tokenizer = tokenizers[0]
    uses_sentencepiece = isinstance(source_tokenizer, SentencePieceTokenizer)
    fields = (_sentencepiece_fields if uses_sentencepiece else _tokenizers_fields)(
        tokenizers, EXAMPLE_TEXTS[config.task], config
    )
    vocabulary = tokenizers[-1].vocabulary
    # True where vocab.json assigns the ids, as for Marian.
    has_own_ids = isinstance(source_tokenizer, SentencePieceTokenizer) and source_tokenizer.ids is not None
    pools_token_logits = export_format == "hf" and config.task == "classify" and config.model.pooling == "mean"
    output_snippet = DECODE_PIECES_SNIPPET if has_own_ids else DECODE_IDS_SNIPPET
    if config.task == "classify":
        output_snippet = TOKEN_POOLING_LABEL_SNIPPET if pools_token_logits else LABEL_SNIPPET
    special = sorted({token for token in tokenizers[-1].special_tokens[:4] if token is not None})
    output_snippet = output_snippet.format(limit=config.data.max_len, special=special)
    auto_class = "AutoModelForTokenClassification" if pools_token_logits else AUTO_CLASSES[config.task]
    snippet = _select_snippet(export_format, config.task, source_tokenizer)
    if pools_token_logits and snippet == TRANSFORMERS_SNIPPETS["classify"]:
        snippet = TOKEN_POOLING_SNIPPET
    code = snippet.format(
        folder=str(out),
        text=EXAMPLE_TEXTS[config.task],
        limit=config.data.max_len,
        auto=auto_class,
        asking=output_snippet,
        never=[[vocabulary[token]] for token in tokenizers[-1].banned_tokens],
        **fields,
    )
    requirements = (
        REQUIREMENTS[export_format].replace("tokenizers", "sentencepiece")
        if uses_sentencepiece
        else REQUIREMENTS[export_format]
    )
    requirements += " sentencepiece" if uses_sentencepiece and export_format == "hf" else ""
    task_verbs = {"classify": "classifies", "generate": "continues", "translate": "translates"}
    return (
        f"{format_front_matter(build_metadata(export_format, config, out.name, info))}\n"
        f"# {out.name}\n\nA model that {task_verbs[config.task]} text. It was trained with Triform and "
        f"exported for {FORMAT_NAMES[export_format]}. "
        f"It reads at most {config.data.max_len} tokens.{_TOKEN_POOLING_NOTE if pools_token_logits else ''}\n\n"
        f"```sh\npip install {requirements}\n```\n\n```python\n{code}```\n"
        f"{_describe_training(config, info)}"
    )


def _describe_training(config: Config, info: CardInfo) -> str:
    """Return sections about the data, the licence and the metrics."""
    files = (config.data.train or config.data.source or "unknown", config.data.target)
    data = f"`{info.dataset}`" if info.dataset else ", ".join(f"`{public_name(name)}`" for name in files if name)
    base = f" It was fine-tuned from `{info.base_model}`." if info.base_model else ""
    licence = f"`{info.license}`" if info.license else "not stated"
    text = f"\n## Training\n\nTraining data: {data}.{base} Licence: {licence}.\n"
    if not info.metrics:
        return text
    rows = "".join(f"| {name} | {value:.6g} |\n" for name, value in info.metrics.items())
    is_refitted = config.train.refit_linear_part and config.model.term_buckets
    refit_text = ", before the linear part was refitted on them" if is_refitted else ""
    heading = f"## Metrics\n\nOn the validation data of the training run{refit_text}:"
    return f"{text}\n{heading}\n\n| metric | value |\n|---|---:|\n{rows}"


def _select_snippet(export_format: str, task: TaskName, tokenizer: Tokenizer) -> str:
    """Return the code for a format. SentencePiece models are used directly, because `transformers` may differ."""
    if export_format == "hf":
        is_marian = (
            task == "translate" and isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.ids is not None
        )
        return (
            TOKEN_IDS_SNIPPET
            if isinstance(tokenizer, SentencePieceTokenizer) and not is_marian
            else TRANSFORMERS_SNIPPETS[task]
        )
    return ONNX_SNIPPET if export_format == "onnx" else CTRANSLATE2_SNIPPETS[task]


def _tokenizers_fields(tokenizers: Sequence[Tokenizer], text: str, config: Config) -> dict[str, str]:
    target = "/target/tokenizer.json" if len(tokenizers) == 2 else ""
    load_target = f'\ntarget = Tokenizer.from_file(folder + "{target}")' if target else ""
    decoder = "target" if target else "tokenizer"
    truncation = f"\ntokenizer.enable_truncation({config.data.max_len})" if config.task != "generate" else ""
    return {
        "opening": "from tokenizers import Tokenizer",
        "reading": f'tokenizer = Tokenizer.from_file(folder + "/tokenizer.json"){load_target}{truncation}',
        "source": f"tokenizer.encode({text!r}).tokens",
        "numbers": f"tokenizer.encode({text!r}).ids",
        "decoded": f"{decoder}.decode([{decoder}.token_to_id(piece) for piece in written])",
    }


def _sentencepiece_fields(tokenizers: Sequence[Tokenizer], text: str, config: Config) -> dict[str, str]:
    tokenizer = tokenizers[0]
    assert isinstance(tokenizer, SentencePieceTokenizer)
    name = "source.spm" if tokenizer.ids else "tokenizer.model"
    same_vocabulary = len(tokenizers) == 1 or tokenizer.vocabulary == tokenizers[1].vocabulary
    target = name if len(tokenizers) == 1 else "target.spm" if same_vocabulary else "target/target.spm"
    prefix_ids = list(tokenizer.special_tokens.before)
    prefix_tokens = [tokenizer.vocabulary[token] for token in prefix_ids]
    suffix_ids = list(tokenizer.special_tokens.after) if config.task != "generate" else []
    max_pieces = config.data.max_len - len(prefix_tokens) - len(suffix_ids)
    suffix_tokens = [tokenizer.vocabulary[token] for token in suffix_ids]
    truncation = f"[:{max_pieces}]" if config.task != "generate" else ""
    encode_expression, load_ids, import_json = f"source.encode({text!r})", "", ""
    if tokenizer.ids:
        import_json = "import json\n\n"
        load_ids = '\nids = json.load(open(folder + "/vocab.json", encoding="utf-8"))'
        unknown_id = tokenizer.special_tokens.unk_or_pad
        encode_expression = f"[ids.get(piece, {unknown_id}) for piece in source.encode({text!r}, out_type=str)]"
    return {
        "opening": f"{import_json}from sentencepiece import SentencePieceProcessor",
        "reading": f'source = SentencePieceProcessor(model_file=folder + "/{name}")\n'
        f'target = SentencePieceProcessor(model_file=folder + "/{target}"){load_ids}',
        "source": f"[*{prefix_tokens!r}, *source.encode({text!r}, out_type=str){truncation}, *{suffix_tokens!r}]",
        "numbers": f"[*{prefix_ids!r}, *{encode_expression}[:{max_pieces}], *{suffix_ids!r}]",
        "decoded": "target.decode_pieces(written)",
    }
