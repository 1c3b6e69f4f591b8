"""Masks as rules: a rule answers "may query q of row b read key k?".

Rules compose (`causal & window(8) & real(keep)`) and every kernel reads them in its own way: `dense` gives
the explicit formula a boolean tensor, `reading` tells fused attention when a flag says the same, and
`mask_mod` is what FlexAttention compiles.

In self-attention the queries are the last T of the S positions: all of them for a whole sequence, the newest
in cached decoding. Cross-attention uses only rules that do not ask where the query stands.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Reading(IntEnum):
    """How much a fused kernel must be told; the larger one wins when rules are joined."""

    FULL = 0  # nothing is hidden
    CAUSAL = 1  # the kernel's own causal flag
    DENSE = 2  # a boolean mask


class Rule:
    """Which keys a query may read. Abstract: a rule states `allows` and, if it can, a cheaper `reading`."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int, torch.device], Tensor] | None = None

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """True where query q of row b may read key k; the three index tensors broadcast."""
        raise NotImplementedError

    def reading(self, t: int, s: int) -> Reading:
        return Reading.DENSE

    @property
    def rows(self) -> int:
        """1 where every row of a batch is treated alike, else the number of rows."""
        return 1

    def dense(self, t: int, s: int, device: torch.device) -> Tensor:
        """The rule as a boolean tensor; all layers of one forward pass share it."""
        key = (t, s, device)
        last = self._last
        if last is None or last[0] != key:
            b = torch.arange(self.rows, device=device)[:, None, None]
            q = torch.arange(s - t, s, device=device)[None, :, None]
            k = torch.arange(s, device=device)[None, None, :]
            last = self._last = key, self.allows(b, q, k).expand(self.rows, t, s)[:, None]  # (B or 1, 1, T, S)
        return last[1]

    def mask_mod(self, t: int, s: int) -> MaskMod:
        """The rule as a function of single indices, for kernels that compile it."""
        return lambda b, h, q, k: self.allows(b, q + (s - t), k)

    def __and__(self, other: Rule) -> Rule:
        parts = [*_parts(self), *_parts(other)]
        return parts[0] if len(parts) == 1 else All(*parts) if parts else everything


def _parts(rule: Rule) -> tuple[Rule, ...]:
    return rule.rules if isinstance(rule, All) else () if isinstance(rule, Everything) else (rule,)


class All(Rule):
    """Every one of several rules must allow it."""

    def __init__(self, *rules: Rule) -> None:
        super().__init__()
        self.rules = rules

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = self.rules[0].allows(b, q, k)
        for rule in self.rules[1:]:
            allowed = allowed & rule.allows(b, q, k)
        return allowed

    def reading(self, t: int, s: int) -> Reading:
        return max(rule.reading(t, s) for rule in self.rules)

    @property
    def rows(self) -> int:
        return max(rule.rows for rule in self.rules)


class Everything(Rule):
    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (b >= 0) & (k >= 0)

    def reading(self, t: int, s: int) -> Reading:
        return Reading.FULL


class Causal(Rule):
    """No query reads what comes after it."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (b >= 0)

    def reading(self, t: int, s: int) -> Reading:
        if t == 1:  # the newest position may read all there is
            return Reading.FULL
        return Reading.CAUSAL if t == s else Reading.DENSE


class Window(Rule):
    """A query reads itself and the `width - 1` nearest keys on each side (with `causal`: before it)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() < self.width) & (b >= 0)

    def reading(self, t: int, s: int) -> Reading:
        return Reading.FULL if s <= self.width else Reading.DENSE


class Real(Rule):
    """Only real tokens are read, never padding. `keep` is (B, S)."""

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.keep = keep

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.keep[b, k]

    @property
    def rows(self) -> int:
        return self.keep.shape[0]


everything: Rule = Everything()
causal: Rule = Causal()


def window(width: int) -> Rule:
    """A window of `width`; 0 means no limit."""
    return Window(width) if width else everything


def real(keep: Tensor | None) -> Rule:
    """Hide padding; None means that there is none."""
    return everything if keep is None else Real(keep)
