"""Running text as windows of tokens: drawn anywhere in it, or laid side by side from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from triform.config import TrainConfig
from triform.data.loader import Indices, RandomWindows, Sampler
from triform.data.store import TokenStore
from triform.errors import ConfigError
from triform.nn.vocabulary import IGNORE
from triform.tasks.resident import Plan, fits, sent
from triform.tasks.task import Batch, chunks

EVAL_TOKENS = 16_384
CARRIED = 16  # windows through which a recurrent model is read in an evaluation without forgetting


@dataclass(frozen=True, kw_only=True)
class Windows(Batch):
    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T): the tokens shifted by one


class Stream:
    """One long row of tokens. Training draws windows anywhere in it; evaluation goes through it once."""

    def __init__(self, store: TokenStore, n_bytes: int, max_len: int, stride: int = 0) -> None:
        """Evaluation windows begin `stride` tokens apart; 0: side by side."""
        self.store, self.n_bytes, self.max_len, self.stride = store, n_bytes, max_len, stride or max_len
        self.each_anew = bool(stride)  # who asks for a stride has every window from an empty state

    def __len__(self) -> int:
        """Predictions: every token but the first."""
        return max(0, self.store.total - 1)

    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        rows = train.batch_size or max(1, train.batch_tokens // self.max_len)
        return RandomWindows(self.store.total - self.max_len, width=self.max_len, batch_size=rows, seed=seed)

    def batch(self, indices: Indices) -> Windows:
        return self._windows(indices, self.max_len)

    def _windows(self, starts: Indices, width: int) -> Windows:
        places = starts[:, None] + np.arange(width + 1)
        table = torch.from_numpy(self.store.tokens[places].astype(np.int64))  # (B, T + 1)
        size = len(starts) * width
        return Windows(tokens=table[:, :-1], targets=table[:, 1:], weight=size, n_tokens=size, n_places=size)

    def on(self, device: torch.device, train: TrainConfig) -> ResidentStream | None:
        return ResidentStream(self, device) if fits(self.store) else None

    def strided(self, stride: int) -> Stream:
        """The same text in windows that overlap: every token is scored once, most after more context."""
        if not 1 <= stride <= self.max_len:
            raise ConfigError(f"a stride of {stride}: give 1 to {self.max_len}, the tokens that the model reads")
        return Stream(self.store, self.n_bytes, self.max_len, stride)

    def carried(self) -> Stream:
        """The same text in windows so long that they are few, for who carries a state through them."""
        return self if self.each_anew else Stream(self.store, self.n_bytes, CARRIED * self.max_len)

    def n_batches(self) -> int:
        """How many `batches` gives."""
        whole = max(0, (len(self) - self.max_len) // self.stride + 1)  # windows
        done = (whole - 1) * self.stride + self.max_len if whole else 0
        return -(-whole // max(1, EVAL_TOKENS // self.max_len)) + (done < len(self))

    def batches(self) -> Iterator[Windows]:
        """Windows a stride apart; the last, shorter one by itself."""
        starts = np.arange(0, len(self) - self.max_len + 1, self.stride)
        for chunk in chunks(starts, max(1, EVAL_TOKENS // self.max_len)):
            yield self._new(self._windows(np.array(chunk), self.max_len), chunk[0] == 0)
        done = int(starts[-1]) + self.max_len if len(starts) else 0
        if done < len(self):
            start = len(starts) * self.stride
            yield self._new(self._windows(np.array([start]), len(self) - start), start == 0)

    def _new(self, windows: Windows, first: bool) -> Windows:
        """Of each window only what the one before it has not scored; of the first, where it is here, all."""
        if self.stride == self.max_len:
            return windows
        targets = windows.targets.clone()
        targets[int(first) :, : self.max_len - self.stride] = IGNORE
        return replace(windows, targets=targets, weight=int((targets != IGNORE).sum()))


class ResidentStream:
    """The same on a device. All windows are of one width and nothing is padded, so there is one shape."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self.width = stream.max_len
        self.tokens = sent(stream.store.tokens, device)

    def plan(self, indices: Indices) -> Plan:
        size = len(indices) * self.width
        return Plan((len(indices), self.width), indices, size, size, size)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Windows:
        table = self.tokens[rows[:, None] + torch.arange(shape[1] + 1, device=rows.device)].long()  # (B, T + 1)
        return Windows(tokens=table[:, :-1], targets=table[:, 1:])
