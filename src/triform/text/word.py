"""Words and punctuation marks, for vocabularies a person can read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import ClassVar, Self

from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Core

from triform.config import TokenizerConfig
from triform.errors import DataError
from triform.text.base import (
    REPLACEMENT,
    SPECIALS,
    UNK,
    CoreTokenizer,
    TextStream,
    check_allowed,
    check_vocab_size,
    lowercaser,
    quiet_fork,
)

# Letters, marks and digits, with apostrophes between them kept (don't, l’homme); any other visible
# character stands alone.
PATTERN = r"[\p{L}\p{M}\p{N}]+(?:['’][\p{L}\p{M}\p{N}]+)*|\S"
_ASCII = re.compile(r"[A-Za-z0-9]+(?:'[A-Za-z0-9]+)*|\S", re.ASCII)  # the same, four times as fast
_ALL = 2**31 - 1

_QUOTES = frozenset("\"'")  # the first of a pair opens, the next one closes
_JOINING = frozenset("-/_")
_OPENING = frozenset("$£#@")
_CLOSING = frozenset(".,;:!?%…")


class WordTokenizer(CoreTokenizer):
    """Words by frequency, then alphabet. Decoding is readable but not exact: the spacing is guessed."""

    kind: ClassVar[str] = "word"
    lossless: bool = False

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._known = frozenset(self._pieces[len(SPECIALS) :])

    @classmethod
    def train(cls, config: TokenizerConfig, texts: TextStream) -> Self:
        first = len(SPECIALS)
        check_vocab_size(config.vocab_size, least=first + 1)
        quiet_fork()
        core = Core(models.WordLevel(unk_token=SPECIALS[UNK]))
        core.normalizer = lowercaser(config)
        core.pre_tokenizer = _splitter()
        # All words first: how many there are decides whether the size asked for can be had.
        trainer = trainers.WordLevelTrainer(
            vocab_size=_ALL,
            min_frequency=config.min_count,
            special_tokens=list(SPECIALS),
            show_progress=False,
        )
        core.train_from_iterator(iter(texts), trainer)
        ids = core.get_vocab(with_added_tokens=False)
        if len(ids) == first:
            raise DataError(f"{texts.name}: no word is seen {config.min_count} times or more (min_count)")
        check_allowed(config.vocab_size, most=len(ids), name=texts.name)
        kept = sorted(ids, key=ids.__getitem__)[: config.vocab_size or len(ids)]
        # A new one, without the library's added tokens: those would be found inside texts.
        final = Core(models.WordLevel({word: ids[word] for word in kept}, unk_token=SPECIALS[UNK]))
        final.normalizer, final.pre_tokenizer = core.normalizer, core.pre_tokenizer
        return cls(final)

    def decode(self, tokens: Sequence[int]) -> str:
        out: list[str] = []
        opened: set[str] = set()
        room = False  # may a space follow what is written so far?
        for token in tokens:
            if token < len(SPECIALS) and token != UNK:
                continue
            word = REPLACEMENT if token == UNK else self._pieces[token]
            before, after = _spacing(word)
            if word in _QUOTES:
                before, after = word not in opened, word in opened
                opened ^= {word}
            out.append(f" {word}" if room and before else word)
            room = after
        return "".join(out)

    def unknown(self, text: str) -> list[str]:
        words = self._core.pre_tokenizer.pre_tokenize_str(self._normalised(text))
        return list(dict.fromkeys(word for word, _ in words if word not in self._known))


def split_words(text: str, *, lowercase: bool = False) -> list[str]:
    """A text as this tokenizer cuts it, before any vocabulary."""
    if text.isascii():
        return _ASCII.findall(text.lower() if lowercase else text)
    if lowercase:
        text = normalizers.Lowercase().normalize_str(text)
    return [word for word, _ in _splitter().pre_tokenize_str(text)]


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PATTERN), "removed", invert=True)


def _spacing(word: str) -> tuple[bool, bool]:
    """Whether a space goes well before the word, and after it."""
    if len(word) > 1:
        return True, True
    category = unicodedata.category(word)
    closes = word in _CLOSING or word in _JOINING or category in ("Pe", "Pf")
    opens = word in _OPENING or word in _JOINING or category in ("Ps", "Pi")
    return not closes, not opens
