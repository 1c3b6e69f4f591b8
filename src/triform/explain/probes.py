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

from triform.analysis.host_memory import require_memory
from triform.config import Config, DataSizes, ModelConfig
from triform.generation.adapters import GenerationAdapter
from triform.generation.scheduler import build_decoder_adapter, build_seq2seq_adapter
from triform.models.factory import (
    AnyClassifier,
    AnyDecoder,
    AnySeq2Seq,
    build_classifier,
    build_decoder,
    build_seq2seq,
)
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.nn.kernels.packing import pack
from triform.nn.kernels.sdpa import MIN_TILE_CPU
from triform.nn.layouts import LayoutLike, pad

ProbeRows = list[list[int]]
FIRST_REGULAR_TOKEN = 4  # those before it are special
DEFAULT_ROW_LEN, MAX_ROW_LEN = 48, 1024  # tokens of the first row


class ProbeInput(NamedTuple):
    """A text, its states as a function of it (T tokens -> (T, D)), and whether it may be read ahead."""

    row: list[int]
    compute_states: Callable[[list[int]], Tensor]
    reads_ahead: bool
    vocab_size: int


class ModelProbe(ABC):
    """Abstract: a form says how it is called, and what it answers for each row."""

    def __init__(self, config: Config, sizes: DataSizes, model: nn.Module) -> None:
        self.config, self.sizes = config, sizes
        self.model = copy.deepcopy(model).cpu().double().eval()
        # where there are windows, so long that kernels really cut them into pieces
        tiled_length = 6 * max(config.model.windows) + 3 * MIN_TILE_CPU if max(config.model.windows) > 0 else 0
        length = max(2, min(sizes.max_len, max(DEFAULT_ROW_LEN, min(MAX_ROW_LEN, tiled_length))))
        generator = torch.Generator().manual_seed(0)
        lengths = (length, max(1, length // 2), max(1, length // 3))
        self.rows = [self._draw_row(generator, row_length, self.vocab_size) for row_length in lengths]
        self.sources = [
            self._draw_row(generator, row_length, sizes.vocab_size)
            for row_length in (max(1, length // 2), length, 2)
        ]
        self.overfit_rows = _draw_rows_without_repeats(generator, lengths, self.vocab_size)

    @staticmethod
    def _draw_row(generator: torch.Generator, length: int, vocab_size: int) -> list[int]:
        first_token = min(FIRST_REGULAR_TOKEN, vocab_size - 1)
        return torch.randint(first_token, vocab_size, (length,), generator=generator).tolist()

    @property
    def vocab_size(self) -> int:
        """How many tokens the rows are drawn from."""
        return self.sizes.target_vocab_size or self.sizes.vocab_size

    @abstractmethod
    def compute_logits(
        self, rows: ProbeRows, sources: ProbeRows, *, packed: bool = False, pad_token: int = 0
    ) -> list[Tensor]:
        """What the model says of each row, its padding (made of `fill`) left out."""

    @abstractmethod
    def probe_inputs(self) -> list[ProbeInput]:
        """Every text that is read, and what the model makes of each of its tokens."""

    def _first_row_logits(self, row: list[int]) -> Tensor:
        return self.compute_logits([row, *self.rows[1:]], self.sources)[0]

    @abstractmethod
    def loss(self, model: nn.Module) -> Tensor:
        """The mean loss on the made-up rows, to be learned by heart."""


def collate_rows(rows: ProbeRows, *, packed: bool = False, pad_token: int = 0) -> tuple[Tensor, LayoutLike]:
    return pack(rows) if packed else pad(rows, fill=pad_token)


def _split_rows(x: Tensor, rows: ProbeRows, *, packed: bool) -> list[Tensor]:
    """The answers of each row's own tokens."""
    if packed:
        return list(torch.split(x[0], [len(row) for row in rows]))
    return [x[index, : len(row)] for index, row in enumerate(rows)]


class ClassifierProbe(ModelProbe):
    model: AnyClassifier

    def compute_logits(
        self, rows: ProbeRows, sources: ProbeRows, *, packed: bool = False, pad_token: int = 0
    ) -> list[Tensor]:
        return list(self.model(*collate_rows(rows, packed=packed, pad_token=pad_token)))

    def probe_inputs(self) -> list[ProbeInput]:
        """The encoder's states: the answer is a mean over all tokens, which hides who read whom."""
        reads_ahead = self.config.model.attention_direction != "causal"
        return [ProbeInput(self.rows[0], partial(_encode_row, self.model.encoder), reads_ahead, self.vocab_size)]

    def loss(self, model: nn.Module) -> Tensor:
        tokens, layout = collate_rows(self.rows)
        labels = torch.arange(len(self.rows)) % self.sizes.n_labels
        return F.cross_entropy(model(tokens, layout), labels)


class GenerationProbe(ModelProbe):
    """Abstract: a model that generates text, and how its decode steps can be compared with full passes."""

    @abstractmethod
    def build_adapter(self) -> GenerationAdapter:
        """Return the model as decoding uses it."""

    @abstractmethod
    def prompts(self) -> ProbeRows:
        """Return the rows that decoding starts with."""

    @abstractmethod
    def next_token_logits(self, text: list[int], prompt: list[int]) -> Tensor:
        """Return the logits (V) after a text that is read as a whole, without a cache and without other rows."""


class DecoderProbe(GenerationProbe):
    model: AnyDecoder

    def compute_logits(
        self, rows: ProbeRows, sources: ProbeRows, *, packed: bool = False, pad_token: int = 0
    ) -> list[Tensor]:
        tokens, layout = collate_rows(rows, packed=packed, pad_token=pad_token)
        return _split_rows(self.model(tokens, layout), rows, packed=packed)

    def probe_inputs(self) -> list[ProbeInput]:
        return [ProbeInput(self.rows[0], self._first_row_logits, False, self.vocab_size)]

    def loss(self, model: nn.Module) -> Tensor:
        tokens, layout = collate_rows(self.overfit_rows)
        return F.cross_entropy(model(tokens, layout).flatten(0, 1), _next_tokens(self.overfit_rows))

    def build_adapter(self) -> GenerationAdapter:
        return build_decoder_adapter(self.model, self.sizes.max_len)

    def prompts(self) -> ProbeRows:
        return [row[: max(1, len(row) // 2)] for row in self.rows]

    def next_token_logits(self, text: list[int], prompt: list[int]) -> Tensor:
        return self.model.lm_head(self.model.hidden_states(torch.tensor([text])))[0, -1]


class Seq2SeqProbe(GenerationProbe):
    model: AnySeq2Seq

    def compute_logits(
        self, rows: ProbeRows, sources: ProbeRows, *, packed: bool = False, pad_token: int = 0
    ) -> list[Tensor]:
        source, source_layout = collate_rows(
            sources, packed=packed, pad_token=min(pad_token, self.sizes.vocab_size - 1)
        )
        target, target_layout = collate_rows(rows, packed=packed, pad_token=pad_token)
        return _split_rows(self.model(source, target, source_layout, target_layout), rows, packed=packed)

    def probe_inputs(self) -> list[ProbeInput]:
        reads_ahead = self.config.model.attention_direction != "causal"
        source = max(self.sources, key=len)
        return [
            ProbeInput(self.rows[0], self._first_row_logits, False, self.vocab_size),
            ProbeInput(source, partial(_encode_row, self.model.encoder), reads_ahead, self.sizes.vocab_size),
        ]

    def loss(self, model: nn.Module) -> Tensor:
        source, source_layout = collate_rows(self.sources)
        target, _ = collate_rows(self.overfit_rows)
        return F.cross_entropy(model(source, target, source_layout).flatten(0, 1), _next_tokens(self.overfit_rows))

    def build_adapter(self) -> GenerationAdapter:
        return build_seq2seq_adapter(self.model, self.sizes.max_len, 2)

    def prompts(self) -> ProbeRows:
        return self.sources

    def next_token_logits(self, text: list[int], prompt: list[int]) -> Tensor:
        encoder_states = self.model.encoder(torch.tensor([prompt]))
        return self.model.lm_head(self.model.decoder_states(torch.tensor([text]), encoder_states))[0, -1]


def _encode_row(encoder: nn.Module, row: list[int]) -> Tensor:  # -> (T, D)
    """States of a row that lies beside a shorter one."""
    return encoder(*collate_rows([row, row[:1]]))[0]


def _draw_rows_without_repeats(generator: torch.Generator, lengths: Sequence[int], vocab_size: int) -> ProbeRows:
    """Rows in which no token comes twice: what follows it is certain, however little a model may read."""
    first_token = min(FIRST_REGULAR_TOKEN, vocab_size - 1)
    shuffled_tokens = (torch.randperm(vocab_size - first_token, generator=generator) + first_token).tolist()
    row_capacity = max(1, len(shuffled_tokens) // len(lengths))
    rows = [
        shuffled_tokens[row_capacity * index : row_capacity * (index + 1)][:length]
        for index, length in enumerate(lengths)
    ]
    return [row for row in rows if row]


def _next_tokens(rows: ProbeRows) -> Tensor:
    """What follows each token; after the last comes the first."""
    return pad([row[1:] + row[:1] for row in rows], fill=-100)[0].flatten()


PROBES: dict[str, type[ModelProbe]] = {
    "classify": ClassifierProbe,
    "generate": DecoderProbe,
    "translate": Seq2SeqProbe,
}
MODEL_BUILDERS: dict[str, Callable[[ModelConfig, DataSizes], nn.Module]] = {
    "classify": build_classifier,
    "generate": build_decoder,
    "translate": build_seq2seq,
}


def build_untrained_model(config: Config, sizes: DataSizes, seed: int = 0) -> nn.Module:
    """Return an untrained model of these settings, with fast kernels; the state of the caller's RNG is kept."""
    require_memory(config, sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return use_fast_kernels(MODEL_BUILDERS[config.task](config.model, sizes))
