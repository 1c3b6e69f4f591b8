"""Checkpoints are written in the background from a copy, and what goes wrong there ends the training."""

from __future__ import annotations

import errno
import math
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from triform.errors import CheckpointError, DivergedError
from triform.launch import train
from triform.training import checkpoint_writer, run_folder
from triform.training.checkpoint import find_non_finite
from triform.training.checkpoint_writer import CheckpointWriter
from triform.training.run_folder import RunFolder
from triform.training.tensors import DTYPE_NAMES, save_tensors
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2}


def train_run(rows: str, out: Path, **settings: Any) -> None:
    steps = {"max_steps": 8, "batch_size": 8}
    train("classify", data=rows, out=out, device="cpu", quiet=True, model=MODEL, train=steps | settings)


def make_tensors() -> dict[str, Tensor]:
    return {
        "scalar": torch.tensor(3.0),
        "weight": torch.arange(130.0).view(13, 10),
        "transposed": torch.arange(12.0).view(3, 4).t(),
        "state": torch.arange(70, dtype=torch.uint8),
        "empty": torch.zeros(0, 3),
    }


def test_the_tensors_may_change_while_they_are_written() -> None:
    writer, tensors, expected = CheckpointWriter(), make_tensors(), make_tensors()
    go_on, written, threads = threading.Event(), [], []

    def write(copies: dict[str, Tensor]) -> None:
        threads.append(threading.current_thread())
        assert go_on.wait(60)
        written.append({name: tensor.clone() for name, tensor in copies.items()})

    for _ in range(2):  # the second save uses the same buffers again
        writer.save(tensors, write)
        writer.check()  # nothing to say yet
        for tensor in tensors.values():
            tensor.zero_()
        go_on.set()
        writer.wait()
        for name, tensor in tensors.items():
            assert written[-1][name].equal(expected[name])
            tensor.copy_(expected[name])
    assert threading.current_thread() not in threads
    writer.close()


def test_tensors_of_another_shape_get_other_buffers() -> None:
    writer, written = CheckpointWriter(), []
    for shape in ((2, 3), (1, 3), (3,)):
        writer.save({"weight": torch.ones(shape), "other": torch.zeros(2)}, written.append)
        writer.wait()
        assert written[-1]["weight"].equal(torch.ones(shape))
    writer.close()


def test_weights_are_finite_even_if_their_squares_are_not() -> None:
    large = {"model.a": torch.full((3,), 1e30), "model.empty": torch.zeros(0, 2), "other": torch.tensor(math.nan)}
    assert find_non_finite(large, [1.0]) == ""
    assert find_non_finite(large | {"model.b": torch.tensor([1.0, math.nan])}, [1.0]) == "model"
    assert find_non_finite(large, [1.0, math.inf]) == "loss"


def test_a_file_of_tensors_has_the_bytes_that_the_library_writes(tmp_path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in make_tensors().items()}
    tensors |= {f"of {dtype}": torch.ones(3, 5).to(dtype) for dtype in DTYPE_NAMES} | {"ünïcode": torch.ones(1)}
    for metadata in (None, {"format": "pt"}):
        save_tensors(tmp_path / "own", tensors, metadata)
        save_file(tensors, tmp_path / "library", metadata)
        assert (tmp_path / "own").read_bytes() == (tmp_path / "library").read_bytes()


def test_without_memory_for_a_copy_the_checkpoint_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "available_memory", lambda: 100)
    writer, written = CheckpointWriter(), []
    writer.save(make_tensors(), written.append)
    assert written[0]["transposed"].equal(make_tensors()["transposed"])
    writer.close()


def test_a_copy_that_does_not_fit_after_all_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_out_of_memory(*_: object, **__: object) -> Tensor:
        raise RuntimeError("out of memory")

    writer, tensors, written = CheckpointWriter(), make_tensors(), []
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer.torch, "empty", raise_out_of_memory)
        writer.save(tensors, written.append)
    assert written[0]["transposed"].equal(tensors["transposed"])
    writer.save(tensors, written.append)  # there is memory again
    writer.wait()
    assert written[1]["weight"].equal(tensors["weight"])
    writer.close()


def test_a_buffer_is_copied_to_the_host_in_parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a GPU, but with streams that do nothing."""
    events: list[object] = []
    stream = SimpleNamespace(wait_event=events.append, synchronize=lambda: None)
    monkeypatch.setattr(checkpoint_writer.torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(checkpoint_writer.torch.cuda, "stream", lambda _: nullcontext())
    flat = torch.arange(100.0)
    for n_bytes in (64, 400, 1000):  # several parts, of which the last is shorter; one part
        monkeypatch.setattr(checkpoint_writer, "STAGING_BYTES", n_bytes)
        writer = CheckpointWriter(background=False)
        writer._staging = torch.empty(n_bytes, dtype=torch.uint8)  # pinned memory needs a GPU
        event: Any = object()
        host = writer._copy_to_host(flat, [event])
        assert host.equal(flat)
        assert host.data_ptr() != flat.data_ptr()
        assert events[-1] is event


def test_an_error_of_the_thread_is_raised_once_by_the_next_call() -> None:
    def write(_: dict[str, Tensor]) -> None:
        raise CheckpointError("the disk is full")

    writer = CheckpointWriter()
    for call in (writer.wait, lambda: writer.save(make_tensors(), write)):
        writer.save(make_tensors(), write)
        with pytest.raises(CheckpointError, match="the disk is full"):
            call()
        writer.wait()
    writer.save(make_tensors(), write)
    writer.close()  # waits, but an error that ends the training is not replaced


def test_a_full_disk_ends_the_training_and_keeps_the_last_checkpoint(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_save = run_folder.save_tensors

    def save_until_full(path: Path, tensors: dict[str, Tensor]) -> None:
        if "step-000000004" in str(path):
            assert threading.current_thread() is not threading.main_thread()
            raise OSError(errno.ENOSPC, "No space left on device")
        original_save(path, tensors)

    monkeypatch.setattr(run_folder, "save_tensors", save_until_full)
    out = tmp_path / "run"
    with pytest.raises(
        CheckpointError, match=r"step-000000004 cannot be written: No space left .* the last checkpoint is intact"
    ):
        train_run(rows, out, checkpoint_every=2, eval_every=3)
    checkpoints = [path.name for path in (out / "checkpoints").iterdir()]
    assert checkpoints == ["step-000000002"]


def test_broken_weights_end_the_training_at_the_next_log(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread finds them, while training continues with finite losses."""
    original_save, original_tensors = Trainer.save_checkpoint, checkpoint_writer.CheckpointWriter.save

    def save_broken(self: CheckpointWriter, tensors: dict[str, Tensor], write: checkpoint_writer.Write) -> None:
        broken = tensors | {"model.broken": torch.tensor([1.0, float("inf")])}
        original_tensors(self, broken, write)

    def save_checkpoint(self: Trainer) -> None:
        original_save(self)
        assert self.checkpoint_writer._pending is not None
        self.checkpoint_writer._pending.exception(60)

    monkeypatch.setattr(CheckpointWriter, "save", save_broken)
    monkeypatch.setattr(Trainer, "save_checkpoint", save_checkpoint)
    out = tmp_path / "run"
    with pytest.raises(DivergedError, match="the model is not finite at step 4; no checkpoint was written yet"):
        train_run(rows, out, checkpoint_every=4, log_every=5)
    assert RunFolder(out).latest_checkpoint() is None
    assert '"step": 5' not in (out / "metrics.jsonl").read_text(encoding="utf-8").split('"diverged"')[0]
