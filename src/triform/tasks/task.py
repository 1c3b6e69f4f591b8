"""What a task is: a model with its text handling, its loss and its scores.

The trainer knows when things happen; a task knows what they are. Losses are sums over predictions: the one
division, by the number of predictions of the whole step, is the trainer's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from triform.baselines import Fitted
from triform.config import Config, DecodeConfig, Sizes, TaskName, TrainConfig
from triform.data.loader import Bucketed, Indices, Sampler, in_order_of_length
from triform.errors import DataError
from triform.metrics import Scores
from triform.nn.vocabulary import IGNORE, cross_entropy
from triform.progress import tracked
from triform.tasks.resident import Resident
from triform.text import Special, Tokenizer, load_tokenizer

TALLIES = 256  # batches of an evaluation that are added up together
MAX_EVAL_LOGITS = 1 << 26  # logits of an evaluation that exist at once: 256 MB in float32


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tensors of one step, and how much is in it; what was gathered on a device leaves the counts to its plan."""

    weight: int = 0  # predictions
    n_tokens: int = 0  # real ones
    n_places: int = 0  # with the padding: what is computed

    def to(self, device: torch.device) -> Self:
        moved: dict[str, Any] = {
            item.name: value.to(device, non_blocking=True)
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        return replace(self, **moved)


class Dataset(Protocol):
    """Encoded examples that can be drawn in any order."""

    def __len__(self) -> int: ...

    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        """An endless order of batches for training."""

    def batch(self, indices: Indices) -> Batch:
        """These examples as tensors."""

    def batches(self) -> Iterator[Batch]:
        """Everything once, for evaluation."""

    def on(self, device: torch.device, train: TrainConfig) -> Resident | None:
        """The examples on a device, to be gathered there; None where they are too many for it."""


class ByLength(ABC):
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
        return Bucketed(
            self.lengths,
            batch_size=train.batch_size,
            batch_tokens=train.batch_tokens,
            seed=seed,
            versions=self.versions,
            longest=self.max_len,
        )

    def batches(self) -> Iterator[Any]:
        batches = in_order_of_length(self.lengths, batch_tokens=self.EVAL_TOKENS)
        return map(self.batch, tracked(batches, "validating", len(batches)))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model made of a text: a label with all probabilities, a continuation or a translation."""

    input: str
    output: str
    probabilities: dict[str, float] | None = None
    cut: bool = False  # whether the input was longer than what the model reads
    notes: tuple[str, ...] = ()  # sentences about this input, for example that no word of it is known


@dataclass(frozen=True, kw_only=True)
class Look:
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
    sizes: Sizes
    tokenizer: Tokenizer  # translate has two instead, and says which is whose

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def prepare(cls, config: Config, folder: Path, *, resume: bool = False) -> Prepared:
        """Read the data, train tokenizers (or take the folder's), settle open settings, build the model.

        Everything random from here on, initial weights and dropout, follows from the seed.
        """
        torch.manual_seed(config.seed)
        prepared = cls._prepare(config, folder, resume=resume)
        settled = prepared.task.config
        notes = settled.model.notes(settled.data.max_len)
        shared = prepared.task.shared_texts(folder) if prepared.valid is not None else []
        return replace(prepared, notices=(*prepared.notices, *shared, *notes))

    @classmethod
    @abstractmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> Prepared: ...

    @classmethod
    @abstractmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """The task of a run folder, its model still without the trained weights."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load` needs beside the config."""

    def tokenizer_of(self, part: str) -> Tokenizer:
        """The vocabulary that a part of the model reads, named as in `model.named_modules()`."""
        return self.tokenizer

    @abstractmethod
    def read(self, name: str, notices: list[str], lines: Container[int] | None = None) -> Dataset:
        """A file (or `source,target`) as data to evaluate on; what was cut or skipped is said in `notices`.

        With `lines`, only what begins on one of them.
        """

    @abstractmethod
    def held_out(self, notices: list[str], folder: Path | None = None) -> Dataset | None:
        """The data that judges during training: the validation file, or what was held out of the training file."""

    @abstractmethod
    def rows(self, name: str = "") -> Iterator[Any]:
        """The examples of a file, or those that judge during training, as they were read: texts, not tokens."""

    @abstractmethod
    def baselines(self) -> Fitted:
        """What is reached without a Transformer, fitted on the data that the model was trained on."""

    @abstractmethod
    def shared_texts(self, folder: Path) -> list[str]:
        """A notice where the data that judges was there to learn from."""

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The loss summed over the batch's predictions."""

    @torch.inference_mode()
    def evaluate(self, data: Any, *, quick: bool = False, decode: DecodeConfig | None = None) -> Scores:
        """Return the metrics on `data`, leaving the model in evaluation mode.

        Args:
            data: What `read` or `held_out` returned.
            quick: Use less of the data, as validation during training does.
            decode: How to decode, for metrics that need it; None: as the run's settings say.
        """
        self.model.eval()
        tallies = (self.tally(batch.to(self.device)) for batch in self.judged_by(data, quick=quick))
        return self.scores(summed(tallies).tolist(), data, quick=quick, decode=decode)

    def judged_by(self, data: Any, *, quick: bool) -> Iterator[Any]:
        """The batches that an evaluation goes through."""
        batches: Iterator[Any] = data.batches()
        return batches

    @abstractmethod
    def tally(self, batch: Any) -> Tensor:
        """What a batch adds to the scores: counts and sums, left on the device."""

    @abstractmethod
    def scores(self, sums: list[float], data: Any, *, quick: bool, decode: DecodeConfig | None = None) -> Scores:
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
    def look(self, text: str, target: str = "", n_new: int = 0) -> Look:
        """A text made ready to be looked at, with a target, or with what the model itself writes."""

    @abstractmethod
    def samples(self, data: Any) -> list[dict[str, str]]:
        """A few inputs with outputs (and what was expected), for the report."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def better(self, scores: Scores, best: Scores | None) -> bool:
        """Whether scores beat the best ones by the task's metric; at a tie the lower loss wins."""
        if best is None:
            return True
        sign = 1 if self.higher_is_better else -1
        return (sign * scores[self.metric], -scores["loss"]) > (sign * best[self.metric], -best["loss"])


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything a trainer needs: the task with settled settings, its data, and what the user should know."""

    task: Task
    train: Dataset
    valid: Dataset | None
    notices: tuple[str, ...]


def seen_part(
    tokens: list[int], max_len: int, what: str, special: Special | None = None, *, newest: bool = False
) -> tuple[list[int], list[str]]:
    """The part of a text that a model reads, in its frame, and a note where that is not all of it."""
    part = special.whole(tokens) if special else tokens
    if len(part) > max_len:
        part = tokens[-max_len:] if newest else special.whole(tokens, max_len) if special else tokens[:max_len]
    frame = len(special.before) + len(special.after) if special else 0
    return part, cut_note(len(tokens), max_len - frame, what, newest=newest)


def cut_note(n_tokens: int, n_read: int, what: str = "text", *, newest: bool = False) -> list[str]:
    """A note for a text that has more tokens than the model reads."""
    which = "last" if newest else "first"
    note = f"only the {which} {max(0, n_read)} of {n_tokens} tokens of the {what} were read"
    return [note] if n_tokens > n_read else []


def empty_note(text: str, tokens: Sequence[int] | NDArray[Any], tokenizer: Tokenizer) -> list[str]:
    """A note for a text that tells the model nothing; `tokens` are the text's own, without any frame."""
    if not text.strip():
        return ["the text is empty"]
    known = any(token != tokenizer.unk for token in tokens)
    return [] if known else ["no word of the text is known to the model"]


def unknown_note(text: str, tokenizer: Tokenizer) -> list[str]:
    """A note for a text with words that the vocabulary lacks."""
    words = tokenizer.unknown(text)
    if not words or tokenizer.unk is None:
        return []
    return [f"not in the vocabulary, so read as {tokenizer.vocabulary[tokenizer.unk]}: {listed(words)}"]


def listed(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")


def check_not_empty(text: str) -> None:
    if not text.strip():
        raise DataError("the text is empty: there is nothing to look at")


def token_tally(states: Tensor, head: nn.Module, targets: Tensor, vocab_size: int) -> Tensor:
    """The loss, the hits and the number of predictions: (B, T, D), (B, T) -> (3).

    The logits of a large vocabulary are computed some rows at a time: all of them would take gigabytes, and one
    operation would take so long that Ctrl-C has to wait for it.
    """
    rows = max(1, MAX_EVAL_LOGITS // vocab_size)
    parts = (each.split(rows) for each in (states.flatten(0, -2), targets.flatten()))  # type: ignore[no-untyped-call]
    return torch.stack([_tally(head(part), expected) for part, expected in zip(*parts, strict=True)]).sum(dim=0)


def _tally(logits: Tensor, targets: Tensor) -> Tensor:  # (N, V), (N) -> (3)
    loss = cross_entropy(logits, targets, 0.0)
    counted = (logits.argmax(-1) == targets, targets != IGNORE)
    return torch.stack([loss, *(each.sum(dtype=loss.dtype) for each in counted)])


def summed(tallies: Iterable[Tensor]) -> Tensor:
    """Added up in float64, many at a time: in between nothing waits for the device.

    Not all at once, for a tally of a thousand labels is a table of a million.
    """
    parts = (torch.stack(some).cpu().double().sum(dim=0) for some in chunks(tallies, TALLIES))
    return reduce(torch.add, parts)


def saved_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder / "tokenizer.json")


Item = TypeVar("Item")


def chunks(
    items: Iterable[Item], size: int = 2048, *, characters: Callable[[Item], int] = lambda item: 0
) -> Iterator[list[Item]]:
    """Lists of up to `size` items, or fewer once they hold a million characters: a stream, many at a time."""
    chunk: list[Item] = []
    held = 0
    for item in items:
        chunk.append(item)
        held += characters(item)
        if len(chunk) == size or held >= 1 << 20:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def held_out(fraction: float) -> Iterator[bool]:
    """For each row in turn, whether it is kept for validation: some at random of every few rows.

    So even a short file gives its share. The draw has a fixed seed, so that runs with different seeds are
    judged on the same rows.
    """
    if not fraction:
        yield from repeat(False)
    rng = np.random.default_rng(20_240_101)
    picks = 1 if fraction <= 0.25 else 4
    block = round(picks / fraction)
    while True:
        chosen = set(rng.permutation(block)[:picks].tolist())
        yield from (place in chosen for place in range(block))
