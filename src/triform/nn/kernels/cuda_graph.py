"""Captures work as a CUDA graph, which starts all its kernels with one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


def capture_cuda_graph(work: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Capture `work` as a CUDA graph, without running it.

    Args:
        work: Calls CUDA kernels only, on tensors that stay where they are.
        pool: The memory pool of the graph; None: a new one. Graphs that share a pool must not run concurrently.

    Raises:
        RuntimeError: The work cannot be captured. Random state and allocator are as before.
    """
    graph, device = torch.cuda.CUDAGraph(), torch.cuda.current_device()
    generator = torch.cuda.default_generators[device]
    rng_state = generator.get_state()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    current_stream = torch.cuda.current_stream()
    # The default stream cannot be captured.
    stream = None if current_stream == torch.cuda.default_stream() else current_stream
    try:
        # Other threads may use the device during the capture.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    except RuntimeError:  # torch leaves its generator and its allocator in the state of a running capture
        fresh_generator = torch.Generator(generator.device)
        fresh_generator.set_state(rng_state)
        generator.graphsafe_set_state(fresh_generator)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)
        raise
    return graph
