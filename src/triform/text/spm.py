"""SentencePiece models, read by the `sentencepiece` package; Marian numbers their pieces in a way of its own."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from triform.errors import CheckpointError, install_command
from triform.text.base import Special, Tokenizer, check_text
from triform.text.imported import KIND, imported_header, is_lossless, padding, readable


class SentencePieces(Tokenizer):
    """Unigram or BPE. `ids` is Marian's vocabulary; without one, a piece has the number that the model gives it."""

    kind: ClassVar[str] = KIND

    def __init__(self, model: bytes, special: Special, ids: Mapping[str, int] | None = None) -> None:
        self._processor, self._model, self._ids = processor(model), model, ids
        size = self._processor.get_piece_size()
        pieces = sorted(ids, key=ids.__getitem__) if ids else list(map(self._processor.id_to_piece, range(size)))
        super().__init__(pieces, special)
        control = filter(self._processor.is_control, range(size))
        self._special = {*special[:4]} if ids else {*special[:4], *control}
        self.lossless = is_lossless(self)

    @property
    def model(self) -> bytes:
        return self._model

    @property
    def ids(self) -> Mapping[str, int] | None:
        return self._ids

    @property
    def never_written(self) -> tuple[int, ...]:
        return padding(self.special)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            check_text(text)
        if self._ids is None:
            found: list[list[int]] = self._processor.encode(list(texts), out_type=int)
            return found
        return [list(map(self._number, row)) for row in self._pieces_of(texts)]

    def _number(self, piece: str) -> int:
        if self._ids is None:
            return int(self._processor.piece_to_id(piece))
        return self._ids.get(piece, self.special.nothing)

    def _pieces_of(self, texts: Sequence[str]) -> list[list[str]]:
        """The pieces of texts; for Marian, a target language in front (>>fra<<) is one."""
        codes = [_language(text) if self._ids else "" for text in texts]
        bare = [text.removeprefix(code) for text, code in zip(texts, codes, strict=True)]
        rows: list[list[str]] = self._processor.encode(bare, out_type=str)
        return [[code, *row] if code else row for code, row in zip(codes, rows, strict=True)]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._processor.decode_pieces(readable(tokens, self, self._special)))

    def piece(self, token: int) -> str:
        return self._pieces[token].replace("▁", " ")

    def unknown(self, text: str) -> list[str]:
        check_text(text)
        lacking = (piece.strip("▁") for piece in self._pieces_of([text])[0] if self._number(piece) == self.unk)
        return list(dict.fromkeys(lacking))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._model, self.special, self._ids)

    def to_json(self) -> str:
        body = {"model": b64encode(self._model).decode(), "ids": self._ids}
        content = {"triform": imported_header("sentencepiece", self.special), "tokenizer": body}
        return json.dumps(content, ensure_ascii=False)


def from_saved(body: Mapping[str, Any]) -> tuple[bytes, dict[str, int] | None]:
    """What `to_json` wrote."""
    return b64decode(body["model"], validate=True), body["ids"]


def processor(model: bytes) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise CheckpointError(
            "this vocabulary is a SentencePiece model, which needs a package; install it with "
            + install_command("sentencepiece")
        ) from None
    try:
        return SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError):
        raise ValueError("not a SentencePiece model, or a damaged one") from None


def _language(text: str) -> str:
    end = text.find("<<")
    return text[: end + 2] if text.startswith(">>") and end >= 0 else ""
