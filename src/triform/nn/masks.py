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
FAR = 1 << 40  # farther than any text is long
MOST_KEPT = 1 << 26  # entries of masks that a rule remembers


class Span(NamedTuple):
    """How many positions before and after itself a query can read at most."""

    before: int = FAR
    after: int = FAR

    @property
    def width(self) -> int:
        return self.before + 1 + self.after


class Piece(NamedTuple):
    """Part of the whole: queries q to q+t and the keys k to k+s; the first query stands at `place`."""

    q: int
    t: int
    k: int
    s: int
    place: int


class Rule:
    """Which keys a query may read. Abstract: a rule states `allows` and, if it can, what makes it cheap."""

    span = Span()
    exact = False  # whether span and stretches already say everything that is hidden
    moves = False  # whether only distances count, so that pieces of one shape have one mask
    may_hide_all = True  # whether a query may be left with nothing to read
    rows = 1  # how many rows are told apart; 1: every row of a batch is treated alike

    def __init__(self) -> None:
        self._masks: dict[tuple[Piece, torch.device], Tensor] = {}
        self._kept = 0  # entries of all of them
        self._added: tuple[object, Tensor, Tensor] | None = None  # the newest one, in another form
        self.pieces: dict[tuple[int, ...], list[Piece]] = {}  # what `cut` made of this rule
        self.block_mask: tuple[object, Any] | None = None  # and what a compiling kernel did, for one shape

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """True where query q of row b may read key k; the three index tensors broadcast."""
        raise NotImplementedError

    def stretches(self, t: int, s: int) -> tuple[Piece, ...]:
        """Parts that do not read one another; most rules know only one."""
        return (whole(t, s),)

    def dense(self, piece: Piece, device: torch.device) -> Tensor:
        """The rule for a piece as a boolean tensor (B or 1, 1, T, S); all layers of a forward pass share it."""
        if self.moves:
            piece = piece._replace(q=0, k=0, place=piece.place - piece.k)
        key = piece, device
        mask = self._masks.get(key)
        if mask is None:
            with torch.inference_mode(False):  # made while evaluating, it may be needed in training
                b = torch.arange(self.rows, device=device)[:, None, None]
                q = torch.arange(piece.place, piece.place + piece.t, device=device)[None, :, None]
                k = torch.arange(piece.k, piece.k + piece.s, device=device)[None, None, :]
                mask = self.allows(b, q, k).expand(self.rows, piece.t, piece.s)[:, None]
            self._remember(key, mask)
        return mask

    def _remember(self, key: tuple[Piece, torch.device], mask: Tensor) -> None:
        if self._kept + mask.numel() > MOST_KEPT:
            self._masks, self._kept = {}, 0
        if mask.numel() <= MOST_KEPT:
            self._masks[key] = mask
            self._kept += mask.numel()

    def distances(self, piece: Piece, device: torch.device) -> Tensor:  # (T + S - 1)
        """Key minus query along the diagonals of a piece, from the last query's first key on."""
        first = piece.k - (piece.place + piece.t - 1)
        return torch.arange(first, first + piece.t + piece.s - 1, device=device)

    def added(self, piece: Piece, device: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same as what is added to scores, 0 or minus infinity, and which queries may read nothing at all."""
        key = piece, device, kind
        found = self._added  # read once: another thread may replace it at any time
        if found is None or found[0] != key:
            keep = self.dense(piece, device)
            with torch.inference_mode(False):
                bias = torch.zeros(keep.shape, dtype=kind, device=device).masked_fill(~keep, float("-inf"))
                found = self._added = key, bias, ~keep.any(dim=-1, keepdim=True)
        return found[1], found[2]

    def remembered(self) -> list[object]:
        """Everything kept for kernels; who recorded a kernel must keep it too, for here it may be dropped."""
        return [*self._masks.values(), self._added, self.block_mask]

    def forget(self) -> None:
        """Make everything anew: what was made while a recording failed has never been computed."""
        self._masks, self._kept, self._added, self.block_mask = {}, 0, None, None

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        """A copied model has rules of its own, with nothing remembered yet."""
        made = copy(self)
        made.forget()
        made.pieces = {}
        return made

    def mask_mod(self, t: int, s: int) -> MaskMod:
        """The rule as a function of single indices, for kernels that compile it."""
        return lambda b, h, q, k: self.allows(b, q + (s - t), k)

    def __and__(self, other: Rule) -> Rule:
        mine, theirs = _parts(self), _parts(other)
        if not (mine and theirs):  # the one that says something, itself: what it remembers is kept
            return self if mine else other
        return All(*mine, *theirs)


def whole(t: int, s: int) -> Piece:
    """All of t queries and s keys; the queries are the newest of the positions."""
    return Piece(q=0, t=t, k=0, s=s, place=s - t)


def _parts(rule: Rule) -> tuple[Rule, ...]:
    return rule.rules if isinstance(rule, All) else () if isinstance(rule, Everything) else (rule,)


class All(Rule):
    """Every one of several rules must allow it."""

    def __init__(self, *rules: Rule) -> None:
        super().__init__()
        self.rules = rules
        self.span = Span(min(rule.span.before for rule in rules), min(rule.span.after for rule in rules))
        self.exact = all(rule.exact for rule in rules)
        self.moves = all(rule.moves for rule in rules)
        self.rows = max(rule.rows for rule in rules)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = self.rules[0].allows(b, q, k)
        for rule in self.rules[1:]:
            allowed = allowed & rule.allows(b, q, k)
        return allowed

    def stretches(self, t: int, s: int) -> tuple[Piece, ...]:
        for rule in self.rules:
            if isinstance(rule, Together):
                return rule.stretches(t, s)
        return super().stretches(t, s)


class Everything(Rule):
    exact = moves = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (b >= 0) & (k >= 0)


class Causal(Rule):
    """No query reads what comes after it."""

    span = Span(after=0)
    exact = moves = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (b >= 0)


class Window(Rule):
    """A query reads itself and the `width - 1` nearest keys on each side (with `causal`: before it)."""

    exact = moves = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.span = Span(width - 1, width - 1)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() <= self.span.before) & (b >= 0)


class Real(Rule):
    """Only real tokens are read, never padding. `keep` is (B, S)."""

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.keep, self.rows = keep, keep.shape[0]

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.keep[b, k]


class Together(Rule):
    """Rows packed end to end: the tokens of a row read only tokens of that row (or of its source)."""

    exact = True

    def __init__(self, lengths: Sequence[int], source_lengths: Sequence[int]) -> None:
        super().__init__()
        assert len(lengths) == len(source_lengths), "every row needs its source"
        self.lengths, self.source_lengths = tuple(lengths), tuple(source_lengths)
        self.shift = sum(source_lengths) - sum(lengths)  # where queries are counted from, see above
        self._owners: tuple[Tensor, Tensor] | None = None

    def owners(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Which row each query and each key belongs to."""
        if self._owners is None or self._owners[0].device != device:
            with torch.inference_mode(False):
                of = [torch.tensor(each, device=device) for each in (self.lengths, self.source_lengths)]
                numbers = torch.arange(len(self.lengths), device=device)
                self._owners = numbers.repeat_interleave(of[0]), numbers.repeat_interleave(of[1])
        return self._owners

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        asking, asked = self.owners(q.device)
        return (asking[q - self.shift] == asked[k]) & (b >= 0)

    def stretches(self, t: int, s: int) -> tuple[Piece, ...]:
        assert (t, s) == (sum(self.lengths), sum(self.source_lengths)), "packed rows are read whole"
        starts = accumulate(self.lengths, initial=0)
        source_starts = accumulate(self.source_lengths, initial=0)
        rows = zip(starts, self.lengths, source_starts, self.source_lengths, strict=False)
        return tuple(Piece(q, n, k, m, q + self.shift) for q, n, k, m in rows)


class Newest(Rule):
    """What the newest tokens of each row read, which all stand at one place: hypotheses, one token each.

    `keep` (B, T, S) says which keys are a hypothesis' own past, `age` (S) how many steps ago each was written:
    keys may lie in any order. A token always reads itself.
    """

    may_hide_all = False

    def __init__(self, reach: Rule, keep: Tensor, age: Tensor) -> None:
        super().__init__()
        self.reach, self.keep, self.age, self.rows = reach, keep, age, keep.shape[0]
        self._mask: Tensor | None = None

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        asking = q - (self.keep.shape[2] - self.keep.shape[1])  # queries are counted as the last of the keys
        return self.keep[b, asking, k] & self._near(self.age[k])

    def _near(self, age: Tensor) -> Tensor:
        here = torch.zeros_like(age)
        return self.reach.allows(here, here, -age)

    def dense(self, piece: Piece, device: torch.device) -> Tensor:
        if self._mask is None:
            self._mask = (self.keep & self._near(self.age))[:, None]  # (B, 1, T, S)
        return self._mask[:, :, piece.q : piece.q + piece.t, piece.k : piece.k + piece.s]

    def distances(self, piece: Piece, device: torch.device) -> Tensor:  # (1, S)
        return -self.age[None, piece.k : piece.k + piece.s]


everything: Rule = Everything()
causal: Rule = Causal()


def window(width: int) -> Rule:
    """A window of `width`; -1 means no limit."""
    return everything if width < 0 else Window(width)


def real(keep: Tensor | None) -> Rule:
    """Hide padding; None means that there is none."""
    return everything if keep is None else Real(keep)


def reaches(config: ModelConfig, *, causal: bool) -> tuple[Rule, ...]:
    """How far each layer may read. Layers that reach alike share one rule, which is the model's own."""
    base = Causal() if causal else Everything()
    made = {width: base & window(width) for width in set(config.windows)}
    return tuple(made[width] for width in config.windows)


def within(reaches: Sequence[Rule], rule: Rule) -> list[Rule]:
    """Each layer's reach joined with the rule of a batch; layers that reach alike still share one."""
    made = {id(reach): reach & rule for reach in reaches}
    return [made[id(reach)] for reach in reaches]
