r"""The split patterns of GPT-4 and GPT-2 for Python's own `re`, several times faster than the library's.

`re` does not know \p{L}, so its classes are spelled out: for ASCII by hand, for the rest of the first plane
(and emoji) as the library itself sees them, whatever its version. Text beyond that is left to the library.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers

from triform.text.base import SAFE_CUT

GPT4_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The same, and whitespace at the very end is one word, whatever line breaks are in it.
CL100K_PATTERN = GPT4_PATTERN.replace(r"|\s*[\r\n]", r"|\s++\z|\s*[\r\n]")
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Beyond the first plane there are letters and numbers, but none among the pictures of 1F000 and 1F110 to 1FAFF.
BEYOND = re.compile("[\U00010000-\U0001efff\U0001f100-\U0001f10f\U0001fb00-\U0010ffff]")
BETWEEN = "\0"  # stands between texts that are split together: the end of one, and a word of its own


class Split(NamedTuple):
    """A pattern for `re`, its classes left open, and where a long text may be cut."""

    words: str
    safe_cut: re.Pattern[str] = SAFE_CUT


# Words come first, where nothing else can match, because most text is words.
_GPT4 = (
    r" ?[{L}]+|'(?:[sdmtSDMT{s}]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\0{L}{N}]?+[{L}]+|[{N}]{{1,3}}"
    r"| ?[^{S}\0{L}{N}]++[\r\n]*|[{S}]*[\r\n]|[{S}]+(?![^{S}\0])|[{S}]+|\0"
)
_GPT2 = r" ?[{L}]+|'(?:[sdmt]|ll|ve|re)| ?[{N}]+| ?[^{S}\0{L}{N}]+|[{S}]+(?![^{S}\0])|[{S}]+|\0"
SPLITS = {
    GPT4_PATTERN: Split(_GPT4),
    CL100K_PATTERN: Split(_GPT4.replace(r"|[{S}]*[\r\n]", r"|[{S}]++(?=\0|\Z)|[{S}]*[\r\n]")),
    # a cut is an end, and there whitespace is one word: only a single line break is one in any case
    GPT2_PATTERN: Split(_GPT2, re.compile(r"(?<=\S)\n(?=\S)")),
}


def splitter(text: str, pattern: str = GPT4_PATTERN) -> re.Pattern[str] | None:
    """What finds the words of a text, or of many with `BETWEEN` between them; None: ask the library."""
    if pattern not in SPLITS:
        return None
    if text.isascii():
        return ascii_words(pattern)
    return wide_words(pattern) if BEYOND.search(text) is None else None


@cache
def ascii_words(pattern: str) -> re.Pattern[str]:
    return re.compile(SPLITS[pattern].words.format(L="A-Za-z", N="0-9", S="\t-\r ", s=""))


@cache
def wide_words(pattern: str) -> re.Pattern[str]:
    """For text with other characters; about a tenth of a second the first time."""
    letters, numbers, spaces = map(_members, (r"\p{L}", r"\p{N}", r"\s"))
    # a small long s is an s to a pattern that is blind to case
    long_s = "\N{LATIN SMALL LETTER LONG S}"
    return re.compile(SPLITS[pattern].words.format(L=letters, N=numbers, S=spaces, s=long_s))


@cache
def _members(kind: str) -> str:
    """A class of characters of the first plane, as ranges, as the library tells them."""
    plane = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x10000))))
    runs = pre_tokenizers.Split(Regex(f"{kind}+"), "removed", invert=True).pre_tokenize_str(plane)
    return "".join(f"\\u{ord(run[0]):04x}-\\u{ord(run[-1]):04x}" for run, _ in runs)
