"""Text in which words of one group stand among the same words, so that their vectors must be alike."""

from __future__ import annotations

import random

import numpy as np

from triform.vectors import WordVectors

GROUPS = {
    "animals": (("cat", "dog", "horse", "cow"), ("eats", "sleeps", "barks", "in", "the", "stable")),
    "colours": (("red", "green", "blue", "white"), ("paint", "on", "a", "wooden", "wall", "dries")),
    "numbers": (("two", "three", "four", "five"), ("plus", "makes", "sum", "of", "count", "minus")),
}


def sentences(n: int = 1500, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    groups = list(GROUPS.values())
    lines = []
    for _ in range(n):
        words, context = rng.choice(groups)
        lines.append(" ".join([*rng.sample(context, 3), rng.choice(words), *rng.sample(context, 3)]) + ".")
    return lines


def random_vectors(n: int = 60, width: int = 8, seed: int = 1) -> WordVectors:
    """Vectors drawn at random; some words differ only in case."""
    words = [f"w{index}" for index in range(n - 6)] + ["Paris", "paris", "PARIS", "W1", "ünter", "don't"]
    return WordVectors(words, np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32))
