"""Byte-pair encoding over bytes, with the GPT-4 split pattern: any Unicode text, nothing unknown."""

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
    OWN,
    PAD,
    REPLACEMENT,
    SPECIALS,
    CoreTokenizer,
    Rows,
    Special,
    TextStream,
    check_allowed,
    check_text,
    check_vocab_size,
    cut,
    lowercaser,
    quiet_fork,
)
from triform.text.split import BETWEEN, GPT4_PATTERN, SPLITS, splitter

BASE_SIZE = len(SPECIALS) + 256  # before the first merge
CHARACTERS_A_PIECE = 200  # a size left open: one piece for so many characters of text, between the two bounds
FEWEST, MOST = 512, 16384
SAMPLE = 1 << 25  # characters to learn from; more would hardly change the pieces, and take minutes
MIN_PAIRS = 2  # a pair seen once teaches nothing
LONGEST = 64  # characters of a word worth remembering
MAX_LEARNED_WORD = 1_000  # characters of a word that a vocabulary is learned from; longer ones are cut
REMEMBERED = 1 << 18  # words; about 50 MB
MANY = 1 << 20  # characters of a group of texts that are encoded together

_STRAY_BYTE = re.compile("[\udc80-\udcff]")  # how "surrogateescape" shows a byte that is not UTF-8


class Words(dict[str, bytes]):
    """The tokens of words, as the bytes of an array. A word is put together when it is first met."""

    def __init__(self, core: Core, code: str, between: int = PAD) -> None:
        super().__init__()
        self._model, self._code = core.model, code
        self.between = between  # which no text can give
        self._shown = dict(enumerate(byte_characters()))

    def __missing__(self, word: str) -> bytes:
        if word == BETWEEN:
            return array(self._code, [self.between]).tobytes()
        spelled = word.encode().decode("latin-1").translate(self._shown)
        found = self.tokens(spelled).tobytes()
        if len(word) <= LONGEST:
            self[word] = found
        return found

    def tokens(self, spelled: str) -> array[int]:
        """Of a word whose bytes are written as visible characters."""
        return array(self._code, [token.id for token in self._model.tokenize(spelled)])

    def join(self, words: Iterable[str]) -> bytes:
        """The tokens of a whole text."""
        if len(self) > REMEMBERED:
            self.clear()
        return b"".join(map(self.__getitem__, words))


