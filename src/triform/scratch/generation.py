"""Greedy decoding, sampling and beam search.

There is no KV cache. The model reads the whole text at every step, which is slower and gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from triform.config import DecodeConfig
from triform.scratch.attention import softmax
from triform.scratch.module import Array
from triform.scratch.supported import check_decoding
from triform.text import BOS, EOS, PAD, UNK, Tokenizer

BANNED_TOKENS = (PAD, UNK, BOS)
NEG_INF = -np.inf
# Maps row indices and the texts so far to the logits (N, V) of the next token.
LogitsFn = Callable[[Array, list[list[int]]], Array]


class DecodeRequest(NamedTuple):
    """The function that computes logits, and for each row its prompt, its maximum of new tokens and its seed."""

    logits_fn: LogitsFn
    prompts: Sequence[Sequence[int]]
    limits: Sequence[int]
    seeds: Sequence[int]


def generate_tokens(request: DecodeRequest, config: DecodeConfig, *, default: str) -> list[list[int]]:
    """Generate tokens by the strategy of the settings.

    Args:
        request: The model, the prompts, the limits and the seeds.
        config: The decoding settings.
        default: The strategy for "auto".

    Returns:
        The new tokens of each row, without the end token.
    """
    check_decoding(config)
    strategy = default if config.strategy == "auto" else config.strategy
    if not request.prompts:
        return []
    return (
        beam_search(request, config)
        if strategy == "beam"
        else decode_stepwise(request, STRATEGIES[strategy](config, request.seeds))
    )


def mask_banned(logits: Array) -> Array:
    """Set the logits of tokens that are never generated to minus infinity."""
    logits = logits.copy()
    logits[:, list(BANNED_TOKENS)] = NEG_INF
    return logits


TokenChooser = Callable[[Array, Array], Array]  # logits (N, V) and row indices -> tokens (N)


def greedy(config: DecodeConfig, seeds: Sequence[int]) -> TokenChooser:
    """Return a function that chooses the most likely token of each row.

    Args:
        config: Not used.
        seeds: Not used.

    Returns:
        A function from logits and row indices to tokens.
    """
    return lambda logits, rows: logits.argmax(axis=-1)


def sample(config: DecodeConfig, seeds: Sequence[int]) -> TokenChooser:
    """Return a function that samples from softmax(logits / temperature) after top-k and top-p filtering.

    Each row has a random generator, which gives the same numbers as torch, so both implementations sample the same
    text.

    Args:
        config: The decoding settings, of which `temperature`, `top_k` and `top_p` are used.
        seeds: The random seed of each row.

    Returns:
        A function from logits and row indices to tokens.
    """
    generators = [np.random.RandomState(seed % (1 << 32)) for seed in seeds]

    def choose(logits: Array, rows: Array) -> Array:
        filtered = top_p(top_k(logits, config.top_k).astype(np.float64) / config.temperature, config.top_p)
        cumulative = softmax(filtered).cumsum(axis=-1)  # (N, V)
        thresholds = np.array([draw_uniform(generators[row]) for row in rows])[:, None] * cumulative[:, -1:]
        return np.minimum((cumulative <= thresholds).sum(axis=-1), logits.shape[-1] - 1)

    return choose


def draw_uniform(generator: np.random.RandomState) -> float:
    """Return a number in [0, 1) from 53 of 64 random bits, as torch does."""
    high, low = (int(word) for word in generator.randint(0, 1 << 32, size=2, dtype=np.uint32))
    return ((high << 32 | low) & ((1 << 53) - 1)) / (1 << 53)


STRATEGIES: dict[str, Callable[[DecodeConfig, Sequence[int]], TokenChooser]] = {"greedy": greedy, "sample": sample}


def top_k(logits: Array, k: int) -> Array:
    """Keep only the k largest logits of each row.

    Args:
        logits: One row for each text.
        k: The number of tokens to keep; 0 keeps all.

    Returns:
        The logits, with minus infinity for the others.

    >>> top_k(np.array([[1.0, 3.0, 2.0]]), 2).tolist()
    [[-inf, 3.0, 2.0]]
    """
    if not 0 < k < logits.shape[-1]:
        return logits
    return np.where(logits < np.partition(logits, -k, axis=-1)[:, -k, None], NEG_INF, logits)


def top_p(logits: Array, p: float) -> Array:
    """Keep the smallest set of tokens whose probabilities sum to p. The most likely token is always kept.

    Args:
        logits: One row for each text.
        p: The sum of probabilities to keep; 1 keeps all.

    Returns:
        The logits, with minus infinity for the others.

    >>> top_p(np.log([[0.5, 0.3, 0.2]]), 0.6).round(1).tolist()
    [[-0.7, -1.2, -inf]]
    """
    if p >= 1:
        return logits
    order = np.argsort(-logits, axis=-1, kind="stable")
    sorted_probs = softmax(np.take_along_axis(logits, order, axis=-1))
    excluded = np.empty(logits.shape, bool)
    np.put_along_axis(excluded, order, sorted_probs.cumsum(axis=-1) - sorted_probs >= p, axis=-1)
    return np.where(excluded, NEG_INF, logits)


def decode_stepwise(request: DecodeRequest, choose: TokenChooser) -> list[list[int]]:
    """Generate one token per row and step until every row has ended or reached its limit.

    Args:
        request: The model, the prompts and the limits.
        choose: A function from logits and row indices to tokens.

    Returns:
        The new tokens of each row, without the end token.
    """
    texts = [list(text) for text in request.prompts]
    new_tokens: list[list[int]] = [[] for _ in texts]
    rows = np.arange(len(texts))
    while len(rows):
        tokens = choose(mask_banned(request.logits_fn(rows, [texts[row] for row in rows])), rows).tolist()
        active_rows = []
        for row, token in zip(rows.tolist(), tokens, strict=True):
            if token == EOS:
                continue
            texts[row].append(token)
            new_tokens[row].append(token)
            if len(new_tokens[row]) < request.limits[row]:
                active_rows.append(row)
        rows = np.array(active_rows, np.int64)
    return new_tokens


def log_softmax(logits: Array) -> Array:
    """Return the logarithm of the softmax over the last axis.

    Args:
        logits: Any array.

    Returns:
        Logarithms of probabilities, in the same shape.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def beam_search(request: DecodeRequest, config: DecodeConfig) -> list[list[int]]:
    """Return the best of `beam_size` hypotheses per row by log probability / ((5 + length) / 6) ** length_penalty.

    A hypothesis finishes if its end token is among the `beam_size` best steps of its row. A row is done when
    `beam_size` hypotheses have finished and no unfinished one scores higher, or at its limit. Unfinished hypotheses
    are returned only if none has finished.

    Args:
        request: The model, the prompts and the limits.
        config: The decoding settings, of which `beam_size` and `length_penalty` are used.

    Returns:
        The new tokens of each row, without the end token.
    """
    size = config.beam_size
    results: list[list[int]] = [[] for _ in request.prompts]
    active = [BeamHypotheses(row, list(prompt), size) for row, prompt in enumerate(request.prompts)]
    length = 0
    while active:
        length += 1
        rows = np.array([beam.row for beam in active for _ in beam.texts], np.int64)
        texts = [beam.prompt + text for beam in active for text in beam.texts]
        log_probs = log_softmax(request.logits_fn(rows, texts).astype(np.float64))
        log_probs[:, list(BANNED_TOKENS)] = NEG_INF
        beam_log_probs = np.split(log_probs, np.cumsum([len(beam.texts) for beam in active])[:-1])
        penalty = ((5 + length) / 6) ** config.length_penalty
        for beam, step_log_probs in zip(active, beam_log_probs, strict=True):
            beam.advance(step_log_probs, penalty)
            beam.done |= length >= request.limits[beam.row]
            if beam.done:
                results[beam.row] = beam.best(penalty)
        active = [beam for beam in active if not beam.done]
    return results


