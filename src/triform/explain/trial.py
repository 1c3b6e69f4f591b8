"""A model on trial: made-up rows of unequal length, and the ways in which each form can be asked about them.

Everything runs in float64 and without dropout, so that a difference is a mistake and not rounding.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import Config, Sizes
from triform.decode.stepper import DecoderStepper, Seq2SeqStepper, Stepper
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.rows import Keep, pack, pad

Rows = list[list[int]]
FIRST_TOKEN = 4  # those before it are special
USUAL, LONGEST = 48, 1024  # tokens of the first row


class Trial(ABC):
    """Abstract: a form says how it is called, and what it answers for each row."""

    def __init__(self, config: Config, sizes: Sizes, model: nn.Module) -> None:
        self.config, self.sizes = config, sizes
        self.model = copy.deepcopy(model).cpu().double().eval()
        # where there are windows, so long that they are really cut
        length = max(2, min(sizes.max_len, max(USUAL, min(LONGEST, 4 * max(config.model.windows)))))
        numbers = torch.Generator().manual_seed(0)
        lengths = (length, max(1, length // 2), max(1, length // 3))
        self.rows = [self._draw(numbers, n, self.vocabulary) for n in lengths]
        self.sources = [self._draw(numbers, n, sizes.vocab_size) for n in (max(1, length // 2), length, 2)]

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

    def states(self, rows: Rows) -> Tensor:  # -> (T, D or V)
        """What the model makes of each token of the first row."""
        return self.answers(rows, self.sources)[0]

    @abstractmethod
    def loss(self, model: nn.Module) -> Tensor:
        """The mean loss on the made-up rows, to be learned by heart."""

    def stepper(self, *, cached: bool) -> Stepper | None:
        """The rows as prompts to go on from, where the form writes."""
        return None


def lay(rows: Rows, *, packed: bool = False, fill: int = 0) -> tuple[Tensor, Keep]:
    return pack(rows) if packed else pad(rows, fill=fill)


def _apart(x: Tensor, rows: Rows, *, packed: bool) -> list[Tensor]:
    """The answers of each row's own tokens."""
    if packed:
        return list(torch.split(x[0], [len(row) for row in rows]))
    return [x[place, : len(row)] for place, row in enumerate(rows)]


class ClassifierTrial(Trial):
    model: Classifier

    def answers(self, rows: Rows, sources: Rows, *, packed: bool = False, fill: int = 0) -> list[Tensor]:
        return list(self.model(*lay(rows, packed=packed, fill=fill)))

    def states(self, rows: Rows) -> Tensor:
        """The encoder's: the answer is a mean over all tokens, which hides who read whom."""
        return self.model.encoder(*lay(rows))[0, : len(rows[0])]

    def loss(self, model: nn.Module) -> Tensor:
        tokens, keep = lay(self.rows)
        labels = torch.arange(len(self.rows)) % self.sizes.n_labels
        return F.cross_entropy(model(tokens, keep), labels)


class DecoderTrial(Trial):
    model: Decoder

    def answers(self, rows: Rows, sources: Rows, *, packed: bool = False, fill: int = 0) -> list[Tensor]:
        tokens, keep = lay(rows, packed=packed, fill=fill)
        return _apart(self.model(tokens, keep), rows, packed=packed)

    def loss(self, model: nn.Module) -> Tensor:
        tokens, keep = lay(self.rows)
        scores = model(tokens, keep)[:, :-1].flatten(0, 1)
        return F.cross_entropy(scores, _expected([row[1:] for row in self.rows]))

    def stepper(self, *, cached: bool) -> Stepper:
        prompts = [row[: max(1, len(row) // 2)] for row in self.rows]
        return DecoderStepper(self.model, prompts, max_len=self.sizes.max_len, cached=cached)


class Seq2SeqTrial(Trial):
    model: Seq2Seq

    def answers(self, rows: Rows, sources: Rows, *, packed: bool = False, fill: int = 0) -> list[Tensor]:
        source, keep = lay(sources, packed=packed, fill=fill)
        target, target_keep = lay(rows, packed=packed, fill=fill)
        return _apart(self.model(source, target, keep, target_keep), rows, packed=packed)

    def loss(self, model: nn.Module) -> Tensor:
        source, keep = lay(self.sources)
        target, _ = lay(self.rows)
        scores = model(source, target, keep)[:, :-1].flatten(0, 1)
        return F.cross_entropy(scores, _expected([row[1:] for row in self.rows]))

    def stepper(self, *, cached: bool) -> Stepper:
        return Seq2SeqStepper(self.model, self.sources, bos=2, cached=cached)


def _expected(rows: Sequence[Sequence[int]]) -> Tensor:
    return pad(rows, fill=-100)[0].flatten()


TRIALS: dict[str, type[Trial]] = {
    "classify": ClassifierTrial,
    "generate": DecoderTrial,
    "translate": Seq2SeqTrial,
}
MODELS: dict[str, type[Classifier] | type[Decoder] | type[Seq2Seq]] = {
    "classify": Classifier,
    "generate": Decoder,
    "translate": Seq2Seq,
}


def fresh_model(config: Config, sizes: Sizes, seed: int = 0) -> nn.Module:
    """An untrained model of these settings; the caller's random numbers are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[config.task](config.model, sizes)
