"""Beam search: each row keeps its `beam_size` most likely hypotheses, and the best one that ended wins.

Everything the search remembers is a tensor on the device, so that several steps can run without waiting for the
host, and be captured in a CUDA graph. `BeamRow` keeps the tokens and parents of every step on the host, and reads
the winning hypotheses back from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triform.generation.backend import Request, Row, TokenConstraints, TokenPicker
from triform.generation.sampling import NEG_INF, fast_topk


class BeamSettings(NamedTuple):
    """The settings that all rows of a beam search share."""

    beam_size: int
    length_penalty: float


class Hypothesis(NamedTuple):
    """A text that a beam search found: its tokens without the end token, and the score by which it is ranked."""

    tokens: list[int]
    score: float  # log probability / length penalty, see `BeamPicker`


class BeamRow(Row):
    """A row with several hypotheses. `history` has the tokens and the parents (K) of every step."""

    def __init__(self, row_id: int, request: Request, initial_tokens: list[int], beam_size: int) -> None:
        super().__init__(row_id, request, initial_tokens)
        self.prefill_contexts = self.prefill_contexts * beam_size
        self.history: list[tuple[list[int], list[int]]] = []
        self.ranking: list[tuple[float, int, int]] = []  # once `done`: score, depth, hypothesis; the best first

    @property
    def n_steps(self) -> int:
        return len(self.history)

    def backtrace(self, hypothesis: int, first_step: int, last_step: int) -> tuple[list[int], int]:
        """Follow a hypothesis back from parent to parent.

        Returns:
            Its tokens from `first_step` up to `last_step`, and the hypothesis that it was before `first_step`.
        """
        tokens = []
        for step_tokens, parents in reversed(self.history[first_step:last_step]):
            tokens.append(step_tokens[hypothesis])
            hypothesis = parents[hypothesis]
        return tokens[::-1], hypothesis

    def hypotheses(self, n_best: int) -> list[Hypothesis]:
        """Return the best hypotheses of a row that is done, the best first. It may have found fewer."""
        return [
            Hypothesis(self.backtrace(hypothesis, 0, depth)[0], score)
            for score, depth, hypothesis in self.ranking[:n_best]
            if score > NEG_INF
        ]

    def contexts(self) -> list[list[int]]:
        result = []
        for hypothesis in range(len(self.prefill_contexts)):
            tokens, root = self.backtrace(hypothesis, self.n_steps_before_prefill, self.n_steps)
            result.append(self.prefill_contexts[root] + tokens)
        return result


class BeamPicker(TokenPicker):
    """Continues each row with its most likely hypotheses.

    Hypotheses are ranked by log probability / ((5 + length) / 6) ** length_penalty. A hypothesis ends when its end
    token is among the `beam_size` most likely continuations of its row. A row is done when `beam_size` hypotheses
    have ended and none of the others ranks above the best of them, when it reaches its limit, or when no hypothesis
    can continue. The `beam_size` best that ended are kept. At the limit, unfinished hypotheses rank below all that
    ended.

    Args:
        constraints: End token and banned tokens.
        device: Where the logits are.
        settings: The number of hypotheses of each row, and the length penalty: the larger it is, the longer the
            texts that win; 0 compares log probabilities.
    """

    has_row_state = True

    def __init__(self, constraints: TokenConstraints, device: torch.device, settings: BeamSettings) -> None:
        super().__init__(constraints, device)
        self.beam_size, self.length_penalty = settings
        self.tensors = self._initial_tensors(())  # one entry for each row, see `_initial_tensors`
        self.key = (*self.key, settings)

    def allocate(self, n_rows: int, n_steps: int) -> None:
        self.tensors = self._initial_tensors([1] * n_rows)

    def _initial_tensors(self, limits: Sequence[int]) -> dict[str, Tensor]:
        """Return the state of rows that have not taken a step. All tensors are updated in place."""
        n_rows, device = len(limits), self.banned.device
        totals = torch.full((n_rows, self.beam_size), NEG_INF, device=device)
        totals[:, 0] = 0.0  # the hypotheses of a row start alike, so only the first may branch
        return {
            "totals": totals,  # log probability of each hypothesis, best first
            "limits": torch.tensor(limits, dtype=torch.long, device=device),
            "length": torch.zeros(n_rows, dtype=torch.long, device=device),  # steps taken
            "n_ended": torch.zeros(n_rows, dtype=torch.long, device=device),
            # Those that ended, best first: the score, the steps before the end, and which hypothesis it was then.
            "scores": torch.full_like(totals, NEG_INF, dtype=torch.float64),
            "depths": torch.zeros_like(totals, dtype=torch.long),
            "hypotheses": torch.zeros_like(totals, dtype=torch.long),
            "done": torch.zeros(n_rows, dtype=torch.bool, device=device),
        }

    def make_row(self, row_id: int, request: Request, initial_tokens: list[int]) -> Row:
        return BeamRow(row_id, request, initial_tokens, self.beam_size)

    def add_rows(self, indices: Sequence[int], rows: Sequence[Row]) -> None:
        limits = [row.request.max_new_tokens for row in rows]
        initial = self._initial_tensors(limits)
        if indices[0] == len(self.tensors["done"]):
            self.tensors = {name: torch.cat([tensor, initial[name]]) for name, tensor in self.tensors.items()}
        else:
            index = torch.tensor(indices, device=self.banned.device)
            for name, tensor in initial.items():
                self.tensors[name][index] = tensor

    def select(self, indices: Tensor) -> None:
        self.tensors = {name: tensor[indices] for name, tensor in self.tensors.items()}

    def copy_rows(self, other: BeamPicker, n_rows: int) -> None:
        for name, tensor in self.tensors.items():
            tensor[:n_rows] = other.tensors[name]

    def pick(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose the tokens and parents (B, K) of the hypotheses that continue, from logits (B, K, V)."""
        state, beam_size = self.tensors, self.beam_size
        log_probs = logits.flatten(0, 1).log_softmax(dim=-1).index_fill(-1, self.banned, NEG_INF)  # (B · K, V)
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
        order = (
            (ranks + ~continues * len(ranks)).sort(dim=1).indices[:, :beam_size]
        )  # those that continue, best first
        state["totals"].copy_(totals.where(continues, NEG_INF).gather(1, order))
        self._mark_done(continues.any(dim=1))
        return tokens.gather(1, order), parents.gather(1, order)

    def _record_ended(self, ended: Tensor, totals: Tensor, parents: Tensor) -> None:
        """Count the hypotheses (B, K) that end in this step, and rank them among those that ended before."""
        state = self.tensors
        ended_totals, ended_parents = totals[:, : ended.shape[1]], parents[:, : ended.shape[1]]
        scores = (ended_totals.double() / self._length_penalties()).masked_fill(~ended, NEG_INF)
        # The sort is stable: of equal scores, the earlier one ranks higher.
        order = torch.cat([state["scores"], scores], dim=1).sort(dim=1, descending=True, stable=True).indices
        self._rank(order, scores, (state["length"] - 1)[:, None].expand_as(scores), ended_parents)
        state["n_ended"] += ended.sum(dim=1)

    def _rank(self, order: Tensor, scores: Tensor, depths: Tensor, hypotheses: Tensor) -> None:
        """Keep the first `beam_size` of the ranked hypotheses and new ones, in this order of both together.

        Rows that are done keep the hypotheses they have.
        """
        ranks = torch.arange(self.beam_size, device=order.device)
        order = order[:, : self.beam_size].where(~self.tensors["done"][:, None], ranks)
        new = {"scores": scores, "depths": depths, "hypotheses": hypotheses}
        for name, values in new.items():
            ranked = self.tensors[name]
            ranked.copy_(torch.cat([ranked, values], dim=1).gather(1, order))

    def _length_penalties(self) -> Tensor:  # (B, 1)
        return ((5 + self.tensors["length"].double()[:, None]) / 6) ** self.length_penalty

    def _mark_done(self, any_continues: Tensor) -> None:
        state = self.tensors
        scores = state["totals"].double() / self._length_penalties()  # (B, K), of the unfinished hypotheses
        # The hypotheses that have ended may all be unlikely: then the search continues.
        unfinished_leads = scores[:, 0] > state["scores"][:, 0]
        enough_ended = (state["n_ended"] >= self.beam_size) & ~unfinished_leads
        done = enough_ended | ~any_continues | (state["length"] >= state["limits"])
        newly_done = done & ~state["done"]
        scores = scores.masked_fill(~newly_done[:, None], NEG_INF)
        # Those that ended come first, then the unfinished ones; both are sorted already.
        empty = torch.cat([state["scores"], scores], dim=1) == NEG_INF
        order = empty.long().sort(dim=1, stable=True).indices
        hypotheses = torch.arange(self.beam_size, device=scores.device).expand_as(order[:, : self.beam_size])
        self._rank(order, scores, state["length"][:, None].expand_as(scores), hypotheses)
        state["done"] |= newly_done

    def record(self, rows: Sequence[Row | None], tokens: Tensor, parents: Tensor | None) -> None:
        assert parents is not None
        step_tokens, step_parents = tokens.tolist(), parents.tolist()  # (n, B, K)
        done = self.tensors["done"].tolist()
        ranked = [self.tensors[name].tolist() for name in ("scores", "depths", "hypotheses")] if any(done) else []
        for index, row in enumerate(rows):
            if isinstance(row, BeamRow):
                steps = zip(step_tokens, step_parents, strict=True)
                row.history += [(tokens_of[index], parents_of[index]) for tokens_of, parents_of in steps]
                if done[index]:
                    row.ranking = list(zip(*(values[index] for values in ranked), strict=True))
                    _, depth, hypothesis = row.ranking[0]
                    row.finish_reason = "length" if depth >= row.request.max_new_tokens else "stop"
                    row.output, _ = row.backtrace(hypothesis, 0, depth)
