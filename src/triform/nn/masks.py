"""Masks as rules: a rule answers "may query q of row b read key k?".

Rules compose (`causal & window(8) & real(keep)`) and every kernel reads them in its own way: `dense` gives
the explicit formula a boolean tensor, `span` and `stretches` tell fast kernels how far a query can look, so that
they need not look farther, and `mask_mod` is what FlexAttention compiles.

In self-attention the queries are the last T of the S positions: all of them for a whole sequence, the newest
in cached decoding. Cross-attention uses only rules that do not ask where the query stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triform.config import ModelConfig

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
UNBOUNDED = 1 << 40  # farther than any text is long
MAX_CACHED_ENTRIES = 1 << 26  # entries of masks that a rule remembers


class AttentionSpan(NamedTuple):
    """How many positions before and after itself a query can read at most."""

    before: int = UNBOUNDED
    after: int = UNBOUNDED

    @property
    def width(self) -> int:
        return self.before + 1 + self.after


class Tile(NamedTuple):
    """Part of the whole: queries q to q+t and the keys k to k+s; the first query stands at `place`."""

    q_start: int
    q_len: int
    k_start: int
    k_len: int
    q_position: int


class AttentionMask:
    """Which keys a query may read. Abstract: a rule states `allows` and, if it can, what makes it cheap."""

    span = AttentionSpan()
    span_is_exact = False  # whether span and stretches already say everything that is hidden
    is_shift_invariant = False  # whether only distances count, so that pieces of one shape have one mask
    may_mask_all_keys = True  # whether a query may be left with nothing to read
    batch_size = 1  # how many rows are told apart; 1: every row of a batch is treated alike

    def __init__(self) -> None:
        self._dense_cache: dict[tuple[Tile, torch.device], Tensor] = {}
        self._cached_entries = 0  # entries of all of them
        self._bias_cache: tuple[object, Tensor, Tensor] | None = None  # the newest one, in another form
        self.tilings: dict[tuple[int, ...], list[Tile]] = {}  # what `cut` made of this rule
        self.block_mask: tuple[object, Any] | None = None  # and what a compiling kernel did, for one shape

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """True where query q of row b may read key k; the three index tensors broadcast."""
        raise NotImplementedError

    def regions(self, t: int, s: int) -> tuple[Tile, ...]:
        """Parts that do not read one another; most rules know only one."""
        return (full_tile(t, s),)

    def dense(self, tile: Tile, device: torch.device) -> Tensor:
        """The rule for a piece as a boolean tensor (B or 1, 1, T, S); all layers of a forward pass share it."""
        if self.is_shift_invariant:
            tile = tile._replace(q_start=0, k_start=0, q_position=tile.q_position - tile.k_start)
        key = tile, device
        mask = self._dense_cache.get(key)
        if mask is None:
            with torch.inference_mode(False):  # made while evaluating, it may be needed in training
                b = torch.arange(self.batch_size, device=device)[:, None, None]
                q = torch.arange(tile.q_position, tile.q_position + tile.q_len, device=device)[None, :, None]
                k = torch.arange(tile.k_start, tile.k_start + tile.k_len, device=device)[None, None, :]
                mask = self.allows(b, q, k).expand(self.batch_size, tile.q_len, tile.k_len)[:, None]
            self._cache_dense(key, mask)
        return mask

    def _cache_dense(self, key: tuple[Tile, torch.device], mask: Tensor) -> None:
        if self._cached_entries + mask.numel() > MAX_CACHED_ENTRIES:
            self._dense_cache, self._cached_entries = {}, 0
        if mask.numel() <= MAX_CACHED_ENTRIES:
            self._dense_cache[key] = mask
            self._cached_entries += mask.numel()

    def distances(self, tile: Tile, device: torch.device) -> Tensor:  # (T + S - 1)
        """Key minus query along the diagonals of a piece, from the last query's first key on."""
        first_distance = tile.k_start - (tile.q_position + tile.q_len - 1)
        return torch.arange(first_distance, first_distance + tile.q_len + tile.k_len - 1, device=device)

    def additive_bias(self, tile: Tile, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same as what is added to scores, 0 or minus infinity, and which queries may read nothing at all."""
        key = tile, device, dtype
        cached = self._bias_cache  # read once: another thread may replace it at any time
        if cached is None or cached[0] != key:
            keep = self.dense(tile, device)
            with torch.inference_mode(False):
                bias = torch.zeros(keep.shape, dtype=dtype, device=device).masked_fill(~keep, float("-inf"))
                cached = self._bias_cache = key, bias, ~keep.any(dim=-1, keepdim=True)
        return cached[1], cached[2]

    def cached_tensors(self) -> list[object]:
        """Everything kept for kernels; who recorded a kernel must keep it too, for here it may be dropped."""
        return [*self._dense_cache.values(), self._bias_cache, self.block_mask]

    def clear_caches(self) -> None:
        """Make everything anew: what was made while a recording failed has never been computed."""
        self._dense_cache, self._cached_entries, self._bias_cache, self.block_mask = {}, 0, None, None

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionMask:
        """A copied model has rules of its own, with nothing remembered yet."""
        duplicate = copy(self)
        duplicate.clear_caches()
        duplicate.tilings = {}
        return duplicate

    def mask_mod(self, t: int, s: int) -> MaskMod:
        """The rule as a function of single indices, for kernels that compile it."""
        return lambda b, h, q, k: self.allows(b, q + (s - t), k)

    def __and__(self, other: AttentionMask) -> AttentionMask:
        own_parts, other_parts = _conjuncts(self), _conjuncts(other)
        if not (own_parts and other_parts):  # the one that says something, itself: what it remembers is kept
            return self if own_parts else other
        return AndMask(*own_parts, *other_parts)


def full_tile(t: int, s: int) -> Tile:
    """All of t queries and s keys; the queries are the newest of the positions."""
    return Tile(q_start=0, q_len=t, k_start=0, k_len=s, q_position=s - t)


def _conjuncts(mask: AttentionMask) -> tuple[AttentionMask, ...]:
    return mask.masks if isinstance(mask, AndMask) else () if isinstance(mask, FullMask) else (mask,)


class AndMask(AttentionMask):
    """Every one of several rules must allow it."""

    def __init__(self, *masks: AttentionMask) -> None:
        super().__init__()
        self.masks = masks
        self.span = AttentionSpan(min(mask.span.before for mask in masks), min(mask.span.after for mask in masks))
        self.span_is_exact = all(mask.span_is_exact for mask in masks)
        self.is_shift_invariant = all(mask.is_shift_invariant for mask in masks)
        self.batch_size = max(mask.batch_size for mask in masks)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = self.masks[0].allows(b, q, k)
        for mask in self.masks[1:]:
            allowed = allowed & mask.allows(b, q, k)
        return allowed

    def regions(self, t: int, s: int) -> tuple[Tile, ...]:
        for mask in self.masks:
            if isinstance(mask, PackedMask):
                return mask.regions(t, s)
        return super().regions(t, s)


class FullMask(AttentionMask):
    span_is_exact = is_shift_invariant = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (b >= 0) & (k >= 0)


class CausalMask(AttentionMask):
    """No query reads what comes after it."""

    span = AttentionSpan(after=0)
    span_is_exact = is_shift_invariant = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (b >= 0)


class WindowMask(AttentionMask):
    """A query reads itself and the `width - 1` nearest keys on each side (with `causal`: before it)."""

    span_is_exact = is_shift_invariant = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.span = AttentionSpan(width - 1, width - 1)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() <= self.span.before) & (b >= 0)


class PaddingMask(AttentionMask):
    """Only real tokens are read, never padding. `keep` is (B, S)."""

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.keep, self.batch_size = keep, keep.shape[0]

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.keep[b, k]


class PackedMask(AttentionMask):
    """Rows packed end to end: the tokens of a row read only tokens of that row (or of its source)."""

    span_is_exact = True

    def __init__(self, lengths: Sequence[int], source_lengths: Sequence[int]) -> None:
        super().__init__()
        assert len(lengths) == len(source_lengths), "every row needs its source"
        self.lengths, self.source_lengths = tuple(lengths), tuple(source_lengths)
        self.query_offset = sum(source_lengths) - sum(lengths)  # where queries are counted from, see above
        self._sequence_ids: tuple[Tensor, Tensor] | None = None

    def sequence_ids(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Which row each query and each key belongs to."""
        if self._sequence_ids is None or self._sequence_ids[0].device != device:
            with torch.inference_mode(False):
                length_tensors = [
                    torch.tensor(lengths, device=device) for lengths in (self.lengths, self.source_lengths)
                ]
                ids = torch.arange(len(self.lengths), device=device)
                self._sequence_ids = (
                    ids.repeat_interleave(length_tensors[0]),
                    ids.repeat_interleave(length_tensors[1]),
                )
        return self._sequence_ids

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query_ids, key_ids = self.sequence_ids(q.device)
        return (query_ids[q - self.query_offset] == key_ids[k]) & (b >= 0)

    def regions(self, t: int, s: int) -> tuple[Tile, ...]:
        assert (t, s) == (sum(self.lengths), sum(self.source_lengths)), "packed rows are read whole"
        starts = accumulate(self.lengths, initial=0)
        source_starts = accumulate(self.source_lengths, initial=0)
        bounds = zip(starts, self.lengths, source_starts, self.source_lengths, strict=False)
        return tuple(
            Tile(q_start, q_len, k_start, k_len, q_start + self.query_offset)
            for q_start, q_len, k_start, k_len in bounds
        )


class BeamMask(AttentionMask):
    """What the newest tokens of each row read, which all stand at one place: hypotheses, one token each.

    `keep` (B, T, S) says which keys are a hypothesis' own past, `age` (S) how many steps ago each was written:
    keys may lie in any order. A token always reads itself.
    """

    may_mask_all_keys = False

    def __init__(self, base_mask: AttentionMask, keep: Tensor, age: Tensor) -> None:
        super().__init__()
        self.base_mask, self.keep, self.age, self.batch_size = base_mask, keep, age, keep.shape[0]
        self._mask: Tensor | None = None

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query_index = q - (self.keep.shape[2] - self.keep.shape[1])  # queries are counted as the last of the keys
        return self.keep[b, query_index, k] & self._allows_age(self.age[k])

    def _allows_age(self, age: Tensor) -> Tensor:
        zeros = torch.zeros_like(age)
        return self.base_mask.allows(zeros, zeros, -age)

    def dense(self, tile: Tile, device: torch.device) -> Tensor:
        if self._mask is None:
            self._mask = (self.keep & self._allows_age(self.age))[:, None]  # (B, 1, T, S)
        return self._mask[:, :, tile.q_start : tile.q_start + tile.q_len, tile.k_start : tile.k_start + tile.k_len]

    def distances(self, tile: Tile, device: torch.device) -> Tensor:  # (1, S)
        return -self.age[None, tile.k_start : tile.k_start + tile.k_len]


full_mask: AttentionMask = FullMask()
causal_mask: AttentionMask = CausalMask()


def window_mask(width: int) -> AttentionMask:
    """A window of `width`; -1 means no limit."""
    return full_mask if width < 0 else WindowMask(width)


def padding_mask(keep: Tensor | None) -> AttentionMask:
    """Hide padding; None means that there is none."""
    return full_mask if keep is None else PaddingMask(keep)


def build_layer_masks(config: ModelConfig, *, causal: bool) -> tuple[AttentionMask, ...]:
    """How far each layer may read. Layers that reach alike share one rule, which is the model's own."""
    base_mask = CausalMask() if causal else FullMask()
    mask_by_width = {width: base_mask & window_mask(width) for width in set(config.windows)}
    return tuple(mask_by_width[width] for width in config.windows)


def combine_masks(layer_masks: Sequence[AttentionMask], mask: AttentionMask) -> list[AttentionMask]:
    """Each layer's reach joined with the rule of a batch; layers that reach alike still share one."""
    combined = {id(layer_mask): layer_mask & mask for layer_mask in layer_masks}
    return [combined[id(layer_mask)] for layer_mask in layer_masks]
