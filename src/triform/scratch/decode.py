"""From scores to tokens: the best, one drawn at random, or the best of a few hypotheses.

A text that is being written is read again at every step: slower than keeping keys and values, and the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from triform.config import DecodeConfig
from triform.scratch.attention import softmax
from triform.scratch.part import Array
from triform.text import BOS, EOS, PAD, UNK

NEVER_WRITTEN = (PAD, UNK, BOS)
NEVER = -np.inf
# Scores (N, V) for what follows these texts; each is written for the row (of the batch) with that number.
Scores = Callable[[Array, list[list[int]]], Array]


class Search(NamedTuple):
    """How to score, what each text begins with, how much may be written, and the seed of its luck."""

    scores: Scores
    begun: Sequence[Sequence[int]]
    limits: Sequence[int]
    seeds: Sequence[int]


def search(work: Search, config: DecodeConfig, *, default: str) -> list[list[int]]:
    """New tokens for each row, the end token left out; `default` is what "auto" means."""
    strategy = default if config.strategy == "auto" else config.strategy
    if not work.begun:
        return []
    return beam(work, config) if strategy == "beam" else step_by_step(work, CHOICES[strategy](config, work.seeds))


def allowed(scores: Array) -> Array:
    scores = scores.copy()
    scores[:, list(NEVER_WRITTEN)] = NEVER
    return scores


Choose = Callable[[Array, Array], Array]  # scores (N, V) of these rows -> tokens (N)


def greedy(config: DecodeConfig, seeds: Sequence[int]) -> Choose:
    return lambda scores, rows: scores.argmax(axis=-1)


def sample(config: DecodeConfig, seeds: Sequence[int]) -> Choose:
    """Draws by softmax(scores / temperature) among the top_k and top_p best, each row from a generator of its own.

    They are the numbers that torch's generators give, so that a run answers alike in both.
    """
    generators = [np.random.RandomState(seed % (1 << 32)) for seed in seeds]

    def choose(scores: Array, rows: Array) -> Array:
        wide = top_p(top_k(scores, config.top_k).astype(np.float64) / config.temperature, config.top_p)
        cumulative = softmax(wide).cumsum(axis=-1)  # (N, V)
        points = np.array([point(generators[row]) for row in rows])[:, None] * cumulative[:, -1:]
        return np.minimum((cumulative <= points).sum(axis=-1), scores.shape[-1] - 1)

    return choose


def point(generator: np.random.RandomState) -> float:
    """A number from 0 to 1 out of 53 of 64 random bits."""
    high, low = (int(each) for each in generator.randint(0, 1 << 32, size=2, dtype=np.uint32))
    return ((high << 32 | low) & ((1 << 53) - 1)) / (1 << 53)


CHOICES: dict[str, Callable[[DecodeConfig, Sequence[int]], Choose]] = {"greedy": greedy, "sample": sample}


def top_k(scores: Array, k: int) -> Array:
    """Scores below the k-th best become minus infinity; 0 keeps all."""
    if not 0 < k < scores.shape[-1]:
        return scores
    return np.where(scores < np.partition(scores, -k, axis=-1)[:, -k, None], NEVER, scores)


def top_p(scores: Array, p: float) -> Array:
    """Keep the fewest tokens whose probabilities reach p; the best one always stays."""
    if p >= 1:
        return scores
    order = np.argsort(-scores, axis=-1, kind="stable")
    ranked = softmax(np.take_along_axis(scores, order, axis=-1))
    beyond = np.empty(scores.shape, bool)
    np.put_along_axis(beyond, order, ranked.cumsum(axis=-1) - ranked >= p, axis=-1)
    return np.where(beyond, NEVER, scores)


def step_by_step(work: Search, choose: Choose) -> list[list[int]]:
    texts = [list(text) for text in work.begun]
    written: list[list[int]] = [[] for _ in texts]
    rows = np.arange(len(texts))
    while len(rows):
        tokens = choose(allowed(work.scores(rows, [texts[row] for row in rows])), rows).tolist()
        going = []
        for row, token in zip(rows.tolist(), tokens, strict=True):
            if token == EOS:
                continue
            texts[row].append(token)
            written[row].append(token)
            if len(written[row]) < work.limits[row]:
                going.append(row)
        rows = np.array(going, np.int64)
    return written


def log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def beam(work: Search, config: DecodeConfig) -> list[list[int]]:
    """The best of `beam_size` hypotheses a row by log probability / ((5 + length) / 6) ** length_penalty.

    An end counts when it is among the `beam_size` best steps of its row; a row is done after as many ends
    unless what goes on is worth more than any of them, or at its limit, where what is unfinished competes only when
    nothing has ended.
    """
    size = config.beam_size
    found: list[list[int]] = [[] for _ in work.begun]
    going = [Hypotheses(row, list(begun), size) for row, begun in enumerate(work.begun)]
    length = 0
    while going:
        length += 1
        rows = np.array([each.row for each in going for _ in each.texts], np.int64)
        texts = [each.begun + text for each in going for text in each.texts]
        steps = log_softmax(work.scores(rows, texts).astype(np.float64))
        steps[:, list(NEVER_WRITTEN)] = NEVER
        parts = np.split(steps, np.cumsum([len(each.texts) for each in going])[:-1])
        penalty = ((5 + length) / 6) ** config.length_penalty
        for each, part in zip(going, parts, strict=True):
            each.advance(part, penalty)
            each.over |= length >= work.limits[each.row]
            if each.over:
                found[each.row] = each.best(penalty)
        going = [each for each in going if not each.over]
    return found


class Hypotheses:
    """The ways in which one row may go on, best first, and those that have ended."""

    def __init__(self, row: int, begun: list[int], size: int) -> None:
        self.row, self.begun, self.size, self.over = row, begun, size, False
        self.texts: list[list[int]] = [[]]
        self.totals = np.zeros(1)
        self.ended: list[tuple[float, list[int]]] = []

    def advance(self, steps: Array, penalty: float) -> None:  # (hypotheses, V)
        totals = (self.totals[:, None] + steps).ravel()
        leading = np.argsort(-totals, kind="stable")[: 2 * self.size]
        texts: list[list[int]] = []
        kept: list[float] = []
        for rank, place in enumerate(leading.tolist()):
            parent, token = divmod(place, steps.shape[-1])
            if totals[place] == NEVER:
                break
            if token == EOS and rank < self.size:
                self.ended.append((float(totals[place]) / penalty, self.texts[parent]))
            elif token != EOS and len(texts) < self.size:
                texts.append([*self.texts[parent], token])
                kept.append(float(totals[place]))
        self.texts, self.totals = texts, np.array(kept)
        leads = bool(texts) and kept[0] / penalty > max((worth for worth, _ in self.ended), default=NEVER)
        self.over = (len(self.ended) >= self.size and not leads) or not texts

    def best(self, penalty: float) -> list[int]:
        unfinished = [(total / penalty, text) for total, text in zip(self.totals.tolist(), self.texts, strict=True)]
        return max(self.ended or unfinished or [(NEVER, [])], key=lambda each: each[0])[1]
