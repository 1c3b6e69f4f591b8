"""Text for language models: one long sequence of tokens that is read in windows."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.config import TrainConfig
from triform.config.settings import Settings
from triform.data.encoded_text import encode_chunks, iter_chunks
from triform.data.readers import TextChunk, count_units, filter_lines, is_running_text, read_chunks, read_lines
from triform.data.samplers import Indices, RandomWindowSampler, Sampler
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import ConfigError, DataError
from triform.evaluation.baselines import FittedBaselines, fit_baselines
from triform.evaluation.loss_details import TokenCounts
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.batch import Batch, Dataset
from triform.tasks.data import EncodedExamples, TaskData, TokenizerVersions
from triform.tasks.device_data import BatchPlan, copy_to_device, fits_on_device
from triform.tasks.leaks import same_text_warnings
from triform.tasks.splits import find_split_point
from triform.text import Tokenizer, TokenRows

EVAL_TOKENS = 16_384
MAX_COUNTED_TOKENS = 1_000_000  # of the training data, for the loss by frequency; it takes about a second
EVAL_WINDOWS_PER_STATE = 16  # windows that share the state of a recurrent model in an evaluation


@dataclass(frozen=True, kw_only=True)
class LanguageModelBatch(Batch):
    """A batch of windows of tokens."""

    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T): the tokens shifted by one


def build_window_batch(windows: Tensor) -> LanguageModelBatch:
    """Return windows, (B, T + 1), as a batch in which each token predicts the next."""
    n_predictions = len(windows) * (windows.shape[1] - 1)
    return LanguageModelBatch(
        tokens=windows[:, :-1],
        targets=windows[:, 1:],
        n_predictions=n_predictions,
        n_tokens=n_predictions,
        n_positions=n_predictions,
    )


def gather_device_windows(tokens: Tensor, starts: Tensor, width: int) -> LanguageModelBatch:
    """Return windows of tokens that are on a device as a batch."""
    windows = tokens[starts[:, None] + torch.arange(width + 1, device=starts.device)].long()  # (B, T + 1)
    return LanguageModelBatch(tokens=windows[:, :-1], targets=windows[:, 1:])


class LanguageModelDataset(Dataset):
    """One long sequence of tokens. Training reads windows at random positions, evaluation reads all of it once."""

    def __init__(
        self, store: TokenStore, n_bytes: int, max_len: int, stride: int = 0, *, skip_start: bool = False
    ) -> None:
        """Build a dataset whose evaluation windows start `stride` tokens apart. With 0 they do not overlap.

        The first tokens of an overlapping window are evaluated in the window before it. Those of the first window
        are evaluated in this window, or not at all with `skip_start`.
        """
        self.store, self.n_bytes, self.max_len, self.stride = store, n_bytes, max_len, stride or max_len
        self.skip_start = skip_start
        self.resets_state = bool(stride)  # with a stride, a recurrent model starts each window with an empty state

    def __len__(self) -> int:
        """Return the number of predictions, one for each token except the first."""
        return max(0, self.store.n_tokens - 1)

    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        rows = train.batch_size or max(1, train.batch_tokens // self.max_len)
        return RandomWindowSampler(
            self.store.n_tokens - self.max_len, width=self.max_len, batch_size=rows, seed=seed
        )

    def batch(self, indices: Indices) -> LanguageModelBatch:
        return self._gather_windows(indices, self.max_len)

    def _gather_windows(self, starts: Indices, width: int) -> LanguageModelBatch:
        indices = starts[:, None] + np.arange(width + 1)
        return build_window_batch(torch.from_numpy(self.store.tokens[indices].astype(np.int64)))

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceLanguageModelDataset | None:
        return DeviceLanguageModelDataset(self, device) if fits_on_device(self.store) else None

    def with_stride(self, stride: int) -> LanguageModelDataset:
        """Return the text in overlapping windows. Each token is predicted once, most of them with more context."""
        if not 1 <= stride <= self.max_len:
            raise ConfigError(f"stride={stride} must be between 1 and {self.max_len}, the length of a window")
        return LanguageModelDataset(self.store, self.n_bytes, self.max_len, stride)

    def with_lengths(self, low: int, high: int) -> LanguageModelDataset:
        """Return windows of `high` tokens in which the predictions after `low` tokens and more are evaluated."""
        if len(self) < high:
            raise DataError(f"no windows of {high} tokens, because the text has only {self.store.n_tokens}")
        return LanguageModelDataset(self.store, self.n_bytes, high, high - low + 1, skip_start=True)

    def sample(self, n: int) -> LanguageModelDataset:
        """Return the text up to its first `n` predictions."""
        if len(self) <= n:
            return self
        n_bytes = round(self.n_bytes * n / len(self))
        return LanguageModelDataset(self.store.slice(0, n + 1), n_bytes, self.max_len)

    def with_long_windows(self) -> LanguageModelDataset:
        """Return the text in a few long windows for recurrent models, which carry their state through them."""
        return (
            self
            if self.resets_state
            else LanguageModelDataset(self.store, self.n_bytes, EVAL_WINDOWS_PER_STATE * self.max_len)
        )

    def n_batches(self) -> int:
        """Return the number of batches that `batches` yields."""
        n_windows = max(0, (len(self) - self.max_len) // self.stride + 1)  # windows
        n_covered = (n_windows - 1) * self.stride + self.max_len if n_windows else 0
        return -(-n_windows // max(1, EVAL_TOKENS // self.max_len)) + (n_covered < len(self))

    def batches(self) -> Iterator[LanguageModelBatch]:
        """Yield windows a stride apart. The last, shorter window is a separate batch."""
        starts = np.arange(0, len(self) - self.max_len + 1, self.stride)
        for chunk in iter_chunks(starts, max(1, EVAL_TOKENS // self.max_len)):
            yield self._mask_scored_targets(self._gather_windows(np.array(chunk), self.max_len), chunk[0] == 0)
        n_covered = int(starts[-1]) + self.max_len if len(starts) else 0
        if n_covered < len(self):
            start = len(starts) * self.stride
            yield self._mask_scored_targets(self._gather_windows(np.array([start]), len(self) - start), start == 0)

    def _mask_scored_targets(self, batch: LanguageModelBatch, includes_first: bool) -> LanguageModelBatch:
        """Ignore the targets that the previous window has predicted. The first window has no previous one."""
        if self.stride == self.max_len:
            return batch
        targets = batch.targets.clone()
        targets[int(includes_first and not self.skip_start) :, : self.max_len - self.stride] = IGNORE_INDEX
        return replace(batch, targets=targets, n_predictions=int((targets != IGNORE_INDEX).sum()))


class DeviceLanguageModelDataset:
    """A language-model dataset on a device. All windows have the same width, so there is only one shape."""

    def __init__(self, dataset: LanguageModelDataset, device: torch.device) -> None:
        self.width = dataset.max_len
        self.tokens = copy_to_device(dataset.store.tokens, device)

    def plan(self, indices: Indices) -> BatchPlan:
        n_predictions = len(indices) * self.width
        return BatchPlan((len(indices), self.width), indices, n_predictions, n_predictions, n_predictions)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> LanguageModelBatch:
        return gather_device_windows(self.tokens, rows, shape[1])


class LanguageModelData(TaskData):
    """The data of a language model: reads and encodes plain text or documents."""

    @cached_property
    def split_point(self) -> int | None:
        """The end of the training part, in characters or documents; None if there is no validation part."""
        return find_split_point(self.config)

    @property
    def split_key(self) -> object:
        return self.split_point

    def read_examples(self, name: str) -> Iterator[TextChunk]:
        return read_chunks(name, self.config.data)

    def split_examples(self, *, held_out: bool) -> Iterator[TextChunk]:
        if not held_out:
            yield from read_chunks(self.training_name, self.config.data, stop=self.split_point)
        elif self.split_point is not None:
            yield from read_chunks(self.training_name, self.config.data, start=self.split_point)

    def scan(self, cache: TokenCache) -> tuple[Self, list[int]]:
        if is_running_text(self.training_name):
            return self, [self.split_point or count_units(self.training_name, self.config.data)]

        def count_characters() -> int:
            return sum(len(chunk.text) for chunk in self.training_examples())

        return self, [cache.get_or_compute(["characters", *self.cache_key], count_characters)]

    def train_or_load_tokenizers(self, cache: TokenCache, n_characters: list[int]) -> tuple[Tokenizer, ...]:
        (tokenizer,) = super().train_or_load_tokenizers(cache, n_characters)
        if (
            not self.config.train.init_from
        ):  # the model never reads the tokens that an imported tokenizer adds around a text
            tokenizer.special_tokens = tokenizer.special_tokens._replace(before=(), after=())
        return (tokenizer,)

    def settings_from(self, encoded: EncodedExamples, tokenizers: tuple[Tokenizer, ...]) -> Settings:
        n_tokens = encoded.n_tokens
        max_len = self.config.data.max_len or max(2, min(128, n_tokens // 4))
        train_max_len = self.config.data.train_max_len
        name, window = ("train_max_len", train_max_len) if train_max_len else ("max_len", max_len)
        if n_tokens <= window:
            raise DataError(
                f"only {n_tokens} tokens to train on, and data.{name}={window} needs more; "
                f"lower data.{name} or use more text",
                path=self.training_name,
            )
        return {"data.max_len": max_len, "tokenizer.vocab_size": tokenizers[0].vocab_size}

    def encode(
        self,
        name: str,
        examples: Callable[[], Iterator[TextChunk]],
        versions: TokenizerVersions,
        path: Path | None = None,
    ) -> EncodedExamples:
        """Encode texts as one sequence of tokens, with an end token after each document."""
        n_bytes = 0
        ((tokenizer,),) = versions

        def encoded_rows() -> Iterator[TokenRows]:
            nonlocal n_bytes
            for chunks, rows in encode_chunks(tokenizer, examples()):
                n_bytes += sum(len(chunk.text.encode()) for chunk in chunks)
                yield rows

        store = TokenStore.build_from_batches(encoded_rows(), vocab_size=tokenizer.vocab_size, path=path)
        return EncodedExamples((store,), np.array([n_bytes], dtype=np.int64))

    def values_shape(self, stores: Sequence[TokenStore]) -> tuple[int, ...]:
        return (1,)

    def build_dataset(
        self, name: str, encoded: EncodedExamples, notices: list[str], *, versions: int = 1
    ) -> LanguageModelDataset:
        return LanguageModelDataset(encoded.stores[0], int(encoded.values[0]), self.config.data.max_len)

    def load_dataset(
        self, name: str, notices: list[str], lines: Container[int] | None = None
    ) -> LanguageModelDataset:
        chunks = self.read_examples(name)
        if lines is not None and is_running_text(name):  # the selected lines become one text
            chunks = (TextChunk(f"{text}\n", False, line) for line, text in read_lines(name) if line in lines)
        selected = filter_lines(chunks, lines)
        return self.build_eval_dataset(name, self.encode(name, lambda: selected, [self.tokenizers]), notices)

    def load_training_sample(self, n: int, n_train: int, cache: TokenCache) -> LanguageModelDataset:
        """Return the first `n` windows of the training text as a dataset to evaluate on; -1: all of it."""
        (tokenizer,) = self.tokenizers
        encoded = self.encode_split("train", [[tokenizer]], cache)
        (store,), n_tokens = encoded.stores, n * self.config.data.max_len + 1
        if n < 0 or n_tokens >= store.n_tokens:
            return self.build_dataset(self.training_name, encoded, [])
        tokens = store.tokens[:n_tokens]
        n_bytes = len(tokenizer.decode(tokens.tolist()).encode())
        sample = TokenStore(tokens, np.array([0, n_tokens], dtype=np.int64))
        return self.build_dataset(self.training_name, EncodedExamples((sample,), np.array([n_bytes])), [])

    def count_training_tokens(self) -> TokenCounts:
        """Count how often each token occurs in the training data, or in the first million tokens of it.

        Raises:
            DataError: The training data is not known or cannot be read.
        """
        (tokenizer,) = self.tokenizers
        if not self.config.data.train:
            raise DataError("the training data is not known, because the model was imported")
        return count_tokens(
            (rows.tokens for _, rows in encode_chunks(tokenizer, self.training_examples(), 1)), tokenizer.vocab_size
        )

    def load_documents(self, documents: Sequence[str]) -> LanguageModelDataset:
        """Return documents in memory as a dataset to evaluate on."""
        chunks = (TextChunk(text, True, line) for line, text in enumerate(documents, 1))
        return self.build_dataset("", self.encode("", lambda: chunks, [self.tokenizers]), [])

    def build_eval_dataset(self, name: str, encoded: EncodedExamples, notices: list[str]) -> LanguageModelDataset:
        (store,), (tokenizer,) = encoded.stores, self.tokenizers
        if store.n_tokens < 2:
            raise DataError("fewer than two tokens to evaluate on; use more text", path=name)
        if tokenizer.unk is not None and (n_unknown := store.count(tokenizer.unk)):
            message = f"{n_unknown} of {store.n_tokens} tokens are not in the vocabulary"
            notices.append(f"{name}: {message} ({tokenizer.vocabulary[tokenizer.unk]})")
        return self.build_dataset(name, encoded, notices)

    def find_leaks(self, folder: Path) -> list[str]:
        data = self.config.data
        if is_running_text(data.train) or (data.valid and is_running_text(data.valid)):
            return same_text_warnings(data.train, data.valid)
        return super().find_leaks(folder)

    def fit_baselines(self) -> FittedBaselines:
        (tokenizer,) = self.tokenizers
        return fit_baselines(
            "generate",
            self.training_examples(),
            tokenize=tokenizer.encode,
            vocab_size=tokenizer.vocab_size,
            lossless=tokenizer.lossless,
            eos_id=tokenizer.special_tokens.eos_or_bos,
        )


def count_tokens(parts: Iterable[NDArray[Any]], vocab_size: int) -> TokenCounts:
    """Count the tokens of a text that is given in parts, up to `MAX_COUNTED_TOKENS` of them."""
    counts, n_left = np.zeros(vocab_size, np.int64), MAX_COUNTED_TOKENS
    for part in parts:
        counts += np.bincount(part[:n_left], minlength=vocab_size)
        n_left -= len(part)
        if n_left < 0:
            return TokenCounts(counts, is_complete=False)
    return TokenCounts(counts, is_complete=True)


def with_stride(data: Dataset, stride: int) -> Dataset:
    """Return a dataset whose windows start `stride` tokens apart.

    Raises:
        ConfigError: The dataset is not for a language model.
    """
    if not isinstance(data, LanguageModelDataset):
        raise ConfigError("stride applies to generate only, because only generate reads text in windows")
    return data.with_stride(stride)
