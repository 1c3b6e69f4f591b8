"""Write checkpoints in the background, from a copy of the tensors, while training continues.

`CheckpointWriter.save` copies the tensors to buffers on their own device, which takes little time and does not wait
for the device. A thread copies the buffers to the host and writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from triform.analysis.host_memory import available_memory
from triform.training.tensors import to_cpu

STAGING_BYTES = 1 << 26  # of pinned host memory, through which a GPU's buffers are copied
ALIGNMENT = 64  # elements; each tensor starts at a multiple of this in its buffer
MAX_MEMORY_SHARE = 0.5  # of the free memory of a device that the buffers may take
Tensors = dict[str, Tensor]
Write = Callable[[Tensors], None]


class Buffer(NamedTuple):
    """Memory for the tensors of one device and dtype."""

    flat: Tensor
    views: Tensors  # by name; parts of `flat`


class CheckpointWriter:
    """Writes one checkpoint at a time.

    Args:
        background: Write in a thread. Otherwise, and where memory is too low for a copy, `save` writes before it
            returns.
    """

    def __init__(self, *, background: bool = True) -> None:
        self._executor = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: Future[None] | None = None
        self._tensors: Tensors = {}  # for which there are buffers
        self._buffers: list[Buffer] = []
        self._staging: Tensor | None = None

    def save(self, tensors: Tensors, write: Write) -> None:
        """Copy the tensors and let a thread write them. An earlier checkpoint is finished first.

        Args:
            tensors: The tensors, which may change as soon as this method returns.
            write: Writes the checkpoint. It receives the tensors on the host.

        Raises:
            CheckpointError, DivergedError: The error of the earlier checkpoint.
        """
        self.wait()
        if self._executor is None or not self._allocate(tensors):
            write(to_cpu(tensors))
            return
        with torch.no_grad():
            for buffer in self._buffers:
                torch._foreach_copy_(list(buffer.views.values()), [tensors[name] for name in buffer.views])
        gpus = {buffer.flat.device for buffer in self._buffers if buffer.flat.is_cuda}
        copied = [torch.cuda.current_stream(gpu).record_event() for gpu in gpus]
        self._pending = self._executor.submit(self._write, copied, write)

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is being written."""
        return self._pending is None or self._pending.done()

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written, without waiting for the thread."""
        if self.is_idle:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is written, and raise the error if it could not be."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the thread and free all memory. Errors are not raised: call `wait` before."""
        if self._executor is not None:
            self._executor.shutdown()
        self._executor, self._pending, self._tensors, self._buffers, self._staging = None, None, {}, [], None

    def _allocate(self, tensors: Tensors) -> bool:
        """Make buffers for the tensors, unless there are already some. Return whether memory allows it."""
        if tensors.keys() == self._tensors.keys() and all(
            tensor is self._tensors[name] or _layout(tensor) == _layout(self._tensors[name])
            for name, tensor in tensors.items()
        ):
            return True
        self._tensors, self._buffers = {}, []
        n_bytes: dict[torch.device, int] = {}
        for tensor in tensors.values():
            n_bytes[tensor.device] = n_bytes.get(tensor.device, 0) + tensor.nbytes
        if not all(size <= MAX_MEMORY_SHARE * _free_memory(device) for device, size in n_bytes.items()):
            return False
        for dtype, device in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors.values()):
            group = {name: t for name, t in tensors.items() if t.dtype == dtype and t.device == device}
            sizes = [-(-tensor.numel() // ALIGNMENT) * ALIGNMENT for tensor in group.values()]
            try:
                flat = torch.empty(sum(sizes), dtype=dtype, device=device)
            except RuntimeError:  # out of memory
                self._buffers = []
                return False
            self._buffers.append(Buffer(flat, _split(flat, group)))
        self._tensors = tensors
        return True

    def _write(self, copied: list[torch.cuda.Event], write: Write) -> None:
        """Copy the buffers to the host and write them. This runs in the thread."""
        tensors: Tensors = {}
        for buffer in self._buffers:
            if buffer.flat.is_cuda:
                tensors |= _split(self._copy_to_host(buffer.flat, copied), buffer.views)
            else:
                tensors |= buffer.views
        write({name: tensors[name] for name in self._tensors})

    def _copy_to_host(self, flat: Tensor, copied: list[torch.cuda.Event]) -> Tensor:
        """Copy a GPU's buffer through pinned memory, on a separate stream, so that training is not delayed."""
        if self._staging is None:
            self._staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
        host = torch.empty(flat.shape, dtype=flat.dtype)
        source, target = flat.view(torch.uint8), host.view(torch.uint8)
        stream = torch.cuda.Stream(flat.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for event in copied:
                stream.wait_event(event)
            for start in range(0, len(source), STAGING_BYTES):
                part = source[start : start + STAGING_BYTES]
                self._staging[: len(part)].copy_(part, non_blocking=True)
                stream.synchronize()
                target[start : start + len(part)].copy_(self._staging[: len(part)])
        return host


def _split(flat: Tensor, tensors: Tensors) -> Tensors:
    """Return parts of a buffer with the shapes of these tensors."""
    sizes = [size for tensor in tensors.values() for size in (tensor.numel(), -tensor.numel() % ALIGNMENT)]
    parts = flat.split_with_sizes(sizes)[::2]
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def _layout(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _free_memory(device: torch.device) -> int:
    """Return the free memory of a device; 0 for one whose memory cannot be read."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory() if device.type == "cpu" else 0
