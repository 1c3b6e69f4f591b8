"""Imported tokenizers of other libraries behind Triform's interface, with the same ids."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer as Core
from tokenizers import models

from triform.text.base import FORMAT_VERSION, REPLACEMENT, BackendTokenizer, Tokenizer, check_text, token_dtype
from triform.text.bpe import BpeTokenizer, byte_characters
from triform.text.split_patterns import GPT2_PATTERN, GPT4_PATTERN, SPLIT_PATTERNS
from triform.text.tokens import SpecialTokens

IMPORTED_KIND = "imported"
# The spelling of GPT-4's pattern in Llama 3 and other models. It splits text in the same way.
_EQUIVALENT_PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": GPT4_PATTERN
}
# Only a lossless vocabulary decodes this text unchanged.
_LOSSLESS_PROBE = " Two  spaces,\ta tab,\r\n\n a ﬁne É, e\u0301, 猫 🙂\u200d\x07 "


def build_imported_header(model: str, special_tokens: SpecialTokens) -> dict[str, Any]:
    """Return the entries that Triform adds to the file of an imported tokenizer."""
    return {"format": FORMAT_VERSION, "kind": IMPORTED_KIND, "model": model, "special": special_tokens._asdict()}


def parse_special_tokens(saved: Mapping[str, Any], vocab_size: int) -> SpecialTokens:
    """Read the special tokens from a header.

    Raises:
        ValueError: A token is not in the vocabulary.
    """
    before, after = tuple(saved["before"]), tuple(saved["after"])
    special_tokens = SpecialTokens(saved["pad"], saved["unk"], saved["bos"], saved["eos"], before, after)
    tokens = (
        *(token for token in special_tokens[:4] if token is not None),
        *special_tokens.before,
        *special_tokens.after,
    )
    if not all(isinstance(token, int) and 0 <= token < vocab_size for token in tokens):
        raise ValueError(f"a special token is not one of the {vocab_size} tokens of the vocabulary")
    return special_tokens


def parse_backend(content: Any) -> Core:
    """Build a tokenizer of the library from its JSON content.

    The library removes `continuing_subword_prefix` from the second piece of a merge by its length alone, and aborts
    the process if that splits a character. Such merges are therefore refused here.

    Raises:
        Exception: The library cannot read the content.
    """
    model = content.get("model") if isinstance(content, dict) else None
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if isinstance(prefix, str) and prefix and isinstance(merges, list):
        for merge in merges:
            parts = merge.split(" ") if isinstance(merge, str) else merge
            if not (isinstance(parts, list) and parts and str(parts[-1]).startswith(prefix)):
                raise ValueError(
                    f"the second piece of merge {merge!r} does not start with continuing_subword_prefix {prefix!r}"
                )
    return Core.from_str(json.dumps(content))


def wrap_backend(backend: Core, special_tokens: SpecialTokens) -> ImportedBpe | ImportedSubword:
    """Wrap a tokenizer of the library. Byte-level BPE gets a faster class."""
    return (ImportedBpe if is_byte_level(backend) else ImportedSubword)(backend, special_tokens)


def disable_special_handling(backend: Core) -> Core:
    """Turn off truncation, padding and the recognition of special tokens in text."""
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def special_token_names(backend: Core) -> dict[int, str]:
    """Return the names of the special tokens by id."""
    return {
        token: added_token.content
        for token, added_token in backend.get_added_tokens_decoder().items()
        if added_token.special
    }


class ImportedTokenizer(BackendTokenizer):
    """Base class of imported tokenizers that the `tokenizers` library can read."""

    kind: ClassVar[str] = IMPORTED_KIND

    @property
    def banned_tokens(self) -> tuple[int, ...]:
        return padding_tokens(self.special_tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._backend, self.special_tokens)

    def header(self) -> dict[str, Any]:
        return build_imported_header("core", self.special_tokens)


class ImportedBpe(ImportedTokenizer, BpeTokenizer):
    """Byte-level BPE of GPT-2, GPT-4, Llama 3 and similar models."""

    def __init__(self, backend: Core, special_tokens: SpecialTokens) -> None:
        super().__init__(disable_special_handling(backend), special_tokens, fast_split_pattern(backend))
        if not self._pattern:
            self._lowercaser = None  # the library normalises the text
        self.lossless = is_lossless(self)

    @property
    def dtype(self) -> np.dtype[Any]:
        return token_dtype(self.vocab_size + (not self._special_names))  # one more id separates texts

    def _find_special_names(self) -> dict[int, str]:
        self._added_tokens = frozenset(self._backend.get_added_tokens_decoder())
        return special_token_names(self._backend)

    def _spell_bytes(self, token: int) -> bytes:
        return self._pieces[token].encode() if token in self._added_tokens else super()._spell_bytes(token)


class ImportedSubword(ImportedTokenizer):
    """Any other model of the library: WordPiece, unigram, character-level BPE or words."""

    def __init__(self, backend: Core, special_tokens: SpecialTokens) -> None:
        super().__init__(disable_special_handling(backend), special_tokens)
        self._special_names = special_token_names(backend)
        self.lossless = is_lossless(self)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        pieces = visible_pieces(tokens, self, self._special_names)
        decoder = self._backend.decoder
        return " ".join(pieces) if decoder is None else str(decoder.decode(pieces))

    def format_piece(self, token: int) -> str:
        return self._pieces[token].replace("▁", " ")

    def find_unknown(self, text: str) -> list[str]:
        check_text(text)
        encoding = self._backend.encode(text, add_special_tokens=False)
        unknown = (
            text[slice(*span)]
            for token, span in zip(encoding.ids, encoding.offsets, strict=True)
            if token == self.unk
        )
        return list(dict.fromkeys(unknown)) if self.unk is not None else []


def is_lossless(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer restores a difficult text exactly."""
    return tokenizer.decode(tokenizer.encode(_LOSSLESS_PROBE)) == _LOSSLESS_PROBE


