"""Beam search over a shared cache: a mask says which keys belong to the past of which hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triform.nn.layouts import PaddedLayout
from triform.nn.masks import AttentionMask


class BeamMask(AttentionMask):
    """Which keys the newest token of each hypothesis may read. All hypotheses are at the same position.

    Args:
        base_mask: The mask of the layer, applied to the age of the keys.
        keep: Which keys belong to the past of each hypothesis (B, T, S); a token always reads itself.
        age: How many steps ago each key was written (S); keys may lie in any order.
    """

    def __init__(self, base_mask: AttentionMask, keep: Tensor, age: Tensor) -> None:
        self.base_mask, self.keep, self.age, self.batch_size = base_mask, keep, age, keep.shape[0]

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return True for keys of the hypothesis that the mask of the layer allows."""
        hypothesis = q - (self.keep.shape[2] - self.keep.shape[1])  # queries count as the last of the keys
        return self.keep[b, hypothesis, k] & self._allows_age(self.age[k])

    def dense(self, t: int, s: int, device: torch.device) -> Tensor:  # -> (B, 1, T, S)
        """Return the mask as a boolean tensor."""
        return (self.keep & self._allows_age(self.age))[:, None]

    def distances(self, t: int, s: int, device: torch.device) -> Tensor:  # -> (1, S)
        """Return minus the age of each key."""
        return -self.age[None]

    def _allows_age(self, age: Tensor) -> Tensor:
        zeros = torch.zeros_like(age)
        return self.base_mask.allows(zeros, zeros, -age)


class BeamLayout(PaddedLayout):
    """One new token for each of the T hypotheses of a row, which read the row's cache.

    Args:
        keep: Which keys belong to the past of each hypothesis (B, T, S).
        age: How many steps ago each key was written (S).
        token_positions: The positions of the new tokens in their texts (B, T).
    """

    def __init__(self, keep: Tensor, age: Tensor, token_positions: Tensor) -> None:
        super().__init__(None)
        self.beam_keep, self.age, self.token_positions = keep, age, token_positions

    def self_attention_masks(self, layer_masks: Sequence[AttentionMask]) -> list[AttentionMask]:
        """Return the mask of each layer; layers that shared a mask still share one."""
        masks: dict[int, AttentionMask] = {
            id(mask): BeamMask(mask, self.beam_keep, self.age) for mask in layer_masks
        }
        return [masks[id(mask)] for mask in layer_masks]

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        """Return the positions of the new tokens."""
        return self.token_positions
