"""Generate text with the mixture of a language model and counts: `triform predict --mix`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from triform.errors import ConfigError
from triform.generation.adapters import GenerationAdapter, Stepper, TokenIds
from triform.tasks.generate import Generate
from triform.tasks.mixture import MixedLanguageModel
from triform.tasks.task import Task

BEAM_REFUSAL = "mix decodes greedily or samples; leave out decode.strategy=beam and decode.beam_size"


def mix_predictions(task: Task, names: Sequence[str]) -> tuple[Generate, MixedLanguageModel]:
    """Return a task that shares the model and predicts with its mixture, and the mixture.

    Args:
        task: The task of a trained run, whose own data gives the counts and the weights.
        names: Names of `MIX_NAMES`.

    Raises:
        ConfigError: The run is not a language model, or another engine than torch decodes.
        DataError: The data of the run cannot be read.
    """
    if task.engine is not None:
        raise ConfigError(f"mix needs the engine torch, not {task.engine.name}; leave out --engine")
    mixture = MixedLanguageModel(task, names)
    mixed_task = copy(mixture.task)
    mixed_task.wrap_adapter = lambda adapter: MixtureAdapter(adapter, mixture)
    return mixed_task, mixture


class MixtureAdapter(GenerationAdapter):
    """A language model whose next tokens have the probabilities of a mixture.

    Args:
        adapter: The adapter of the model.
        mixture: The components and their weights.
    """

    def __init__(self, adapter: GenerationAdapter, mixture: MixedLanguageModel) -> None:
        self.adapter, self.mixture, self.model = adapter, mixture, adapter.model
        self.max_len, self.sliding_context = adapter.max_len, adapter.sliding_context

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return self.adapter.initial_tokens(row)

    def build_stepper(self, beam_size: int = 1) -> MixtureStepper:
        if beam_size > 1:
            raise ConfigError(BEAM_REFUSAL)
        return MixtureStepper(self)


class MixtureStepper:
    """Steps the model, and mixes its probabilities with those of the other components.

    They read the same context as the model: if a text outgrows `max_len`, its older half is forgotten.
    """

    def __init__(self, adapter: MixtureAdapter) -> None:
        self.adapter = adapter
        self.stepper: Stepper = adapter.adapter.build_stepper()
        self.contexts: list[list[int]] = []  # the tokens that the model has read, of each row

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        new_contexts = [self.adapter.initial_tokens(row) for row in rows]
        self.contexts = [*self.contexts, *new_contexts]
        return self._mix(self.stepper.append_rows(rows), new_contexts)

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        logits = self.stepper.step(tokens, parents)[:, 0]
        for context, token in zip(self.contexts, tokens[:, 0].tolist(), strict=True):
            context.append(token)
        return self._mix(logits, self.contexts)[:, None]

    def select(self, rows: Tensor) -> None:
        self.stepper.select(rows)
        self.contexts = [self.contexts[index] for index in rows.tolist()]

    def restart(self, contexts: Sequence[Sequence[TokenIds]]) -> Tensor:
        self.contexts = [self.adapter.initial_tokens(row) for (row,) in contexts]
        return self._mix(self.stepper.restart(contexts)[:, 0], self.contexts)[:, None]

    def _mix(self, logits: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:  # (N, V) -> (N, V)
        """Return log probabilities, whose softmax is the mixture."""
        probs = self.adapter.mixture.mix_next(logits.double().softmax(dim=-1).cpu().numpy(), contexts)
        return torch.from_numpy(probs).log().to(logits.device)
