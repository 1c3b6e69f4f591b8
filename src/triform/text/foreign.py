"""Vocabularies of other libraries, in: found by the names of their files, read with the ids they have there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from triform.errors import CheckpointError
from triform.text.base import Special, Tokenizer
from triform.text.ranks import read_ranks
from triform.text.special import adds_bos, find_special, read_json, read_settings
from triform.text.spm import SentencePieces, processor
from triform.text.tokenizer import load_tokenizer
from triform.text.vocabularies import numbered, read_gpt2, read_library_file, read_wordpiece
from triform.text.written import Side

PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
KNOWN = "tokenizer.json, vocab.json with merges.txt, vocab.txt, source.spm with vocab.json, *.tiktoken, *.model"
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


def read_tokenizer(
    path: Path | str,
    *,
    side: Side = "source",
    encoding: str = "",
    pattern: str = "",
    special: Mapping[str, int] | None = None,
) -> Tokenizer:
    """The tokenizer of a folder or file: Triform's, Hugging Face's, GPT-2's, BERT's, tiktoken's, SentencePiece's.

    `side` chooses between Marian's two. A rank file of tiktoken needs the name of its `encoding`, where that is not
    the file's name, or a `pattern` with the `special` tokens.
    """
    path = Path(path)
    file = _of_folder(path, side) if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"{file}: there is no tokenizer file here")
    try:
        return _read(file, side, encoding, pattern, special)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from None


def _of_folder(folder: Path, side: Side) -> Path:
    """The file by which a folder's tokenizer is read."""
    names = [f"{side}.spm", "tokenizer.json", f"tokenizer.{side}.json", *(name for pair in PAIRS for name in pair)]
    found = [folder / name for name in (*names, "vocab.txt", *MODELS) if (folder / name).is_file()]
    found += sorted(folder.glob("*.tiktoken"))
    if found and found[0].name == "vocab.json" and any(folder.glob("*.spm")):
        return folder / names[0]  # Marian's other half, which is missing
    if found:
        return found[0]
    if (folder / "meta.pkl").is_file():
        return folder / "meta.pkl"
    raise CheckpointError(f"{folder}: no tokenizer is here; known are {KNOWN}")


def _read(file: Path, side: Side, encoding: str, pattern: str, special: Mapping[str, int] | None) -> Tokenizer:
    if file.suffix in (".pkl", ".pickle"):
        raise CheckpointError(
            f"{file}: a pickle can run any program when it is read, so it is not; nanoGPT makes it from the text: "
            "train a tokenizer with tokenizer.kind=char, or write its itos as a tokenizer.json"
        )
    for pair in PAIRS:
        if file.name in pair:
            return read_gpt2(*(_beside(file, name) for name in pair))
    if encoding or pattern or file.suffix == ".tiktoken" or _is_rank_file(file):
        return read_ranks(file, encoding, pattern, special)
    if file.suffix in (".spm", ".model"):
        return _sentencepiece(file, side)
    if file.suffix == ".txt":
        return read_wordpiece(file)
    if file.suffix == ".json":
        content = read_json(file)
        ours = isinstance(content, dict) and "triform" in content
        return load_tokenizer(file) if ours else read_library_file(file)
    raise CheckpointError(f"{file}: not a file of a tokenizer that is known here; known are {KNOWN}")


def _beside(file: Path, name: str) -> Path:
    other = file.with_name(name)
    if not other.is_file():
        raise CheckpointError(f"{other}: this file belongs to {file.name} and is missing")
    return other


def _is_rank_file(file: Path) -> bool:
    """Llama 3 calls its rank file tokenizer.model."""
    with file.open("rb") as opened:
        return file.suffix == ".model" and _RANK_LINE.match(opened.read(200)) is not None


def _sentencepiece(file: Path, side: Side) -> Tokenizer:
    model, settings = file.read_bytes(), read_settings(file.parent)
    if file.name in ("source.spm", "target.spm"):
        side = "source" if file.name == "source.spm" else "target"
        own = file.with_name("target_vocab.json")
        ids = numbered(own if side == "target" and own.is_file() else _beside(file, "vocab.json"))
        special = find_special(ids, settings)
        if special.unk is None or special.eos is None:
            raise CheckpointError(f"{file.with_name('vocab.json')}: lacks <unk> or </s>, which Marian needs")
        # Marian begins to write from its padding, and reads an end after each text
        start = special.pad if special.bos is None else special.bos
        return SentencePieces(model, special._replace(bos=start, after=(special.eos,)), ids)
    read = processor(model)
    numbers = (read.pad_id(), read.unk_id(), read.bos_id(), read.eos_id())
    pad, unk, bos, eos = (None if number < 0 else number for number in numbers)
    before = (bos,) if bos is not None and adds_bos(settings) else ()
    after = (eos,) if eos is not None and settings.get("add_eos_token") else ()
    return SentencePieces(model, Special(pad, unk, bos, eos, before, after))
