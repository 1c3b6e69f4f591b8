"""The task of a language model that is mixed with models of counts, as the setting `decode.mix` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from triform.config import DecodeConfig, MixComponent
from triform.errors import ConfigError
from triform.evaluation.details import DetailedMetrics
from triform.evaluation.metrics import Metrics
from triform.generation.adapters import GenerationAdapter, Stepper, TokenIds
from triform.tasks.generate import Generate, LanguageModelEvaluator, TextGenerator
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.mixture import MixedLanguageModel
from triform.tasks.task import Task
from triform.world import SINGLE_PROCESS, World


class Mixtures:
    """The mixtures of a language model with models of counts. Each is made when it is first used.

    Args:
        task: The task of a trained run.
    """

    def __init__(self, task: Task) -> None:
        self.task, self._mixtures = task, dict[tuple[MixComponent, ...], MixedLanguageModel]()

    def find(self, mix: Sequence[MixComponent]) -> MixedLanguageModel:
        """Return the mixture with these components, whose names are those of `decode.mix`.

        Raises:
            ConfigError: The run is not a language model or has no validation data.
            DataError: The data of the run cannot be read.
        """
        key = tuple(mix)
        if key not in self._mixtures:
            self._mixtures[key] = MixedLanguageModel(self.task, key)
        return self._mixtures[key]

    def find_task(self, mix: Sequence[MixComponent]) -> Task:
        """Return the task that predicts and evaluates a mixture; without components, that of the model alone."""
        return MixedGenerate.build(self.find(mix)) if mix else self.task


class MixedGenerate(Generate):
    """A language model whose predictions and metrics are those of a mixture."""

    mixture: MixedLanguageModel

    @classmethod
    def build(cls, mixture: MixedLanguageModel) -> Self:
        """Return a task that shares the model of a mixture."""
        task = cls.__new__(cls)
        vars(task).update(vars(mixture.task), mixture=mixture)
        return task

    @property
    def evaluator(self) -> MixtureEvaluator:
        return MixtureEvaluator(self)

    @property
    def predictor(self) -> MixtureGenerator:
        return MixtureGenerator(self)


@dataclass(frozen=True)
class MixtureGenerator(TextGenerator):
    """Predictor that continues prompts with the mixture of a language model and counts."""

    task: MixedGenerate

    def build_adapter(self) -> GenerationAdapter:
        return MixtureAdapter(super().build_adapter(), self.task.mixture)


@dataclass(frozen=True)
class MixtureEvaluator(LanguageModelEvaluator):
    """Evaluator of the mixture of a language model and counts. Each process evaluates the whole text."""

    task: MixedGenerate

    def evaluate(
        self,
        data: LanguageModelDataset,
        *,
        quick: bool = False,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> Metrics:
        if data.skip_start:
            raise ConfigError(
                "ranges of lengths are for the model alone; leave them out, or set decode.mix to nothing"
            )
        return self.task.mixture.evaluate(data)

    def evaluate_with_details(self, data: LanguageModelDataset, **options: Any) -> DetailedMetrics:
        raise ConfigError("details are for the model alone; leave them out, or set decode.mix to nothing")


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
        assert beam_size == 1, "decode.mix excludes beam search"
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
