"""Any number of processes writes parts of tensors, and any other number reads them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from triform.errors import CheckpointError
from triform.training.sharded_tensors import (
    SHARDING_KEY,
    find_shard_slices,
    read_shards,
    shard_name,
    write_shard,
)

TENSORS = {
    "model.weight": torch.arange(66.0).view(11, 6),
    "model.bias": torch.arange(3.0),  # fewer rows than processes
    "model.bf16": torch.arange(8.0).bfloat16(),
    "optimizer.0.step": torch.tensor(7.0),
    "rng.cpu": torch.arange(17, dtype=torch.uint8),
    "ema.0": torch.zeros(0, 4),
}


@contextmanager
def process(rank: int, size: int) -> Iterator[None]:
    """Act as one of several processes, none of which exists."""
    distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


def shard(tensor: Tensor, rank: int, size: int) -> Tensor:
    """Return the rows of one process as FSDP shards them."""
    if not tensor.ndim or tensor.dtype == torch.uint8:
        return tensor
    rows = -(-len(tensor) // size)
    mesh = init_device_mesh("cpu", (size,))
    part = tensor[rank * rows : (rank + 1) * rows].clone()
    return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())


def to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def write_checkpoint(folder: Path, size: int) -> Path:
    folder.mkdir()
    for rank in range(size):
        with process(rank, size):
            tensors = {name: shard(tensor, rank, size) for name, tensor in TENSORS.items()}
            if rank:
                tensors = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
            parts = {name: to_local(tensor) for name, tensor in tensors.items()}
            write_shard(folder / shard_name(rank, size), parts, find_shard_slices(tensors))
    return folder


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert tensor.equal(right[name]), name


@pytest.mark.parametrize("size", [1, 3, 4])
def test_what_several_processes_write_one_reads(size: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", size)
    assert_same(read_shards(folder), TENSORS)
    assert b"pickle" not in b"".join(path.read_bytes() for path in folder.iterdir())
    for path in folder.iterdir():
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(path.read_bytes())


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (4, 3), (2, 8), (0, 3)])
def test_another_number_of_processes_reads_its_own_parts(writers: int, readers: int, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    if writers:
        write_checkpoint(folder, writers)
    else:  # a checkpoint of a single process
        folder.mkdir()
        save_file(TENSORS, folder / "tensors.safetensors")
    for rank in range(readers):
        with process(rank, readers):
            expected = {name: shard(tensor, rank, readers) for name, tensor in TENSORS.items()}
            memory = {name: shard(torch.zeros_like(TENSORS[name]), rank, readers) for name in TENSORS}
            loaded = read_shards(folder, lambda name, _shape, _dtype, memory=memory: memory[name])
            assert_same(
                {name: to_local(tensor) for name, tensor in loaded.items()},
                {name: to_local(tensor) for name, tensor in expected.items()},
            )


def test_torch_reads_the_files_too(tmp_path: Path) -> None:
    """An outside reference: the reader for safetensors of torch.distributed.checkpoint."""
    folder = write_checkpoint(tmp_path / "checkpoint", 4)
    names = ["model.weight", "model.bias", "model.bf16", "rng.cpu"]
    loaded = {name: torch.zeros_like(TENSORS[name]) for name in names}
    with pytest.warns(UserWarning, match="in a single process"):
        checkpoint.load(loaded, storage_reader=checkpoint.HuggingFaceStorageReader(str(folder)))
    assert_same(loaded, {name: TENSORS[name] for name in names})


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", 4)
    path = folder / shard_name(2, 4)
    content = path.read_bytes()
    for damaged, reason in ((content[:-4], ""), (content[:20], ""), (b"", ""), (None, "no such file")):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"tensors-00003-of-00004.safetensors is damaged \(.*{reason}"):
            read_shards(folder)


@pytest.mark.parametrize(
    ("chunk_info", "reason"),
    [
        (
            {"saved_offsets": [0, 0], "size": [1 << 40, 6]},
            "00002-of-00004.safetensors is damaged .*another tensor",
        ),
        ({"saved_offsets": "x", "size": [11, 6]}, "tensors-00002-of-00004.safetensors is damaged"),
        ({"saved_offsets": [9, 0], "size": [11, 6]}, "model.weight has an impossible place"),
        ({"saved_offsets": [0, 0], "size": [11, 6]}, "model.weight has an impossible place"),
        ({"size": [11, 6]}, "tensors-00002-of-00004.safetensors is damaged"),
        (None, "00002-of-00004.safetensors is damaged .*another tensor"),
    ],
)
def test_a_part_in_a_place_that_cannot_be_is_refused(chunk_info: object, reason: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", 4)
    path = folder / shard_name(1, 4)
    parts = load_file(path)
    save_file(
        {"model.weight": parts["model.weight"]},
        path,
        {SHARDING_KEY: json.dumps({"model.weight": chunk_info} if chunk_info else {})},
    )
    with pytest.raises(CheckpointError, match=reason):
        read_shards(folder)


def test_parts_that_do_not_make_a_whole_tensor_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", 4)
    path = folder / shard_name(3, 4)
    save_file({"other": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match=r"checkpoint is damaged \(parts of model.bf16 are missing"):
        read_shards(folder)
