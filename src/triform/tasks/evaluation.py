"""Base classes of evaluators, which add up sums over a dataset and compute the metrics once at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from triform.config import DecodeConfig
from triform.data.encoded_text import iter_chunks
from triform.errors import DataError
from triform.evaluation.details import DEFAULT_EXAMPLES, DetailedMetrics, Details, validate_details
from triform.evaluation.metrics import Metrics
from triform.nn.loss import IGNORE_INDEX, cross_entropy
from triform.world import SINGLE_PROCESS, World, gather_values

SUMS_PER_SYNC = 256  # batches whose sums are added up together
REPORT_EXAMPLES = 8
MAX_EVAL_LOGITS = 1 << 26  # logits in memory at once: 256 MB in float32

Item = TypeVar("Item")


@dataclass(frozen=True)
class Evaluator(ABC):
    """Abstract base class of evaluators, which compute the metrics of a task's model."""

    task: Any
    report_size: ClassVar[int]  # examples, or tokens of running text, whose details are in the report of a run

    @torch.inference_mode()
    def evaluate(
        self,
        data: Any,
        *,
        quick: bool = False,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> Metrics:
        """Return the metrics on a dataset. The model is left in evaluation mode.

        Args:
            data: A dataset from `TaskData.load_dataset`.
            quick: Use only a part of the data, as validation during training does.
            decode: Decoding settings for metrics that need them. The default is the run's settings.
            world: The processes that share the work. Each of them calls this method with the same data and model,
                computes some of the batches, and returns the metrics on the whole dataset.
        """
        sums = self.sum_metrics(data, quick=quick, world=world)
        return self.compute_metrics(sums, data, quick=quick, decode=decode, world=world)

    @torch.inference_mode()
    def sum_metrics(self, data: Any, *, quick: bool = False, world: World = SINGLE_PROCESS) -> list[float]:
        """Return the sums over a dataset that `compute_metrics` needs."""
        self.task.model.eval()
        batches = share_items(self.batches(data, quick=quick), world)
        return gather_metric_sums((self.metric_sums(batch.to(self.task.device)) for batch in batches), world)

    def batches(self, data: Any, *, quick: bool) -> Iterator[Any]:
        """Yield the batches of an evaluation."""
        batches: Iterator[Any] = data.batches()
        return batches

    def n_quick_examples(self, data: Any) -> int:
        """Return how many examples, or tokens of running text, the metric of a quick evaluation is about."""
        return len(data)

    @abstractmethod
    def metric_sums(self, batch: Any) -> Tensor:
        """Return the counts and sums of one batch. They stay on the device."""

    @abstractmethod
    def compute_metrics(
        self,
        sums: list[float],
        data: Any,
        *,
        quick: bool,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> Metrics:
        """Compute the metrics from the sums over a dataset. The arguments are those of `evaluate`."""

    def evaluate_optionally_detailed(
        self, data: Any, details: bool | int, read_examples: Callable[[], Iterable[Any]], **options: Any
    ) -> DetailedMetrics:
        """Return the metrics with details, or without them if `details` is False; a number limits the examples.

        The other arguments are those of `evaluate_with_details`.
        """
        validate_details(details)
        if details is False:
            return DetailedMetrics(self.evaluate(data, **options))
        n_examples = DEFAULT_EXAMPLES if details is True else details
        return self.evaluate_with_details(data, read_examples=read_examples, n_examples=n_examples, **options)

    @abstractmethod
    def evaluate_with_details(
        self,
        data: Any,
        *,
        read_examples: Callable[[], Iterable[Any]],
        n_examples: int,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> DetailedMetrics:
        """Return the metrics of `evaluate` with details: where the model is wrong.

        Args:
            data: A dataset from `TaskData.load_dataset`.
            read_examples: Reads the texts of the file that the dataset, or the dataset of which it is a part, was
                made of.
            n_examples: The number of examples to return, such as mistakes of a classifier.
            decode: Decoding settings, as for `evaluate`.
            world: The processes that share the work, as for `evaluate`. All of them return all details.
        """

    def report_details(self, data: Any) -> Details:
        """Return the details on a part of the validation data that takes little time, decoded greedily."""
        metrics = self.evaluate_with_details(
            data.sample(self.report_size),
            read_examples=self.task.data.iter_examples,
            n_examples=REPORT_EXAMPLES,
            decode=replace(self.task.config.decode, strategy="greedy"),
        )
        if metrics.details is None:
            raise DataError("the validation data has no details")
        return metrics.details

    def is_better(self, metrics: Metrics, best: Metrics | None) -> bool:
        """Return whether metrics are better than the best so far. On a tie, the lower loss wins."""
        if best is None:
            return True
        sign, name = (1 if self.task.higher_is_better else -1), self.task.metric
        return (sign * metrics[name], -metrics["loss"]) > (sign * best[name], -best["loss"])


class TokenEvaluator(Evaluator):
    """Abstract base class of evaluators of token predictions. Sums: loss, correct tokens, predictions."""

    @abstractmethod
    def hidden_states(self, batch: Any) -> Tensor:
        """Return the input of the language-model head: (B, T, D)."""

    def metric_sums(self, batch: Any) -> Tensor:
        model, vocab_size = self.task.model, self.task.target_tokenizer.vocab_size
        return token_metric_sums(self.hidden_states(batch), model.lm_head, batch.targets, vocab_size)


def token_metric_sums(hidden_states: Tensor, head: nn.Module, targets: Tensor, vocab_size: int) -> Tensor:
    """Return the summed loss, the number of correct tokens and the number of predictions: (B, T, D), (B, T) -> (3).

    The logits of a large vocabulary are computed in chunks of rows. All of them at once would take gigabytes, and
    Ctrl-C would have to wait for one long operation.
    """
    chunks = iter_logits(hidden_states, head, targets, vocab_size)
    return torch.stack([token_sums(logits, chunk_targets) for _, logits, chunk_targets in chunks]).sum(dim=0)


def iter_logits(
    hidden_states: Tensor, head: nn.Module, targets: Tensor, vocab_size: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield chunks of the flattened predictions: their slice, their logits (N, V) and their targets (N)."""
    chunk_rows = max(1, MAX_EVAL_LOGITS // vocab_size)
    states, flat_targets = hidden_states.flatten(0, -2), targets.flatten()
    for start in range(0, len(flat_targets), chunk_rows):
        rows = slice(start, start + chunk_rows)
        yield rows, head(states[rows]), flat_targets[rows]


def token_sums(logits: Tensor, targets: Tensor) -> Tensor:  # (N, V), (N) -> (3)
    """Return the summed loss, the number of correct tokens and the number of predictions."""
    loss = cross_entropy(logits, targets, 0.0)
    flags = (logits.argmax(-1) == targets, targets != IGNORE_INDEX)
    return torch.stack([loss, *(flag.sum(dtype=loss.dtype) for flag in flags)])


def add_metric_sums(sums: Iterable[Tensor]) -> Tensor:
    """Add up sums in float64, many at a time, so that the host rarely waits for the device.

    They are not added all at once, because the confusion matrix of a thousand labels has a million entries.
    """
    chunk_sums = (torch.stack(chunk).cpu().double().sum(dim=0) for chunk in iter_chunks(sums, SUMS_PER_SYNC))
    return reduce(torch.add, chunk_sums, torch.zeros((), dtype=torch.float64))


def share_items(items: Iterable[Item], world: World) -> Iterator[Item]:
    """Yield the items of this process. Neighbours have similar lengths, so each process gets the same work."""
    return islice(items, world.rank, None, world.size)


def gather_metric_sums(sums: Iterable[Tensor], world: World) -> list[float]:
    """Add up the sums of this process, then those of all processes.

    The sums of batches have 24 bits and are added with 53 bits, so their order does not change the result.
    """
    own_sums = add_metric_sums(sums).tolist()  # 0.0 in a process that has no batch
    all_sums = gather_values(own_sums) if world.size > 1 else [own_sums]
    total: list[float] = reduce(torch.add, (torch.tensor(row, dtype=torch.float64) for row in all_sums)).tolist()
    return total
