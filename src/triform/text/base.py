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
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer as Core
from tokenizers import normalizers

from triform.config import TokenizerConfig
from triform.errors import CheckpointError, ConfigError, DataError
from triform.io.files import write_text
from triform.text.tokens import DEFAULT_SPECIAL_TOKENS, SPECIAL_TOKENS, SpecialTokens, TokenRows

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
FORMAT_VERSION = 1  # of the saved file; a file with a higher number was written by a newer Triform

# In every kind of tokenizer that Triform trains, a line break before a non-whitespace character ends a token, so a
# long text may be split there.
SAFE_SPLIT = re.compile(r"\n(?=\S)")
_MIN_CHUNK_CHARS = 4096  # characters; small enough to spread over the cores, large enough to make that cheap
_MAX_BATCH_CHARS = 1 << 19  # characters per call; the library needs about 100 bytes for each during the call


class Tokenizer(ABC):
    """Base class of tokenizers, which map text to token ids and back.

    Text never encodes to special tokens: a literal "<eos>" is encoded as five characters.

    Args:
        pieces: All tokens in the spelling of the vocabulary, ordered by id.
        special_tokens: The ids of the special tokens.

    Example:
        >>> from triform.config import TokenizerConfig
        >>> from triform.text import train_tokenizer
        >>> tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["a cab"])
        >>> tokenizer.encode("cab")
        [7, 5, 6]
        >>> tokenizer.decode([7, 5, 6]), tokenizer.find_unknown("cat"), tokenizer.vocab_size
        ('cab', ['t'], 8)
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
        """Encode one text, without special tokens.

        Args:
            text: A text of any length.

        Returns:
            The ids; unknown parts have the id `unk`.

        Raises:
            DataError: The text contains half of a surrogate pair.
        """

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts to the same ids as `encode`, but faster.

        Args:
            texts: The texts.

        Returns:
            The ids of each text.

        Raises:
            DataError: A text contains half of a surrogate pair.
        """

    def encode_rows(self, texts: Sequence[str]) -> TokenRows:
        """Encode many texts into one array.

        Args:
            texts: The texts.

        Returns:
            The ids of all texts in one array, with the number of ids of each.
        """
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
        """Decode tokens to text.

        Args:
            tokens: Token ids.

        Returns:
            The text. Special tokens are left out; unknown ones become a replacement character.
        """

    def format_piece(self, token: int) -> str:
        """Return the readable text of one token.

        Args:
            token: A token id.

        Returns:
            A text for people, in which a space at the start is visible.
        """
        return self._pieces[token]

    def format_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the readable text of each token, given its neighbours.

        Args:
            tokens: Token ids.

        Returns:
            One text for each token.
        """
        return [self.format_piece(token) for token in tokens]

    @abstractmethod
    def find_unknown(self, text: str) -> list[str]:
        """Return the parts of a text that are not in the vocabulary, each once, in order of appearance.

        Args:
            text: The text.

        Returns:
            Words or characters, depending on the kind of tokenizer.
        """

    def nearest_known(self, unknown: str) -> tuple[str, ...]:
        """Find known words or characters that are spelled like an unknown one.

        Args:
            unknown: A word or character that is not in the vocabulary.

        Returns:
            Suggestions for a message, the nearest first; often empty.
        """
        return ()

    @abstractmethod
    def to_json(self) -> str:
        """Return the content of the file that `load_tokenizer` reads.

        Returns:
            A JSON text.
        """

    def save(self, path: Path) -> None:
        """Write the tokenizer to a JSON file.

        Args:
            path: The file, which is replaced if it exists.

        Raises:
            CheckpointError: The file cannot be written.
        """
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
        if len(text) > _MIN_CHUNK_CHARS:  # only batches let other threads run meanwhile
            parts = list(split_long_text(text, _MIN_CHUNK_CHARS))
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
    """Texts to train a tokenizer on: an iterator that validates them and counts their characters.

    Args:
        texts: The texts, which are read once.
        name: The name of the data, for error messages.
        expected_characters: The number of characters in all texts; 0 if it is not known.
    """

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
        """Yield all parts, or about `max_characters` characters spread over the text if it is longer.

        Args:
            max_characters: The number of characters to keep.
        """
        fraction = min(1.0, max_characters / max(1, self._expected_characters))
        n_read = n_sampled = 0
        for part in self:
            n_read += len(part)
            if n_sampled < fraction * n_read:
                n_sampled += len(part)
                yield part


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the integer type that stores the token ids of a vocabulary.

    Args:
        vocab_size: The number of tokens.

    Returns:
        uint8, uint16 or uint32.
    """
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def split_long_text(text: str, min_length: int, boundary: re.Pattern[str] = SAFE_SPLIT) -> Iterator[str]:
    """Yield parts of at least `min_length` characters that encode to the same tokens as the whole text.

    Args:
        text: The text.
        min_length: The number of characters from which a part may end.
        boundary: The pattern where it may end.

    Yields:
        Parts that together are the text.
    """
    start = 0
    while match := boundary.search(text, start + min_length):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def check_text(text: str, name: str = "the text") -> None:
    """Refuse a text with lone surrogates, which are not characters and cannot be written as UTF-8.

    Args:
        text: The text.
        name: What the text is, for the error message.

    Raises:
        DataError: The text contains half of a surrogate pair.
    """
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise DataError(
            f"{name}: character {error.start + 1} is a lone surrogate (U+{code:04X}), which is not text; "
            "save the text as UTF-8"
        ) from None


def check_vocab_size(vocab_size: int, *, minimum: int) -> None:
    """Refuse a vocabulary size that is too small for any data. With 0, the size is chosen automatically.

    Args:
        vocab_size: The size that the user has set.
        minimum: The smallest size that this kind of tokenizer can have.

    Raises:
        ConfigError: The size is too small.
    """
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
