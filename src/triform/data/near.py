"""Texts that are nearly the same, found without comparing every one with every other.

A text is the set of its pairs of neighbouring words. Two texts are near when what both sets hold is four fifths of
what either holds (Jaccard similarity): one word in twenty may be another, and punctuation does not count. Of each
set a signature of 64 numbers is kept, each the smallest of its members under another hash: two signatures agree in
about the share that the sets have in common (MinHash). Texts that agree in any of 16 groups of four numbers are
candidates: 0.9998 of those that are just near enough, and more of the nearer ones. Candidates are compared exactly,
so what is reported is near, and what is near is seldom missed. In a crowd of texts that all look alike, each is
compared with a few of the others only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

ALIKE = 0.8
BANDS, PER_BAND = 16, 4
N_HASHES = BANDS * PER_BAND
BLOCK = 1 << 16  # word pairs hashed at once: their numbers stay in a core's cache
COMPARED = 1 << 22  # word pairs compared exactly at once
NEIGHBOURS = 4  # candidates of a text, of the first and of the nearest in its bucket: a crowd costs no square
HALF = np.uint64(32)
# Scripts written without spaces, and emoji: there every character is a word.
ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u2e80-\ua4cf\uf900-\ufaff\U0001f000-\U0003ffff"
WORDS = re.compile(rf"[^\W{ALONE}]+|[{ALONE}]")
ASCII_WORDS = re.compile(r"\w+", re.ASCII)

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]


class Near(NamedTuple):
    """Pairs of texts by their places, the first the earlier, and how alike they are."""

    first: Places
    second: Places
    likeness: NDArray[np.float64]


def words(text: str) -> list[str]:
    """Runs of letters and digits; single characters where a script has no spaces."""
    return (ASCII_WORDS if text.isascii() else WORDS).findall(text)


def near_pairs(texts: Sequence[str]) -> Near:
    """Which texts are nearly the same; they should be folded and distinct, or equal ones crowd out near ones."""
    pairs = WordPairs(texts)
    first, second = _candidates(_signatures(pairs))
    likeness = _likeness(pairs, first, second)
    alike = likeness >= ALIKE
    places = pairs.places
    return Near(places[first[alike]], places[second[alike]], likeness[alike])


class _Numbers(dict[str, int]):
    """Words numbered as they come, from 1."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self) + 1
        return number


class WordPairs:
    """The pairs of neighbouring words of every text that has a word, as numbers in one row."""

    def __init__(self, texts: Sequence[str]) -> None:
        numbers = _Numbers()
        parts: list[NDArray[np.uint32]] = []
        counts = np.zeros(len(texts), dtype=np.int64)
        for place, text in enumerate(texts):
            found = [numbers[word] for word in words(text)]
            if len(found) == 1:
                found.append(0)  # a word alone is a pair with nothing
            parts.append(np.array(found, dtype=np.uint32))
            counts[place] = len(found)
        self.words = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint32)
        starts = np.cumsum(counts) - counts
        self.places = np.flatnonzero(counts)
        self.starts, self.counts = starts[self.places], counts[self.places] - 1

    def __len__(self) -> int:
        return len(self.places)

    def hashes(self, rows: Places) -> Hashes:
        """The pairs of these texts, each mixed into 64 bits, end to end; a pair comes as often as in its text."""
        counts = self.counts[rows]
        shifts = self.starts[rows] - (np.cumsum(counts) - counts)
        at = np.repeat(shifts, counts) + np.arange(counts.sum())
        mixed = self.words[at].astype(np.uint64) << HALF | self.words[at + 1]
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> HALF
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> HALF
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        return mixed


Numbers = TypeVar("Numbers", Places, Hashes)


def _distinct(numbers: Numbers) -> Numbers:
    """Each once, in order; sorted in place, which is faster here than numpy's own."""
    numbers.sort()
    return numbers[np.concatenate([np.ones(min(1, len(numbers)), bool), numbers[1:] != numbers[:-1]])]


