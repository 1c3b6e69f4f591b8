"""Beam search written out over lists, one candidate at a time: slow, and easy to follow. What ours must equal.

It needs no more of a stepper than rows that can be chosen: each hypothesis is a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from triform.decode.beam import Ending
from triform.decode.stepper import Steps

NEVER = float("-inf")


@dataclass
class Beam:
    """The hypotheses of one row: `beams` still growing, `done` ended, each with its score."""

    row: int
    beams: list[list[int]]
    done: list[tuple[float, list[int]]] = field(default_factory=list)

    def best(self) -> list[int]:
        return max(self.done, key=lambda hypothesis: hypothesis[0])[1]


@torch.inference_mode()
def listed_beam_search(stepper: Steps, ending: Ending, *, size: int, length_penalty: float) -> list[list[int]]:
    """The best of `size` hypotheses a row by log probability / ((5 + length) / 6) ** length_penalty.

    An end counts when it is among the `size` best steps of its row; a row is done after `size` ends
    unless what goes on is worth more than any of them.
    With size 1 that is greedy decoding.
    """
    n_rows, length = len(ending.limits), 0
    found: list[list[int]] = [[] for _ in range(n_rows)]
    alive = [Beam(row, [[] for _ in range(size)]) for row in range(n_rows)]
    scores = stepper.start()  # (B, V)
    stepper.select(torch.arange(n_rows, device=scores.device).repeat_interleave(size))
    scores = scores.repeat_interleave(size, dim=0)  # (B * size, V)
    totals = torch.full((n_rows, size), NEVER, device=scores.device)
    totals[:, 0] = 0.0  # the beams of a row start alike: only the first may branch
    while alive:
        length += 1
        steps = ending.allowed(scores.log_softmax(dim=-1)).view(len(alive), size, -1)  # (B, size, V)
        candidates = (totals[:, :, None] + steps).flatten(1)  # (B, size * V)
        leading = candidates.topk(min(2 * size, candidates.shape[1]))
        penalty = ((5 + length) / 6) ** length_penalty
        places, tokens, kept, rows = [], [], [], []
        for place, beam in enumerate(alive):
            choice = _advance(
                beam, leading.values[place], leading.indices[place], steps.shape[-1], ending.eos, penalty
            )
            leads = bool(choice) and all(choice[0][0] / penalty > worth for worth, _ in beam.done)
            if (len(beam.done) >= size and not leads) or not choice or length == ending.limits[beam.row]:
                _close(beam, choice, penalty)
                found[beam.row] = beam.best()
                continue
            choice += [(NEVER, *choice[-1][1:])] * (size - len(choice))  # a tiny vocabulary may leave too few
            beam.beams = [tokens_so_far for _, _, tokens_so_far in choice]
            rows.append(beam)
            places += [place * size + parent for _, parent, _ in choice]
            tokens += [beam_tokens[-1] for beam_tokens in beam.beams]
            kept.append([total for total, _, _ in choice])
        alive = rows
        if not alive:
            break
        stepper.select(torch.tensor(places, device=scores.device))
        totals = torch.tensor(kept, device=scores.device)
        scores = stepper.step(torch.tensor(tokens, device=scores.device))
    return found


Choice = tuple[float, int, list[int]]  # total log probability, parent beam, tokens


def _advance(
    beam: Beam, values: Tensor, indices: Tensor, vocab_size: int, eos: int, penalty: float
) -> list[Choice]:
    """Sort a row's candidates, best first, into ended hypotheses and the next beams."""
    size = len(beam.beams)
    choice: list[Choice] = []
    for rank, (total, index) in enumerate(zip(values.tolist(), indices.tolist(), strict=True)):
        parent, token = divmod(index, vocab_size)
        if total == NEVER:
            break
        if token == eos:
            if rank < size:
                beam.done.append((total / penalty, beam.beams[parent]))
        elif len(choice) < size:
            choice.append((total, parent, [*beam.beams[parent], token]))
    return choice


def _close(beam: Beam, choice: list[Choice], penalty: float) -> None:
    """At the length limit, what is unfinished competes only when nothing has ended."""
    if not beam.done:
        beam.done = [(total / penalty, tokens) for total, _, tokens in choice] or [(NEVER, [])]
