"""Read and write the tensors of a checkpoint as several safetensors files, each with the parts of one process.

The planners of `torch.distributed.checkpoint` decide which part of a tensor a process writes and which parts it
reads, so that any number of processes can read what any other number has written. Nothing is pickled: the header of
each file has the place of its parts, in the form that `HuggingFaceStorageReader` of torch also reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from triform.io.errors import damaged_error
from triform.io.run_layout import SHARD_FILES, TENSORS_FILE
from triform.training.tensors import DTYPE_NAMES, NewTensor, save_tensors

SHARDING_KEY, OFFSETS_KEY, SIZE_KEY = "DCP_SHARDING_INFO", "saved_offsets", "size"  # in the header of a file
SHARD_NAME = re.compile(r"tensors-(\d{5})-of-(\d{5})\.safetensors")
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def shard_name(rank: int, n_shards: int) -> str:
    """Return the file name of the parts that a process writes."""
    return f"tensors-{rank + 1:05d}-of-{n_shards:05d}.safetensors"


def find_shards(folder: Path) -> list[Path]:
    """Return all files of a checkpoint's tensors, also those that are missing."""
    matches = [match for path in sorted(folder.glob(SHARD_FILES)) if (match := SHARD_NAME.fullmatch(path.name))]
    if not matches:
        return [folder / TENSORS_FILE]
    n_shards = int(matches[-1][2])
    return [folder / shard_name(rank, n_shards) for rank in range(n_shards)]


class ShardSlice(NamedTuple):
    """The place of a part in the whole tensor."""

    offsets: torch.Size
    size: torch.Size  # of the whole tensor


def find_shard_slices(tensors: Mapping[str, Tensor]) -> dict[str, ShardSlice]:
    """Return the place of the part that this process has of each `DTensor`."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({name: t for name, t in tensors.items() if isinstance(t, DTensor)}, is_coordinator=True)
    items = planner.create_local_plan().items
    slices = {item.index.fqn: item.tensor_data for item in items}
    return {name: ShardSlice(data.chunk.offsets, data.size) for name, data in slices.items() if data is not None}


def write_shard(path: Path, parts: Mapping[str, Tensor], slices: Mapping[str, ShardSlice]) -> None:
    """Write the parts that this process has.

    Args:
        path: The file.
        parts: The data of each tensor in this process, on the host.
        slices: The slices of those tensors that are sharded. Every other one is written as a whole.
    """
    sharding, written = {}, {}
    for name, part in parts.items():
        offsets, size = slices.get(name) or ShardSlice(torch.Size([0] * part.ndim), part.shape)
        if part.numel() or not size.numel():  # a small tensor has no rows for some processes
            written[name] = part
            sharding[name] = {OFFSETS_KEY: list(offsets), SIZE_KEY: list(size)}
    save_tensors(path, written, {SHARDING_KEY: json.dumps(sharding)})


def new_full_tensor(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return memory for a whole tensor on the host."""
    return torch.empty(shape, dtype=dtype)


def read_shards(folder: Path, new_tensor: NewTensor = new_full_tensor) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint.

    Args:
        folder: A checkpoint with one or several files.
        new_tensor: Returns memory for a tensor, given its name, shape and dtype. Of a `DTensor`, only the part of
            this process is read.

    Raises:
        CheckpointError: A file is missing or damaged. The message names it.
    """
    metadata, files = read_shard_metadata(folder)
    tensors = {
        name: new_tensor(name, entry.size, entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
    requests: dict[Path, list[Any]] = {}
    for item in planner.create_local_plan().items:
        requests.setdefault(files[item.storage_index], []).append(item)
    for path, items in requests.items():
        with _open_shard(path) as file:
            for item in items:
                ends = (start + length for start, length in zip(item.storage_offsets, item.lengths, strict=True))
                part = tuple(map(slice, item.storage_offsets, ends))
                name = item.storage_index.fqn
                target = planner.resolve_tensor(item).detach()
                target.copy_(file.get_slice(name)[part] if part else file.get_tensor(name))
    return tensors


def read_shard_metadata(folder: Path) -> tuple[Metadata, dict[MetadataIndex, Path]]:
    """Return what the headers of a checkpoint's files say: the parts of each tensor, and the file of each part.

    Raises:
        CheckpointError: A file is missing or damaged, or the parts of a tensor are not complete.
    """
    entries: dict[str, TensorStorageMetadata] = {}
    files: dict[MetadataIndex, Path] = {}
    for path in find_shards(folder):
        with _open_shard(path) as file:
            sharding = json.loads((file.metadata() or {}).get(SHARDING_KEY, "{}"))
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                header = file.get_slice(name)
                shape = torch.Size(header.get_shape())
                chunk_info = sharding.get(name, {OFFSETS_KEY: [0] * len(shape), SIZE_KEY: list(shape)})
                offsets, size = torch.Size(chunk_info[OFFSETS_KEY]), torch.Size(chunk_info[SIZE_KEY])
                properties = TensorProperties(dtype=DTYPES[header.get_dtype()])
                entry = entries.setdefault(name, TensorStorageMetadata(properties, size, []))
                if entry.size != size or entry.properties.dtype != properties.dtype:
                    raise ValueError(f"{name} is another tensor than in the other files")
                index = MetadataIndex(name, offsets)
                ends = (offset + length for offset, length in zip(offsets, shape, strict=True))
                is_outside = any(end > limit for end, limit in zip(ends, size, strict=True))
                if is_outside or (index in files and shape.numel()):
                    raise ValueError(f"{name} has an impossible place")
                entry.chunks.append(ChunkStorageMetadata(offsets, shape))
                files[index] = path
    for name, entry in entries.items():
        if sum(chunk.sizes.numel() for chunk in entry.chunks) != entry.size.numel():
            raise damaged_error(folder, f"parts of {name} are missing")
    return Metadata(dict(entries)), files


@contextmanager
def _open_shard(path: Path) -> Iterator[Any]:
    """Open a file. What is wrong with its content becomes a `CheckpointError` that names it."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise damaged_error(path, "no such file") from None
    except (OSError, SafetensorError, ValueError, TypeError, LookupError, RuntimeError, RecursionError) as error:
        raise damaged_error(path, str(error).split("\n")[0]) from None
