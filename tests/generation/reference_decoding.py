"""Decoding without a cache and without a batch: slow, and easy to follow. The package must generate the same
tokens.

Each step runs the model over the whole text. A hypothesis of a beam search is a row of its own, and its candidates
are sorted into lists one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from triform.config import DecodeConfig
from triform.generation.backend import TokenConstraints
from triform.generation.sampling import PickerMode, RowSettings, row_settings, sample_from_uniform
from triform.nn.layouts import pad

NEG_INF = float("-inf")


class UncachedStepper(Protocol):
    """Rows that can be continued and chosen from."""

    def logits(self) -> Tensor:
        """Logits (B, V) of the next token."""

    def append(self, tokens: list[int]) -> None:
        """Add one token to each row."""

    def select(self, rows: list[int]) -> None:
        """Keep these rows, in this order."""


class ModelStepper:
    """Runs a model over whole texts. A text that fills the context goes on from its newer half."""

    def __init__(self, adapter: Any, rows: Sequence[Sequence[int]]) -> None:
        self.adapter, self.rows = adapter, list(rows)
        self.texts = [adapter.initial_tokens(row) for row in rows]

    def logits(self) -> Tensor:
        tokens, _ = pad(self.texts)  # what is padded on the right is not read
        if hasattr(self.adapter, "bos"):
            source, keep = pad(self.rows)
            logits = self.adapter.model(source, tokens, keep)
        else:
            logits = self.adapter.model(tokens)
        return torch.stack([row[len(text) - 1] for row, text in zip(logits, self.texts, strict=True)]).float()

    def append(self, tokens: list[int]) -> None:
        max_len = self.adapter.max_len
        contexts = [text[-(max_len // 2) :] if len(text) == max_len else text for text in self.texts]
        self.texts = [[*text, token] for text, token in zip(contexts, tokens, strict=True)]

    def select(self, rows: list[int]) -> None:
        self.rows, self.texts = [self.rows[row] for row in rows], [self.texts[row] for row in rows]


def mask_banned(logits: Tensor, constraints: TokenConstraints) -> Tensor:
    return logits.index_fill(-1, torch.tensor(constraints.banned, dtype=torch.long), NEG_INF)


@torch.inference_mode()
def reference_decode(
    stepper: UncachedStepper, constraints: TokenConstraints, limit: int, choose: Callable[[Tensor], int]
) -> list[int]:
    """Continue a single row until its end token or its limit; `choose` takes logits (1, V)."""
    generated: list[int] = []
    while len(generated) < limit:
        token = choose(mask_banned(stepper.logits(), constraints))
        if token == constraints.eos:
            break
        generated.append(token)
        stepper.append([token])
    return generated


def choose_greedily(logits: Tensor) -> int:
    return int(logits.argmax())


def sample_tokens(logits: Tensor, uniforms: Tensor, config: DecodeConfig) -> Tensor:  # (B, V), (B, 1) -> (B)
    """Sample with the same settings for all rows."""
    settings = torch.tensor([row_settings(config)] * len(logits), dtype=torch.float64).T[:, :, None]
    mode = PickerMode(sample=True, max_k=config.top_k, top_p=config.top_p < 1)
    return sample_from_uniform(logits, uniforms, RowSettings(*settings), mode)


def make_sampler(config: DecodeConfig, seed: int) -> Callable[[Tensor], int]:
    generator = torch.Generator().manual_seed(seed)
    return lambda logits: int(
        sample_tokens(logits, torch.rand(1, 1, generator=generator, dtype=torch.float64), config)
    )


@dataclass
class Beam:
    """The hypotheses of one row: `beams` still growing, `done` ended, each with its score."""

    row: int
    beams: list[list[int]]
    finished: list[tuple[float, list[int]]] = field(default_factory=list)

    def best(self) -> list[int]:
        return max(self.finished, key=lambda hypothesis: hypothesis[0])[1]


@torch.inference_mode()
def reference_beam_search(
    stepper: UncachedStepper,
    constraints: TokenConstraints,
    limits: Sequence[int],
    *,
    beam_size: int,
    length_penalty: float,
) -> list[list[int]]:
    """The best of `beam_size` hypotheses of each row by log probability / ((5 + length) / 6) ** length_penalty.

    An end counts when it is among the `beam_size` best steps of its row; a row is done after as many ends, unless
    a hypothesis that goes on is worth more than any of them. With size 1 that is greedy decoding.
    """
    n_rows, length = len(limits), 0
    outputs: list[list[int]] = [[] for _ in range(n_rows)]
    alive = [Beam(row, [[] for _ in range(beam_size)]) for row in range(n_rows)]
    stepper.select([row for row in range(n_rows) for _ in range(beam_size)])
    totals = torch.full((n_rows, beam_size), NEG_INF)
    totals[:, 0] = 0.0  # the beams of a row start alike: only the first may branch
    while alive:
        length += 1
        log_probs = mask_banned(stepper.logits().log_softmax(dim=-1), constraints)  # (B · K, V)
        log_probs = log_probs.view(len(alive), beam_size, -1)
        candidates = (totals[:, :, None] + log_probs).flatten(1)  # (B, size * V)
        top = candidates.topk(min(2 * beam_size, candidates.shape[1]))
        penalty = ((5 + length) / 6) ** length_penalty
        parent_rows, tokens, next_totals, next_alive = [], [], [], []
        for index, beam in enumerate(alive):
            continuations = _advance(
                beam, top.values[index], top.indices[index], log_probs.shape[-1], constraints.eos, penalty
            )
            unfinished_leads = bool(continuations) and all(
                continuations[0][0] / penalty > value for value, _ in beam.finished
            )
            if (
                (len(beam.finished) >= beam_size and not unfinished_leads)
                or not continuations
                or length == limits[beam.row]
            ):
                _close(beam, continuations, penalty)
                outputs[beam.row] = beam.best()
                continue
            # A tiny vocabulary may leave too few.
            continuations += [(NEG_INF, *continuations[-1][1:])] * (beam_size - len(continuations))
            beam.beams = [tokens_so_far for _, _, tokens_so_far in continuations]
            next_alive.append(beam)
            parent_rows += [index * beam_size + parent for _, parent, _ in continuations]
            tokens += [beam_tokens[-1] for beam_tokens in beam.beams]
            next_totals.append([total for total, _, _ in continuations])
        alive = next_alive
        if not alive:
            break
        stepper.select(parent_rows)
        stepper.append(tokens)
        totals = torch.tensor(next_totals)
    return outputs


Continuation = tuple[float, int, list[int]]  # total log probability, parent beam, tokens


def _advance(
    beam: Beam, values: Tensor, indices: Tensor, vocab_size: int, eos: int, penalty: float
) -> list[Continuation]:
    """Sort a row's candidates, best first, into ended hypotheses and the next beams."""
    beam_size = len(beam.beams)
    continuations: list[Continuation] = []
    for rank, (total, index) in enumerate(zip(values.tolist(), indices.tolist(), strict=True)):
        parent, token = divmod(index, vocab_size)
        if total == NEG_INF:
            break
        if token == eos:
            if rank < beam_size:
                beam.finished.append((total / penalty, beam.beams[parent]))
        elif len(continuations) < beam_size:
            continuations.append((total, parent, [*beam.beams[parent], token]))
    return continuations


def _close(beam: Beam, continuations: list[Continuation], penalty: float) -> None:
    """At the length limit, what is unfinished competes only when nothing has ended."""
    if not beam.finished:
        beam.finished = [(total / penalty, tokens) for total, _, tokens in continuations] or [(NEG_INF, [])]
