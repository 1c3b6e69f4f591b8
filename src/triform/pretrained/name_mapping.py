"""Map tensor names of published models to Triform's names, for import and export.

A pattern states that some of Triform's tensors, concatenated by rows, equal some published tensors, concatenated by
rows. The same pattern therefore splits a joint projection in one direction and joins it in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

import torch
from torch import Tensor, nn

from triform.errors import CheckpointError

# How a published tensor is stored: as in Triform, transposed, or with shape (1, n) instead of (n).
TensorLayout = Literal["plain", "transposed", "row"]
WEIGHT_AND_BIAS = ((".weight", ".weight"), (".bias", ".bias"))
WEIGHT_ONLY = ((".weight", ".weight"),)


@dataclass(frozen=True)
class NamePattern:
    """Triform's modules and the published modules with the same content; `*` stands for the layer index."""

    triform_names: tuple[str, ...]
    published_names: tuple[str, ...]
    layout: TensorLayout = "plain"
    suffixes: tuple[tuple[str, str], ...] = WEIGHT_AND_BIAS  # suffixes of the tensor names: Triform's, published


def name_pattern(
    triform_names: str,
    published_names: str,
    layout: TensorLayout = "plain",
    suffixes: tuple[tuple[str, str], ...] = WEIGHT_AND_BIAS,
) -> NamePattern:
    """Build a pattern from space-separated names."""
    return NamePattern(tuple(triform_names.split()), tuple(published_names.split()), layout, suffixes)


def layer_patterns(triform_prefix: str, published_prefix: str, names: Mapping[str, str]) -> tuple[NamePattern, ...]:
    """Build the patterns of all layers from the module names that follow the layer index."""
    return tuple(
        name_pattern(
            f"{triform_prefix}.*.{triform_name}",
            " ".join(f"{published_prefix}.*.{name}" for name in published_names.split()),
        )
        for triform_name, published_names in names.items()
    )


