"""The base classes of all tokenizers, which map text to token ids and back."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Core
from tokenizers import normalizers

from triform.config import TokenizerConfig
from triform.errors import CheckpointError, ConfigError, DataError
from triform.io.files import write_text

SPECIAL_TOKENS = (
    "<pad>",
    "<unk>",
    "<bos>",
    "<eos>",
)  # the first tokens of a vocabulary that Triform trains; WordPiece has BERT's names
PAD, UNK, BOS, EOS = range(4)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
FORMAT_VERSION = 1  # of the saved file; a file with a higher number was written by a newer Triform

# In every kind of tokenizer that Triform trains, a line break before a non-whitespace character ends a token, so a
# long text may be split there.
SAFE_SPLIT = re.compile(r"\n(?=\S)")
_MIN_CHUNK_CHARS = 4096  # characters; small enough to spread over the cores, large enough to make that cheap
_MAX_BATCH_CHARS = 1 << 19  # characters per call; the library needs about 100 bytes for each during the call


class TokenRows(NamedTuple):
    """The tokens of many texts in one array, and the number of tokens of each text."""

    tokens: NDArray[Any]  # unsigned integers
    lengths: NDArray[np.int64]

    def append_token(self, token: int, row_mask: NDArray[np.bool_]) -> TokenRows:
        """Return the rows with one more token at the end of those that the mask selects."""
        ends = np.cumsum(self.lengths)[row_mask]
        return TokenRows(np.insert(self.tokens, ends, token), self.lengths + row_mask) if len(ends) else self

    def wrap(self, before: Sequence[int], after: Sequence[int]) -> TokenRows:
        """Return the rows with the same tokens added before and after each of them."""
        ends = np.cumsum(self.lengths)[:, None]
        starts = ends - self.lengths[:, None]
        positions = np.hstack([starts.repeat(len(before), 1), ends.repeat(len(after), 1)])
        tokens = np.tile(np.array([*before, *after], self.tokens.dtype), len(positions))
        return TokenRows(np.insert(self.tokens, positions.ravel(), tokens), self.lengths + positions.shape[1])


class SpecialTokens(NamedTuple):
    """The ids of the special tokens. A token that is not in the vocabulary is None."""

    pad: int | None = PAD
    unk: int | None = UNK
    bos: int | None = BOS
    eos: int | None = EOS
    before: tuple[int, ...] = ()  # the tokens that an encoder expects before a text; `after`: those after it
    after: tuple[int, ...] = ()

    @property
    def pad_or_zero(self) -> int:
        """The token that fills rows up: padding or, without it, token 0, which is masked as well."""
        return 0 if self.pad is None else self.pad

    @property
    def eos_or_bos(self) -> int | None:
        """The token that separates texts: EOS or, without it, BOS."""
        return self.bos if self.eos is None else self.eos

    @property
    def end_token(self) -> int:
        """The token that stands for an empty text."""
        return next((token for token in (self.eos_or_bos, self.unk) if token is not None), self.pad_or_zero)

    @property
    def start_token(self) -> int:
        """The first token that a decoder reads."""
        return self.end_token if self.bos is None else self.bos

    @property
    def unk_or_pad(self) -> int:
        """The token without meaning: the unknown token or, without it, padding."""
        return next((token for token in (self.unk, self.pad) if token is not None), self.end_token)

    def wrap_rows(self, rows: TokenRows) -> TokenRows:
        """Return rows with their special tokens, as a model reads them. No row stays empty."""
        if self.before or self.after:
            return rows.wrap(self.before, self.after)
        return rows.append_token(self.end_token, rows.lengths == 0)

    def truncate(self, row: NDArray[Any], max_len: int, *, keep_last: bool = False) -> NDArray[Any]:
        """Truncate a row to the first or the last tokens of its text, and keep the special tokens around it."""
        if keep_last and len(row) > max_len:
            return np.concatenate([row[: len(self.before)], row[len(row) - max_len + len(self.before) :]])
        if len(row) <= max_len or not self.after:
            return row[:max_len]
        return np.concatenate([row[: max_len - len(self.after)], np.array(self.after, row.dtype)])

    def wrap(self, tokens: Sequence[int], max_len: int = 0) -> list[int]:
        """Return one text with its special tokens, truncated to `max_len` tokens unless that is 0."""
        content = tokens[: max(0, max_len - len(self.before) - len(self.after))] if max_len else tokens
        return [*self.before, *content, *self.after] or [self.end_token]


DEFAULT_SPECIAL_TOKENS = SpecialTokens()


class Tokenizer(ABC):
    """Base class of tokenizers, which map text to token ids and back.

    Text never encodes to special tokens: a literal "<eos>" is encoded as five characters.
    """

    kind: ClassVar[str]
    special_names: ClassVar[tuple[str, ...]] = SPECIAL_TOKENS  # of a tokenizer that Triform trains
    lossless: bool = True  # whether decoding restores the text exactly, including spaces
    single_threaded: ClassVar[bool] = False  # whether encoding uses only one core

    def __init__(self, pieces: list[str], special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> None:
        self._pieces, self.special_tokens = pieces, special_tokens
        self.pad, self.unk, self.bos, self.eos = special_tokens[:4]

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the vocabulary."""
        return len(self._pieces)

    @property
    def vocabulary(self) -> Sequence[str]:
        """All tokens in the spelling of the vocabulary, ordered by id. No two are equal."""
        return self._pieces

    @property
    def banned_tokens(self) -> tuple[int, ...]:
        """The tokens that a model must not generate."""
        return tuple(token for token in (self.pad, self.unk, self.bos) if token not in (None, self.eos))

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token ids of one text, without special tokens."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, equal to those of `encode`."""

    def encode_rows(self, texts: Sequence[str]) -> TokenRows:
        """Return the token ids of all texts in one array, with the length of each."""
        rows = self.encode_batch(texts) if len(texts) != 1 else [self.encode(texts[0])]  # `encode` may split it
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        tokens = np.fromiter(chain.from_iterable(rows), self.dtype, int(lengths.sum()))
        return TokenRows(tokens, lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned integer type that holds every token id."""
        return token_dtype(self.vocab_size)

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Special tokens are left out; unknown ones become a replacement character."""

    def format_piece(self, token: int) -> str:
        """Return the readable text of one token."""
        return self._pieces[token]

    def format_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the readable text of each token, given its neighbours."""
        return [self.format_piece(token) for token in tokens]

    @abstractmethod
    def find_unknown(self, text: str) -> list[str]:
        """Return the parts of a text that are not in the vocabulary, each once, in order of appearance."""

    def nearest_known(self, unknown: str) -> tuple[str, ...]:
        """Return known words or characters that are spelled like an unknown one, if the tokenizer can find any."""
        return ()

    @abstractmethod
    def to_json(self) -> str:
        """Return the content of the file that `load_tokenizer` reads."""

    def save(self, path: Path) -> None:
        """Write the tokenizer to a JSON file."""
        try:
            write_text(path, self.to_json())
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written ({error.strerror or error})") from error


class BackendTokenizer(Tokenizer):
    """Base class of tokenizers that are built on the `tokenizers` library."""

    def __init__(self, backend: Core, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> None:
        ids = backend.get_vocab()
        super().__init__(sorted(ids, key=ids.__getitem__), special_tokens)
        self._backend = backend
        if (special_tokens is DEFAULT_SPECIAL_TOKENS and tuple(self._pieces[:4]) != self.special_names) or sorted(
            ids.values()
        ) != list(range(len(ids))):
            raise ValueError(
                f"the vocabulary must be numbered from 0 and start with {' '.join(self.special_names)}"
            )

    def encode(self, text: str) -> list[int]:
        parts = list(split_long_text(text, _MIN_CHUNK_CHARS))
        if len(parts) > 1:
            return [token for part in self.encode_batch(parts) for token in part]
        check_text(text)
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, equal to those of `encode`. The work is spread over the cores."""
        disable_fork_warning()
        encoded: list[list[int]] = []
        batch: list[str] = []
        batch_chars = 0
        for count, text in enumerate(texts, 1):
            check_text(text)
            batch.append(text)
            batch_chars += len(text)
            if batch_chars >= _MAX_BATCH_CHARS or count == len(texts):
                encoded += [row.ids for row in self._backend.encode_batch_fast(batch, add_special_tokens=False)]
                batch, batch_chars = [], 0
        return encoded

    @property
    def backend(self) -> Core:
        """The tokenizer of the `tokenizers` library."""
        return self._backend

    def header(self) -> dict[str, Any]:
        """Return the entries of tokenizer.json that the library's format does not have."""
        return {"format": FORMAT_VERSION, "kind": self.kind}

    def to_json(self) -> str:
        """Return the header with the library's own format inside."""
        content = {"triform": self.header(), "tokenizer": json.loads(self._backend.to_str())}
        return json.dumps(content, ensure_ascii=False)

    def _normalize(self, text: str) -> str:
        check_text(text)
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))


