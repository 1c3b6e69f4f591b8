"""A model on trial: made-up rows of unequal length, and the ways in which each form can be asked about them.

Everything runs in float64 and without dropout, so that a difference is a mistake and not rounding.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import Config, ModelConfig, Sizes
from triform.decode.carried import AnyForm, decoder_form, seq2seq_form, stepper_of
from triform.decode.forms import Tokens
from triform.decode.stepper import Rereading, Steps
from triform.models.host_memory import require_memory
from triform.models.kinds import AnyClassifier, AnyDecoder, AnySeq2Seq, make_classifier, make_decoder, make_seq2seq
from triform.nn.pieces import SHORTEST
from triform.nn.rows import Keep, pack, pad

Rows = list[list[int]]
FIRST_TOKEN = 4  # those before it are special
USUAL, LONGEST = 48, 1024  # tokens of the first row


class Reading(NamedTuple):
    """A text, its states as a function of it (T tokens -> (T, D)), and whether it may be read ahead."""

    row: list[int]
    states: Callable[[list[int]], Tensor]
    ahead: bool
    vocab_size: int


class Trial(ABC):
    """Abstract: a form says how it is called, and what it answers for each row."""

    def __init__(self, config: Config, sizes: Sizes, model: nn.Module) -> None:
        self.config, self.sizes = config, sizes
        self.model = copy.deepcopy(model).cpu().double().eval()
        # where there are windows, so long that kernels really cut them into pieces
        windowed = 6 * max(config.model.windows) + 3 * SHORTEST if max(config.model.windows) > 0 else 0
        length = max(2, min(sizes.max_len, max(USUAL, min(LONGEST, windowed))))
        numbers = torch.Generator().manual_seed(0)
        lengths = (length, max(1, length // 2), max(1, length // 3))
        self.rows = [self._draw(numbers, n, self.vocabulary) for n in lengths]
        self.sources = [self._draw(numbers, n, sizes.vocab_size) for n in (max(1, length // 2), length, 2)]
        self.to_learn = _without_repetition(numbers, lengths, self.vocabulary)

    @staticmethod
    def _draw(numbers: torch.Generator, length: int, vocab_size: int) -> list[int]:
        first = min(FIRST_TOKEN, vocab_size - 1)
        return torch.randint(first, vocab_size, (length,), generator=numbers).tolist()

    @property
    def vocabulary(self) -> int:
        """How many tokens the rows are drawn from."""
        return self.sizes.target_vocab_size or self.sizes.vocab_size

    @abstractmethod
    def answers(self, rows: Rows, sources: Rows, *, packed: bool = False, fill: int = 0) -> list[Tensor]:
        """What the model says of each row, its padding (made of `fill`) left out."""

    @abstractmethod
    def readings(self) -> list[Reading]:
        """Every text that is read, and what the model makes of each of its tokens."""

    def _written(self, row: list[int]) -> Tensor:
        return self.answers([row, *self.rows[1:]], self.sources)[0]

    @abstractmethod
    def loss(self, model: nn.Module) -> Tensor:
        """The mean loss on the made-up rows, to be learned by heart."""

    def stepper(self, *, cached: bool, among: slice = slice(None)) -> Steps | None:
        """Some of the rows as prompts to go on from, where the form writes."""
        return None


def lay(rows: Rows, *, packed: bool = False, fill: int = 0) -> tuple[Tensor, Keep]:
    return pack(rows) if packed else pad(rows, fill=fill)


def _apart(x: Tensor, rows: Rows, *, packed: bool) -> list[Tensor]:
    """The answers of each row's own tokens."""
    if packed:
        return list(torch.split(x[0], [len(row) for row in rows]))
    return [x[place, : len(row)] for place, row in enumerate(rows)]


class ClassifierTrial(Trial):
    model: AnyClassifier

    def answers(self, rows: Rows, sources: Rows, *, packed: bool = False, fill: int = 0) -> list[Tensor]:
        return list(self.model(*lay(rows, packed=packed, fill=fill)))

    def readings(self) -> list[Reading]:
        """The encoder's states: the answer is a mean over all tokens, which hides who read whom."""
        ahead = self.config.model.reach != "causal"
        return [Reading(self.rows[0], partial(_encoded, self.model.encoder), ahead, self.vocabulary)]

    def loss(self, model: nn.Module) -> Tensor:
        tokens, keep = lay(self.rows)
        labels = torch.arange(len(self.rows)) % self.sizes.n_labels
        return F.cross_entropy(model(tokens, keep), labels)


