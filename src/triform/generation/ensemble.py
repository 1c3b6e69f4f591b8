"""How decoding runs an ensemble: every member reads the same tokens, and their probabilities are averaged."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from triform.generation.adapters import GenerationAdapter, Stepper, TokenIds
from triform.models.ensemble import EnsembleModel, average_log_probs


class EnsembleAdapter(GenerationAdapter):
    """Decodes with several models at once.

    Args:
        model: The ensemble.
        members: The adapter of each of its models.
    """

    def __init__(self, model: EnsembleModel, members: Sequence[GenerationAdapter]) -> None:
        self.model, self.members = model, members
        self.max_len = min(member.max_len for member in members)
        self.sliding_context = members[0].sliding_context

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return self.members[0].initial_tokens(row)

    def build_stepper(self, beam_size: int = 1) -> EnsembleStepper:
        return EnsembleStepper([member.build_stepper(beam_size) for member in self.members])


class EnsembleStepper:
    """The steppers of all members, each with its own KV cache or recurrent state, over the same rows."""

    def __init__(self, members: Sequence[Stepper]) -> None:
        self.members = members

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        return average_log_probs(member.append_rows(rows) for member in self.members)

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        return average_log_probs(member.step(tokens, parents) for member in self.members)

    def select(self, rows: Tensor) -> None:
        for member in self.members:
            member.select(rows)

    def restart(self, contexts: Sequence[Sequence[TokenIds]]) -> Tensor:
        return average_log_probs(member.restart(contexts) for member in self.members)
