"""Estimate what checkpoints and failures of devices cost a long training run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

HOST_COPY_BANDWIDTH = 20 * 10**9  # bytes per second from a GPU to the memory of its host


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often devices fail, and how fast checkpoints are written.

    Attributes:
        device_mtbf: Mean time between failures of one device, in seconds.
        storage_bandwidth: Bytes per second at which all devices together write a checkpoint.
        restart_seconds: Time from a failure until training continues.
        interval: Seconds from one checkpoint to the next; 0 chooses the best interval.
    """

    device_mtbf: float
    storage_bandwidth: float
    restart_seconds: float
    interval: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """The checkpoints of a run and the time that failures cost."""

    size: int
    write_seconds: float  # in the background
    pause_seconds: float  # training waits while the tensors are copied to the memory of the host
    interval: float
    mtbf: float  # of the whole job
    loss_per_failure: float

    @property
    def slowdown(self) -> float:
        """The expected duration of the run, divided by its duration without checkpoints and failures.

        Checkpoints stretch the run by pause / interval. The job then fails every `mtbf` seconds, and each failure
        costs `loss_per_failure` seconds. Infinite if failures cost more time than there is between them.
        """
        lost_share = self.loss_per_failure / self.mtbf
        return (1 + self.pause_seconds / self.interval) / (1 - lost_share) if lost_share < 1 else inf


def plan_checkpoints(size: int, copied_bytes: int, devices: int, reliability: Reliability) -> CheckpointPlan:
    """Choose an interval between checkpoints, and estimate the time of checkpoints and failures.

    The interval is that of Young and Daly, √(2 · pause · MTBF), but at least the time that a checkpoint takes to
    be written. A failure costs half an interval, the time of writing, because the newest checkpoint is not yet
    complete, and the restart.

    Args:
        size: Bytes of a checkpoint.
        copied_bytes: Bytes that the busiest device copies to its host.
        devices: The number of devices.
        reliability: Failures, storage and the chosen interval.
    """
    mtbf = reliability.device_mtbf / devices
    write_seconds = size / reliability.storage_bandwidth
    pause_seconds = copied_bytes / HOST_COPY_BANDWIDTH
    interval = reliability.interval or max(sqrt(2 * pause_seconds * mtbf), write_seconds)
    return CheckpointPlan(
        size=size,
        write_seconds=write_seconds,
        pause_seconds=pause_seconds,
        interval=interval,
        mtbf=mtbf,
        loss_per_failure=interval / 2 + write_seconds + reliability.restart_seconds,
    )
