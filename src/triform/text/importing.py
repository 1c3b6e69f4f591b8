"""Read the vocabulary files of other libraries, recognised by their names, with the same ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from triform.errors import CheckpointError
from triform.io.files import read_json
from triform.text.base import SpecialTokens, Tokenizer
from triform.text.exporting import Side
from triform.text.special_tokens import adds_bos, find_special_tokens, read_tokenizer_settings
from triform.text.spm import SentencePieceTokenizer, load_processor
from triform.text.tiktoken_files import read_ranks
from triform.text.tokenizer import load_tokenizer
from triform.text.vocabulary_files import read_gpt2, read_tokenizer_json, read_vocab_json, read_wordpiece

GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
KNOWN_FILES = (
    "tokenizer.json, vocab.json with merges.txt, vocab.txt, source.spm with vocab.json, *.tiktoken, *.model"
)
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


def read_tokenizer(
    path: Path | str,
    *,
    side: Side = "source",
    encoding: str = "",
    pattern: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> Tokenizer:
    """The tokenizer of a folder or file: Triform's, Hugging Face's, GPT-2's, BERT's, tiktoken's, SentencePiece's.

    `side` chooses between Marian's two. A rank file of tiktoken needs the name of its `encoding`, where that is not
    the file's name, or a `pattern` with the `special` tokens.
    """
    path = Path(path)
    file = _find_tokenizer_file(path, side) if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"{file}: there is no tokenizer file here")
    try:
        return _read_file(file, side, encoding, pattern, special_tokens)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from None


def _find_tokenizer_file(folder: Path, side: Side) -> Path:
    """The file by which a folder's tokenizer is read."""
    names = [
        f"{side}.spm",
        "tokenizer.json",
        f"tokenizer.{side}.json",
        *(name for pair in GPT2_FILES for name in pair),
    ]
    paths = [folder / name for name in (*names, "vocab.txt", *SENTENCEPIECE_FILES) if (folder / name).is_file()]
    paths += sorted(folder.glob("*.tiktoken"))
    if paths and paths[0].name == "vocab.json" and any(folder.glob("*.spm")):
        return folder / names[0]  # Marian's other half, which is missing
    if paths:
        return paths[0]
    if (folder / "meta.pkl").is_file():
        return folder / "meta.pkl"
    raise CheckpointError(f"{folder}: no tokenizer is here; known are {KNOWN_FILES}")


def _read_file(
    file: Path, side: Side, encoding: str, pattern: str, special_tokens: Mapping[str, int] | None
) -> Tokenizer:
    if file.suffix in (".pkl", ".pickle"):
        raise CheckpointError(
            f"{file}: a pickle can run any program when it is read, so it is not; nanoGPT makes it from the text: "
            "train a tokenizer with tokenizer.kind=char, or write its itos as a tokenizer.json"
        )
    for pair in GPT2_FILES:
        if file.name in pair:
            return read_gpt2(*(_sibling_file(file, name) for name in pair))
    if encoding or pattern or file.suffix == ".tiktoken" or _is_rank_file(file):
        return read_ranks(file, encoding, pattern, special_tokens)
    if file.suffix in (".spm", ".model"):
        return _read_sentencepiece(file, side)
    if file.suffix == ".txt":
        return read_wordpiece(file)
    if file.suffix == ".json":
        content = read_json(file)
        is_triform = isinstance(content, dict) and "triform" in content
        return load_tokenizer(file) if is_triform else read_tokenizer_json(file)
    raise CheckpointError(f"{file}: not a file of a tokenizer that is known here; known are {KNOWN_FILES}")


def _sibling_file(file: Path, name: str) -> Path:
    sibling = file.with_name(name)
    if not sibling.is_file():
        raise CheckpointError(f"{sibling}: this file belongs to {file.name} and is missing")
    return sibling


def _is_rank_file(file: Path) -> bool:
    """Llama 3 calls its rank file tokenizer.model."""
    with file.open("rb") as stream:
        return file.suffix == ".model" and _RANK_LINE.match(stream.read(200)) is not None


def _read_sentencepiece(file: Path, side: Side) -> Tokenizer:
    model, settings = file.read_bytes(), read_tokenizer_settings(file.parent)
    if file.name in ("source.spm", "target.spm"):
        side = "source" if file.name == "source.spm" else "target"
        target_vocab = file.with_name("target_vocab.json")
        ids = read_vocab_json(
            target_vocab if side == "target" and target_vocab.is_file() else _sibling_file(file, "vocab.json")
        )
        special_tokens = find_special_tokens(ids, settings)
        if special_tokens.unk is None or special_tokens.eos is None:
            raise CheckpointError(f"{file.with_name('vocab.json')}: lacks <unk> or </s>, which Marian needs")
        # Marian begins to write from its padding, and reads an end after each text
        start = special_tokens.pad if special_tokens.bos is None else special_tokens.bos
        return SentencePieceTokenizer(model, special_tokens._replace(bos=start, after=(special_tokens.eos,)), ids)
    sp_processor = load_processor(model)
    model_ids = (sp_processor.pad_id(), sp_processor.unk_id(), sp_processor.bos_id(), sp_processor.eos_id())
    pad, unk, bos, eos = (None if model_id < 0 else model_id for model_id in model_ids)
    before = (bos,) if bos is not None and adds_bos(settings) else ()
    after = (eos,) if eos is not None and settings.get("add_eos_token") else ()
    return SentencePieceTokenizer(model, SpecialTokens(pad, unk, bos, eos, before, after))
