"""A tokenizer of words and punctuation marks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar, Self

from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Core

from triform.config import TokenizerConfig
from triform.errors import DataError
from triform.text.base import (
    REPLACEMENT,
    BackendTokenizer,
    TrainingText,
    build_lowercaser,
    check_vocab_size,
    check_vocab_size_limit,
    disable_fork_warning,
)
from triform.text.nearest_words import WordIndex
from triform.text.tokens import SPECIAL_TOKENS, UNK

# A word is letters, marks and digits, with apostrophes between them (don't, l’homme). Any other visible character
# is a word too.
WORD_PATTERN = r"[\p{L}\p{M}\p{N}]+(?:['’][\p{L}\p{M}\p{N}]+)*|\S"
_ASCII_WORD = re.compile(
    r"[A-Za-z0-9]+(?:'[A-Za-z0-9]+)*|\S", re.ASCII
)  # the same for ASCII text, four times as fast
_UNLIMITED = 2**31 - 1

_QUOTES = frozenset("\"'")  # the first of a pair opens a quotation, the second closes it
_JOINING = frozenset("-/_")
_OPENING = frozenset("$£#@")
_CLOSING = frozenset(".,;:!?%…")


class WordTokenizer(BackendTokenizer):
    """Tokenizer of words, ordered by frequency, then alphabetically. Decoding guesses the spaces between words."""

    kind: ClassVar[str] = "word"
    lossless: bool = False

    def __init__(self, backend: Core) -> None:
        super().__init__(backend)
        self._words = frozenset(self._pieces[len(SPECIAL_TOKENS) :])

    @classmethod
    def train(cls, config: TokenizerConfig, texts: TrainingText) -> Self:
        """Collect the words of texts.

        Args:
            config: The settings, of which `vocab_size`, `min_count` and `lowercase` are used.
            texts: The texts.

        Returns:
            A tokenizer that knows the most frequent words.

        Raises:
            ConfigError: `vocab_size` is too small, or larger than these texts allow.
            DataError: No word occurs `min_count` times.
        """
        n_special = len(SPECIAL_TOKENS)
        check_vocab_size(config.vocab_size, minimum=n_special + 1)
        disable_fork_warning()
        backend = Core(models.WordLevel(unk_token=SPECIAL_TOKENS[UNK]))
        backend.normalizer = build_lowercaser(config)
        backend.pre_tokenizer = _build_splitter()
        # Count all words first, because their number limits the vocabulary size.
        trainer = trainers.WordLevelTrainer(
            vocab_size=_UNLIMITED,
            min_frequency=config.min_count,
            special_tokens=list(SPECIAL_TOKENS),
            show_progress=False,
        )
        backend.train_from_iterator(iter(texts), trainer)
        ids = backend.get_vocab(with_added_tokens=False)
        if len(ids) == n_special:
            raise DataError(
                f"{texts.name}: no word occurs {config.min_count} times or more; lower tokenizer.min_count"
            )
        check_vocab_size_limit(config.vocab_size, maximum=len(ids), name=texts.name)
        vocabulary = sorted(ids, key=ids.__getitem__)[: config.vocab_size or len(ids)]
        # Build a new tokenizer without the library's added tokens, which would be matched inside texts.
        trained = Core(models.WordLevel({word: ids[word] for word in vocabulary}, unk_token=SPECIAL_TOKENS[UNK]))
        trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        return cls(trained)

    def decode(self, tokens: Sequence[int]) -> str:
        visible = (token for token in tokens if token >= len(SPECIAL_TOKENS) or token == UNK)
        return join_words(REPLACEMENT if token == UNK else self._pieces[token] for token in visible)

    def find_unknown(self, text: str) -> list[str]:
        words = self._backend.pre_tokenizer.pre_tokenize_str(self._normalize(text))
        return list(dict.fromkeys(word for word, _ in words if word not in self._words))

    @cached_property
    def _index(self) -> WordIndex:
        return WordIndex(self._pieces[len(SPECIAL_TOKENS) :])

    def nearest_known(self, unknown: str) -> tuple[str, ...]:
        return self._index.nearest(unknown)


def join_words(words: Iterable[str]) -> str:
    """Join words and punctuation marks, with the spaces that English punctuation has.

    Args:
        words: Words and punctuation marks.

    Returns:
        A text.

    >>> join_words(["Well", ",", "he", "said", "(", "twice", ")", "."])
    'Well, he said (twice).'
    """
    parts: list[str] = []
    open_quotes: set[str] = set()
    space_allowed = False  # whether a space may follow the previous word
    for word in words:
        space_before, space_after = _allows_spaces(word)
        if word in _QUOTES:
            space_before, space_after = word not in open_quotes, word in open_quotes
            open_quotes ^= {word}
        parts.append(f" {word}" if space_allowed and space_before else word)
        space_allowed = space_after
    return "".join(parts)


def split_words(text: str, *, lowercase: bool = False) -> list[str]:
    """Split a text into words as this tokenizer does.

    Args:
        text: The text.
        lowercase: Whether the text is converted to lower case.

    Returns:
        Words and punctuation marks, without spaces.

    >>> split_words("Don't panic, it's fine.")
    ["Don't", 'panic', ',', "it's", 'fine', '.']
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower() if lowercase else text)
    if lowercase:
        text = normalizers.Lowercase().normalize_str(text)
    return [word for word, _ in _build_splitter().pre_tokenize_str(text)]


def _build_splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)


def _allows_spaces(word: str) -> tuple[bool, bool]:
    """Return whether a space may precede the word, and whether one may follow it."""
    if len(word) > 1:
        return True, True
    category = unicodedata.category(word)
    closes = word in _CLOSING or word in _JOINING or category in ("Pe", "Pf")
    opens = word in _OPENING or word in _JOINING or category in ("Ps", "Pi")
    return not closes, not opens
