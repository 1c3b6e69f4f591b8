r"""Byte-level BPE in plain Python: how a vocabulary is learned from text, and how text is split with it.

The tokenizers of `triform.text` use a fast library. This file does the same with dictionaries and loops, and gives
the same merges and the same token ids; a test compares them on a megabyte of text.

1. A text is cut into words by the split pattern of GPT-4. A word keeps the space before it, and no token crosses
   the end of a word.
2. Every word starts as its UTF-8 bytes, so no character is unknown.
3. The pair of neighbouring tokens that occurs most often becomes a new token, and so on until the vocabulary is
   full. The list of these merges, in order, is the whole model.
4. To encode a word, apply the merges to its bytes, always the one that was learned first.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Self

from triform.errors import ConfigError
from triform.text.base import REPLACEMENT
from triform.text.bpe import MIN_PAIR_COUNT, byte_characters
from triform.text.tokens import SPECIAL_TOKENS, UNK

Merge = tuple[bytes, bytes]  # two pieces that become one

WHITE_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# {L}: letters, {N}: numbers, {S}: white space. One alternative per line, the first that matches is taken.
WORD_TEMPLATE = r"""
    '(?i:[sdmt]|ll|ve|re)            # an English ending: the 're of we're
    | [^\r\n{L}{N}]?+ [{L}]+         # letters, and one character before them, mostly a space
    | [{N}]{{1,3}}                   # up to three digits
    | [ ]? [^{S}{L}{N}]++ [\r\n]*    # punctuation, and the line breaks after it
    | [{S}]*[\r\n]                   # white space up to a line break
    | [{S}]+(?![^{S}])               # white space, except the last character before a word
    | [{S}]+
"""


@cache
def compile_word_pattern() -> re.Pattern[str]:
    """Return the split pattern of GPT-4 for Python's `re`, which knows no Unicode categories.

    Letters and numbers are those of Python's own Unicode tables; the library's may know newer characters.
    """
    character_ranges = {}
    for category in "LN":
        members = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == category]
        starts = [code for previous, code in pairwise([-2, *members]) if code != previous + 1]
        ends = [code for code, following in pairwise([*members, -2]) if following != code + 1]
        character_ranges[category] = "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))
    return re.compile(WORD_TEMPLATE.format(**character_ranges, S=WHITE_SPACE.replace(" ", r"\ ")), re.VERBOSE)


class BytePairEncoder:
    """Byte-level BPE with the merges in the order in which they were learned.

    Args:
        merges: Pairs of pieces that become one, the first learned first.

    Example:
        >>> encoder = BytePairEncoder.train(["low lower lowest"], vocab_size=263)
        >>> encoder.merges
        [(b'l', b'o'), (b'lo', b'w'), (b' ', b'low')]
        >>> encoder.merge_steps(" lowly")[-1]
        [b' low', b'l', b'y']
        >>> encoder.decode(encoder.encode("slow owls"))
        'slow owls'
    """

    def __init__(self, merges: Sequence[Merge]) -> None:
        self.merges = list(merges)
        self.ranks = {merge: rank for rank, merge in enumerate(self.merges)}
        self.pieces = initial_pieces()
        self.pieces += dict.fromkeys(left + right for left, right in self.merges)  # two merges may give one piece
        self.ids = {piece: token for token, piece in enumerate(self.pieces) if token >= len(SPECIAL_TOKENS)}

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Learn merges until the vocabulary is full or no pair occurs twice.

        Args:
            texts: The text to learn from.
            vocab_size: The number of tokens: special tokens, the 256 bytes, and the merges.

        Raises:
            ConfigError: The vocabulary has no room for the special tokens and the bytes.
        """
        n_new = vocab_size - len(initial_pieces())
        if n_new < 0:
            raise ConfigError(f"vocab_size={vocab_size} is too small: it must be at least {len(initial_pieces())}")
        word_counts = Counter(word for text in texts for word in split_words(text))
        return cls(list(learn_merges(word_counts, n_new)))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: The text.

        Returns:
            The ids, which index `pieces`.
        """
        return [self.ids[piece] for word in split_words(text) for piece in self.merge_steps(word)[-1]]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Bytes that are not valid UTF-8 become a replacement character.

        Args:
            tokens: The ids.

        Returns:
            The text.
        """
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", errors="replace")

    def merge_steps(self, word: str) -> list[list[bytes]]:
        """Show how a word is split: its bytes, then the pieces after each merge. The last entry is the result.

        Args:
            word: One word, as `split_words` returns it.

        Returns:
            One list of pieces for each step.
        """
        pieces = [bytes([byte]) for byte in word.encode()]
        steps = [pieces]
        while known := [pair for pair in pairwise(pieces) if pair in self.ranks]:
            pieces = apply_merge(pieces, min(known, key=self.ranks.__getitem__))
            steps.append(pieces)
        return steps


