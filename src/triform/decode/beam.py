"""Beam search: the best of a few hypotheses a row. What it remembers is tensors, so that a step never waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triform.decode.choose import leading

NEVER = float("-inf")
Trail = list[tuple[Sequence[int], Sequence[int]]]  # of each step: tokens and parents of a row's hypotheses


@dataclass(frozen=True, kw_only=True)
class Ending:
    """When a row is done, and which tokens are never written."""

    eos: int
    limits: tuple[int, ...]  # new tokens each row may have
    banned: tuple[int, ...] = ()

    def allowed(self, scores: Tensor) -> Tensor:
        return scores.index_fill(-1, torch.tensor(self.banned, dtype=torch.long, device=scores.device), NEVER)


class Beams:
    """Where B searches stand. An end counts when it is among the `size` best steps of its row; a row is over
    after `size` ends unless what goes on is worth more than any of them, at its limit, or when nothing is left.

    A hypothesis is worth its log probability / ((5 + length) / 6) ** length_penalty. Of those that ended only
    the best is remembered: after how many steps, and which hypothesis it was. Everything is written in place.
    """

    def __init__(self, ending: Ending, *, size: int, length_penalty: float, device: torch.device) -> None:
        self.size, self.eos = size, ending.eos
        lengths = range(max(ending.limits, default=0) + 2)
        penalties = [((5 + length) / 6) ** length_penalty for length in lengths]
        self.penalties = torch.tensor(penalties, dtype=torch.float64, device=device)
        self.banned = torch.tensor(ending.banned, dtype=torch.long, device=device)
        self.state: dict[str, Tensor] = {}
        self.state = self._fresh(())

    def _fresh(self, limits: Sequence[int]) -> dict[str, Tensor]:
        n, device = len(limits), self.penalties.device
        totals = torch.full((n, self.size), NEVER, device=device)
        totals[:, 0] = 0.0  # the hypotheses of a row start alike: only the first may branch
        return {
            "totals": totals,
            "limits": torch.tensor(limits, dtype=torch.long, device=device),
            "length": torch.zeros(n, dtype=torch.long, device=device),
            "ends": torch.zeros(n, dtype=torch.long, device=device),
            "best": torch.full((n,), NEVER, dtype=torch.float64, device=device),
            "depth": torch.zeros(n, dtype=torch.long, device=device),
            "which": torch.zeros(n, dtype=torch.long, device=device),
            "over": torch.zeros(n, dtype=torch.bool, device=device),
        }

    def join(self, limits: Sequence[int]) -> None:
        """More rows, after those that are there."""
        fresh = self._fresh(limits)
        self.state = {name: torch.cat([held, fresh[name]]) for name, held in self.state.items()}

    def begin(self, places: Tensor, limits: Sequence[int]) -> None:
        """New rows in the place of old ones."""
        for name, fresh in self._fresh(limits).items():
            self.state[name][places] = fresh

    def select(self, rows: Tensor) -> None:
        self.state = {name: held[rows] for name, held in self.state.items()}

    def advance(self, scores: Tensor) -> tuple[Tensor, Tensor]:  # (B, size, V) -> (B, size) each
        """The tokens with which hypotheses go on, and which ones they go on from."""
        now, size = self.state, self.size
        steps = scores.flatten(0, 1).log_softmax(dim=-1).index_fill(-1, self.banned, NEVER)  # (B · size, V)
        values, words = (x.view(-1, size, x.shape[-1]) for x in leading(steps, min(2 * size, steps.shape[-1])))
        candidates = (now["totals"][:, :, None] + values).flatten(1)
        totals, places = candidates.topk(min(2 * size, candidates.shape[1]))  # best first
        tokens, parents = words.flatten(1).gather(1, places), places // values.shape[-1]
        real, ended = totals > NEVER, tokens == self.eos
        now["length"] += 1
        self._end((ended & real)[:, :size], totals, parents)

        goes_on = real & ~ended
        ranks = torch.arange(totals.shape[1], device=scores.device)
        order = (ranks + ~goes_on * len(ranks)).sort(dim=1).indices[:, :size]  # those that go on, best first
        now["totals"].copy_(totals.where(goes_on, NEVER).gather(1, order))
        self._close(goes_on.any(dim=1))
        return tokens.gather(1, order), parents.gather(1, order)

    def _end(self, ended: Tensor, totals: Tensor, parents: Tensor) -> None:
        """Count ends, and remember the best so far: the first of a step, if it beats those of earlier steps."""
        now = self.state
        first = ended.long().argmax(dim=1, keepdim=True)
        worth = totals.gather(1, first)[:, 0].double() / self._penalty()
        better = ended.any(dim=1) & (worth > now["best"]) & ~now["over"]
        now["best"].copy_(worth.where(better, now["best"]))
        now["depth"].copy_((now["length"] - 1).where(better, now["depth"]))
        now["which"].copy_(parents.gather(1, first)[:, 0].where(better, now["which"]))
        now["ends"] += ended.sum(dim=1) * ~now["over"]

    def _penalty(self) -> Tensor:
        return self.penalties[self.state["length"].clamp(max=len(self.penalties) - 1)]

    def _close(self, some_go_on: Tensor) -> None:
        """At the length limit, what is unfinished competes only when nothing has ended."""
        now = self.state
        leads = now["totals"][:, 0].double() / self._penalty() > now["best"]  # a sure model's ends may all be poor
        done = ((now["ends"] >= self.size) & ~leads) | ~some_go_on | (now["length"] >= now["limits"])
        closes = done & ~now["over"]
        unfinished = closes & (now["ends"] == 0) & some_go_on  # the best of them is the first
        now["depth"].copy_(now["length"].where(unfinished, now["depth"]))
        now["which"].copy_(now["which"].masked_fill(unfinished, 0))
        now["over"] |= closes


def traced(trail: Trail, depth: int, which: int) -> list[int]:
    """The tokens of a hypothesis, found by going back from parent to parent."""
    text = []
    for tokens, parents in reversed(trail[:depth]):
        text.append(int(tokens[which]))
        which = int(parents[which])
    return text[::-1]
