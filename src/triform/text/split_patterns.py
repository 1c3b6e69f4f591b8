r"""The split patterns of GPT-4 and GPT-2 for Python's own `re`, several times faster than the library's.

`re` does not know \p{L}, so its classes are spelled out: for ASCII by hand, for the rest of the first plane
(and emoji) as the library itself sees them, whatever its version. Text beyond that is left to the library.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers

from triform.text.base import SAFE_SPLIT

GPT4_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The same, and whitespace at the very end is one word, whatever line breaks are in it.
CL100K_PATTERN = GPT4_PATTERN.replace(r"|\s*[\r\n]", r"|\s++\z|\s*[\r\n]")
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Beyond the first plane there are letters and numbers, but none among the pictures of 1F000 and 1F110 to 1FAFF.
UNSUPPORTED_CHARACTERS = re.compile("[\U00010000-\U0001efff\U0001f100-\U0001f10f\U0001fb00-\U0010ffff]")
SEPARATOR = "\0"  # stands between texts that are split together: the end of one, and a word of its own


class SplitPattern(NamedTuple):
    """A pattern for `re`, its classes left open, and where a long text may be cut."""

    word_template: str
    safe_split: re.Pattern[str] = SAFE_SPLIT


# Words come first, where nothing else can match, because most text is words.
_GPT4_TEMPLATE = (
    r" ?[{L}]+|'(?:[sdmtSDMT{s}]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\0{L}{N}]?+[{L}]+|[{N}]{{1,3}}"
    r"| ?[^{S}\0{L}{N}]++[\r\n]*|[{S}]*[\r\n]|[{S}]+(?![^{S}\0])|[{S}]+|\0"
)
_GPT2_TEMPLATE = r" ?[{L}]+|'(?:[sdmt]|ll|ve|re)| ?[{N}]+| ?[^{S}\0{L}{N}]+|[{S}]+(?![^{S}\0])|[{S}]+|\0"
SPLIT_PATTERNS = {
    GPT4_PATTERN: SplitPattern(_GPT4_TEMPLATE),
    CL100K_PATTERN: SplitPattern(_GPT4_TEMPLATE.replace(r"|[{S}]*[\r\n]", r"|[{S}]++(?=\0|\Z)|[{S}]*[\r\n]")),
    # a cut is an end, and there whitespace is one word: only a single line break is one in any case
    GPT2_PATTERN: SplitPattern(_GPT2_TEMPLATE, re.compile(r"(?<=\S)\n(?=\S)")),
}


def find_word_pattern(text: str, pattern: str = GPT4_PATTERN) -> re.Pattern[str] | None:
    """What finds the words of a text, or of many with `BETWEEN` between them; None: ask the library."""
    if pattern not in SPLIT_PATTERNS:
        return None
    if text.isascii():
        return compile_ascii_pattern(pattern)
    return compile_unicode_pattern(pattern) if UNSUPPORTED_CHARACTERS.search(text) is None else None


@cache
def compile_ascii_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(SPLIT_PATTERNS[pattern].word_template.format(L="A-Za-z", N="0-9", S="\t-\r ", s=""))


@cache
def compile_unicode_pattern(pattern: str) -> re.Pattern[str]:
    """For text with other characters; about a tenth of a second the first time."""
    letters, numbers, spaces = map(_character_ranges, (r"\p{L}", r"\p{N}", r"\s"))
    # a small long s is an s to a pattern that is blind to case
    long_s = "\N{LATIN SMALL LETTER LONG S}"
    return re.compile(SPLIT_PATTERNS[pattern].word_template.format(L=letters, N=numbers, S=spaces, s=long_s))


@cache
def _character_ranges(char_class: str) -> str:
    """A class of characters of the first plane, as ranges, as the library tells them."""
    characters = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x10000))))
    runs = pre_tokenizers.Split(Regex(f"{char_class}+"), "removed", invert=True).pre_tokenize_str(characters)
    return "".join(f"\\u{ord(run[0]):04x}-\\u{ord(run[-1]):04x}" for run, _ in runs)
