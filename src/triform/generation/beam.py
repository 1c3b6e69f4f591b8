"""Beam search: the best of a few hypotheses a row. What it remembers is tensors, so that a step never waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triform.generation.sampling import fast_topk

NEG_INF = float("-inf")
BackPointers = list[tuple[Sequence[int], Sequence[int]]]  # of each step: tokens and parents of a row's hypotheses


@dataclass(frozen=True, kw_only=True)
class StoppingCriteria:
    """When a row is done, and which tokens are never written."""

    eos: int
    limits: tuple[int, ...]  # new tokens each row may have
    banned: tuple[int, ...] = ()

    def mask_banned(self, logits: Tensor) -> Tensor:
        return logits.index_fill(-1, torch.tensor(self.banned, dtype=torch.long, device=logits.device), NEG_INF)


class BeamState:
    """Where B searches stand. An end counts when it is among the `size` best steps of its row; a row is over
    after `size` ends unless what goes on is worth more than any of them, at its limit, or when nothing is left.

    A hypothesis is worth its log probability / ((5 + length) / 6) ** length_penalty. Of those that ended only
    the best is remembered: after how many steps, and which hypothesis it was. Everything is written in place.
    """

    def __init__(
        self, stopping: StoppingCriteria, *, beam_size: int, length_penalty: float, device: torch.device
    ) -> None:
        self.beam_size, self.eos = beam_size, stopping.eos
        lengths = range(max(stopping.limits, default=0) + 2)
        penalties = [((5 + length) / 6) ** length_penalty for length in lengths]
        self.penalties = torch.tensor(penalties, dtype=torch.float64, device=device)
        self.banned = torch.tensor(stopping.banned, dtype=torch.long, device=device)
        self.tensors: dict[str, Tensor] = {}
        self.tensors = self._initial_tensors(())

    def _initial_tensors(self, limits: Sequence[int]) -> dict[str, Tensor]:
        n_rows, device = len(limits), self.penalties.device
        totals = torch.full((n_rows, self.beam_size), NEG_INF, device=device)
        totals[:, 0] = 0.0  # the hypotheses of a row start alike: only the first may branch
        return {
            "totals": totals,
            "limits": torch.tensor(limits, dtype=torch.long, device=device),
            "length": torch.zeros(n_rows, dtype=torch.long, device=device),
            "ends": torch.zeros(n_rows, dtype=torch.long, device=device),
            "best": torch.full((n_rows,), NEG_INF, dtype=torch.float64, device=device),
            "depth": torch.zeros(n_rows, dtype=torch.long, device=device),
            "which": torch.zeros(n_rows, dtype=torch.long, device=device),
            "over": torch.zeros(n_rows, dtype=torch.bool, device=device),
        }

    def append_rows(self, limits: Sequence[int]) -> None:
        """More rows, after those that are there."""
        initial = self._initial_tensors(limits)
        self.tensors = {name: torch.cat([tensor, initial[name]]) for name, tensor in self.tensors.items()}

    def reset_rows(self, row_indices: Tensor, limits: Sequence[int]) -> None:
        """New rows in the place of old ones."""
        for name, tensor in self._initial_tensors(limits).items():
            self.tensors[name][row_indices] = tensor

    def select(self, rows: Tensor) -> None:
        self.tensors = {name: tensor[rows] for name, tensor in self.tensors.items()}

    def advance(self, logits: Tensor) -> tuple[Tensor, Tensor]:  # (B, size, V) -> (B, size) each
        """The tokens with which hypotheses go on, and which ones they go on from."""
        state, beam_size = self.tensors, self.beam_size
        log_probs = logits.flatten(0, 1).log_softmax(dim=-1).index_fill(-1, self.banned, NEG_INF)  # (B · size, V)
        top_log_probs, top_tokens = (
            tensor.view(-1, beam_size, tensor.shape[-1])
            for tensor in fast_topk(log_probs, min(2 * beam_size, log_probs.shape[-1]))
        )
        candidates = (state["totals"][:, :, None] + top_log_probs).flatten(1)
        totals, indices = candidates.topk(min(2 * beam_size, candidates.shape[1]))  # best first
        tokens, parents = top_tokens.flatten(1).gather(1, indices), indices // top_log_probs.shape[-1]
        valid, ended = totals > NEG_INF, tokens == self.eos
        state["length"] += 1
        self._record_ended((ended & valid)[:, :beam_size], totals, parents)

        continues = valid & ~ended
        ranks = torch.arange(totals.shape[1], device=logits.device)
        order = (ranks + ~continues * len(ranks)).sort(dim=1).indices[:, :beam_size]  # those that go on, best first
        state["totals"].copy_(totals.where(continues, NEG_INF).gather(1, order))
        self._close_rows(continues.any(dim=1))
        return tokens.gather(1, order), parents.gather(1, order)

    def _record_ended(self, ended: Tensor, totals: Tensor, parents: Tensor) -> None:
        """Count ends, and remember the best so far: the first of a step, if it beats those of earlier steps."""
        state = self.tensors
        first_ended = ended.long().argmax(dim=1, keepdim=True)
        penalised = totals.gather(1, first_ended)[:, 0].double() / self._length_penalty()
        improves = ended.any(dim=1) & (penalised > state["best"]) & ~state["over"]
        state["best"].copy_(penalised.where(improves, state["best"]))
        state["depth"].copy_((state["length"] - 1).where(improves, state["depth"]))
        state["which"].copy_(parents.gather(1, first_ended)[:, 0].where(improves, state["which"]))
        state["ends"] += ended.sum(dim=1) * ~state["over"]

    def _length_penalty(self) -> Tensor:
        return self.penalties[self.tensors["length"].clamp(max=len(self.penalties) - 1)]

    def _close_rows(self, any_continues: Tensor) -> None:
        """At the length limit, what is unfinished competes only when nothing has ended."""
        state = self.tensors
        unfinished_leads = (
            state["totals"][:, 0].double() / self._length_penalty() > state["best"]
        )  # a sure model's ends may all be poor
        done = (
            ((state["ends"] >= self.beam_size) & ~unfinished_leads)
            | ~any_continues
            | (state["length"] >= state["limits"])
        )
        newly_done = done & ~state["over"]
        unfinished = newly_done & (state["ends"] == 0) & any_continues  # the best of them is the first
        state["depth"].copy_(state["length"].where(unfinished, state["depth"]))
        state["which"].copy_(state["which"].masked_fill(unfinished, 0))
        state["over"] |= newly_done


def backtrace(back_pointers: BackPointers, depth: int, hypothesis: int) -> list[int]:
    """The tokens of a hypothesis, found by going back from parent to parent."""
    sequence = []
    for tokens, parents in reversed(back_pointers[:depth]):
        sequence.append(int(tokens[hypothesis]))
        hypothesis = int(parents[hypothesis])
    return sequence[::-1]
