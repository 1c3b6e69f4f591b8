"""The documentation topics that come with every Python (what `help("if")` prints), as one text to learn from.

Many topics are printed again inside larger ones ("for" inside "compound"). A model that had read the larger
one would be tested on what it knows by heart, so a paragraph is kept once, in the largest topic that has it.
"""

from __future__ import annotations

import re

from triform.errors import DataError

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}
SHORT = 60  # characters; a paragraph this short ("For example:") is idiom and may occur anywhere


def topics(split: str) -> str:
    """The topics of a split, in the order of their names, joined into one text."""
    if split not in SHARES:
        raise DataError(f"the topics have no split {split!r}; choose one of {', '.join(SHARES)}")
    from pydoc_data.topics import topics as stored  # half a megabyte: read only when asked for

    chosen = shared_out(without_repeats(stored))[split]
    return "\n\n\n".join(text for _, text in sorted(chosen.items())) + "\n"


def without_repeats(stored: dict[str, str]) -> dict[str, str]:
    """The topics, largest first, less every paragraph seen in a larger one; mere excerpts are left out."""
    kept: dict[str, str] = {}
    seen: set[str] = set()
    for name in sorted(stored, key=lambda name: (-len(stored[name]), name)):
        paragraphs = tidy(stored[name]).split("\n\n")
        fresh = [part for part in paragraphs if len(part) <= SHORT or words(part) not in seen]
        if 2 * sum(map(len, fresh)) > sum(map(len, paragraphs)):
            kept[name] = "\n\n".join(fresh)
            seen.update(map(words, fresh))
    return kept


def words(text: str) -> str:
    """The text less its layout: an excerpt is often indented otherwise."""
    return " ".join(text.split())


def tidy(text: str) -> str:
    """Drop trailing blanks and runs of empty lines."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")


def shared_out(texts: dict[str, str]) -> dict[str, dict[str, str]]:
    """Give each topic, in the order given, to the split that is furthest from its share of the characters."""
    total = sum(map(len, texts.values()))
    missing = {split: share * total for split, share in SHARES.items()}
    given: dict[str, dict[str, str]] = {split: {} for split in SHARES}
    for name, text in texts.items():
        split = max(missing, key=lambda split: missing[split])
        given[split][name] = text
        missing[split] -= len(text)
    return given
