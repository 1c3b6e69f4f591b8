"""SentencePiece models, read by the `sentencepiece` package. Marian models number the pieces differently."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from triform.errors import CheckpointError, install_command
from triform.text.base import Tokenizer, check_text
from triform.text.imported_tokenizers import (
    IMPORTED_KIND,
    build_imported_header,
    is_lossless,
    padding_tokens,
    visible_pieces,
)
from triform.text.tokens import SpecialTokens


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model (unigram or BPE). Marian's vocabulary `ids` overrides the model's own ids."""

    kind: ClassVar[str] = IMPORTED_KIND

    def __init__(self, model: bytes, special_tokens: SpecialTokens, ids: Mapping[str, int] | None = None) -> None:
        self._processor, self._model, self._ids = load_processor(model), model, ids
        size = self._processor.get_piece_size()
        pieces = sorted(ids, key=ids.__getitem__) if ids else list(map(self._processor.id_to_piece, range(size)))
        super().__init__(pieces, special_tokens)
        control_ids = filter(self._processor.is_control, range(size))
        self._special_ids = {*special_tokens[:4]} if ids else {*special_tokens[:4], *control_ids}
        self.lossless = is_lossless(self)

    @property
    def model(self) -> bytes:
        """The content of the model file."""
        return self._model

    @property
    def ids(self) -> Mapping[str, int] | None:
        """Marian's vocabulary, if there is one."""
        return self._ids

    @property
    def banned_tokens(self) -> tuple[int, ...]:
        return padding_tokens(self.special_tokens)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            check_text(text)
        if self._ids is None:
            rows: list[list[int]] = self._processor.encode(list(texts), out_type=int)
            return rows
        return [list(map(self._piece_to_id, row)) for row in self._split_pieces(texts)]

    def _piece_to_id(self, piece: str) -> int:
        if self._ids is None:
            return int(self._processor.piece_to_id(piece))
        return self._ids.get(piece, self.special_tokens.unk_or_pad)

    def _split_pieces(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of texts. For Marian, a language code at the start (>>fra<<) is one piece."""
        language_codes = [_language_code(text) if self._ids else "" for text in texts]
        bodies = [text.removeprefix(code) for text, code in zip(texts, language_codes, strict=True)]
        rows: list[list[str]] = self._processor.encode(bodies, out_type=str)
        return [[code, *row] if code else row for code, row in zip(language_codes, rows, strict=True)]

    def decode(self, tokens: Sequence[int]) -> str:
        text = str(self._processor.decode_pieces(visible_pieces(tokens, self, self._special_ids)))
        # The vocabulary of Marian has pieces of the other language, whose spaces stay as they are.
        return text if self._ids is None else text.replace("▁", " ").strip()

    def format_piece(self, token: int) -> str:
        return self._pieces[token].replace("▁", " ")

    def find_unknown(self, text: str) -> list[str]:
        check_text(text)
        missing = (
            piece.strip("▁") for piece in self._split_pieces([text])[0] if self._piece_to_id(piece) == self.unk
        )
        return list(dict.fromkeys(missing))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._model, self.special_tokens, self._ids)

    def to_json(self) -> str:
        body = {"model": b64encode(self._model).decode(), "ids": self._ids}
        content = {"triform": build_imported_header("sentencepiece", self.special_tokens), "tokenizer": body}
        return json.dumps(content, ensure_ascii=False)


def parse_saved_model(body: Mapping[str, Any]) -> tuple[bytes, dict[str, int] | None]:
    """Return the model and Marian's vocabulary from the output of `to_json`."""
    return b64decode(body["model"], validate=True), body["ids"]


def load_processor(model: bytes) -> Any:
    """Load a SentencePiece model.

    Raises:
        CheckpointError: The `sentencepiece` package is not installed.
        ValueError: The model is damaged.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise CheckpointError(
            "this vocabulary is a SentencePiece model, which needs the sentencepiece package; install it with "
            + install_command("sentencepiece")
        ) from None
    try:
        return SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError):
        raise ValueError("not a SentencePiece model, or a damaged one") from None


def _language_code(text: str) -> str:
    end = text.find("<<")
    return text[: end + 2] if text.startswith(">>") and end >= 0 else ""