class BeamHypotheses:
    """The hypotheses of one row, best first, and those that are finished."""

    def __init__(self, row: int, prompt: list[int], size: int) -> None:
        self.row, self.prompt, self.size, self.done = row, prompt, size, False
        self.texts: list[list[int]] = [[]]
        self.log_probs = np.zeros(1)
        self.finished: list[tuple[float, list[int]]] = []

    def advance(self, step_log_probs: Array, penalty: float) -> None:  # (hypotheses, V)
        candidates = (self.log_probs[:, None] + step_log_probs).ravel()
        top_indices = np.argsort(-candidates, kind="stable")[: 2 * self.size]
        texts: list[list[int]] = []
        kept_log_probs: list[float] = []
        for rank, index in enumerate(top_indices.tolist()):
            parent, token = divmod(index, step_log_probs.shape[-1])
            if candidates[index] == NEG_INF:
                break
            if token == EOS and rank < self.size:
                self.finished.append((float(candidates[index]) / penalty, self.texts[parent]))
            elif token != EOS and len(texts) < self.size:
                texts.append([*self.texts[parent], token])
                kept_log_probs.append(float(candidates[index]))
        self.texts, self.log_probs = texts, np.array(kept_log_probs)
        can_improve = bool(texts) and kept_log_probs[0] / penalty > max(
            (value for value, _ in self.finished), default=NEG_INF
        )
        self.done = (len(self.finished) >= self.size and not can_improve) or not texts

    def best(self, penalty: float) -> list[int]:
        unfinished = [
            (log_prob / penalty, text) for log_prob, text in zip(self.log_probs.tolist(), self.texts, strict=True)
        ]
        return max(self.finished or unfinished or [(NEG_INF, [])], key=lambda hypothesis: hypothesis[0])[1]


def slide_context(tokens: list[int], max_len: int) -> list[int]:
    """Return the tokens that the model reads. When a text exceeds the context, only its newer half is kept.

    Args:
        tokens: The text so far.
        max_len: The number of tokens that the model reads.

    Returns:
        The newest tokens, at most `max_len`.
    """
    half = max_len // 2
    overflow = len(tokens) - max_len - 1
    return tokens if overflow < 0 else tokens[-(half + 1 + overflow % (max_len - half)) :]


def decode_continuation(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> str:
    """Return the text that the tokens add to the prompt, with the right spaces between words.

    Args:
        tokenizer: The tokenizer.
        prompt: The tokens of the prompt.
        tokens: The new tokens.

    Returns:
        The new text.
    """
    prompt_text, full_text = tokenizer.decode(prompt), tokenizer.decode(prompt + tokens)
    return full_text[len(prompt_text) :] if full_text.startswith(prompt_text) else tokenizer.decode(tokens)