def initial_pieces() -> list[bytes]:
    """Return the pieces of the tokens before the first merge: special tokens, then the 256 bytes.

    The bytes are in the order of the visible characters that the library writes for them.

    Returns:
        The bytes of each token, by its id.
    """
    special = [REPLACEMENT.encode() if token == UNK else b"" for token in range(len(SPECIAL_TOKENS))]
    characters = byte_characters()
    return special + [bytes([byte]) for byte in sorted(range(256), key=characters.__getitem__)]


def split_words(text: str) -> list[str]:
    """Cut a text into words; joined together they are the text.

    Args:
        text: The text.

    Returns:
        The words, each with the space before it.

    >>> split_words("We're 1,234 miles away!")
    ['We', "'re", ' ', '1', ',', '234', ' miles', ' away', '!']
    """
    return compile_word_pattern().findall(text)


def apply_merge(pieces: Sequence[bytes], merge: Merge) -> list[bytes]:
    """Replace every occurrence of a pair by one piece, from left to right.

    Args:
        pieces: The pieces of a word.
        merge: The pair.

    Returns:
        The pieces after the merge.

    >>> apply_merge([b"l", b"o", b"l", b"o"], (b"l", b"o"))
    [b'lo', b'lo']
    """
    merged: list[bytes] = []
    index = 0
    while index < len(pieces):
        if tuple(pieces[index : index + 2]) == merge:
            merged.append(pieces[index] + pieces[index + 1])
            index += 2
        else:
            merged.append(pieces[index])
            index += 1
    return merged


def learn_merges(word_counts: Counter[str], n_new: int) -> Iterator[Merge]:
    """Yield the most frequent pair of neighbouring pieces, merge it everywhere, and repeat.

    Of pairs that are equally frequent, the one whose tokens have the lower ids comes first. Only the words that
    hold a pair change when it is merged, so pairs are counted once and then kept up to date.

    Args:
        word_counts: How often each word occurs.
        n_new: How many new pieces to make.

    Yields:
        A pair of pieces.
    """
    words = [[bytes([byte]) for byte in word.encode()] for word in word_counts]
    counts = list(word_counts.values())
    ids = {piece: token for token, piece in enumerate(initial_pieces())}
    pair_counts: Counter[Merge] = Counter()
    words_with: defaultdict[Merge, set[int]] = defaultdict(set)  # a pair -> indices of the words that hold it

    def add(index: int, sign: int) -> None:
        for pair in pairwise(words[index]):
            pair_counts[pair] += sign * counts[index]
            words_with[pair].add(index)

    for index in range(len(words)):
        add(index, 1)
    n_pieces = len(ids) + n_new
    while len(ids) < n_pieces and pair_counts:
        best = min(pair_counts, key=lambda pair: (-pair_counts[pair], ids[pair[0]], ids[pair[1]]))
        if pair_counts[best] < MIN_PAIR_COUNT:
            return
        yield best
        ids.setdefault(best[0] + best[1], len(ids))
        for index in words_with.pop(best):
            add(index, -1)
            words[index] = apply_merge(words[index], best)
            add(index, 1)
        del pair_counts[best]