class TrainingText:
    """Texts to train a tokenizer on: an iterator that validates them and counts their characters."""

    def __init__(self, texts: Iterable[str], name: str, expected_characters: int = 0) -> None:
        self._texts, self.name, self.n_characters = texts, name, 0
        self._expected_characters = expected_characters  # 0 if unknown

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            check_text(text, self.name)
            self.n_characters += len(text)
            yield from split_long_text(text, _MIN_CHUNK_CHARS)  # one text may be a whole book
        if not self.n_characters:
            raise DataError(f"{self.name}: there is no text to train a tokenizer on")

    def sample(self, max_characters: int) -> Iterator[str]:
        """Yield all parts, or about `max_characters` characters spread over the text if it is longer."""
        fraction = min(1.0, max_characters / max(1, self._expected_characters))
        n_read = n_sampled = 0
        for part in self:
            n_read += len(part)
            if n_sampled < fraction * n_read:
                n_sampled += len(part)
                yield part


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the integer type that stores the token ids of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def split_long_text(text: str, min_length: int, boundary: re.Pattern[str] = SAFE_SPLIT) -> Iterator[str]:
    """Yield parts of at least `min_length` characters that encode to the same tokens as the whole text."""
    start = 0
    while match := boundary.search(text, start + min_length):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def check_text(text: str, name: str = "the text") -> None:
    """Refuse a text with lone surrogates, which are not characters and cannot be written as UTF-8."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise DataError(
            f"{name}: character {error.start + 1} is a lone surrogate (U+{code:04X}), which is not text; "
            "save the text as UTF-8"
        ) from None


def check_vocab_size(vocab_size: int, *, minimum: int) -> None:
    """Refuse a vocabulary size that is too small for any data. With 0, the size is chosen automatically."""
    if vocab_size and vocab_size < minimum:
        raise ConfigError(f"tokenizer.vocab_size={vocab_size} is too small: it must be at least {minimum}")


def check_vocab_size_limit(vocab_size: int, *, maximum: int, name: str) -> None:
    """Refuse a vocabulary size that is larger than the data allows."""
    if vocab_size > maximum:
        raise ConfigError(
            f"tokenizer.vocab_size={vocab_size} is more than {name} allows ({maximum} at most); "
            f"set it to {maximum} or lower, or remove the setting"
        )


def build_lowercaser(config: TokenizerConfig) -> normalizers.Normalizer | None:
    """Return the library's lowercasing step, or None if the settings keep case."""
    # It works character by character, unlike str.lower (final sigma), so splitting a text changes nothing.
    return normalizers.Lowercase() if config.lowercase else None


@cache
def disable_fork_warning() -> None:
    """Make forked children tokenize on one core, without the warning that older `tokenizers` print at a fork."""
    if not hasattr(os, "register_at_fork"):  # Windows has no fork
        return
    env_name = "TOKENIZERS_PARALLELISM"
    was_unset: list[bool] = []

    def before_fork() -> None:
        was_unset.append(env_name not in os.environ)
        os.environ.setdefault(env_name, "false")

    def after_fork_in_parent() -> None:
        if was_unset.pop():
            os.environ.pop(env_name, None)

    os.register_at_fork(before=before_fork, after_in_parent=after_fork_in_parent)
