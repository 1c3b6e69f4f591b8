"""Import tokenizers from the vocabulary files of other libraries, which are recognised by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from triform.errors import CheckpointError
from triform.io.files import read_json
from triform.text.base import Tokenizer
from triform.text.exporting import Side
from triform.text.special_tokens import adds_bos, find_special_tokens, read_tokenizer_settings
from triform.text.spm import SentencePieceTokenizer, load_processor
from triform.text.tiktoken_files import read_ranks
from triform.text.tokenizer import load_tokenizer
from triform.text.tokens import SpecialTokens
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
    """Read the tokenizer in a folder or file of Triform, Hugging Face, GPT-2, BERT, tiktoken or SentencePiece.

    Args:
        path: The folder or file.
        side: Which of the two SentencePiece models of Marian to read.
        encoding: The encoding of a tiktoken rank file, if it is not the file's name.
        pattern: The split pattern of a tiktoken rank file without a known encoding.
        special_tokens: The special tokens of a tiktoken rank file without a known encoding, with their ids.

    Returns:
        A tokenizer that encodes every text to the same ids as the library that wrote the files.

    Raises:
        CheckpointError: There is no such file, its format is unknown, or it is damaged.
    """
    path = Path(path)
    file = _find_tokenizer_file(path, side) if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"{file}: no such tokenizer file")
    try:
        return _read_file(file, side, encoding, pattern, special_tokens)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from None


def _find_tokenizer_file(folder: Path, side: Side) -> Path:
    """Return the tokenizer file in a folder."""
    names = [
        f"{side}.spm",
        "tokenizer.json",
        f"tokenizer.{side}.json",
        *(name for pair in GPT2_FILES for name in pair),
    ]
    paths = [folder / name for name in (*names, "vocab.txt", *SENTENCEPIECE_FILES) if (folder / name).is_file()]
    paths += sorted(folder.glob("*.tiktoken"))
    if paths and paths[0].name == "vocab.json" and any(folder.glob("*.spm")):
        return folder / names[0]  # the other file of Marian, which is missing
    if paths:
        return paths[0]
    if (folder / "meta.pkl").is_file():
        return folder / "meta.pkl"
    raise CheckpointError(f"{folder}: no tokenizer found; known files are {KNOWN_FILES}")


def _read_file(
    file: Path, side: Side, encoding: str, pattern: str, special_tokens: Mapping[str, int] | None
) -> Tokenizer:
    if file.suffix in (".pkl", ".pickle"):
        raise CheckpointError(
            f"{file} is a pickle, which can run code when it is opened, so Triform refuses it; nanoGPT builds it "
            "from the text: train a tokenizer with tokenizer.kind=char, or save its itos as tokenizer.json"
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
    raise CheckpointError(f"{file}: unknown tokenizer format; known files are {KNOWN_FILES}")


def _sibling_file(file: Path, name: str) -> Path:
    sibling = file.with_name(name)
    if not sibling.is_file():
        raise CheckpointError(f"{sibling} is missing; {file.name} cannot be used without it")
    return sibling


def _is_rank_file(file: Path) -> bool:
    """Return whether a file is a tiktoken rank file. Llama 3 names its rank file tokenizer.model."""
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
            raise CheckpointError(f"{file.with_name('vocab.json')} lacks <unk> or </s>, which Marian needs")
        # Marian's decoder starts with the padding token, and its encoder expects EOS after each text.
        start = special_tokens.pad if special_tokens.bos is None else special_tokens.bos
        return SentencePieceTokenizer(model, special_tokens._replace(bos=start, after=(special_tokens.eos,)), ids)
    sp_processor = load_processor(model)
    model_ids = (sp_processor.pad_id(), sp_processor.unk_id(), sp_processor.bos_id(), sp_processor.eos_id())
    pad, unk, bos, eos = (None if model_id < 0 else model_id for model_id in model_ids)
    before = (bos,) if bos is not None and adds_bos(settings) else ()
    after = (eos,) if eos is not None and settings.get("add_eos_token") else ()
    return SentencePieceTokenizer(model, SpecialTokens(pad, unk, bos, eos, before, after))