class DecoderTrial(Trial):
    model: AnyDecoder

    def answers(self, rows: Rows, sources: Rows, *, packed: bool = False, fill: int = 0) -> list[Tensor]:
        tokens, keep = lay(rows, packed=packed, fill=fill)
        return _apart(self.model(tokens, keep), rows, packed=packed)

    def readings(self) -> list[Reading]:
        return [Reading(self.rows[0], self._written, False, self.vocabulary)]

    def loss(self, model: nn.Module) -> Tensor:
        tokens, keep = lay(self.to_learn)
        return F.cross_entropy(model(tokens, keep).flatten(0, 1), _successors(self.to_learn))

    def stepper(self, *, cached: bool, among: slice = slice(None)) -> Steps:
        prompts = [row[: max(1, len(row) // 2)] for row in self.rows[among]]
        return _steps(decoder_form(self.model, self.sizes.max_len), prompts, cached=cached)


class Seq2SeqTrial(Trial):
    model: AnySeq2Seq

    def answers(self, rows: Rows, sources: Rows, *, packed: bool = False, fill: int = 0) -> list[Tensor]:
        source, keep = lay(sources, packed=packed, fill=min(fill, self.sizes.vocab_size - 1))
        target, target_keep = lay(rows, packed=packed, fill=fill)
        return _apart(self.model(source, target, keep, target_keep), rows, packed=packed)

    def readings(self) -> list[Reading]:
        ahead = self.config.model.reach != "causal"
        source = max(self.sources, key=len)
        return [
            Reading(self.rows[0], self._written, False, self.vocabulary),
            Reading(source, partial(_encoded, self.model.encoder), ahead, self.sizes.vocab_size),
        ]

    def loss(self, model: nn.Module) -> Tensor:
        source, keep = lay(self.sources)
        target, _ = lay(self.to_learn)
        return F.cross_entropy(model(source, target, keep).flatten(0, 1), _successors(self.to_learn))

    def stepper(self, *, cached: bool, among: slice = slice(None)) -> Steps:
        return _steps(seq2seq_form(self.model, self.sizes.max_len, 2), self.sources[among], cached=cached)


def _steps(form: AnyForm, rows: Sequence[Tokens], *, cached: bool) -> Steps:
    return stepper_of(form, rows) if cached else Rereading(form, rows)


def _encoded(encoder: nn.Module, row: list[int]) -> Tensor:  # -> (T, D)
    """States of a row that lies beside a shorter one."""
    return encoder(*lay([row, row[:1]]))[0]


def _without_repetition(numbers: torch.Generator, lengths: Sequence[int], vocab_size: int) -> Rows:
    """Rows in which no token comes twice: what follows it is certain, however little a model may read."""
    first = min(FIRST_TOKEN, vocab_size - 1)
    order = (torch.randperm(vocab_size - first, generator=numbers) + first).tolist()
    share = max(1, len(order) // len(lengths))
    rows = [order[share * n : share * (n + 1)][:length] for n, length in enumerate(lengths)]
    return [row for row in rows if row]


def _successors(rows: Rows) -> Tensor:
    """What follows each token; after the last comes the first."""
    return pad([row[1:] + row[:1] for row in rows], fill=-100)[0].flatten()


TRIALS: dict[str, type[Trial]] = {
    "classify": ClassifierTrial,
    "generate": DecoderTrial,
    "translate": Seq2SeqTrial,
}
MODELS: dict[str, Callable[[ModelConfig, Sizes], nn.Module]] = {
    "classify": make_classifier,
    "generate": make_decoder,
    "translate": make_seq2seq,
}


def fresh_model(config: Config, sizes: Sizes, seed: int = 0) -> nn.Module:
    """An untrained model of these settings; the caller's random numbers are left alone."""
    require_memory(config, sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[config.task](config.model, sizes)
