"""Beam search written out over lists, one candidate at a time: slow, and easy to follow. What ours must equal.

It needs no more of a stepper than rows that can be chosen: each hypothesis is a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from triform.generation.beam import StoppingCriteria
from triform.generation.stepper import BasicStepper

NEG_INF = float("-inf")


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
    stepper: BasicStepper, stopping: StoppingCriteria, *, beam_size: int, length_penalty: float
) -> list[list[int]]:
    """The best of `size` hypotheses a row by log probability / ((5 + length) / 6) ** length_penalty.

    An end counts when it is among the `size` best steps of its row; a row is done after `size` ends
    unless what goes on is worth more than any of them.
    With size 1 that is greedy decoding.
    """
    n_rows, length = len(stopping.limits), 0
    outputs: list[list[int]] = [[] for _ in range(n_rows)]
    alive = [Beam(row, [[] for _ in range(beam_size)]) for row in range(n_rows)]
    logits = stepper.prefill()  # (B, V)
    stepper.select(torch.arange(n_rows, device=logits.device).repeat_interleave(beam_size))
    logits = logits.repeat_interleave(beam_size, dim=0)  # (B * size, V)
    totals = torch.full((n_rows, beam_size), NEG_INF, device=logits.device)
    totals[:, 0] = 0.0  # the beams of a row start alike: only the first may branch
    while alive:
        length += 1
        log_probs = stopping.mask_banned(logits.log_softmax(dim=-1)).view(len(alive), beam_size, -1)  # (B, size, V)
        candidates = (totals[:, :, None] + log_probs).flatten(1)  # (B, size * V)
        top = candidates.topk(min(2 * beam_size, candidates.shape[1]))
        penalty = ((5 + length) / 6) ** length_penalty
        parent_rows, tokens, next_totals, next_alive = [], [], [], []
        for index, beam in enumerate(alive):
            continuations = _advance(
                beam, top.values[index], top.indices[index], log_probs.shape[-1], stopping.eos, penalty
            )
            unfinished_leads = bool(continuations) and all(
                continuations[0][0] / penalty > value for value, _ in beam.finished
            )
            if (
                (len(beam.finished) >= beam_size and not unfinished_leads)
                or not continuations
                or length == stopping.limits[beam.row]
            ):
                _close(beam, continuations, penalty)
                outputs[beam.row] = beam.best()
                continue
            continuations += [(NEG_INF, *continuations[-1][1:])] * (
                beam_size - len(continuations)
            )  # a tiny vocabulary may leave too few
            beam.beams = [tokens_so_far for _, _, tokens_so_far in continuations]
            next_alive.append(beam)
            parent_rows += [index * beam_size + parent for _, parent, _ in continuations]
            tokens += [beam_tokens[-1] for beam_tokens in beam.beams]
            next_totals.append([total for total, _, _ in continuations])
        alive = next_alive
        if not alive:
            break
        stepper.select(torch.tensor(parent_rows, device=logits.device))
        totals = torch.tensor(next_totals, device=logits.device)
        logits = stepper.step(torch.tensor(tokens, device=logits.device))
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