def _runs(counts: Places, most: int) -> list[Places]:
    """Consecutive places whose counts sum to about `most` a run."""
    ends = np.cumsum(counts)
    cuts = np.flatnonzero(np.diff(ends // most)) + 1
    return [part for part in np.split(np.arange(len(counts)), cuts) if len(part)]


def _signatures(pairs: WordPairs) -> NDArray[np.uint32]:
    rng = np.random.default_rng(64)
    turns = rng.integers(0, 1 << 32, N_HASHES, dtype=np.uint32)
    factors = rng.integers(0, 1 << 31, N_HASHES, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    signatures = np.empty((len(pairs), N_HASHES), dtype=np.uint32)
    for rows in _runs(pairs.counts, BLOCK):
        hashes = (pairs.hashes(rows) >> HALF).astype(np.uint32)
        starts = np.cumsum(pairs.counts[rows]) - pairs.counts[rows]
        turned = np.empty_like(hashes)
        for place in range(N_HASHES):
            np.bitwise_xor(hashes, turns[place], out=turned)
            np.multiply(turned, factors[place], out=turned)
            signatures[rows, place] = np.minimum.reduceat(turned, starts)
    return signatures


def _candidates(signatures: NDArray[np.uint32]) -> tuple[Places, Places]:
    """Texts of one bucket in any band, whose whole signatures do not speak against it."""
    n = len(signatures)
    found = [np.zeros(0, dtype=np.int64)]
    for band in np.split(signatures, BANDS, axis=1):
        keys = np.zeros(n, dtype=np.uint64)
        for column in band.T:
            keys = (keys ^ column) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> HALF
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if n else np.zeros(0, np.int64)
        begin = np.repeat(begins, np.diff(np.append(begins, n)))  # of the bucket that each one is in
        for step in range(1, NEIGHBOURS + 1):
            at = np.arange(step, n)
            at = at[at - step >= begin[at]]
            found.append(order[at - step] * n + order[at])
            at = np.arange(n)
            at = at[at - begin > NEIGHBOURS + step - 1]  # nearer ones were taken above
            found.append(order[begin[at] + step - 1] * n + order[at])
        if len(found) > 4 * NEIGHBOURS:
            found = [_distinct(np.concatenate(found))]
    both = _distinct(np.concatenate(found))
    first, second = both // max(1, n), both % max(1, n)
    # six standard deviations below what texts just alike enough agree in
    least = N_HASHES * ALIKE - 6 * (N_HASHES * ALIKE * (1 - ALIKE)) ** 0.5
    kept = [np.zeros(0, dtype=np.int64)]
    for at in np.array_split(np.arange(len(both)), len(both) // BLOCK + 1):
        agree = (signatures[first[at]] == signatures[second[at]]).sum(axis=1)
        kept.append(at[agree >= least])
    good = np.concatenate(kept)
    return first[good], second[good]


def _likeness(pairs: WordPairs, first: Places, second: Places) -> NDArray[np.float64]:
    """What two texts share of all that is in either, some of them at a time."""
    likeness = np.zeros(len(first))
    for at in _runs(pairs.counts[first] + pairs.counts[second], COMPARED):
        left, right = (_marked(pairs, rows[at]) for rows in (first, second))
        both = np.concatenate([left, right])
        both.sort()
        shared = both[1:][both[1:] == both[:-1]]
        common = np.bincount((shared >> np.uint64(40)).astype(np.int64), minlength=len(at))
        total = np.bincount((both >> np.uint64(40)).astype(np.int64), minlength=len(at))
        likeness[at] = common / (total - common)
    return likeness


def _marked(pairs: WordPairs, rows: Places) -> Hashes:
    """The distinct word pairs of each text: its number above, 40 bits of the pair's hash below."""
    owner = np.repeat(np.arange(len(rows), dtype=np.uint64), pairs.counts[rows])
    marked: Hashes = owner << np.uint64(40) | pairs.hashes(rows) >> np.uint64(24)
    return _distinct(marked)
