"""Sequences packed end to end in one row, so that no padding is computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from triform.nn.layouts import BatchLayout, PaddedLayout
from triform.nn.masks import AttentionMask, combine_masks, full_mask


class PackedMask(AttentionMask):
    """Separates sequences that lie end to end: a token reads only its sequence, or the source of its sequence.

    Args:
        lengths: Lengths of the sequences that the queries come from.
        source_lengths: Lengths of the sequences that the keys come from.
    """

    def __init__(self, lengths: Sequence[int], source_lengths: Sequence[int]) -> None:
        assert len(lengths) == len(source_lengths), "the numbers of packed sequences and of their sources differ"
        self.lengths, self.source_lengths = tuple(lengths), tuple(source_lengths)
        self.query_offset = sum(source_lengths) - sum(lengths)  # queries count as the last of the key positions

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return True for keys of the query's own sequence."""
        query_ids, key_ids = sequence_ids(self.lengths, q.device), sequence_ids(self.source_lengths, k.device)
        return (query_ids[q - self.query_offset] == key_ids[k]) & (b >= 0)


def sequence_ids(lengths: Sequence[int], device: torch.device) -> Tensor:  # -> (sum of lengths)
    """Return, for each token of packed sequences, the index of its sequence.

    Example:
        >>> sequence_ids([2, 1, 3], torch.device("cpu"))
        tensor([0, 0, 1, 2, 2, 2])
    """
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(device)


class PackedLayout:
    """All sequences end to end in one row (1, N).

    Args:
        lengths: The length of each sequence.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self.mask = self.cross_attention_mask(self)

    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]:
        """Return the layers' masks combined with one that separates the sequences."""
        return combine_masks(layer_masks, self.mask)

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        """Return positions that start again with each sequence."""
        assert (start, t) == (0, sum(self.lengths)), "packed sequences must be read as a whole"
        return torch.cat([torch.arange(length, device=device) for length in self.lengths])

    def cross_attention_mask(self, query_layout: BatchLayout) -> AttentionMask:
        """Return which of these tokens a decoder with `query_layout`, packed too, may read."""
        assert isinstance(query_layout, PackedLayout), "source and target must both be packed, or neither"
        return full_mask if len(self.lengths) == 1 else PackedMask(query_layout.lengths, self.lengths)

    def mean(self, x: Tensor) -> Tensor:  # (1, N, D) -> (B, D)
        """Average the tokens of each sequence."""
        accum_dtype = torch.promote_types(x.dtype, torch.float32)  # bf16 cannot add up a long sequence
        sums = x.new_zeros(len(self.lengths), x.shape[-1], dtype=accum_dtype)
        sums = sums.index_add(0, sequence_ids(self.lengths, x.device), x[0].to(accum_dtype))
        counts = torch.tensor(self.lengths, device=x.device)[:, None].clamp(min=1)
        return (sums / counts.to(accum_dtype)).to(x.dtype)

    def first(self, x: Tensor) -> Tensor:  # (1, N, D) -> (B, D)
        """Return the first token of each sequence."""
        return x[0].index_select(0, torch.tensor([0, *accumulate(self.lengths[:-1])], device=x.device))

    def last(self, x: Tensor) -> Tensor:  # (1, N, D) -> (B, D)
        """Return the last token of each sequence."""
        return x[0].index_select(0, torch.tensor([*accumulate(self.lengths)], device=x.device) - 1)

    def to_padded(self, x: Tensor) -> Tensor:  # (1, N, D) -> (B, T, D)
        """Return the states with one sequence in each row, padded with zeros."""
        return pad_sequence(list(x[0].split(self.lengths)), batch_first=True)  # type: ignore[no-untyped-call]

    def from_padded(self, x: Tensor) -> Tensor:  # (B, T, D) -> (1, N, D)
        """Undo `to_padded`."""
        return torch.cat([row[:length] for row, length in zip(x, self.lengths, strict=True)])[None]

    def reverse_index(self, t: int, device: torch.device) -> Tensor:  # -> (B, T)
        """Return indices that reverse each sequence of the padded states."""
        keep = torch.arange(t, device=device) < torch.tensor(self.lengths, device=device)[:, None]
        return PaddedLayout(keep).reverse_index(t, device)


def pack(rows: Sequence[Any]) -> tuple[Tensor, PackedLayout]:
    """Lay rows of tokens end to end.

    Example:
        >>> tokens, layout = pack([[5, 6, 7], [8]])
        >>> tokens, layout.lengths
        (tensor([[5, 6, 7, 8]]), (3, 1))
    """
    tokens = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return torch.from_numpy(tokens[None]), PackedLayout([len(row) for row in rows])
