"""Probes run a model on generated rows of different lengths, for the sanity checks.

Models run in float64 and without dropout, so that a difference is an error and not rounding.
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
FIRST_REGULAR_TOKEN = 4  # lower ids are special tokens
DEFAULT_ROW_LEN, MAX_ROW_LEN = 48, 1024  # number of tokens in the first row


class ProbeInput(NamedTuple):
    """Token ids, a function that computes their states (T tokens -> (T, D)), and whether attention reads ahead."""

    row: list[int]
    compute_states: Callable[[list[int]], Tensor]
    reads_ahead: bool
    vocab_size: int


class ModelProbe(ABC):
    """Base class: how a model is called on rows of token ids. There is one subclass for each task."""

    def __init__(self, config: Config, sizes: DataSizes, model: nn.Module) -> None:
        self.config, self.sizes = config, sizes
        self.model = copy.deepcopy(model).cpu().double().eval()
        # long enough that windowed attention is tiled
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
        """The number of tokens that rows are drawn from."""
        return self.sizes.target_vocab_size or self.sizes.vocab_size

    @abstractmethod
    def compute_logits(
        self, rows: ProbeRows, sources: ProbeRows, *, packed: bool = False, pad_token: int = 0
    ) -> list[Tensor]:
        """Return the logits of each row without its padding, which consists of `pad_token`."""

    @abstractmethod
    def probe_inputs(self) -> list[ProbeInput]:
        """Return the inputs of the model, each with the function that computes its states."""

    def _first_row_logits(self, row: list[int]) -> Tensor:
        return self.compute_logits([row, *self.rows[1:]], self.sources)[0]

    @abstractmethod
    def loss(self, model: nn.Module) -> Tensor:
        """Return the mean loss of a model on the generated rows."""


def collate_rows(rows: ProbeRows, *, packed: bool = False, pad_token: int = 0) -> tuple[Tensor, LayoutLike]:
    """Return the rows as one padded or packed batch, and its layout."""
    return pack(rows) if packed else pad(rows, fill=pad_token)


def _split_rows(x: Tensor, rows: ProbeRows, *, packed: bool) -> list[Tensor]:
    """Return the values of each row without padding."""
    if packed:
        return list(torch.split(x[0], [len(row) for row in rows]))
    return [x[index, : len(row)] for index, row in enumerate(rows)]


class ClassifierProbe(ModelProbe):
    """Probe of a classifier."""

    model: AnyClassifier

    def compute_logits(
        self, rows: ProbeRows, sources: ProbeRows, *, packed: bool = False, pad_token: int = 0
    ) -> list[Tensor]:
        return list(self.model(*collate_rows(rows, packed=packed, pad_token=pad_token)))

    def probe_inputs(self) -> list[ProbeInput]:
        """Return the encoder's states, because the logits are pooled over all tokens."""
        reads_ahead = self.config.model.attention_direction != "causal"
        return [ProbeInput(self.rows[0], partial(_encode_row, self.model.encoder), reads_ahead, self.vocab_size)]

    def loss(self, model: nn.Module) -> Tensor:
        tokens, layout = collate_rows(self.rows)
        labels = torch.arange(len(self.rows)) % self.sizes.n_labels
        return F.cross_entropy(model(tokens, layout), labels)


class GenerationProbe(ModelProbe):
    """Base class for models that generate text: adds what is needed to compare decode steps with full passes."""

    @abstractmethod
    def build_adapter(self) -> GenerationAdapter:
        """Return the adapter that generation uses for this model."""

    @abstractmethod
    def prompts(self) -> ProbeRows:
        """Return the rows that decoding starts with."""

    @abstractmethod
    def next_token_logits(self, text: list[int], prompt: list[int]) -> Tensor:
        """Return the logits (V) after a text in one full pass, without a cache and without other rows."""


class DecoderProbe(GenerationProbe):
    """Probe of a language model."""

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
    """Probe of a translation model."""

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
    """Return the states of a row that is batched with a shorter one."""
    return encoder(*collate_rows([row, row[:1]]))[0]


def _draw_rows_without_repeats(generator: torch.Generator, lengths: Sequence[int], vocab_size: int) -> ProbeRows:
    """Return rows without repeated tokens, so that a model can learn the next token even from one token."""
    first_token = min(FIRST_REGULAR_TOKEN, vocab_size - 1)
    shuffled_tokens = (torch.randperm(vocab_size - first_token, generator=generator) + first_token).tolist()
    row_capacity = max(1, len(shuffled_tokens) // len(lengths))
    rows = [
        shuffled_tokens[row_capacity * index : row_capacity * (index + 1)][:length]
        for index, length in enumerate(lengths)
    ]
    return [row for row in rows if row]


def _next_tokens(rows: ProbeRows) -> Tensor:
    """Return the token after each token. The first token of a row follows the last."""
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
    """Return an untrained model with these settings and fast kernels. The caller's random state does not change."""
    require_memory(config, sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return use_fast_kernels(MODEL_BUILDERS[config.task](config.model, sizes))
