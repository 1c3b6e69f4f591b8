"""What a task is: a model with its text handling, its loss and its scores.

The trainer knows when things happen; a task knows what they are. Losses are sums over predictions: the one
division, by the number of predictions of the whole step, is the trainer's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from triform.config import Config, DataSizes, DecodeConfig, TaskName, TrainConfig
from triform.data.samplers import BucketSampler, Indices, Sampler, batch_by_length
from triform.errors import DataError
from triform.evaluation.baselines import FittedBaselines
from triform.evaluation.metrics import Metrics
from triform.nn.loss import IGNORE_INDEX, cross_entropy
from triform.progress import track_progress
from triform.tasks.device_data import DeviceDataset
from triform.text import SpecialTokens, Tokenizer, load_tokenizer

SUMS_PER_SYNC = 256  # batches of an evaluation that are added up together
MAX_EVAL_LOGITS = 1 << 26  # logits of an evaluation that exist at once: 256 MB in float32


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tensors of one step, and how much is in it; what was gathered on a device leaves the counts to its plan."""

    n_predictions: int = 0  # predictions
    n_tokens: int = 0  # real ones
    n_positions: int = 0  # with the padding: what is computed

    def to(self, device: torch.device) -> Self:
        tensors: dict[str, Any] = {
            tensor_field.name: value.to(device, non_blocking=True)
            for tensor_field in fields(self)
            if isinstance(value := getattr(self, tensor_field.name), Tensor)
        }
        return replace(self, **tensors)


class Dataset(Protocol):
    """Encoded examples that can be drawn in any order."""

    def __len__(self) -> int: ...

    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        """An endless order of batches for training."""

    def batch(self, indices: Indices) -> Batch:
        """These examples as tensors."""

    def batches(self) -> Iterator[Batch]:
        """Everything once, for evaluation."""

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceDataset | None:
        """The examples on a device, to be gathered there; None where they are too many for it."""


