"""Recurrent layers: a state is carried from token to token, by torch's own cells (on CUDA: cuDNN's).

    rnn    h = tanh(W x + U h + b)
    gru    r, z = σ(W x + U h + b);  n = tanh(Wₙ x + bₙ + r (Uₙ h + cₙ));  h = (1 - z) n + z h
    lstm   i, f, o = σ(W x + U h + b);  c = f c + i tanh(W_g x + U_g h + b_g);  h = o tanh(c)

A layer is a call of its own with dropout between them, not several layers in one call: cuDNN draws its own dropout
from a state that no checkpoint holds. Rows are read without packing them: what is padded lies after a row, where
reading forwards has passed, and backwards a row is turned around within its own length. So padding never gets into
a state, nothing waits for the device, and a step can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from triform.config import ModelConfig, RecurrentKind
from triform.nn.cache import Once


class Cell(nn.Module):
    """One layer in one direction. Abstract: of how many vectors its state is, and how many products make one."""

    parts: ClassVar[int] = 1
    gates: ClassVar[int] = 1
    torch_kind: ClassVar[Callable[..., nn.RNNBase]]

    def __init__(self, config: ModelConfig, reads: int, width: int) -> None:
        super().__init__()
        self.cell = self.torch_kind(reads, width, bias=config.bias, batch_first=True)
        self.width = width
        self.dropout = nn.Dropout(config.dropout)  # of what it says to the next layer
        self.reset()

    def reset(self) -> None:
        """Each gate as if it stood alone: Xavier for what is read, orthogonal for what is carried."""
        for name, weights in self.cell.named_parameters():
            for gate in weights.data.chunk(self.gates):
                if weights.ndim == 1:
                    nn.init.zeros_(gate)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(gate)
                else:
                    nn.init.xavier_normal_(gate)

    def forward(self, x: Any, state: Tensor) -> tuple[Any, Tensor]:  # (B, T, ·), (P, B, D) -> (B, T, D), (P, B, D)
        return self.cell(x, state)

    def from_nothing(self, x: Tensor) -> Tensor:  # (B, T, ·) -> (B, T, D)
        return self(x, x.new_zeros(self.parts, len(x), self.width))[0]

    def until(self, x: Tensor, state: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The same for rows of these lengths, and the states at their ends."""
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        y, state = self(packed, state)
        return pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0], state


class Rnn(Cell):
    torch_kind = nn.RNN


class Gru(Cell):
    gates = 3
    torch_kind = nn.GRU


class Lstm(Cell):
    """Its state is two vectors: what it says, and what it keeps."""

    parts, gates = 2, 4
    torch_kind = nn.LSTM

    def reset(self) -> None:
        super().reset()
        for name, weights in self.cell.named_parameters():
            if name.startswith("bias_ih"):
                weights.data[self.width : 2 * self.width] = 1.0  # a new model forgets little

    def forward(self, x: Any, state: Tensor) -> tuple[Any, Tensor]:
        said, kept = state.split(1)  # type: ignore[no-untyped-call]
        y, ends = self.cell(x, (said, kept))
        return y, torch.cat(ends)


CELLS: dict[RecurrentKind, type[Cell]] = {"rnn": Rnn, "gru": Gru, "lstm": Lstm}


def cell_of(config: ModelConfig) -> type[Cell]:
    return CELLS[cast("RecurrentKind", config.kind)]


@dataclass
class Carry:
    """What is remembered between two calls: a state a layer (L, P, B, D) and, of a translation, its source."""

    state: Tensor | None = None
    source: Once = field(default_factory=Once)

    def reorder(self, rows: Tensor) -> None:
        """Go on with the states of these rows, in this order; a row may be repeated."""
        assert self.state is not None
        self.state = self.state.index_select(2, rows)

    def repeat(self, times: int) -> None:
        """So many of each row's states, side by side; its source is kept once."""
        assert self.state is not None
        self.state = self.state.repeat_interleave(times, dim=2)

    def join(self, other: Carry, keep: Tensor | None, other_keep: Tensor | None) -> Tensor | None:
        """The other's rows after its own, and which of all their sources' tokens are real, (B + N, S)."""
        assert self.state is not None
        assert other.state is not None
        self.state = torch.cat([self.state, other.state], dim=2)
        found = self.source.joint_keep(other.source, keep, other_keep)
        self.source.join(other.source)
        return found


class Forwards(nn.ModuleList):
    """Layers that read one way, from a state that is given to one that is left."""

    def __init__(self, config: ModelConfig) -> None:
        kind, width = cell_of(config), config.d_model
        super().__init__(kind(config, width, width) for _ in range(config.n_layers))
        self.shape = (config.n_layers, kind.parts, width)

    def nothing(self, x: Tensor) -> Tensor:  # -> (L, P, B, D)
        """The state before anything was read."""
        n, parts, width = self.shape
        return x.new_zeros(n, parts, len(x), width)

    def forward(
        self, x: Tensor, state: Tensor, lengths: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:  # (B, T, D), (L, P, B, D)
        """States at the end of each row, where `lengths` says how long they are; else at the end of the tensor."""
        ends = []
        for cell, before in zip(cast("Iterable[Cell]", self), state.unbind(), strict=True):
            y, end = cell(x, before) if lengths is None else cell.until(x, before, lengths)
            x = cell.dropout(y)
            ends.append(end)
        return x, torch.stack(ends)


class OneWay(nn.Module):
    """A layer of an encoder that reads forwards alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ahead = cell_of(config)(config, config.d_model, config.d_model)

    def forward(self, x: Tensor, back: Tensor) -> Tensor:  # (B, T, D), (B or 1, T) -> (B, T, D)
        return self.ahead.dropout(self.ahead.from_nothing(x))


class BothWays(nn.Module):
    """A layer of an encoder: half of its width reads forwards, half backwards."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kind, width = cell_of(config), config.d_model
        self.ahead, self.back = (kind(config, width, width // 2) for _ in range(2))

    def forward(self, x: Tensor, back: Tensor) -> Tensor:  # `back`: the places of each row in reverse order
        behind = turned(self.back.from_nothing(turned(x, back)), back)
        return self.ahead.dropout(torch.cat([self.ahead.from_nothing(x), behind], dim=-1))


def turned(x: Tensor, back: Tensor) -> Tensor:  # (B, T, D), (B or 1, T) -> (B, T, D)
    """Every row from its end to its beginning; padding stays where it is."""
    return x.gather(1, back[..., None].expand(x.shape))
