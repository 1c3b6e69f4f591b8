"""Export tokenizers to the file formats of other libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as Core
from tokenizers import models, normalizers, processors

from triform.errors import CheckpointError
from triform.text.base import BackendTokenizer, Tokenizer
from triform.text.bpe import BpeTokenizer
from triform.text.imported_tokenizers import special_token_names
from triform.text.special_tokens import find_template_tokens
from triform.text.spm import SentencePieceTokenizer
from triform.text.tiktoken_files import derive_merges, write_ranks
from triform.text.vocabulary_files import build_added_tokens

Side = Literal["source", "target"]
# Special tokens that programs look up by name.
BERT_SPECIAL_TOKENS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
SPECIAL_TOKEN_ROLES = ("pad_token", "unk_token", "bos_token", "eos_token")
TokenizerFormat = Literal["huggingface", "tiktoken"]


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path | str, *, file_format: TokenizerFormat = "huggingface", side: Side = "source"
) -> list[Path]:
    """Write the files with which another library encodes text to the same ids.

    Args:
        tokenizer: The tokenizer to export.
        folder: The folder to write to.
        file_format: "huggingface" writes tokenizer.json and tokenizer_config.json, and for older programs also
            vocab.json with merges.txt (byte-level BPE) or vocab.txt (WordPiece); a SentencePiece model is written
            as its original file. "tiktoken" writes a rank file, for byte-level BPE whose ids follow the order of
            its merges.
        side: Which of the two SentencePiece models of Marian this is, for its file name.

    Returns:
        The files that were written.
    """
    folder = Path(folder)
    try:
        if isinstance(tokenizer, SentencePieceTokenizer):
            return _write_sentencepiece(tokenizer, folder, file_format, side)
        assert isinstance(tokenizer, BackendTokenizer)
        return (
            _write_tiktoken(tokenizer, folder)
            if file_format == "tiktoken"
            else _write_huggingface(tokenizer, folder)
        )
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written ({error.strerror or error})") from error


def _write_huggingface(tokenizer: BackendTokenizer, folder: Path) -> list[Path]:
    backend = Core.from_str(tokenizer.backend.to_str())
    content = json.loads(backend.to_str())
    names = [tokenizer.format_piece(token) for token in tokenizer.special_tokens[:4] if token is not None]
    backend.add_special_tokens(
        build_added_tokens(name for name in names if name not in special_token_names(backend).values())
    )
    if find_template_tokens(backend) != (tokenizer.special_tokens.before, tokenizer.special_tokens.after):
        backend.post_processor = _build_template(tokenizer)
    files = {
        "tokenizer.json": backend.to_str(pretty=True),
        "tokenizer_config.json": _format_json(_build_tokenizer_config(tokenizer)),
    }
    model = content["model"]
    if isinstance(tokenizer, BpeTokenizer) and tokenizer.backend.normalizer is None:
        files["vocab.json"] = _format_json(backend.get_vocab(), sort_by_id=True)
        merges = (f"{left} {right}\n" for left, right in model["merges"])
        files["merges.txt"] = "".join(["#version: 0.2\n", *merges])
    if isinstance(backend.model, models.WordPiece):
        ids = backend.get_vocab()
        files["vocab.txt"] = "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__))
    return _write_files(folder, files)


def _build_template(tokenizer: BackendTokenizer) -> processors.PostProcessor | None:
    """Return the library's step that adds the special tokens of this tokenizer to a text."""
    before, after = ([tokenizer.vocabulary[token] for token in tokens] for tokens in tokenizer.special_tokens[4:])
    if not before and not after:
        return None
    template_ids = [
        (tokenizer.vocabulary[token], token) for tokens in tokenizer.special_tokens[4:] for token in tokens
    ]
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{part}:1" for part in ("$B", *after))],
        special_tokens=list(dict.fromkeys(template_ids)),
    )


def _build_tokenizer_config(tokenizer: BackendTokenizer) -> dict[str, Any]:
    named = {role: tokenizer.format_piece(token) for role, token in _special_token_ids(tokenizer).items()}
    bert_tokens = {
        role: name for role, name in BERT_SPECIAL_TOKENS.items() if tokenizer.backend.token_to_id(name) is not None
    }
    # The tokens around every text of BERT are not those that start and end a generated text.
    encoder_tokens = bert_tokens.values() if tokenizer.special_tokens.before else ()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{role: name for role, name in named.items() if name not in encoder_tokens},
        **bert_tokens,
        **_bert_settings(tokenizer.backend),
    }


def _bert_settings(backend: Core) -> dict[str, Any]:
    """Return the settings with which BERT's tokenizer reads vocab.txt, or nothing for other models."""
    normalizer = backend.normalizer
    if not isinstance(backend.model, models.WordPiece) or not isinstance(normalizer, normalizers.BertNormalizer):
        return {}
    return {
        "do_lower_case": normalizer.lowercase,
        "strip_accents": normalizer.strip_accents,
        "tokenize_chinese_chars": normalizer.handle_chinese_chars,
    }


def _write_tiktoken(tokenizer: BackendTokenizer, folder: Path) -> list[Path]:
    if not isinstance(tokenizer, BpeTokenizer):
        raise CheckpointError(f"tiktoken supports only byte-level BPE; this tokenizer is {tokenizer.kind}")
    if tokenizer.backend.normalizer is not None:
        raise CheckpointError("tiktoken cannot lowercase text, and this tokenizer does")
    if not tokenizer.pattern:
        raise CheckpointError("tiktoken does not support the way in which this tokenizer splits text into words")
    ranks, special_tokens = tokenizer.ranks()
    if tokenizer.merges() != derive_merges(ranks):
        raise CheckpointError(
            "tiktoken numbers tokens in the order of their merges, and the ids of this vocabulary differ from that"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.tiktoken"
    write_ranks(path, ranks, tokenizer.pattern, special_tokens)
    return [path, path.with_name(f"{path.name}.json")]


def _write_sentencepiece(
    tokenizer: SentencePieceTokenizer, folder: Path, file_format: TokenizerFormat, side: Side
) -> list[Path]:
    if file_format != "huggingface":
        raise CheckpointError("tiktoken supports only byte-level BPE; this tokenizer is a SentencePiece model")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{side}.spm" if tokenizer.ids else "tokenizer.model")
    path.write_bytes(tokenizer.model)
    if tokenizer.ids is None:
        bos_eos_settings = {
            "add_bos_token": bool(tokenizer.special_tokens.before),
            "add_eos_token": bool(tokenizer.special_tokens.after),
        }
        return [path, *_write_files(folder, {"tokenizer_config.json": _format_json(bos_eos_settings)})]
    named = {
        name: tokenizer.vocabulary[token]
        for name, token in _special_token_ids(tokenizer).items()
        if name != "bos_token"
    }
    settings = {"tokenizer_class": "MarianTokenizer", **named}
    vocabulary = _format_json(tokenizer.ids, sort_by_id=True)
    return [
        path,
        *_write_files(folder, {"vocab.json": vocabulary, "tokenizer_config.json": _format_json(settings)}),
    ]


def _special_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    pairs = zip(SPECIAL_TOKEN_ROLES, tokenizer.special_tokens[:4], strict=True)
    return {role: token for role, token in pairs if token is not None}


def _format_json(content: Mapping[str, Any], *, sort_by_id: bool = False) -> str:
    ordered = sorted(content.items(), key=lambda item: item[1]) if sort_by_id else content.items()
    return json.dumps(dict(ordered), ensure_ascii=False, indent=2) + "\n"


def _write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in files]
