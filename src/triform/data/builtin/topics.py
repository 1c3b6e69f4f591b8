"""The documentation topics that come with every Python (what `help("if")` prints), as one text to learn from.

Many topics are printed again inside larger ones ("for" inside "compound"). A model that had read the larger
one would be tested on what it knows by heart, so a paragraph is kept once, in the largest topic that has it.
"""

from __future__ import annotations

import re

from triform.errors import DataError

SPLIT_SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}
MAX_IDIOM_CHARS = 60  # characters; a paragraph this short ("For example:") is idiom and may occur anywhere


def topics(split: str) -> str:
    """The topics of a split, in the order of their names, joined into one text."""
    if split not in SPLIT_SHARES:
        raise DataError(f"the topics have no split {split!r}; choose one of {', '.join(SPLIT_SHARES)}")
    from pydoc_data.topics import topics as stored  # half a megabyte: read only when asked for

    selected = assign_splits(drop_repeats(stored))[split]
    return "\n\n\n".join(text for _, text in sorted(selected.items())) + "\n"


def drop_repeats(all_topics: dict[str, str]) -> dict[str, str]:
    """The topics, largest first, less every paragraph seen in a larger one; mere excerpts are left out."""
    unique: dict[str, str] = {}
    seen_paragraphs: set[str] = set()
    for name in sorted(all_topics, key=lambda name: (-len(all_topics[name]), name)):
        paragraphs = tidy_whitespace(all_topics[name]).split("\n\n")
        new_paragraphs = [
            paragraph
            for paragraph in paragraphs
            if len(paragraph) <= MAX_IDIOM_CHARS or collapse_whitespace(paragraph) not in seen_paragraphs
        ]
        if 2 * sum(map(len, new_paragraphs)) > sum(map(len, paragraphs)):
            unique[name] = "\n\n".join(new_paragraphs)
            seen_paragraphs.update(map(collapse_whitespace, new_paragraphs))
    return unique


def collapse_whitespace(text: str) -> str:
    """The text less its layout: an excerpt is often indented otherwise."""
    return " ".join(text.split())


def tidy_whitespace(text: str) -> str:
    """Drop trailing blanks and runs of empty lines."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")


def assign_splits(texts: dict[str, str]) -> dict[str, dict[str, str]]:
    """Give each topic, in the order given, to the split that is furthest from its share of the characters."""
    total = sum(map(len, texts.values()))
    remaining = {split: share * total for split, share in SPLIT_SHARES.items()}
    splits: dict[str, dict[str, str]] = {split: {} for split in SPLIT_SHARES}
    for name, text in texts.items():
        split = max(remaining, key=lambda split: remaining[split])
        splits[split][name] = text
        remaining[split] -= len(text)
    return splits
