"""Tables of names: which tensors of a published model are which of ours, read in both directions.

A pair says that some tensors of ours, one under the other, are some of theirs, one under the other: so a joined
projection is split, and split ones are joined, by the same line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

import torch
from torch import Tensor, nn

from triform.errors import CheckpointError

Layout = Literal["plain", "turned", "row"]  # theirs as ours; matrices transposed; (1, n) instead of (n)
PLAIN = ((".weight", ".weight"), (".bias", ".bias"))
WEIGHT = ((".weight", ".weight"),)
BIAS = ((".bias", ".bias"),)


@dataclass(frozen=True)
class Pair:
    """Modules of ours and of theirs that hold the same; `*` stands for the number of a layer."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    layout: Layout = "plain"
    endings: tuple[tuple[str, str], ...] = PLAIN  # of our tensors' names, and of theirs


def pair(ours: str, theirs: str, layout: Layout = "plain", endings: tuple[tuple[str, str], ...] = PLAIN) -> Pair:
    """A pair from names with spaces between them."""
    return Pair(tuple(ours.split()), tuple(theirs.split()), layout, endings)


def layers(ours: str, theirs: str, table: Mapping[str, str]) -> tuple[Pair, ...]:
    """The pairs of every layer, from what stands after its number."""
    return tuple(
        pair(f"{ours}.*.{mine}", " ".join(f"{theirs}.*.{name}" for name in other.split()))
        for mine, other in table.items()
    )


@dataclass(frozen=True)
class Same:
    """Tensors by their whole names."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    layout: Layout

    def expected(self, shapes: Iterable[torch.Size]) -> tuple[int, ...]:
        """The shape that each of theirs must have, given those of ours."""
        first, *more = shapes
        rows = (first[0] + sum(shape[0] for shape in more)) // len(self.theirs)
        shape = (rows, *first[1:])
        return {"plain": shape, "turned": shape[::-1], "row": (1, *shape)}[self.layout]

    def to_ours(self, theirs: list[Tensor], rows: list[int]) -> tuple[Tensor, ...]:
        """Their tensors as ours, which have so many rows each."""
        laid = [self._laid(tensor) for tensor in theirs]
        whole = laid[0] if len(laid) == 1 else torch.cat(laid)
        return whole.split(rows)  # type: ignore[no-untyped-call]

    def to_theirs(self, ours: list[Tensor]) -> tuple[Tensor, ...]:
        """Our tensors as theirs, copied."""
        parts = torch.cat(ours).chunk(len(self.theirs))
        return tuple((part[None] if self.layout == "row" else self._laid(part)).contiguous() for part in parts)

    def _laid(self, x: Tensor) -> Tensor:
        if self.layout == "row":
            return x[0]
        return x.T if self.layout == "turned" and x.ndim == 2 else x


def sames(pairs: Iterable[Pair], n_layers: int) -> Iterator[Same]:
    """Every pair of tensors that a model of so many layers can have."""
    for each in pairs:
        repeated = "*" in each.ours[0]
        for layer in range(n_layers if repeated else 1):
            for ours, theirs in each.endings:
                yield Same(
                    tuple(name.replace("*", str(layer)) + ours for name in each.ours),
                    tuple(name.replace("*", str(layer)) + theirs for name in each.theirs),
                    each.layout,
                )


@torch.no_grad()
def fill(
    model: nn.Module, table: Iterable[Same], tensors: Mapping[str, Tensor], *, place: object, ignored: Iterable[str]
) -> None:
    """Copy what a file holds into a model. Where one tensor of ours has two names, it may be there twice, too."""
    own = dict(model.named_parameters())
    twice = dict(model.named_parameters(remove_duplicate=False)).keys() - own.keys()
    used: set[str] = set()
    for same in table:
        if not set(same.ours) <= own.keys():
            used |= {*same.theirs} if set(same.ours) <= twice else set()
            continue
        used |= {*same.theirs}
        mine = [own[name] for name in same.ours]
        theirs = _found(same, mine, tensors, place)
        for parameter, part in zip(mine, same.to_ours(theirs, [len(each) for each in mine]), strict=True):
            parameter.copy_(part)
    extra = [name for name in tensors if name not in used and not any(fnmatch(name, each) for each in ignored)]
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointError(f"{place}: holds {extra[0]}{more}, for which this model has no place")


@torch.no_grad()
def gather(model: nn.Module, table: Iterable[Same], *, zeros: bool) -> dict[str, Tensor]:
    """A model's tensors under their names; with `zeros`, biases that it does not have are written as such."""
    own, known = dict(model.named_parameters()), dict(model.named_parameters(remove_duplicate=False))
    told: dict[str, Tensor] = {}
    left = set(own)
    for same in table:
        left -= set(same.ours)
        if set(same.ours) <= own.keys():
            told |= zip(same.theirs, same.to_theirs([own[name].detach() for name in same.ours]), strict=True)
        elif zeros and set(weights := [name.replace(".bias", ".weight") for name in same.ours]) <= known.keys():
            none = [known[name].new_zeros(len(known[name])) for name in weights if name not in same.ours]
            told |= zip(same.theirs, same.to_theirs(none), strict=True) if none else ()
    if left:
        raise CheckpointError(
            f"{min(left)} has no place in this family; adapters are merged before a model is written"
        )
    return told


def _found(same: Same, mine: list[nn.Parameter], tensors: Mapping[str, Tensor], place: object) -> list[Tensor]:
    """Their tensors, with the names and shapes that they must have."""
    shape = same.expected([each.shape for each in mine])
    found = []
    for name in same.theirs:
        if name not in tensors:
            raise CheckpointError(f"{place}: {name} is missing: expected {_shown(shape)}, found nothing")
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{place}: {name} has the wrong shape: expected {_shown(shape)}, found {_shown(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{place}: {name} holds {tensor.dtype} and no weights: quantized models are not read"
            )
        if not tensor.isfinite().all():
            raise CheckpointError(f"{place}: {name} holds numbers that are not finite: the model is damaged")
        found.append(tensor)
    return found


def _shown(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape)) or "one number"
