"""How the rows of a batch lie in a tensor: side by side and padded, or packed end to end without padding.

A model asks the rows where their tokens stand, what hides one row from another, and for means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from triform.nn.masks import AttentionMask, BeamMask, PackedMask, combine_masks, padding_mask


class BatchLayout(Protocol):
    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]:
        """What self-attention may read in each layer, given how far it reaches."""

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        """Where the t tokens from `start` on stand in their rows."""

    def cross_attention_mask(self, query_layout: BatchLayout) -> AttentionMask:
        """What cross-attention may read of these rows, asked from `queries`."""

    def mean(self, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """The mean over the real tokens of each row."""

    def first(self, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """The first token of each row."""

    def last(self, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """The last real token of each row."""


class PaddedLayout:
    """A row of the tensor is a row of the batch; `keep` (B, T) says what is real, None: everything."""

    def __init__(self, keep: Tensor | None) -> None:
        self.keep, self.mask = keep, padding_mask(keep)

    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]:
        return combine_masks(layer_masks, self.mask)

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        return torch.arange(start, start + t, device=device)

    def cross_attention_mask(self, query_layout: BatchLayout) -> AttentionMask:
        return self.mask

    def mean(self, x: Tensor) -> Tensor:
        if self.keep is None:
            return x.mean(dim=1)
        weight = self.keep[:, :, None].to(x.dtype)
        return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)

    def first(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def last(self, x: Tensor) -> Tensor:
        if self.keep is None:
            return x[:, -1]
        last_positions = self.keep.shape[1] - 1 - self.keep.flip(1).long().argmax(dim=1)
        return x.gather(1, last_positions[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]

    def to_padded(self, x: Tensor) -> Tensor:
        """Rows side by side: as they are."""
        return x

    def from_padded(self, x: Tensor) -> Tensor:
        return x

    def reverse_index(self, t: int, device: torch.device) -> Tensor:  # -> (B or 1, T)
        """The places of each row from its end to its beginning; it ends where its padding begins."""
        positions = torch.arange(t, device=device)
        if self.keep is None:
            return positions.flip(0)[None]
        mirrored = self.keep.sum(dim=1, keepdim=True) - 1 - positions
        return torch.where(mirrored < 0, positions, mirrored)


class PackedLayout:
    """All rows end to end in the tensor's only row (1, N)."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self.mask = PackedMask(self.lengths, self.lengths)
        self._length_tensor: Tensor | None = None
        self._start_tensor: Tensor | None = None

    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]:
        return combine_masks(layer_masks, self.mask)

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        assert (start, t) == (0, sum(self.lengths)), "packed rows are read whole"
        return torch.cat([torch.arange(length, device=device) for length in self.lengths])

    def cross_attention_mask(self, query_layout: BatchLayout) -> AttentionMask:
        assert isinstance(query_layout, PackedLayout), "where one side is packed, so is the other"
        return PackedMask(query_layout.lengths, self.lengths)

    def mean(self, x: Tensor) -> Tensor:
        if (
            self._length_tensor is None or self._length_tensor.device != x.device
        ):  # sent there once, not in every pass
            self._length_tensor = torch.tensor(self.lengths, device=x.device)[:, None].clamp(min=1)
        sequence_ids, _ = self.mask.sequence_ids(x.device)
        accum_dtype = torch.promote_types(x.dtype, torch.float32)  # in bf16 a long row would stop growing
        sums = x.new_zeros(len(self.lengths), x.shape[-1], dtype=accum_dtype).index_add(
            0, sequence_ids, x[0].to(accum_dtype)
        )
        return (sums / self._length_tensor.to(accum_dtype)).to(x.dtype)

    def first(self, x: Tensor) -> Tensor:
        if self._start_tensor is None or self._start_tensor.device != x.device:
            self._start_tensor = torch.tensor([0, *accumulate(self.lengths[:-1])], device=x.device)
        return x[0].index_select(0, self._start_tensor)

    def last(self, x: Tensor) -> Tensor:
        return x[0].index_select(0, torch.tensor([*accumulate(self.lengths)], device=x.device) - 1)

    def to_padded(self, x: Tensor) -> Tensor:  # (1, N, D) -> (rows, T, D)
        """Rows side by side, for who reads them one token after the other."""
        return pad_sequence(list(x[0].split(self.lengths)), batch_first=True)  # type: ignore[no-untyped-call]

    def from_padded(self, x: Tensor) -> Tensor:  # (rows, T, D) -> (1, N, D)
        """The same end to end again."""
        return torch.cat([row[:length] for row, length in zip(x, self.lengths, strict=True)])[None]

    def reverse_index(self, t: int, device: torch.device) -> Tensor:
        """Of rows that lie side by side."""
        keep = torch.arange(t, device=device) < torch.tensor(self.lengths, device=device)[:, None]
        return PaddedLayout(keep).reverse_index(t, device)


