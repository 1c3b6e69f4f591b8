"""Byte-level BPE with the GPT-4 split pattern. It encodes any Unicode text without unknown tokens."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Core

from triform.config import TokenizerConfig
from triform.text.base import (
    REPLACEMENT,
    BackendTokenizer,
    TrainingText,
    build_lowercaser,
    check_text,
    check_vocab_size,
    check_vocab_size_limit,
    disable_fork_warning,
    split_long_text,
)
from triform.text.split_patterns import GPT4_PATTERN, SEPARATOR, SPLIT_PATTERNS, find_word_pattern
from triform.text.tokens import DEFAULT_SPECIAL_TOKENS, PAD, SPECIAL_TOKENS, SpecialTokens, TokenRows

BASE_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256  # before the first merge
CHARS_PER_TOKEN = 200  # automatic vocabulary size: one token per this many characters, between the two bounds
MIN_AUTO_VOCAB = 512
MAX_TRAIN_CHARS = 1 << 25  # characters to train on; more text hardly changes the vocabulary and takes minutes
MIN_PAIR_COUNT = 2  # a pair that occurs once is not merged
MAX_CACHED_WORD_CHARS = 64  # characters; longer words are not cached
MAX_TRAIN_WORD_CHARS = 1_000  # characters; longer words are split before training
MAX_CACHED_WORDS = 1 << 18  # words; about 50 MB
MAX_GROUP_CHARS = 1 << 20  # characters of the texts that are encoded together

_INVALID_BYTE = re.compile("[\udc80-\udcff]")  # how "surrogateescape" decodes a byte that is not UTF-8


class WordCache(dict[str, bytes]):
    """Cache of the tokens of words, as the bytes of an array. A word is tokenized when it is first looked up."""

    def __init__(self, backend: Core, typecode: str, separator: int = PAD) -> None:
        super().__init__()
        self._model, self._typecode = backend.model, typecode
        self.separator = separator  # a token that no text encodes to
        self._byte_to_char = dict(enumerate(byte_characters()))

    def __missing__(self, word: str) -> bytes:
        if word == SEPARATOR:
            return array(self._typecode, [self.separator]).tobytes()
        symbols = word.encode().decode("latin-1").translate(self._byte_to_char)
        encoded = self.tokenize(symbols).tobytes()
        if len(word) <= MAX_CACHED_WORD_CHARS:
            self[word] = encoded
        return encoded

    def tokenize(self, symbols: str) -> array[int]:
        """Return the tokens of a word whose bytes are written as visible characters."""
        return array(self._typecode, [token.id for token in self._model.tokenize(symbols)])

    def encode_words(self, words: Iterable[str]) -> bytes:
        """Return the tokens of all words of a text."""
        if len(self) > MAX_CACHED_WORDS:
            self.clear()
        return b"".join(map(self.__getitem__, words))


class BpeTokenizer(BackendTokenizer):
    """Byte-level BPE, lossless on every text unless it lowercases.

    Words repeat, so each word is split into tokens once and cached. On one core this is several times faster than
    the library's encoding. The file holds the library's model, and tests compare the two.
    """

    kind: ClassVar[str] = "bpe"
    single_threaded: ClassVar[bool] = True

    def __init__(
        self, backend: Core, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS, pattern: str = GPT4_PATTERN
    ) -> None:
        super().__init__(backend, special_tokens)
        self._lowercaser, self._pattern = backend.normalizer, pattern
        self._special_names = self._find_special_names()
        self._word_cache = WordCache(backend, self.dtype.char, min(self._special_names, default=self.vocab_size))
        self._char_to_byte = {character: byte for byte, character in enumerate(byte_characters())}
        self._token_bytes = [
            b"" if token in self._special_names else self._spell_bytes(token) for token in range(len(self._pieces))
        ]
        if special_tokens.unk is not None:
            self._token_bytes[special_tokens.unk] = REPLACEMENT.encode()

    def _find_special_names(self) -> dict[int, str]:
        """Return the names of the special tokens by id."""
        return dict(enumerate(SPECIAL_TOKENS))

    def _spell_bytes(self, token: int) -> bytes:
        return bytes(self._char_to_byte[character] for character in self._pieces[token])

    @classmethod
    def train(cls, config: TokenizerConfig, texts: TrainingText) -> Self:
        """Learn merges from texts.

        Args:
            config: The settings, of which `vocab_size` and `lowercase` are used.
            texts: The texts.

        Returns:
            A tokenizer with at most `vocab_size` tokens.

        Raises:
            ConfigError: `vocab_size` is too small, or larger than these texts allow.
        """
        check_vocab_size(config.vocab_size, minimum=BASE_VOCAB_SIZE)
        disable_fork_warning()
        backend = Core(models.BPE())
        backend.normalizer = build_lowercaser(config)
        split = pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated")
        # The library's training time is quadratic in the length of a word.
        split_long_words = pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{MAX_TRAIN_WORD_CHARS}}}"), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, split_long_words, byte_level])
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size or max(MIN_AUTO_VOCAB, config.max_vocab_size),
            min_frequency=MIN_PAIR_COUNT,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(texts.sample(MAX_TRAIN_CHARS), trainer)
        check_vocab_size_limit(config.vocab_size, maximum=backend.get_vocab_size(), name=texts.name)
        # The amount of text is known only now. Merges are in order, so the first ones are exactly those that
        # training to the smaller size would have found.
        vocab_size = config.vocab_size or auto_vocab_size(texts.n_characters, config.max_vocab_size)
        trained = Core(_truncate_vocab(backend, vocab_size))
        trained.normalizer, trained.pre_tokenizer = backend.normalizer, pre_tokenizers.Sequence([split, byte_level])
        trained.decoder = decoders.ByteLevel()
        return cls(trained)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._backend,)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        return np.frombuffer(self._encode_text(self._lowercase(text)), self.dtype).tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        tokens, lengths = self.encode_rows(texts)
        flat, ends = tokens.tolist(), np.cumsum(lengths).tolist()
        return [flat[start:end] for start, end in pairwise([0, *ends])]

    def encode_rows(self, texts: Sequence[str]) -> TokenRows:
        parts = [
            TokenRows(np.zeros(0, self.dtype), np.zeros(0, np.int64)),
            *map(self._encode_group, _group_texts(texts)),
        ]
        return TokenRows(
            np.concatenate([part.tokens for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def _encode_group(self, texts: list[str]) -> TokenRows:
        """Encode many texts as one, which saves most of the overhead of short texts."""
        for text in texts:
            check_text(text)
        joined = self._lowercase(SEPARATOR.join(texts))
        pattern = find_word_pattern(joined, self._pattern)
        if pattern is None or joined.count(SEPARATOR) >= len(texts):
            rows = [self._encode_text(self._lowercase(text)) for text in texts]
            lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // self.dtype.itemsize
            return TokenRows(np.frombuffer(b"".join(rows), self.dtype), lengths)
        tokens = np.frombuffer(self._word_cache.encode_words(_find_words(pattern, joined)), self.dtype)
        is_separator = tokens == self._word_cache.separator
        ends = np.concatenate(([-1], np.flatnonzero(is_separator), [len(tokens)]))
        return TokenRows(tokens[~is_separator], np.diff(ends) - 1)

    def _encode_text(self, text: str) -> bytes:
        """Return the tokens of one text, which is lowercased if the tokenizer does so."""
        pattern = None if SEPARATOR in text else find_word_pattern(text, self._pattern)
        if pattern is not None:
            return self._word_cache.encode_words(_find_words(pattern, text))
        split_pattern = SPLIT_PATTERNS.get(self._pattern)
        # Split into lines first, because only some lines need the library.
        if split_pattern and len(lines := list(split_long_text(text, 1, split_pattern.safe_split))) > 1:
            return b"".join(map(self._encode_text, lines))
        return array(self.dtype.char, self._backend.encode(text, add_special_tokens=False).ids).tobytes()

    def _lowercase(self, text: str) -> str:
        return text if self._lowercaser is None else self._lowercaser.normalize_str(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join([self._token_bytes[token] for token in tokens]).decode("utf-8", errors="replace")

    def format_piece(self, token: int) -> str:
        if token in self._special_names:
            return self._special_names[token]
        text = self._token_bytes[token].decode("utf-8", errors="surrogateescape")
        return _INVALID_BYTE.sub(_format_byte, text)

    def format_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the readable text of each token. A character that spans several tokens appears in each of them."""
        token_bytes = [b"" if token in self._special_names else self._token_bytes[token] for token in tokens]
        byte_owners = [index for index, part in enumerate(token_bytes) for _ in part]
        texts = [self._special_names.get(token, "") for token in tokens]
        start = 0
        for character in b"".join(token_bytes).decode("utf-8", errors="surrogateescape"):
            width = len(character.encode("utf-8", errors="surrogateescape"))
            owner_indices = list(dict.fromkeys(byte_owners[start : start + width]))
            start += width
            text = _INVALID_BYTE.sub(_format_byte, character)
            for part, index in enumerate(owner_indices, 1):
                texts[index] += text if len(owner_indices) == 1 else f"{text}⟨{part}/{len(owner_indices)}⟩"
        return texts

    def find_unknown(self, text: str) -> list[str]:
        return []

    @property
    def pattern(self) -> str:
        """The split pattern if it is a known one, else an empty string."""
        return self._pattern

    def ranks(self) -> tuple[dict[bytes, int], dict[str, int]]:
        """Return the pieces as bytes with their ids, and the special tokens with theirs."""
        pieces = {piece: token for token, piece in enumerate(self._token_bytes) if token not in self._special_names}
        return pieces, {name: token for token, name in self._special_names.items()}

    def merges(self) -> list[tuple[bytes, bytes]]:
        """Return the merges in the order in which they were learned."""
        bytes_of = {piece: self._token_bytes[token] for token, piece in enumerate(self._pieces)}
        return [
            (bytes_of[left], bytes_of[right])
            for left, right in json.loads(self._backend.to_str())["model"]["merges"]
        ]


