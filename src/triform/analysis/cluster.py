"""The GPUs and links of a cluster, and the time of collective operations between its devices."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

GIGA, TERA = 10**9, 10**12
# Seconds that each hop of a collective operation adds, inside a node and between nodes. These are the latencies of
# the protocol Simple in the cost model of NCCL (src/graph/tuning.cc).
RING_HOP_SECONDS = (3.4e-6, 14e-6)
TREE_HOP_SECONDS = (4e-6, 14e-6)
DEFAULT_UTILISATION = 0.4
DEFAULT_OVERLAP = 0.25  # from the two rows of torchtitan that benchmarks/plan.py names
DEFAULT_GPUS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A kind of GPU: its data sheet, and the links of the nodes in which it is usually sold."""

    name: str
    memory_bytes: int
    peak_flops: dict[str, float]  # by precision: dense matrix products per second; fp32 products use TF32
    node_bandwidth: float  # bytes per second that a device sends inside a node, measured with nccl-tests
    network_bandwidth: float  # bytes per second between nodes for each GPU


GPUS = {
    gpu.name.lower(): gpu
    for gpu in (
        Gpu(
            name="H200",
            memory_bytes=141 * GIGA,
            peak_flops={"bf16": 989 * TERA, "fp32": 494 * TERA},
            node_bandwidth=370 * GIGA,
            network_bandwidth=50 * GIGA,
        ),
        Gpu(
            name="H100",
            memory_bytes=80 * GIGA,
            peak_flops={"bf16": 989 * TERA, "fp32": 494 * TERA},
            node_bandwidth=370 * GIGA,
            network_bandwidth=50 * GIGA,
        ),
        Gpu(
            name="A100",
            memory_bytes=80 * GIGA,
            peak_flops={"bf16": 312 * TERA, "fp32": 156 * TERA},
            node_bandwidth=230 * GIGA,
            network_bandwidth=25 * GIGA,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal GPUs in equal nodes.

    `overlap` is the share of the communication time that costs no time. The rest delays the step, because the
    devices wait for it or because it slows the computation down.
    """

    gpus: int
    gpus_per_node: int
    memory_bytes: int
    peak_flops: float
    utilisation: float  # share of the peak that a device reaches while it waits for no other device
    node_bandwidth: float
    network_bandwidth: float
    overlap: float = DEFAULT_OVERLAP

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.gpus // self.gpus_per_node

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that a device sends in a ring over all devices.

        Several rings run at once and use the links of all GPUs of a node, so the slower one of the link inside a
        node and of all links that leave a node limits them.
        """
        if self.nodes == 1:
            return self.node_bandwidth
        return min(self.node_bandwidth, self.gpus_per_node * self.network_bandwidth)

    @property
    def ring_latency(self) -> float:
        """Seconds that an all-gather or a reduce-scatter takes even for few bytes: one hop to each other device."""
        inside, between = RING_HOP_SECONDS
        return (self.gpus - self.nodes) * inside + (self.nodes - 1) * between

    @property
    def all_reduce_latency(self) -> float:
        """Seconds that an all-reduce takes even for few bytes, with a ring or a tree, whichever is faster."""
        inside, between = TREE_HOP_SECONDS
        tree = 2 * ((self.gpus_per_node - 1) * inside + log2(self.nodes) * between)
        return min(2 * self.ring_latency, tree)
