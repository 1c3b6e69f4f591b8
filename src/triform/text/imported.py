"""Tokenizers that were made elsewhere, behind our protocol: the same ids as where they come from."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer as Core
from tokenizers import models

from triform.text.base import FORMAT, REPLACEMENT, CoreTokenizer, Special, Tokenizer, check_text, token_type
from triform.text.bpe import BpeTokenizer, byte_characters
from triform.text.split import GPT2_PATTERN, GPT4_PATTERN, SPLITS

KIND = "imported"
# What GPT-4's pattern is called in Llama 3 and others; it cuts alike.
_SAME = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": GPT4_PATTERN
}
# Text that comes back unchanged only from a vocabulary that loses nothing.
_PROBE = " Two  spaces,\ta tab,\r\n\n a ﬁne É, e\u0301, 猫 🙂\u200d\x07 "


def imported_header(model: str, special: Special) -> dict[str, Any]:
    return {"format": FORMAT, "kind": KIND, "model": model, "special": special._asdict()}


def special_from(saved: Mapping[str, Any], size: int) -> Special:
    """Special tokens as a header holds them; a ValueError where they lie beyond the vocabulary."""
    before, after = tuple(saved["before"]), tuple(saved["after"])
    found = Special(saved["pad"], saved["unk"], saved["bos"], saved["eos"], before, after)
    tokens = (*(token for token in found[:4] if token is not None), *found.before, *found.after)
    if not all(isinstance(token, int) and 0 <= token < size for token in tokens):
        raise ValueError(f"special tokens beyond the {size} of the vocabulary")
    return found


def parse_core(content: Any) -> Core:
    """The library's tokenizer from its JSON content; whatever Exception the library raises where it cannot be read.

    The library cuts the second piece of a merge behind `continuing_subword_prefix` without looking, and ends the
    process where that falls inside a character: such merges are refused before it sees them.
    """
    model = content.get("model") if isinstance(content, dict) else None
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if isinstance(prefix, str) and prefix and isinstance(merges, list):
        for merge in merges:
            parts = merge.split(" ") if isinstance(merge, str) else merge
            if not (isinstance(parts, list) and parts and str(parts[-1]).startswith(prefix)):
                raise ValueError(f"the merge {merge!r} does not go on with continuing_subword_prefix {prefix!r}")
    return Core.from_str(json.dumps(content))


def import_core(core: Core, special: Special) -> ImportedBpe | ImportedPieces:
    """The kind that fits: byte-level BPE has a quick way of its own."""
    return (ImportedBpe if is_byte_level(core) else ImportedPieces)(core, special)


def plain(core: Core) -> Core:
    """A core that encodes text as it is: nothing cut or filled up, no special token found in it."""
    core.no_truncation()
    core.no_padding()
    core.encode_special_tokens = True
    return core


def special_names(core: Core) -> dict[int, str]:
    return {token: each.content for token, each in core.get_added_tokens_decoder().items() if each.special}


class ImportedCore(CoreTokenizer):
    """What all have in common that the library reads."""

    kind: ClassVar[str] = KIND

    @property
    def never_written(self) -> tuple[int, ...]:
        return padding(self.special)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._core, self.special)

    def header(self) -> dict[str, Any]:
        return imported_header("core", self.special)


class ImportedBpe(ImportedCore, BpeTokenizer):
    """Byte-level BPE of GPT-2, GPT-4, Llama 3 and their like."""

    def __init__(self, core: Core, special: Special) -> None:
        super().__init__(plain(core), special, quick_pattern(core))
        if not self._pattern:
            self._lower = None  # the library does it all
        self.lossless = is_lossless(self)

    @property
    def dtype(self) -> np.dtype[Any]:
        return token_type(self.vocab_size + (not self._names))  # something must stand between texts

    def _unreachable(self) -> dict[int, str]:
        self._added = frozenset(self._core.get_added_tokens_decoder())
        return special_names(self._core)

    def _spelled(self, token: int) -> bytes:
        return self._pieces[token].encode() if token in self._added else super()._spelled(token)


class ImportedPieces(ImportedCore):
    """Any other model of the library: WordPiece, unigram, BPE over characters, whole words."""

    def __init__(self, core: Core, special: Special) -> None:
        super().__init__(plain(core), special)
        self._special = special_names(core)
        self.lossless = is_lossless(self)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        pieces = readable(tokens, self, self._special)
        decoder = self._core.decoder
        return " ".join(pieces) if decoder is None else str(decoder.decode(pieces))

    def piece(self, token: int) -> str:
        return self._pieces[token].replace("▁", " ")

    def unknown(self, text: str) -> list[str]:
        check_text(text)
        found = self._core.encode(text, add_special_tokens=False)
        unknown = (
            text[slice(*place)] for token, place in zip(found.ids, found.offsets, strict=True) if token == self.unk
        )
        return list(dict.fromkeys(unknown)) if self.unk is not None else []


def is_lossless(tokenizer: Tokenizer) -> bool:
    return tokenizer.decode(tokenizer.encode(_PROBE)) == _PROBE


def readable(tokens: Sequence[int], tokenizer: Tokenizer, special: Container[int | None]) -> list[str]:
    """The pieces of a text, without special ones; what was unknown is seen to be missing."""
    return [
        REPLACEMENT if token == tokenizer.unk else tokenizer.vocabulary[token]
        for token in tokens
        if token == tokenizer.unk or token not in special
    ]


def padding(special: Special) -> tuple[int, ...]:
    """A model from elsewhere may write what it likes, as it may there, but no padding."""
    return () if special.pad in (None, special.eos) else (special.pad,)


def is_byte_level(core: Core) -> bool:
    """Whether pieces are spelled in the characters that stand for bytes, all 256 of them."""
    if not isinstance(core.model, models.BPE) or _state(core.decoder).get("type") != "ByteLevel":
        return False
    steps = _steps(core)
    alphabet = set(byte_characters())
    pieces = core.get_vocab(with_added_tokens=False)
    special = set(special_names(core).values())
    return (
        bool(steps)
        and steps[-1]["type"] == "ByteLevel"
        and alphabet <= pieces.keys()
        and all(alphabet.issuperset(piece) for piece in pieces if piece not in special)
    )


def quick_pattern(core: Core) -> str:
    """The pattern by which words can be found without the library; empty where they cannot."""
    added = core.get_added_tokens_decoder().values()
    if _state(core.normalizer).get("type") not in (None, "Lowercase") or not all(each.special for each in added):
        return ""
    match _steps(core):
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return GPT2_PATTERN
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            known = _SAME.get(pattern, pattern)
            return known if known in SPLITS else ""
    return ""


def _steps(core: Core) -> list[dict[str, Any]]:
    """How text is cut before the model sees it."""
    state = _state(core.pre_tokenizer)
    if not state:
        return []
    found: list[dict[str, Any]] = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return found


def _state(part: Any) -> dict[str, Any]:
    """A part of the library's tokenizer as its format has it."""
    found: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return found