class BucketedDataset(ABC):
    """Examples of unequal length, batched with their like. Abstract: knows `lengths`, asks for `batch`."""

    EVAL_TOKENS = 8_192  # a batch of evaluation; nothing depends on it but speed
    lengths: Indices
    max_len: int
    versions = 1  # of every example, one after another; see `ways`

    def __len__(self) -> int:
        return len(self.lengths) // self.versions

    @abstractmethod
    def batch(self, indices: Indices) -> Any:
        """These examples as tensors."""

    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        return BucketSampler(
            self.lengths,
            batch_size=train.batch_size,
            batch_tokens=train.batch_tokens,
            seed=seed,
            n_versions=self.versions,
            max_length=self.max_len,
        )

    def batches(self) -> Iterator[Any]:
        batches = batch_by_length(self.lengths, batch_tokens=self.EVAL_TOKENS)
        return map(self.batch, track_progress(batches, "validating", len(batches)))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model made of a text: a label with all probabilities, a continuation or a translation."""

    input: str
    output: str
    probabilities: dict[str, float] | None = None
    cut: bool = False  # whether the input was longer than what the model reads
    notes: tuple[str, ...] = ()  # sentences about this input, for example that no word of it is known


@dataclass(frozen=True, kw_only=True)
class ExplanationInput:
    """One text as the model reads it: what the model is called with, and how to name what it attends to."""

    inputs: tuple[Tensor, ...]
    pieces: dict[str, tuple[list[str], list[str]]]  # of a stack of attention: its queries and its keys
    prediction: Prediction
    notes: tuple[str, ...] = ()


class Task(ABC):
    """Abstract: `classify`, `generate` and `translate` are the final ones."""

    name: ClassVar[TaskName]
    unit: ClassVar[str]  # what its data is counted in
    metric: ClassVar[str]  # the score by which the best weights are kept
    higher_is_better: ClassVar[bool]
    lower_loss_is_progress: ClassVar[bool] = False  # for early stopping; what is kept is chosen by the metric
    model: nn.Module
    sizes: DataSizes
    tokenizer: Tokenizer  # translate has two instead, and says which is whose

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def config(self) -> Config:
        """The settings of this task. They never change: `with_config` returns another task."""
        return self._config

    def with_config(self, config: Config) -> Self:
        """Return this task with other settings, sharing its model and tokenizers.

        Training settings can only be completed once the data has been read, for example the number of steps.
        """
        task = copy(self)
        task._config = config
        return task

    @classmethod
    def prepare(cls, config: Config, folder: Path, *, resume: bool = False) -> PreparedTask:
        """Read the data, train tokenizers (or take the folder's), settle open settings, build the model.

        Everything random from here on, initial weights and dropout, follows from the seed.
        """
        torch.manual_seed(config.seed)
        prepared = cls._prepare(config, folder, resume=resume)
        resolved = prepared.task.config
        notes = resolved.model.window_notices(resolved.data.max_len)
        leaks = prepared.task.find_leaks(folder) if prepared.valid is not None else []
        return replace(prepared, notices=(*prepared.notices, *leaks, *notes))

    @classmethod
    @abstractmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> PreparedTask: ...

    @classmethod
    @abstractmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """The task of a run folder, its model still without the trained weights."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load` needs beside the config."""

    def tokenizer_for(self, module_name: str) -> Tokenizer:
        """The vocabulary that a part of the model reads, named as in `model.named_modules()`."""
        return self.tokenizer

    @abstractmethod
    def load_dataset(self, name: str, notices: list[str], lines: Container[int] | None = None) -> Dataset:
        """A file (or `source,target`) as data to evaluate on; what was cut or skipped is said in `notices`.

        With `lines`, only what begins on one of them.
        """

    @abstractmethod
    def load_validation_dataset(self, notices: list[str], folder: Path | None = None) -> Dataset | None:
        """The data that judges during training: the validation file, or what was held out of the training file."""

    @abstractmethod
    def iter_examples(self, name: str = "") -> Iterator[Any]:
        """The examples of a file, or those that judge during training, as they were read: texts, not tokens."""

    @abstractmethod
    def fit_baselines(self) -> FittedBaselines:
        """What is reached without a Transformer, fitted on the data that the model was trained on."""

    @abstractmethod
    def find_leaks(self, folder: Path) -> list[str]:
        """A notice where the data that judges was there to learn from."""

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The loss summed over the batch's predictions."""

    @torch.inference_mode()
    def evaluate(self, data: Any, *, quick: bool = False, decode: DecodeConfig | None = None) -> Metrics:
        """Return the metrics on `data`, leaving the model in evaluation mode.

        Args:
            data: What `read` or `held_out` returned.
            quick: Use less of the data, as validation during training does.
            decode: How to decode, for metrics that need it; None: as the run's settings say.
        """
        self.model.eval()
        sums = (self.metric_sums(batch.to(self.device)) for batch in self.evaluation_batches(data, quick=quick))
        return self.compute_metrics(add_metric_sums(sums).tolist(), data, quick=quick, decode=decode)

    def evaluation_batches(self, data: Any, *, quick: bool) -> Iterator[Any]:
        """The batches that an evaluation goes through."""
        batches: Iterator[Any] = data.batches()
        return batches

    @abstractmethod
    def metric_sums(self, batch: Any) -> Tensor:
        """What a batch adds to the scores: counts and sums, left on the device."""

    @abstractmethod
    def compute_metrics(
        self, sums: list[float], data: Any, *, quick: bool, decode: DecodeConfig | None = None
    ) -> Metrics:
        """The scores that tallies, added up, come to."""

    @abstractmethod
    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        """Return one prediction for each text.

        Several threads may call this at once: a call changes nothing that another one reads.

        Args:
            texts: The inputs.
            decode: How to decode, for tasks that write text; None: as the run's settings say.
            seed: The seed for sampling; None: the run's.
        """

    @abstractmethod
    def build_explanation_input(self, text: str, target: str = "", max_new_tokens: int = 0) -> ExplanationInput:
        """A text made ready to be looked at, with a target, or with what the model itself writes."""

    @abstractmethod
    def sample_predictions(self, data: Any) -> list[dict[str, str]]:
        """A few inputs with outputs (and what was expected), for the report."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def is_better(self, metrics: Metrics, best: Metrics | None) -> bool:
        """Whether scores beat the best ones by the task's metric; at a tie the lower loss wins."""
        if best is None:
            return True
        sign = 1 if self.higher_is_better else -1
        return (sign * metrics[self.metric], -metrics["loss"]) > (sign * best[self.metric], -best["loss"])


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """Everything a trainer needs: the task with settled settings, its data, and what the user should know."""

    task: Task
    train: Dataset
    valid: Dataset | None
    notices: tuple[str, ...]

    def with_config(self, config: Config, notices: Iterable[str] = ()) -> PreparedTask:
        """Return the same data and model with other settings, and with more notices for the user."""
        return replace(self, task=self.task.with_config(config), notices=(*self.notices, *notices))


def truncate_with_notes(
    tokens: list[int], max_len: int, subject: str, special: SpecialTokens | None = None, *, keep_last: bool = False
) -> tuple[list[int], list[str]]:
    """The part of a text that a model reads, in its frame, and a note where that is not all of it."""
    kept_tokens = special.wrap(tokens) if special else tokens
    if len(kept_tokens) > max_len:
        kept_tokens = (
            tokens[-max_len:] if keep_last else special.wrap(tokens, max_len) if special else tokens[:max_len]
        )
    frame_len = len(special.before) + len(special.after) if special else 0
    return kept_tokens, truncation_notes(len(tokens), max_len - frame_len, subject, keep_last=keep_last)


def truncation_notes(n_tokens: int, max_read: int, subject: str = "text", *, keep_last: bool = False) -> list[str]:
    """A note for a text that has more tokens than the model reads."""
    end = "last" if keep_last else "first"
    message = f"only the {end} {max(0, max_read)} of {n_tokens} tokens of the {subject} were read"
    return [message] if n_tokens > max_read else []


def empty_text_notes(text: str, tokens: Sequence[int] | NDArray[Any], tokenizer: Tokenizer) -> list[str]:
    """A note for a text that tells the model nothing; `tokens` are the text's own, without any frame."""
    if not text.strip():
        return ["the text is empty"]
    has_known_token = any(token != tokenizer.unk for token in tokens)
    return [] if has_known_token else ["no word of the text is known to the model"]


def unknown_word_notes(text: str, tokenizer: Tokenizer) -> list[str]:
    """A note for a text with words that the vocabulary lacks."""
    words = tokenizer.find_unknown(text)
    if not words or tokenizer.unk is None:
        return []
    return [f"not in the vocabulary, so read as {tokenizer.vocabulary[tokenizer.unk]}: {format_word_list(words)}"]


def format_word_list(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")


def validate_not_empty(text: str) -> None:
    if not text.strip():
        raise DataError("the text is empty: there is nothing to look at")


def token_metric_sums(hidden_states: Tensor, head: nn.Module, targets: Tensor, vocab_size: int) -> Tensor:
    """The loss, the hits and the number of predictions: (B, T, D), (B, T) -> (3).

    The logits of a large vocabulary are computed some rows at a time: all of them would take gigabytes, and one
    operation would take so long that Ctrl-C has to wait for it.
    """
    chunk_rows = max(1, MAX_EVAL_LOGITS // vocab_size)
    chunked = (tensor.split(chunk_rows) for tensor in (hidden_states.flatten(0, -2), targets.flatten()))  # type: ignore[no-untyped-call]
    return torch.stack(
        [
            _token_metric_sums(head(state_chunk), target_chunk)
            for state_chunk, target_chunk in zip(*chunked, strict=True)
        ]
    ).sum(dim=0)


def _token_metric_sums(logits: Tensor, targets: Tensor) -> Tensor:  # (N, V), (N) -> (3)
    loss = cross_entropy(logits, targets, 0.0)
    flags = (logits.argmax(-1) == targets, targets != IGNORE_INDEX)
    return torch.stack([loss, *(flag.sum(dtype=loss.dtype) for flag in flags)])


def add_metric_sums(sums: Iterable[Tensor]) -> Tensor:
    """Added up in float64, many at a time: in between nothing waits for the device.

    Not all at once, for a tally of a thousand labels is a table of a million.
    """
    chunk_sums = (torch.stack(chunk).cpu().double().sum(dim=0) for chunk in iter_chunks(sums, SUMS_PER_SYNC))
    return reduce(torch.add, chunk_sums)


def load_saved_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder / "tokenizer.json")


Item = TypeVar("Item")


def iter_chunks(
    items: Iterable[Item], size: int = 2048, *, count_characters: Callable[[Item], int] = lambda item: 0
) -> Iterator[list[Item]]:
    """Lists of up to `size` items, or fewer once they hold a million characters: a stream, many at a time."""
    chunk: list[Item] = []
    n_characters = 0
    for item in items:
        chunk.append(item)
        n_characters += count_characters(item)
        if len(chunk) == size or n_characters >= 1 << 20:
            yield chunk
            chunk, n_characters = [], 0
    if chunk:
        yield chunk


def validation_mask(fraction: float) -> Iterator[bool]:
    """For each row in turn, whether it is kept for validation: some at random of every few rows.

    So even a short file gives its share. The draw has a fixed seed, so that runs with different seeds are
    judged on the same rows.
    """
    if not fraction:
        yield from repeat(False)
    rng = np.random.default_rng(20_240_101)
    n_picks = 1 if fraction <= 0.25 else 4
    block_size = round(n_picks / fraction)
    while True:
        picked = set(rng.permutation(block_size)[:n_picks].tolist())
        yield from (index in picked for index in range(block_size))
