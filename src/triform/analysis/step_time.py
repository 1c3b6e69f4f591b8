"""Estimate the time of a training step on many GPUs from computation, links and overlap.

The formulas are on the page docs/scaling.md. `python -m benchmarks plan` compares them with published figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from triform.analysis.cluster import Cluster
from triform.analysis.device_memory import REDUCED_GRADIENT_BYTES, Engine

DDP_BUCKET_BYTES = 25 * 2**20  # DDP sums gradients in buckets of this size
BACKWARD_SHARE = 2 / 3  # share of the computation during which DDP can sum gradients


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """What the time of a step depends on."""

    n_params: int
    n_trainable: int
    n_blocks: int
    flops_per_token: float  # forward and backward, with attention in full


@dataclass(frozen=True, kw_only=True)
class DeviceBatch:
    """The tokens of one device in one step, and how they are computed."""

    tokens: int
    micro_batches: int
    element_bytes: int = 2  # of gathered weights
    gradient_bytes: int = REDUCED_GRADIENT_BYTES  # of gradients that are summed over devices


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The parts of a step in seconds, and the bytes that each device sends."""

    computation: float
    bytes_moved: float
    communication: float
    waiting: float  # the part of the communication that delays the step

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.computation + self.waiting


def estimate_step_time(engine: Engine, model: ModelSize, batch: DeviceBatch, cluster: Cluster) -> StepTime:
    """Estimate a training step.

    Args:
        engine: "ddp" or "fsdp".
        model: The size of the model.
        batch: The batch of one device.
        cluster: The devices and their links.
    """
    computation = batch.tokens * model.flops_per_token / (cluster.peak_flops * cluster.utilisation)
    bytes_moved = count_bytes_moved(engine, model, batch, cluster.gpus)
    latency = count_collectives(engine, model, batch) * (
        cluster.all_reduce_latency if engine == "ddp" else cluster.ring_latency
    )
    communication = bytes_moved / cluster.bus_bandwidth + latency
    hidden_limit = computation * (BACKWARD_SHARE / batch.micro_batches if engine == "ddp" else 1)
    waiting = max((1 - cluster.overlap) * communication, communication - hidden_limit)
    return StepTime(computation=computation, bytes_moved=bytes_moved, communication=communication, waiting=waiting)


def count_bytes_moved(engine: Engine, model: ModelSize, batch: DeviceBatch, devices: int) -> float:
    """Return the bytes that each device sends in a step.

    A ring sends (devices - 1) / devices of the data to gather it or to sum and scatter it, and twice as much to sum
    it on all devices. DDP sums the gradients once in a step. FSDP gathers the weights for the forward and for the
    backward pass, and sums and scatters the gradients, in each micro-batch.
    """
    share = (devices - 1) / devices
    gradients = model.n_trainable * batch.gradient_bytes
    if engine == "ddp":
        return 2 * share * gradients
    return batch.micro_batches * share * (2 * model.n_params * batch.element_bytes + gradients)


def count_collectives(engine: Engine, model: ModelSize, batch: DeviceBatch) -> int:
    """Return how many collective operations a step has."""
    if engine == "ddp":
        return -(-model.n_trainable * batch.gradient_bytes // DDP_BUCKET_BYTES)
    return batch.micro_batches * 3 * (model.n_blocks + 1)  # the parameters outside of blocks are one more block