class BpeTokenizer(CoreTokenizer):
    """Lossless on every text, seen or not (unless lowercase is set: case is then gone before encoding).

    The same words come again and again, so each is split into tokens once and remembered. That is several times
    faster than the library's own encoding, on one core. The file holds the library's model; tests keep both equal.
    """

    kind: ClassVar[str] = "bpe"
    one_core: ClassVar[bool] = True

    def __init__(self, core: Core, special: Special = OWN, pattern: str = GPT4_PATTERN) -> None:
        super().__init__(core, special)
        self._lower, self._pattern = core.normalizer, pattern
        self._names = self._unreachable()
        self._words = Words(core, self.dtype.char, min(self._names, default=self.vocab_size))
        self._byte_of = {character: byte for byte, character in enumerate(byte_characters())}
        self._bytes = [b"" if token in self._names else self._spelled(token) for token in range(len(self._pieces))]
        if special.unk is not None:
            self._bytes[special.unk] = REPLACEMENT.encode()

    def _unreachable(self) -> dict[int, str]:
        """The special tokens with their names."""
        return dict(enumerate(SPECIALS))

    def _spelled(self, token: int) -> bytes:
        return bytes(self._byte_of[character] for character in self._pieces[token])

    @classmethod
    def train(cls, config: TokenizerConfig, texts: TextStream) -> Self:
        check_vocab_size(config.vocab_size, least=BASE_SIZE)
        quiet_fork()
        core = Core(models.BPE())
        core.normalizer = lowercaser(config)
        split = pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated")
        # the library's training takes time quadratic in the length of a word
        shorten = pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{MAX_LEARNED_WORD}}}"), "isolated")
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([split, shorten, spell])
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size or MOST,
            min_frequency=MIN_PAIRS,
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        core.train_from_iterator(texts.spread(SAMPLE), trainer)
        check_allowed(config.vocab_size, most=core.get_vocab_size(), name=texts.name)
        # How much text there is, is known only now. Merges are in order, so the first ones are exactly
        # those that a training to the smaller size would have learned.
        size = config.vocab_size or min(max(texts.characters // CHARACTERS_A_PIECE, FEWEST), MOST)
        final = Core(_first_pieces(core, size))
        final.normalizer, final.pre_tokenizer = core.normalizer, pre_tokenizers.Sequence([split, spell])
        final.decoder = decoders.ByteLevel()
        return cls(final)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._core,)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        return np.frombuffer(self._encoded(self._lowered(text)), self.dtype).tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        tokens, lengths = self.encode_rows(texts)
        flat, ends = tokens.tolist(), np.cumsum(lengths).tolist()
        return [flat[start:end] for start, end in pairwise([0, *ends])]

    def encode_rows(self, texts: Sequence[str]) -> Rows:
        parts = [Rows(np.zeros(0, self.dtype), np.zeros(0, np.int64)), *map(self._together, _groups(texts))]
        return Rows(
            np.concatenate([part.tokens for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def _together(self, texts: list[str]) -> Rows:
        """Many texts as one, which spares most of the work that short ones are."""
        for text in texts:
            check_text(text)
        joined = self._lowered(BETWEEN.join(texts))
        pattern = splitter(joined, self._pattern)
        if pattern is None or joined.count(BETWEEN) >= len(texts):
            rows = [self._encoded(self._lowered(text)) for text in texts]
            lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // self.dtype.itemsize
            return Rows(np.frombuffer(b"".join(rows), self.dtype), lengths)
        tokens = np.frombuffer(self._words.join(_found(pattern, joined)), self.dtype)
        between = tokens == self._words.between
        ends = np.concatenate(([-1], np.flatnonzero(between), [len(tokens)]))
        return Rows(tokens[~between], np.diff(ends) - 1)

    def _encoded(self, text: str) -> bytes:
        """The tokens of one text, lowered where that is asked for."""
        pattern = None if BETWEEN in text else splitter(text, self._pattern)
        if pattern is not None:
            return self._words.join(_found(pattern, text))
        known = SPLITS.get(self._pattern)
        if known and len(lines := list(cut(text, 1, known.safe_cut))) > 1:  # only some of them need the library
            return b"".join(map(self._encoded, lines))
        return array(self.dtype.char, self._core.encode(text, add_special_tokens=False).ids).tobytes()

    def _lowered(self, text: str) -> str:
        return text if self._lower is None else self._lower.normalize_str(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join([self._bytes[token] for token in tokens]).decode("utf-8", errors="replace")

    def piece(self, token: int) -> str:
        if token in self._names:
            return self._names[token]
        text = self._bytes[token].decode("utf-8", errors="surrogateescape")
        return _STRAY_BYTE.sub(_hexadecimal, text)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """As `piece`, but a character whose bytes lie in several tokens is shown in each, with its part of it."""
        spelled = [b"" if token in self._names else self._bytes[token] for token in tokens]
        owners = [place for place, part in enumerate(spelled) for _ in part]
        shown = [self._names.get(token, "") for token in tokens]
        start = 0
        for character in b"".join(spelled).decode("utf-8", errors="surrogateescape"):
            width = len(character.encode("utf-8", errors="surrogateescape"))
            among = list(dict.fromkeys(owners[start : start + width]))
            start += width
            text = _STRAY_BYTE.sub(_hexadecimal, character)
            for part, place in enumerate(among, 1):
                shown[place] += text if len(among) == 1 else f"{text}⟨{part}/{len(among)}⟩"
        return shown

    def unknown(self, text: str) -> list[str]:
        return []

    @property
    def pattern(self) -> str:
        """What cuts words, where it is one that is known here."""
        return self._pattern

    def ranks(self) -> tuple[dict[bytes, int], dict[str, int]]:
        """The pieces as bytes with their ids, and the special tokens with theirs."""
        pieces = {spelled: token for token, spelled in enumerate(self._bytes) if token not in self._names}
        return pieces, {name: token for token, name in self._names.items()}

    def merges(self) -> list[tuple[bytes, bytes]]:
        """The pairs that were joined, first learned first."""
        of = {piece: self._bytes[token] for token, piece in enumerate(self._pieces)}
        return [(of[left], of[right]) for left, right in json.loads(self._core.to_str())["model"]["merges"]]


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts that hold a million characters together, or one alone that is longer."""
    group: list[str] = []
    held = 0
    for text in texts:
        if group and held + len(text) > MANY:
            yield group
            group, held = [], 0
        group.append(text)
        held += len(text)
    if group:
        yield group


def _found(pattern: re.Pattern[str], text: str) -> Iterable[str]:
    return pattern.findall(text) if len(text) < 2 * MANY else (match[0] for match in pattern.finditer(text))


def _hexadecimal(stray: re.Match[str]) -> str:
    return f"<0x{ord(stray[0]) - 0xDC00:02X}>"


def _first_pieces(core: Core, size: int) -> models.BPE:
    """The trained model as it was when it had `size` pieces, without the library's added tokens."""
    ids = core.get_vocab(with_added_tokens=False)
    merges: list[tuple[str, str]] = []
    for left, right in json.loads(core.to_str())["model"]["merges"]:
        if merges and ids["".join(merges[-1])] == size - 1:
            break
        merges.append((left, right))
    return models.BPE({piece: token for piece, token in ids.items() if token < size}, merges)


def byte_characters() -> list[str]:
    """The visible character that byte-level BPE writes for each byte (the GPT-2 table)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]
