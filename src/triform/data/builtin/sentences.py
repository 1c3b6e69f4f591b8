"""Pairs of short sentences made by rules, for a small language model that learns in seconds.

    Ada found a red bell near the mill. She took it home.

The pronoun depends on the name, which is nine tokens before it. Nearly all other words follow from their neighbours
or are random, so one can see which part of a model connects the pronoun with the name. `docs/transformer` uses it.
"""

from __future__ import annotations

from random import Random

from triform.data.builtin.stories import (
    COLOURS,
    HIDING_PLACES,
    LANDMARKS,
    THINGS,
    article,
    capitalise,
    pick,
    pick_people,
)
from triform.errors import DataError

SPLIT_SIZES = {"train": 4000, "valid": 300, "test": 300}  # lines


def write_line(rng: Random) -> str:
    """Return two sentences: somebody finds a thing, and what she or he does with it."""
    finder, friend = pick_people(rng)
    thing = article(f"{pick(rng, COLOURS)} {pick(rng, THINGS)}")
    action = pick(rng, ("took it home", f"gave it to {friend.name}", f"put it {pick(rng, HIDING_PLACES)}"))
    return f"{finder.name} found {thing} near {pick(rng, LANDMARKS)}. {capitalise(finder.she)} {action}."


def sentences(split: str) -> str:
    """Return the lines of a split as one text. No line is in two splits."""
    if split not in SPLIT_SIZES:
        raise DataError(f"the sentences have no split {split!r}; choose one of {', '.join(SPLIT_SIZES)}")
    rng = Random("sentences")
    lines: dict[str, None] = {}  # dicts keep insertion order
    while len(lines) < sum(SPLIT_SIZES.values()):
        lines[write_line(rng)] = None
    start = sum(SPLIT_SIZES[name] for name in list(SPLIT_SIZES)[: list(SPLIT_SIZES).index(split)])
    return "".join(f"{line}\n" for line in list(lines)[start : start + SPLIT_SIZES[split]])
