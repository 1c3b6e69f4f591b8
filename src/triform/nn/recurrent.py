"""Recurrent layers, built on `torch.nn.RNN`, `GRU` and `LSTM` (cuDNN's on CUDA).

    rnn    h = tanh(W x + U h + b)
    gru    r, z = σ(W x + U h + b);  n = tanh(Wₙ x + bₙ + r (Uₙ h + cₙ));  h = (1 - z) n + z h
    lstm   i, f, o = σ(W x + U h + b);  c = f c + i tanh(W_g x + U_g h + b_g);  h = o tanh(c)

Each layer is one call, with dropout between layers, because cuDNN draws its dropout from a state that no checkpoint
holds. Sequences are not packed in training: padding follows a sequence, so a forward pass reads it last, and a
backward pass reverses each sequence within its length. Padding never reaches a state that is used, nothing waits
for the device, and a step can be captured as a CUDA graph.

Shapes: L layers, P state vectors of a layer (1, or 2 for an LSTM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from triform.config import ModelConfig, RecurrentKind
from triform.nn.attention import KVStore


class Cell(nn.Module):
    """One recurrent layer in one direction. Subclasses set the numbers of state vectors and gates."""

    n_state_vectors: ClassVar[int] = 1
    n_gates: ClassVar[int] = 1
    rnn_class: ClassVar[Callable[..., nn.RNNBase]]

    def __init__(self, config: ModelConfig, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.rnn = self.rnn_class(input_size, hidden_size, bias=config.bias, batch_first=True)
        self.hidden_size = hidden_size
        self.dropout = nn.Dropout(config.dropout)  # of its output to the next layer
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise each gate separately: Xavier for input weights, orthogonal for recurrent weights."""
        for name, weights in self.rnn.named_parameters():
            for gate in weights.data.chunk(self.n_gates):
                if weights.ndim == 1:
                    nn.init.zeros_(gate)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(gate)
                else:
                    nn.init.xavier_normal_(gate)

    def forward(self, x: Any, state: Tensor) -> tuple[Any, Tensor]:  # (B, T, ·), (P, B, D) -> (B, T, D), (P, B, D)
        return self.rnn(x, state)

    def forward_from_zero(self, x: Tensor) -> Tensor:  # (B, T, ·) -> (B, T, D)
        """Return the outputs of a pass that starts with a zero state."""
        return self(x, x.new_zeros(self.n_state_vectors, len(x), self.hidden_size))[0]

    def forward_lengths(self, x: Tensor, state: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the outputs, and the states at the end of each row, for rows of these lengths."""
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        y, state = self(packed, state)
        return pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0], state


class Rnn(Cell):
    """A plain recurrent layer with tanh."""

    rnn_class = nn.RNN


class Gru(Cell):
    """A layer of gated recurrent units."""

    n_gates = 3
    rnn_class = nn.GRU


class Lstm(Cell):
    """A long short-term memory layer, whose state is a hidden and a cell vector."""

    n_state_vectors, n_gates = 2, 4
    rnn_class = nn.LSTM

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for name, weights in self.rnn.named_parameters():
            if name.startswith("bias_ih"):
                weights.data[self.hidden_size : 2 * self.hidden_size] = 1.0  # the forget gate starts open

    def forward(self, x: Any, state: Tensor) -> tuple[Any, Tensor]:
        hidden, cell = state.split(1)  # type: ignore[no-untyped-call]
        y, final_states = self.rnn(x, (hidden, cell))
        return y, torch.cat(final_states)


CELLS: dict[RecurrentKind, type[Cell]] = {"rnn": Rnn, "gru": Gru, "lstm": Lstm}


def cell_class(config: ModelConfig) -> type[Cell]:
    """Return the class that `model.kind` names."""
    return CELLS[cast("RecurrentKind", config.kind)]


@dataclass
class RecurrentState:
    """What is kept between two calls: the states of the layers and, in translation, the projected source."""

    hidden: Tensor | None = None  # (L, P, B, D)
    source_store: KVStore | None = None


class RecurrentStack(nn.ModuleList):
    """Recurrent layers that read forwards, from a given state."""

    def __init__(self, config: ModelConfig) -> None:
        cell_type, width = cell_class(config), config.d_model
        super().__init__(cell_type(config, width, width) for _ in range(config.n_layers))
        self.state_shape = (config.n_layers, cell_type.n_state_vectors, width)

    def forward(
        self, x: Tensor, state: Tensor | None, lengths: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read `x` (B, T, D), from a zero state if there is none.

        Returns:
            The outputs (B, T, D) and the final states (L, P, B, D): after the last column or, if `lengths` are
            given, at the end of each row.
        """
        n_layers, n_vectors, width = self.state_shape
        state = x.new_zeros(n_layers, n_vectors, len(x), width) if state is None else state
        final_states = []
        for cell, layer_state in zip(cast("Iterable[Cell]", self), state.unbind(), strict=True):
            result = cell(x, layer_state) if lengths is None else cell.forward_lengths(x, layer_state, lengths)
            x = cell.dropout(result[0])
            final_states.append(result[1])
        return x, torch.stack(final_states)


class UnidirectionalLayer(nn.Module):
    """An encoder layer that reads forwards only."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.forward_cell = cell_class(config)(config, config.d_model, config.d_model)

    def forward(self, x: Tensor, reverse_index: Tensor) -> Tensor:  # (B, T, D), (B or 1, T) -> (B, T, D)
        return self.forward_cell.dropout(self.forward_cell.forward_from_zero(x))


class BidirectionalLayer(nn.Module):
    """An encoder layer: half of its width reads forwards, half backwards."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        cell_type, width = cell_class(config), config.d_model
        self.forward_cell, self.backward_cell = (cell_type(config, width, width // 2) for _ in range(2))

    def forward(self, x: Tensor, reverse_index: Tensor) -> Tensor:  # (B, T, D), (B or 1, T) -> (B, T, D)
        reversed_states = self.backward_cell.forward_from_zero(reverse_sequences(x, reverse_index))
        backward_states = reverse_sequences(reversed_states, reverse_index)
        forward_states = self.forward_cell.forward_from_zero(x)
        return self.forward_cell.dropout(torch.cat([forward_states, backward_states], dim=-1))


def reverse_sequences(x: Tensor, reverse_index: Tensor) -> Tensor:  # (B, T, D), (B or 1, T) -> (B, T, D)
    """Reverse each sequence; padding stays in place."""
    return x.gather(1, reverse_index[..., None].expand(x.shape))