@dataclass(frozen=True)
class TensorMapping:
    """The full names of tensors with the same content, and the layout of the published ones."""

    triform_names: tuple[str, ...]
    published_names: tuple[str, ...]
    layout: TensorLayout

    def published_shape(self, shapes: Iterable[torch.Size]) -> tuple[int, ...]:
        """Return the shape that each published tensor must have, given the shapes of Triform's tensors."""
        first, *others = shapes
        rows = (first[0] + sum(shape[0] for shape in others)) // len(self.published_names)
        shape = (rows, *first[1:])
        return {"plain": shape, "transposed": shape[::-1], "row": (1, *shape)}[self.layout]

    def to_triform(self, tensors: list[Tensor], row_counts: list[int]) -> tuple[Tensor, ...]:
        """Convert published tensors to Triform's tensors, which have `row_counts` rows each."""
        converted = [self._to_triform_layout(tensor) for tensor in tensors]
        joined = converted[0] if len(converted) == 1 else torch.cat(converted)
        return joined.split(row_counts)  # type: ignore[no-untyped-call]

    def to_published(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """Convert Triform's tensors to copies in the published layout."""
        parts = torch.cat(tensors).chunk(len(self.published_names))
        return tuple(
            (part[None] if self.layout == "row" else self._to_triform_layout(part)).contiguous() for part in parts
        )

    def _to_triform_layout(self, tensor: Tensor) -> Tensor:
        if self.layout == "row":
            return tensor[0]
        return tensor.T if self.layout == "transposed" and tensor.ndim == 2 else tensor


def expand_patterns(patterns: Iterable[NamePattern], n_layers: int) -> Iterator[TensorMapping]:
    """Yield the tensor mappings of a model with `n_layers` layers."""
    for pattern in patterns:
        is_layer = "*" in pattern.triform_names[0]
        for layer in range(n_layers if is_layer else 1):
            for triform_suffix, published_suffix in pattern.suffixes:
                yield TensorMapping(
                    tuple(name.replace("*", str(layer)) + triform_suffix for name in pattern.triform_names),
                    tuple(name.replace("*", str(layer)) + published_suffix for name in pattern.published_names),
                    pattern.layout,
                )


@torch.no_grad()
def load_published_tensors(
    model: nn.Module,
    mappings: Iterable[TensorMapping],
    tensors: Mapping[str, Tensor],
    *,
    path: object,
    ignored_patterns: Iterable[str],
) -> None:
    """Copy published tensors into a model. A tied tensor may be stored once or under both of its names.

    Raises:
        CheckpointError: A tensor is missing, has the wrong shape, is not finite, or does not exist in the model.
    """
    parameters = dict(model.named_parameters())
    tied_names = dict(model.named_parameters(remove_duplicate=False)).keys() - parameters.keys()
    used_names: set[str] = set()
    for mapping in mappings:
        if not set(mapping.triform_names) <= parameters.keys():
            used_names |= {*mapping.published_names} if set(mapping.triform_names) <= tied_names else set()
            continue
        used_names |= {*mapping.published_names}
        targets = [parameters[name] for name in mapping.triform_names]
        sources = _collect_tensors(mapping, targets, tensors, path)
        for parameter, part in zip(
            targets, mapping.to_triform(sources, [len(item) for item in targets]), strict=True
        ):
            parameter.copy_(part)
    unexpected = [
        name
        for name in tensors
        if name not in used_names and not any(fnmatch(name, item) for item in ignored_patterns)
    ]
    if unexpected:
        suffix = f" and {len(unexpected) - 1} more" if len(unexpected) > 1 else ""
        raise CheckpointError(
            f"{path}: unexpected tensor {unexpected[0]}{suffix}; "
            "the model that config.json describes does not have it"
        )


@torch.no_grad()
def export_state_dict(
    model: nn.Module, mappings: Iterable[TensorMapping], *, write_zero_biases: bool
) -> dict[str, Tensor]:
    """Return the tensors of a model under published names, optionally with zeros for missing biases."""
    parameters, all_parameters = (
        dict(model.named_parameters()),
        dict(model.named_parameters(remove_duplicate=False)),
    )
    state_dict: dict[str, Tensor] = {}
    unmapped = set(parameters)
    for mapping in mappings:
        unmapped -= set(mapping.triform_names)
        if set(mapping.triform_names) <= parameters.keys():
            state_dict |= zip(
                mapping.published_names,
                mapping.to_published([parameters[name].detach() for name in mapping.triform_names]),
                strict=True,
            )
        elif (
            write_zero_biases
            and set(weight_names := [name.replace(".bias", ".weight") for name in mapping.triform_names])
            <= all_parameters.keys()
        ):
            zero_biases = [
                all_parameters[name].new_zeros(len(all_parameters[name]))
                for name in weight_names
                if name not in mapping.triform_names
            ]
            state_dict |= (
                zip(mapping.published_names, mapping.to_published(zero_biases), strict=True) if zero_biases else ()
            )
    if unmapped:
        raise CheckpointError(
            f"{min(unmapped)} does not exist in this family; merge adapters before you export a model"
        )
    return state_dict


def _collect_tensors(
    mapping: TensorMapping, targets: list[nn.Parameter], tensors: Mapping[str, Tensor], path: object
) -> list[Tensor]:
    """Return the published tensors of a mapping after checking their shapes and values."""
    shape = mapping.published_shape([parameter.shape for parameter in targets])
    collected = []
    for name in mapping.published_names:
        if name not in tensors:
            raise CheckpointError(f"{path}: the tensor {name} is missing (expected shape {_format_shape(shape)})")
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{path}: the tensor {name} has the wrong shape: expected {_format_shape(shape)}, "
                f"found {_format_shape(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{path}: the tensor {name} has dtype {tensor.dtype}; quantized models are not supported"
            )
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{path}: the tensor {name} contains NaN or infinity, so the model is damaged; download it again"
            )
        collected.append(tensor)
    return collected


def _format_shape(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"
