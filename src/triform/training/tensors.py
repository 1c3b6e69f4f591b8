"""Read and write tensors as safetensors files, and validate weights against a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from triform.errors import CheckpointError
from triform.io.errors import damaged_error

DTYPE_NAMES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # as safetensors names them, in the order of a file, in which larger numbers come first  # fmt: skip
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")  # dtypes of weights, as safetensors names them
NewTensor = Callable[[str, torch.Size, torch.dtype], Tensor]  # memory for a tensor by its name, shape and dtype
MAX_BATCHED_COPY_NUMEL = 1 << 20  # elements; smaller tensors are copied together


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that other users may read. For an atomic write, use a temporary name.

    The file has the bytes that `save_file` of safetensors writes, which runs more Python for each tensor: that
    delays the training while another thread writes a checkpoint.
    """
    host_tensors, order = to_cpu(tensors), list(DTYPE_NAMES)
    names = sorted(host_tensors, key=lambda name: (order.index(host_tensors[name].dtype), name))
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in names:
        tensor = host_tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in names:
            tensor = host_tensors[name]
            file.write((tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().data)
    path.chmod(0o644)


def to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the host. Small ones are copied together, because each copy waits for the device."""
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    small = {
        name: tensor
        for name, tensor in detached.items()
        if tensor.is_cuda and tensor.numel() <= MAX_BATCHED_COPY_NUMEL
    }
    copied = detached | batched_to_cpu(small) if small else detached
    return {
        name: tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()
        for name, tensor in copied.items()
    }


def batched_to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the host with one copy per dtype."""
    copies: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors.values()}:
        group = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        flat = torch.cat([tensor.flatten() for tensor in group.values()]).cpu()
        parts = flat.split([tensor.numel() for tensor in group.values()])  # type: ignore[no-untyped-call]
        copies |= {name: part.clone().view(group[name].shape) for name, part in zip(group, parts, strict=True)}
    return copies


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a `DTensor` that this process has, and any other tensor as a whole."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


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
    """Return a model's parameters by name. A tied parameter appears once, under its first name."""
    return dict(model.named_parameters())


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy weights into a model.

    Raises:
        CheckpointError: A parameter is missing, has the wrong shape, or is not finite.
    """
    parameters = named_weights(model)
    validate_shapes(path, {name: list(tensor.shape) for name, tensor in tensors.items()}, parameters)
    validate_finite(path, tensors)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def validate_shapes(path: Path, shapes: Mapping[str, Sequence[int]], expected: Mapping[str, Tensor]) -> None:
    """Check that a file has exactly the expected tensors, with their shapes.

    Raises:
        CheckpointError: A tensor is missing, unknown, or has the wrong shape.
    """
    if expected.keys() != shapes.keys():
        unmatched = sorted(expected.keys() ^ shapes.keys())
        raise CheckpointError(f"{path} does not match the settings: {unmatched[0]} is missing or unknown")
    for name, parameter in expected.items():
        if tuple(parameter.shape) != tuple(shapes[name]):
            raise CheckpointError(
                f"{path} does not match the settings: {name} has shape {tuple(shapes[name])}, "
                f"expected {tuple(parameter.shape)}"
            )


def is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite, of a `DTensor` those that this process has."""
    part = local_part(tensor)
    return bool(part.sum().isfinite() or part.isfinite().all())


def validate_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights with NaN or infinity. If the sum is finite, all numbers are, which is cheap to check."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise CheckpointError(
                f"{path}: {name} contains numbers that are not finite (NaN or infinity), so the weights cannot be "
                "used; restore them from a copy, or train again with --overwrite"
            )


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor from the header of a file. Weights must be real numbers."""
    shapes: dict[str, list[int]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                entry = file.get_slice(name)
                shapes[name] = entry.get_shape()
                if entry.get_dtype() not in FLOAT_DTYPES:
                    raise CheckpointError(
                        f"{path} does not match the settings: {name} has dtype {entry.get_dtype()}, expected F32"
                    )
    except FileNotFoundError:
        raise damaged_error(path, "no such file") from None
    except (OSError, SafetensorError) as error:
        raise damaged_error(path, error) from None
    return shapes