class BeamLayout:
    """One new token for each of the T ways in which a row goes on, read over a past that they share.

    `keep` (B, T, S) says which keys belong to each, `age` (S) when they were written, `places` (B, T) where the
    new tokens stand in their texts.
    """

    def __init__(self, keep: Tensor, age: Tensor, token_positions: Tensor) -> None:
        self.keep, self.age, self.token_positions = keep, age, token_positions

    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]:
        mask_by_id: dict[int, AttentionMask] = {
            id(layer_mask): BeamMask(layer_mask, self.keep, self.age) for layer_mask in layer_masks
        }
        return [mask_by_id[id(layer_mask)] for layer_mask in layer_masks]

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        return self.token_positions

    def cross_attention_mask(self, query_layout: BatchLayout) -> AttentionMask:
        raise AssertionError("what is being written is no source")

    def mean(self, x: Tensor) -> Tensor:
        raise AssertionError("what is being written has no mean")

    def first(self, x: Tensor) -> Tensor:
        raise AssertionError("what is being written is read as a whole")

    def last(self, x: Tensor) -> Tensor:
        raise AssertionError("what is being written has not ended")


POOLINGS: dict[str, Callable[[BatchLayout, Tensor], Tensor]] = {  # (B, T, D) -> (rows, D)
    "mean": lambda rows, x: rows.mean(x),
    "first": lambda rows, x: rows.first(x),
    "last": lambda rows, x: rows.last(x),
}

# What a model is told of its rows: which tokens are real (None: all), or how they lie.
LayoutLike = Tensor | PaddedLayout | PackedLayout | BeamLayout | None


def as_layout(keep: LayoutLike) -> PaddedLayout | PackedLayout | BeamLayout:
    return PaddedLayout(keep) if keep is None or isinstance(keep, Tensor) else keep


def pad(rows: Sequence[Any], *, fill: int = 0, left: bool = False) -> tuple[Tensor, Tensor | None]:
    """Rows of tokens as (B, T), filled up on one side, and which entries are real (None: all of them)."""
    lengths = np.array([len(row) for row in rows])
    width = lengths.max()
    tokens = np.full((len(rows), width), fill, dtype=np.int64)
    for out_row, row in zip(tokens, rows, strict=True):
        if len(row):
            out_row[-len(row) if left else 0 : None if left else len(row)] = row
    if (lengths == width).all():
        return torch.from_numpy(tokens), None
    columns = np.arange(width)
    keep = columns >= (width - lengths)[:, None] if left else columns < lengths[:, None]
    return torch.from_numpy(tokens), torch.from_numpy(keep)


def pack(rows: Sequence[Any]) -> tuple[Tensor, PackedLayout]:
    """Rows of tokens end to end, as (1, N), and how to tell them apart."""
    tokens = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return torch.from_numpy(tokens[None]), PackedLayout([len(row) for row in rows])