def visible_pieces(tokens: Sequence[int], tokenizer: Tokenizer, special_tokens: Container[int | None]) -> list[str]:
    """Return the pieces of a text without special tokens. Unknown ones become a replacement character."""
    return [
        REPLACEMENT if token == tokenizer.unk else tokenizer.vocabulary[token]
        for token in tokens
        if token == tokenizer.unk or token not in special_tokens
    ]


def padding_tokens(special_tokens: SpecialTokens) -> tuple[int, ...]:
    """Return the tokens that an imported model must not generate: padding, unless it is also the end token."""
    return () if special_tokens.pad in (None, special_tokens.eos) else (special_tokens.pad,)


def is_byte_level(backend: Core) -> bool:
    """Return whether the vocabulary spells pieces in the 256 characters that stand for bytes."""
    if not isinstance(backend.model, models.BPE) or _component_state(backend.decoder).get("type") != "ByteLevel":
        return False
    steps = _pre_tokenizer_steps(backend)
    alphabet = set(byte_characters())
    pieces = backend.get_vocab(with_added_tokens=False)
    special_names = set(special_token_names(backend).values())
    return (
        bool(steps)
        and steps[-1]["type"] == "ByteLevel"
        and alphabet <= pieces.keys()
        and all(alphabet.issuperset(piece) for piece in pieces if piece not in special_names)
    )


def fast_split_pattern(backend: Core) -> str:
    """Return the pattern that splits text into words without the library; empty if there is none."""
    added_tokens = backend.get_added_tokens_decoder().values()
    if _component_state(backend.normalizer).get("type") not in (None, "Lowercase") or not all(
        added_token.special for added_token in added_tokens
    ):
        return ""
    match _pre_tokenizer_steps(backend):
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return GPT2_PATTERN
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            equivalent = _EQUIVALENT_PATTERNS.get(pattern, pattern)
            return equivalent if equivalent in SPLIT_PATTERNS else ""
    return ""


def _pre_tokenizer_steps(backend: Core) -> list[dict[str, Any]]:
    """Return the pre-tokenization steps in the library's format."""
    state = _component_state(backend.pre_tokenizer)
    if not state:
        return []
    steps: list[dict[str, Any]] = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return steps


def _component_state(component: Any) -> dict[str, Any]:
    """Return a component of the library's tokenizer in the library's format."""
    state: dict[str, Any] = {} if component is None else json.loads(component.__getstate__())
    return state