def auto_vocab_size(n_characters: int, max_vocab_size: int) -> int:
    """Return the default vocabulary size for an amount of training text."""
    return max(MIN_AUTO_VOCAB, min(n_characters // CHARS_PER_TOKEN, max_vocab_size))


def _group_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield groups of texts with about a million characters each. A longer text is a separate group."""
    group: list[str] = []
    n_characters = 0
    for text in texts:
        if group and n_characters + len(text) > MAX_GROUP_CHARS:
            yield group
            group, n_characters = [], 0
        group.append(text)
        n_characters += len(text)
    if group:
        yield group


def _find_words(pattern: re.Pattern[str], text: str) -> Iterable[str]:
    return (
        pattern.findall(text) if len(text) < 2 * MAX_GROUP_CHARS else (match[0] for match in pattern.finditer(text))
    )


def _format_byte(match: re.Match[str]) -> str:
    return f"<0x{ord(match[0]) - 0xDC00:02X}>"


def _truncate_vocab(backend: Core, vocab_size: int) -> models.BPE:
    """Return the first `vocab_size` tokens of a trained model, without the library's added tokens."""
    ids = backend.get_vocab(with_added_tokens=False)
    merges: list[tuple[str, str]] = []
    for left, right in json.loads(backend.to_str())["model"]["merges"]:
        if merges and ids["".join(merges[-1])] == vocab_size - 1:
            break
        merges.append((left, right))
    return models.BPE({piece: token for piece, token in ids.items() if token < vocab_size}, merges)


def byte_characters() -> list[str]:
    """Return the visible character that byte-level BPE writes for each byte (the GPT-2 table)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    byte_to_char = {byte: chr(byte) for byte in visible} | {
        byte: chr(256 + offset) for offset, byte in enumerate(hidden)
    }
    return [byte_to_char[byte] for byte in range(256)]
