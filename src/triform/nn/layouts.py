"""How the sequences of a batch lie in a tensor: padded to one length, or packed (see `kernels/packing.py`).

A model asks the layout for the positions of its tokens, for masks, and for pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from triform.nn.masks import AttentionMask, PaddingMask, combine_masks, full_mask


class BatchLayout(Protocol):
    """What a model needs to know about its batch; `PaddedLayout` documents the methods."""

    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]: ...
    def positions(self, start: int, t: int, device: torch.device) -> Tensor: ...
    def cross_attention_mask(self, query_layout: BatchLayout) -> AttentionMask: ...
    def mean(self, x: Tensor) -> Tensor: ...
    def first(self, x: Tensor) -> Tensor: ...
    def last(self, x: Tensor) -> Tensor: ...
    def to_padded(self, x: Tensor) -> Tensor: ...
    def from_padded(self, x: Tensor) -> Tensor: ...
    def reverse_index(self, t: int, device: torch.device) -> Tensor: ...


class PaddedLayout:
    """One sequence in each row of the tensor.

    Args:
        keep: True for real tokens, False for padding (B, T); None means no padding.
    """

    def __init__(self, keep: Tensor | None) -> None:
        self.keep = keep
        self.mask: AttentionMask = full_mask if keep is None else PaddingMask(keep)

    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]:
        """Return the mask of each layer: its `layer_masks` entry combined with the padding mask."""
        return list(layer_masks) if self.keep is None else combine_masks(layer_masks, self.mask)

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:  # -> (T), or (B, T) in other layouts
        """Return the positions of `t` tokens that follow `start` earlier ones: `start`, …, `start + t - 1`."""
        return torch.arange(start, start + t, device=device)

    def cross_attention_mask(self, query_layout: BatchLayout) -> AttentionMask:
        """Return which of these tokens a decoder with `query_layout` may read."""
        return self.mask

    def mean(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, D)
        """Average the real tokens of each sequence."""
        if self.keep is None:
            return x.mean(dim=1)
        weight = self.keep[:, :, None].to(x.dtype)
        return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)

    def first(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, D)
        """Return the first token of each sequence."""
        return x[:, 0]

    def last(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, D)
        """Return the last real token of each sequence."""
        if self.keep is None:
            return x[:, -1]
        last_positions = self.keep.shape[1] - 1 - self.keep.flip(1).long().argmax(dim=1)
        return x.gather(1, last_positions[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]

    def to_padded(self, x: Tensor) -> Tensor:
        """Return the states with one sequence in each row; a padded batch has them already."""
        return x

    def from_padded(self, x: Tensor) -> Tensor:
        """Undo `to_padded`."""
        return x

    def reverse_index(self, t: int, device: torch.device) -> Tensor:  # -> (B or 1, T)
        """Return indices that reverse each sequence and leave its padding in place."""
        positions = torch.arange(t, device=device)
        if self.keep is None:
            return positions.flip(0)[None]
        mirrored = self.keep.sum(dim=1, keepdim=True) - 1 - positions
        return torch.where(mirrored < 0, positions, mirrored)


def pool_mean(layout: BatchLayout, x: Tensor) -> Tensor:  # (B, T, D) -> (B, D)
    """Average the tokens of each sequence."""
    return layout.mean(x)


def pool_first(layout: BatchLayout, x: Tensor) -> Tensor:  # (B, T, D) -> (B, D)
    """Return the first token of each sequence."""
    return layout.first(x)


def pool_last(layout: BatchLayout, x: Tensor) -> Tensor:  # (B, T, D) -> (B, D)
    """Return the last token of each sequence."""
    return layout.last(x)


LayoutLike = Tensor | BatchLayout | None  # a tensor is `keep`, None: no padding
# Functions with a name, because a model is pickled with the one that it uses.
POOLINGS: dict[str, Callable[[BatchLayout, Tensor], Tensor]] = {
    "mean": pool_mean,
    "first": pool_first,
    "last": pool_last,
}


def as_layout(keep: LayoutLike) -> BatchLayout:
    """Return the layout that `keep` describes; a layout is returned unchanged."""
    return PaddedLayout(keep) if keep is None or isinstance(keep, Tensor) else keep


def pad(rows: Sequence[Any], *, fill: int = 0, left: bool = False) -> tuple[Tensor, Tensor | None]:
    """Pad rows of tokens to one length.

    Args:
        rows: Sequences of token ids.
        fill: The token id of the padding.
        left: Pad on the left instead of the right.

    Returns:
        The tokens (B, T), and a mask that is True for real tokens, or None if there is no padding.

    Example:
        >>> pad([[5, 6, 7], [8]])
        (tensor([[5, 6, 7],
                [8, 0, 0]]), tensor([[ True,  True,  True],
                [ True, False, False]]))
    """
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
