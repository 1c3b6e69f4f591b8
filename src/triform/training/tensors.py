"""Tensors in files: reading and writing safetensors, and checking weights against a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triform.errors import CheckpointError
from triform.io.errors import damaged_error

FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")  # number formats of weights, as safetensors calls them
MAX_BATCHED_COPY_NUMEL = 1 << 20  # numbers of a tensor that is copied together with others


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that others may read; to write it whole, give a temporary name."""
    save_file(to_cpu(tensors), path, metadata)
    path.chmod(0o644)  # the library writes for the owner alone


def to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of those that lie on a device; small ones come together, for each copy waits for the device."""
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    small = {
        name: tensor
        for name, tensor in detached.items()
        if tensor.is_cuda and tensor.numel() <= MAX_BATCHED_COPY_NUMEL
    }
    return {name: tensor.cpu().contiguous() for name, tensor in (detached | batched_to_cpu(small)).items()}


def batched_to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the host, with one copy for each number format."""
    copies: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors.values()}:
        group = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        flat = torch.cat([tensor.flatten() for tensor in group.values()]).cpu()
        parts = flat.split([tensor.numel() for tensor in group.values()])  # type: ignore[no-untyped-call]
        copies |= {name: part.clone().view(group[name].shape) for name, part in zip(group, parts, strict=True)}
    return copies


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise damaged_error(path, "no such file") from None
    except (OSError, SafetensorError) as error:
        raise damaged_error(path, error) from None


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters by name; one that is tied to another appears once, under its first name."""
    return dict(model.named_parameters())


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy weights into a model; every parameter must be there, with its shape, and finite."""
    parameters = named_weights(model)
    validate_shapes(path, {name: list(tensor.shape) for name, tensor in tensors.items()}, parameters)
    validate_finite(path, tensors)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def validate_shapes(path: Path, shapes: Mapping[str, Sequence[int]], expected: Mapping[str, Tensor]) -> None:
    """Check that a file has exactly the expected tensors, with their shapes.

    Raises:
        CheckpointError: A tensor is missing, unknown or of another shape.
    """
    if expected.keys() != shapes.keys():
        unmatched = sorted(expected.keys() ^ shapes.keys())
        raise CheckpointError(f"{path}: does not fit the settings: {unmatched[0]} is missing or unknown")
    for name, parameter in expected.items():
        if tuple(parameter.shape) != tuple(shapes[name]):
            raise CheckpointError(
                f"{path}: does not fit the settings: {name} is {tuple(shapes[name])}, "
                f"wanted {tuple(parameter.shape)}"
            )


def validate_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that hold NaN or infinity. A sum that is finite shows at little cost that all numbers are."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not (tensor.sum().isfinite() or tensor.isfinite().all()):
            raise CheckpointError(
                f"{path}: {name} holds numbers that are not finite (NaN or infinity): the weights are of no use; "
                "restore them from a copy, or train again with --overwrite"
            )


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor from a file's header alone; weights must be real numbers."""
    shapes: dict[str, list[int]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                entry = file.get_slice(name)
                shapes[name] = entry.get_shape()
                if entry.get_dtype() not in FLOAT_DTYPES:
                    raise CheckpointError(
                        f"{path}: does not fit the settings: {name} holds {entry.get_dtype()} numbers, wanted F32"
                    )
    except FileNotFoundError:
        raise damaged_error(path, "no such file") from None
    except (OSError, SafetensorError) as error:
        raise damaged_error(path, error) from None
    return shapes
