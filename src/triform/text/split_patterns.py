r"""The split patterns of GPT-4 and GPT-2 for Python's `re`, several times faster than the library's.

`re` does not support \p{L}, so character classes are spelled out: by hand for ASCII, and as the installed library
classifies them for the rest of the first plane and emoji. The library splits text with any other characters.
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
# The same, but whitespace at the very end is one word, even if it contains line breaks.
CL100K_PATTERN = GPT4_PATTERN.replace(r"|\s*[\r\n]", r"|\s++\z|\s*[\r\n]")
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Beyond the first plane there are letters and numbers, but none among the symbols of 1F000 and 1F110 to 1FAFF.
UNSUPPORTED_CHARACTERS = re.compile("[\U00010000-\U0001efff\U0001f100-\U0001f10f\U0001fb00-\U0010ffff]")
SEPARATOR = "\0"  # separates texts that are split together; it is a word and ends the text before it


class SplitPattern(NamedTuple):
    """A template of a pattern for `re`, and a pattern of the places where a long text may be split."""

    word_template: str
    safe_split: re.Pattern[str] = SAFE_SPLIT


# The alternative for words comes first, because most text is words and nothing else matches there.
_GPT4_TEMPLATE = (
    r" ?[{L}]+|'(?:[sdmtSDMT{s}]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\0{L}{N}]?+[{L}]+|[{N}]{{1,3}}"
    r"| ?[^{S}\0{L}{N}]++[\r\n]*|[{S}]*[\r\n]|[{S}]+(?![^{S}\0])|[{S}]+|\0"
)
_GPT2_TEMPLATE = r" ?[{L}]+|'(?:[sdmt]|ll|ve|re)| ?[{N}]+| ?[^{S}\0{L}{N}]+|[{S}]+(?![^{S}\0])|[{S}]+|\0"
SPLIT_PATTERNS = {
    GPT4_PATTERN: SplitPattern(_GPT4_TEMPLATE),
    CL100K_PATTERN: SplitPattern(_GPT4_TEMPLATE.replace(r"|[{S}]*[\r\n]", r"|[{S}]++(?=\0|\Z)|[{S}]*[\r\n]")),
    # At the end of a text, whitespace is one word; only a single line break is one word everywhere.
    GPT2_PATTERN: SplitPattern(_GPT2_TEMPLATE, re.compile(r"(?<=\S)\n(?=\S)")),
}


def find_word_pattern(text: str, pattern: str = GPT4_PATTERN) -> re.Pattern[str] | None:
    """Return the pattern that finds the words of a text, or None if the library must split it.

    The text may be several texts joined by `SEPARATOR`.
    """
    if pattern not in SPLIT_PATTERNS:
        return None
    if text.isascii():
        return compile_ascii_pattern(pattern)
    return compile_unicode_pattern(pattern) if UNSUPPORTED_CHARACTERS.search(text) is None else None


@cache
def compile_ascii_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern for ASCII text."""
    return re.compile(SPLIT_PATTERNS[pattern].word_template.format(L="A-Za-z", N="0-9", S="\t-\r ", s=""))


@cache
def compile_unicode_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern for text with other characters. The first call takes about a tenth of a second."""
    letters, numbers, spaces = map(_character_ranges, (r"\p{L}", r"\p{N}", r"\s"))
    # The case-insensitive part of the pattern also matches the long s.
    long_s = "\N{LATIN SMALL LETTER LONG S}"
    return re.compile(SPLIT_PATTERNS[pattern].word_template.format(L=letters, N=numbers, S=spaces, s=long_s))


@cache
def _character_ranges(char_class: str) -> str:
    """Return the first-plane characters of a class as ranges, as the library classifies them."""
    characters = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x10000))))
    runs = pre_tokenizers.Split(Regex(f"{char_class}+"), "removed", invert=True).pre_tokenize_str(characters)
    return "".join(f"\\u{ord(run[0]):04x}-\\u{ord(run[-1]):04x}" for run, _ in runs)
