"""Attention masks: objects that answer "may query q of row b read key k?".

Masks combine with `&` (`causal_mask & window_mask(8) & padding_mask(keep)`). The naive formula reads them through
`dense`; the fast kernels know more about each kind of mask (`kernels/sdpa.py`).

In self-attention the T queries are the last of the S positions: all of them for a whole sequence, the newest in
cached decoding. Cross-attention uses only masks that do not depend on the position of the query.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triform.config import ModelConfig


class AttentionMask:
    """Which keys each query may read. Subclasses define `allows`.

    Example:
        >>> mask = causal_mask & window_mask(2)
        >>> mask.dense(3, 3, torch.device("cpu"))[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """

    batch_size = 1  # 1: all rows of a batch have the same mask

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return True where query q of row b may read key k; the index tensors broadcast.

        Masks that do not depend on the row still use `b` (`b >= 0` is always True) to get the full shape.
        """
        raise NotImplementedError

    def dense(self, t: int, s: int, device: torch.device) -> Tensor:  # -> (B or 1, 1, T, S)
        """Return the mask of the last `t` of `s` positions as a boolean tensor; True means "may be read"."""
        b = torch.arange(self.batch_size, device=device)[:, None, None]
        q = torch.arange(s - t, s, device=device)[None, :, None]
        k = torch.arange(s, device=device)[None, None, :]
        return self.allows(b, q, k).expand(self.batch_size, t, s)[:, None]

    def distances(self, t: int, s: int, device: torch.device) -> Tensor:  # -> (T or 1, S)
        """Return the position of each key minus that of each query."""
        return torch.arange(s, device=device) - torch.arange(s - t, s, device=device)[:, None]

    def __and__(self, other: AttentionMask) -> AttentionMask:
        own_parts, other_parts = _conjuncts(self), _conjuncts(other)
        if not (own_parts and other_parts):
            return self if own_parts else other
        return AndMask(*own_parts, *other_parts)


def _conjuncts(mask: AttentionMask) -> tuple[AttentionMask, ...]:
    return mask.masks if isinstance(mask, AndMask) else () if isinstance(mask, FullMask) else (mask,)


class AndMask(AttentionMask):
    """Allows what all of several masks allow."""

    def __init__(self, *masks: AttentionMask) -> None:
        self.masks, self.batch_size = masks, max(mask.batch_size for mask in masks)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return the conjunction of all masks."""
        allowed = self.masks[0].allows(b, q, k)
        for mask in self.masks[1:]:
            allowed = allowed & mask.allows(b, q, k)
        return allowed


class FullMask(AttentionMask):
    """Allows everything."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return True for every key."""
        return (b >= 0) & (k >= 0)


class CausalMask(AttentionMask):
    """Hides the keys after the query."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return True for the position of the query and those before it."""
        return (k <= q) & (b >= 0)


class WindowMask(AttentionMask):
    """Allows the position of the query and the `width - 1` nearest ones on each side."""

    def __init__(self, width: int) -> None:
        self.width = width

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return True for keys within the window."""
        return ((q - k).abs() < self.width) & (b >= 0)


class PaddingMask(AttentionMask):
    """Hides padding; `keep` (B, S) is True for real tokens."""

    def __init__(self, keep: Tensor) -> None:
        self.keep, self.batch_size = keep, keep.shape[0]

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return True for real tokens."""
        return self.keep[b, k]


full_mask: AttentionMask = FullMask()
causal_mask: AttentionMask = CausalMask()


def window_mask(width: int) -> AttentionMask:
    """Return a mask that allows a window of `width`; -1 means no limit."""
    return full_mask if width < 0 else WindowMask(width)


def build_layer_masks(config: ModelConfig, *, causal: bool) -> tuple[AttentionMask, ...]:
    """Return the mask of each layer before padding is known; layers with the same window share one object."""
    base_mask = CausalMask() if causal else FullMask()
    mask_by_width = {width: base_mask & window_mask(width) for width in set(config.windows)}
    return tuple(mask_by_width[width] for width in config.windows)


def combine_masks(layer_masks: Sequence[AttentionMask], mask: AttentionMask) -> list[AttentionMask]:
    """Combine each layer's mask with the mask of a batch; layers that shared a mask still share one."""
    combined = {id(layer_mask): layer_mask & mask for layer_mask in layer_masks}
    return [combined[id(layer_mask)] for layer_mask in layer_masks]
