"""Our vocabularies, and those that came from elsewhere, out: as the files that other libraries read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as Core
from tokenizers import models, processors

from triform.errors import CheckpointError
from triform.text.base import CoreTokenizer, Tokenizer
from triform.text.bpe import BpeTokenizer
from triform.text.imported import special_names
from triform.text.ranks import merges_of, write_ranks
from triform.text.special import frame
from triform.text.spm import SentencePieces
from triform.text.vocabularies import as_special

Side = Literal["source", "target"]
BERT = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}  # names that programs ask for
ROLES = ("pad_token", "unk_token", "bos_token", "eos_token")
Like = Literal["huggingface", "tiktoken"]


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path | str, *, like: Like = "huggingface", side: Side = "source"
) -> list[Path]:
    """Write the files by which another library gives the same ids, and say which.

    huggingface: tokenizer.json and tokenizer_config.json, and what older programs read: vocab.json with merges.txt
    for byte BPE, vocab.txt for WordPiece. A SentencePiece model is written as the file that it is; `side` names
    Marian's. tiktoken: a rank file, for byte BPE whose ids are in the order of its merges.
    """
    folder = Path(folder)
    try:
        if isinstance(tokenizer, SentencePieces):
            return _sentencepiece(tokenizer, folder, like, side)
        assert isinstance(tokenizer, CoreTokenizer)
        return _ranks(tokenizer, folder) if like == "tiktoken" else _library(tokenizer, folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _library(tokenizer: CoreTokenizer, folder: Path) -> list[Path]:
    core = Core.from_str(tokenizer.core.to_str())
    content = json.loads(core.to_str())
    names = [tokenizer.piece(token) for token in tokenizer.special[:4] if token is not None]
    core.add_special_tokens(as_special(name for name in names if name not in special_names(core).values()))
    if frame(core) != (tokenizer.special.before, tokenizer.special.after):
        core.post_processor = _framing(tokenizer)
    files = {"tokenizer.json": core.to_str(pretty=True), "tokenizer_config.json": _json(_settings(tokenizer))}
    model = content["model"]
    if isinstance(tokenizer, BpeTokenizer) and tokenizer.core.normalizer is None:
        files["vocab.json"] = _json(core.get_vocab(), by_number=True)
        merges = (f"{left} {right}\n" for left, right in model["merges"])
        files["merges.txt"] = "".join(["#version: 0.2\n", *merges])
    if isinstance(core.model, models.WordPiece):
        ids = core.get_vocab()
        files["vocab.txt"] = "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__))
    return _write(folder, files)


def _framing(tokenizer: CoreTokenizer) -> processors.PostProcessor | None:
    """The step that puts the special tokens around a text that this tokenizer puts there."""
    before, after = ([tokenizer.vocabulary[token] for token in tokens] for tokens in tokenizer.special[4:])
    if not before and not after:
        return None
    numbers = [(tokenizer.vocabulary[token], token) for tokens in tokenizer.special[4:] for token in tokens]
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{part}:1" for part in ("$B", *after))],
        special_tokens=list(dict.fromkeys(numbers)),
    )


def _settings(tokenizer: CoreTokenizer) -> dict[str, Any]:
    named = {role: tokenizer.piece(token) for role, token in _roles(tokenizer).items()}
    bert = {role: name for role, name in BERT.items() if tokenizer.core.token_to_id(name) is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{role: name for role, name in named.items() if name not in bert.values()},
        **bert,
    }


def _ranks(tokenizer: CoreTokenizer, folder: Path) -> list[Path]:
    if not isinstance(tokenizer, BpeTokenizer):
        raise CheckpointError(f"tiktoken reads byte BPE alone; this tokenizer is {tokenizer.kind}")
    if tokenizer.core.normalizer is not None:
        raise CheckpointError("tiktoken changes no text before it cuts it; this tokenizer does (lowercase)")
    if not tokenizer.pattern:
        raise CheckpointError("tiktoken has no place for the rule by which this tokenizer cuts text")
    ranks, special = tokenizer.ranks()
    if tokenizer.merges() != merges_of(ranks):
        raise CheckpointError("tiktoken's ids are the order of merges; those of this vocabulary are not")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.tiktoken"
    write_ranks(path, ranks, tokenizer.pattern, special)
    return [path, path.with_name(f"{path.name}.json")]


def _sentencepiece(tokenizer: SentencePieces, folder: Path, like: Like, side: Side) -> list[Path]:
    if like != "huggingface":
        raise CheckpointError("tiktoken reads byte BPE alone; this is a SentencePiece model")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{side}.spm" if tokenizer.ids else "tokenizer.model")
    path.write_bytes(tokenizer.model)
    if tokenizer.ids is None:
        added = {"add_bos_token": bool(tokenizer.special.before), "add_eos_token": bool(tokenizer.special.after)}
        return [path, *_write(folder, {"tokenizer_config.json": _json(added)})]
    named = {name: tokenizer.vocabulary[token] for name, token in _roles(tokenizer).items() if name != "bos_token"}
    told = {"tokenizer_class": "MarianTokenizer", **named}
    vocabulary = _json(tokenizer.ids, by_number=True)
    return [path, *_write(folder, {"vocab.json": vocabulary, "tokenizer_config.json": _json(told)})]


def _roles(tokenizer: Tokenizer) -> dict[str, int]:
    found = zip(ROLES, tokenizer.special[:4], strict=True)
    return {role: token for role, token in found if token is not None}


def _json(content: Mapping[str, Any], *, by_number: bool = False) -> str:
    ordered = sorted(content.items(), key=lambda item: item[1]) if by_number else content.items()
    return json.dumps(dict(ordered), ensure_ascii=False, indent=2) + "\n"


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in files]
