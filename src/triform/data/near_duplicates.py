"""Find near duplicates with MinHash, without comparing every text with every other.

A text is represented by the set of its word bigrams. Two texts are near duplicates if the Jaccard similarity of
their sets is at least 0.8: about one word in twenty may differ, and punctuation does not count. The signature of a
set has 64 numbers, each the minimum of its members under a different hash function; the fraction of equal numbers
in two signatures estimates the similarity of the sets. Texts that agree in any of 16 bands of four numbers are
candidates, which includes 99.98 % of the pairs with a similarity of exactly 0.8 and more of the others. Candidates
are compared exactly, so every reported pair is a near duplicate, and few are missed. In a large group of similar
texts, each text is compared with only a few of the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

MIN_SIMILARITY = 0.8
N_BANDS, HASHES_PER_BAND = 16, 4
N_HASHES = N_BANDS * HASHES_PER_BAND
HASH_CHUNK_BIGRAMS = 1 << 16  # bigrams hashed at once, so that they fit in a core's cache
COMPARE_CHUNK_BIGRAMS = 1 << 22  # bigrams compared exactly at once
MAX_NEIGHBOURS = 4  # candidates per text and bucket, which avoids quadratic cost in large buckets
HALF_WORD_BITS = np.uint64(32)
# In scripts without spaces, and among emoji, every character is a word.
UNSPACED_SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u2e80-\ua4cf\uf900-\ufaff\U0001f000-\U0003ffff"
)
WORD_PATTERN = re.compile(rf"[^\W{UNSPACED_SCRIPTS}]+|[{UNSPACED_SCRIPTS}]")
ASCII_WORD_PATTERN = re.compile(r"\w+", re.ASCII)

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]


class NearPairs(NamedTuple):
    """Pairs of texts as indices, the earlier text first, and their similarity."""

    first: Indices
    second: Indices
    similarity: NDArray[np.float64]


def split_words(text: str) -> list[str]:
    """Split a text into runs of letters and digits, and into characters where a script has no spaces."""
    return (ASCII_WORD_PATTERN if text.isascii() else WORD_PATTERN).findall(text)


def find_near_pairs(texts: Sequence[str]) -> NearPairs:
    """Return the pairs of near duplicates. The texts should be normalised and distinct."""
    bigrams = WordBigrams(texts)
    first, second = _find_candidates(_minhash_signatures(bigrams))
    similarity = _jaccard_similarity(bigrams, first, second)
    is_near = similarity >= MIN_SIMILARITY
    text_indices = bigrams.text_indices
    return NearPairs(text_indices[first[is_near]], text_indices[second[is_near]], similarity[is_near])


class _WordIds(dict[str, int]):
    """Ids of words, in order of appearance, from 1."""

    def __missing__(self, word: str) -> int:
        self[word] = word_id = len(self) + 1
        return word_id


class WordBigrams:
    """The word bigrams of every text that has a word, as ids in one array."""

    def __init__(self, texts: Sequence[str]) -> None:
        word_ids = _WordIds()
        id_arrays: list[NDArray[np.uint32]] = []
        counts = np.zeros(len(texts), dtype=np.int64)
        for index, text in enumerate(texts):
            ids = [word_ids[word] for word in split_words(text)]
            if len(ids) == 1:
                ids.append(0)  # a single word forms a bigram with id 0
            id_arrays.append(np.array(ids, dtype=np.uint32))
            counts[index] = len(ids)
        self.word_ids = np.concatenate(id_arrays) if id_arrays else np.zeros(0, dtype=np.uint32)
        starts = np.cumsum(counts) - counts
        self.text_indices = np.flatnonzero(counts)
        self.starts, self.counts = starts[self.text_indices], counts[self.text_indices] - 1

    def __len__(self) -> int:
        return len(self.text_indices)

    def hashes(self, indices: Indices) -> Hashes:
        """Return the 64-bit hashes of all bigrams of these texts in one array, repeated as often as in the text."""
        counts = self.counts[indices]
        offsets = self.starts[indices] - (np.cumsum(counts) - counts)
        positions = np.repeat(offsets, counts) + np.arange(counts.sum())
        hashed = self.word_ids[positions].astype(np.uint64) << HALF_WORD_BITS | self.word_ids[positions + 1]
        hashed *= np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> HALF_WORD_BITS
        hashed *= np.uint64(0xD6E8FEB86659FD93)
        hashed ^= hashed >> HALF_WORD_BITS
        hashed *= np.uint64(0xD6E8FEB86659FD93)
        return hashed


ArrayT = TypeVar("ArrayT", Indices, Hashes)


def _sort_unique(values: ArrayT) -> ArrayT:
    """Sort values in place and return the distinct ones, which is faster here than `np.unique`."""
    values.sort()
    return values[np.concatenate([np.ones(min(1, len(values)), bool), values[1:] != values[:-1]])]


def _chunk_indices(counts: Indices, chunk_size: int) -> list[Indices]:
    """Split the indices into consecutive chunks whose counts sum to about `chunk_size`."""
    ends = np.cumsum(counts)
    boundaries = np.flatnonzero(np.diff(ends // chunk_size)) + 1
    return [chunk for chunk in np.split(np.arange(len(counts)), boundaries) if len(chunk)]


def _minhash_signatures(bigrams: WordBigrams) -> NDArray[np.uint32]:
    rng = np.random.default_rng(64)
    xor_masks = rng.integers(0, 1 << 32, N_HASHES, dtype=np.uint32)
    multipliers = rng.integers(0, 1 << 31, N_HASHES, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    signatures = np.empty((len(bigrams), N_HASHES), dtype=np.uint32)
    for chunk in _chunk_indices(bigrams.counts, HASH_CHUNK_BIGRAMS):
        hashes = (bigrams.hashes(chunk) >> HALF_WORD_BITS).astype(np.uint32)
        starts = np.cumsum(bigrams.counts[chunk]) - bigrams.counts[chunk]
        permuted = np.empty_like(hashes)
        for hash_index in range(N_HASHES):
            np.bitwise_xor(hashes, xor_masks[hash_index], out=permuted)
            np.multiply(permuted, multipliers[hash_index], out=permuted)
            signatures[chunk, hash_index] = np.minimum.reduceat(permuted, starts)
    return signatures


def _find_candidates(signatures: NDArray[np.uint32]) -> tuple[Indices, Indices]:
    """Return pairs of texts that share a bucket in any band and whose signatures are similar enough."""
    n = len(signatures)
    pair_codes = [np.zeros(0, dtype=np.int64)]
    for band in np.split(signatures, N_BANDS, axis=1):
        keys = np.zeros(n, dtype=np.uint64)
        for column in band.T:
            keys = (keys ^ column) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> HALF_WORD_BITS
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        bucket_starts = (
            np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if n else np.zeros(0, np.int64)
        )
        # The start of the bucket of each signature.
        bucket_start = np.repeat(bucket_starts, np.diff(np.append(bucket_starts, n)))
        for distance in range(1, MAX_NEIGHBOURS + 1):
            positions = np.arange(distance, n)
            positions = positions[positions - distance >= bucket_start[positions]]
            pair_codes.append(order[positions - distance] * n + order[positions])
            positions = np.arange(n)
            # Pairs closer than this were added above.
            positions = positions[positions - bucket_start > MAX_NEIGHBOURS + distance - 1]
            pair_codes.append(order[bucket_start[positions] + distance - 1] * n + order[positions])
        if len(pair_codes) > 4 * MAX_NEIGHBOURS:
            pair_codes = [_sort_unique(np.concatenate(pair_codes))]
    codes = _sort_unique(np.concatenate(pair_codes))
    first, second = codes // max(1, n), codes % max(1, n)
    # Six standard deviations below the expected agreement at the similarity threshold.
    min_matches = N_HASHES * MIN_SIMILARITY - 6 * (N_HASHES * MIN_SIMILARITY * (1 - MIN_SIMILARITY)) ** 0.5
    accepted_chunks = [np.zeros(0, dtype=np.int64)]
    for positions in np.array_split(np.arange(len(codes)), len(codes) // HASH_CHUNK_BIGRAMS + 1):
        n_matches = (signatures[first[positions]] == signatures[second[positions]]).sum(axis=1)
        accepted_chunks.append(positions[n_matches >= min_matches])
    accepted = np.concatenate(accepted_chunks)
    return first[accepted], second[accepted]


def _jaccard_similarity(bigrams: WordBigrams, first: Indices, second: Indices) -> NDArray[np.float64]:
    """Return the Jaccard similarity of pairs of texts, computed in chunks."""
    similarity = np.zeros(len(first))
    for chunk in _chunk_indices(bigrams.counts[first] + bigrams.counts[second], COMPARE_CHUNK_BIGRAMS):
        first_hashes, second_hashes = (_tag_bigrams(bigrams, indices[chunk]) for indices in (first, second))
        merged = np.concatenate([first_hashes, second_hashes])
        merged.sort()
        duplicates = merged[1:][merged[1:] == merged[:-1]]
        n_shared = np.bincount((duplicates >> np.uint64(40)).astype(np.int64), minlength=len(chunk))
        n_total = np.bincount((merged >> np.uint64(40)).astype(np.int64), minlength=len(chunk))
        similarity[chunk] = n_shared / (n_total - n_shared)
    return similarity


def _tag_bigrams(bigrams: WordBigrams, indices: Indices) -> Hashes:
    """Return the distinct bigrams of each text as integers: text index in the high bits, 40 bits of hash below."""
    owner = np.repeat(np.arange(len(indices), dtype=np.uint64), bigrams.counts[indices])
    tagged: Hashes = owner << np.uint64(40) | bigrams.hashes(indices) >> np.uint64(24)
    return _sort_unique(tagged)
