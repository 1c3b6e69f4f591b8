"""Running text as windows of tokens: drawn anywhere in it, or laid side by side from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from triform.config import TrainConfig
from triform.data.samplers import Indices, RandomWindowSampler, Sampler
from triform.data.token_store import TokenStore
from triform.errors import ConfigError
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.device_data import BatchPlan, copy_to_device, fits_on_device
from triform.tasks.task import Batch, iter_chunks

EVAL_TOKENS = 16_384
EVAL_WINDOWS_PER_STATE = 16  # windows through which a recurrent model is read in an evaluation without forgetting


@dataclass(frozen=True, kw_only=True)
class LanguageModelBatch(Batch):
    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T): the tokens shifted by one


class LanguageModelDataset:
    """One long row of tokens. Training draws windows anywhere in it; evaluation goes through it once."""

    def __init__(self, store: TokenStore, n_bytes: int, max_len: int, stride: int = 0) -> None:
        """Evaluation windows begin `stride` tokens apart; 0: side by side."""
        self.store, self.n_bytes, self.max_len, self.stride = store, n_bytes, max_len, stride or max_len
        self.resets_state = bool(stride)  # who asks for a stride has every window from an empty state

    def __len__(self) -> int:
        """Predictions: every token but the first."""
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
        windows = torch.from_numpy(self.store.tokens[indices].astype(np.int64))  # (B, T + 1)
        n_predictions = len(starts) * width
        return LanguageModelBatch(
            tokens=windows[:, :-1],
            targets=windows[:, 1:],
            n_predictions=n_predictions,
            n_tokens=n_predictions,
            n_positions=n_predictions,
        )

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceLanguageModelDataset | None:
        return DeviceLanguageModelDataset(self, device) if fits_on_device(self.store) else None

    def with_stride(self, stride: int) -> LanguageModelDataset:
        """The same text in windows that overlap: every token is scored once, most after more context."""
        if not 1 <= stride <= self.max_len:
            raise ConfigError(f"a stride of {stride}: give 1 to {self.max_len}, the tokens that the model reads")
        return LanguageModelDataset(self.store, self.n_bytes, self.max_len, stride)

    def with_long_windows(self) -> LanguageModelDataset:
        """The same text in windows so long that they are few, for who carries a state through them."""
        return (
            self
            if self.resets_state
            else LanguageModelDataset(self.store, self.n_bytes, EVAL_WINDOWS_PER_STATE * self.max_len)
        )

    def n_batches(self) -> int:
        """How many `batches` gives."""
        n_windows = max(0, (len(self) - self.max_len) // self.stride + 1)  # windows
        n_covered = (n_windows - 1) * self.stride + self.max_len if n_windows else 0
        return -(-n_windows // max(1, EVAL_TOKENS // self.max_len)) + (n_covered < len(self))

    def batches(self) -> Iterator[LanguageModelBatch]:
        """Windows a stride apart; the last, shorter one by itself."""
        starts = np.arange(0, len(self) - self.max_len + 1, self.stride)
        for chunk in iter_chunks(starts, max(1, EVAL_TOKENS // self.max_len)):
            yield self._mask_scored_targets(self._gather_windows(np.array(chunk), self.max_len), chunk[0] == 0)
        n_covered = int(starts[-1]) + self.max_len if len(starts) else 0
        if n_covered < len(self):
            start = len(starts) * self.stride
            yield self._mask_scored_targets(self._gather_windows(np.array([start]), len(self) - start), start == 0)

    def _mask_scored_targets(self, batch: LanguageModelBatch, includes_first: bool) -> LanguageModelBatch:
        """Of each window only what the one before it has not scored; of the first, where it is here, all."""
        if self.stride == self.max_len:
            return batch
        targets = batch.targets.clone()
        targets[int(includes_first) :, : self.max_len - self.stride] = IGNORE_INDEX
        return replace(batch, targets=targets, n_predictions=int((targets != IGNORE_INDEX).sum()))


class DeviceLanguageModelDataset:
    """The same on a device. All windows are of one width and nothing is padded, so there is one shape."""

    def __init__(self, dataset: LanguageModelDataset, device: torch.device) -> None:
        self.width = dataset.max_len
        self.tokens = copy_to_device(dataset.store.tokens, device)

    def plan(self, indices: Indices) -> BatchPlan:
        n_predictions = len(indices) * self.width
        return BatchPlan((len(indices), self.width), indices, n_predictions, n_predictions, n_predictions)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> LanguageModelBatch:
        windows = self.tokens[rows[:, None] + torch.arange(shape[1] + 1, device=rows.device)].long()  # (B, T + 1)
        return LanguageModelBatch(tokens=windows[:, :-1], targets=windows[:, 1:])
