"""Estimate the memory of each device when a model is trained on several devices, with DDP or with FSDP.

With DDP every device holds the whole model, its gradients and its optimizer state. With FSDP every device holds an
equal part of them, and gathers the weights of one block at a time while it computes with the block before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triform.analysis.capacity import MEMORY_HEADROOM
from triform.analysis.cost_model import BF16_WEIGHTS, Workload
from triform.analysis.costs import estimate_costs
from triform.analysis.parameters import ParameterBudget, count_parameters
from triform.config import Config, DataSizes

Engine = Literal["ddp", "fsdp"]
BLOCK_ROLES = ("attention", "cross", "feedforward", "recurrent")
ACTIVATIONS = "activations"
REDUCED_GRADIENT_BYTES = 4  # gradients are summed over devices in fp32


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of one device in bytes, by what it holds."""

    engine: Engine
    devices: int
    items: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes of all items."""
        return sum(size for _, size in self.items)

    @property
    def state(self) -> int:
        """Bytes of weights, gradients and optimizer state, which do not depend on the batch."""
        return sum(size for name, size in self.items if name != ACTIVATIONS)

    def fits(self, memory_bytes: int) -> bool:
        """Return whether this fits a device and leaves a fifth of it for workspaces and the framework."""
        return self.total <= (1 - MEMORY_HEADROOM) * memory_bytes


def choose_engine(ddp: DeviceMemory, memory_bytes: int) -> Engine:
    """Return what `train.parallel=auto` chooses: DDP if its state fits a device and leaves a fifth of it free."""
    return "ddp" if ddp.state <= (1 - MEMORY_HEADROOM) * memory_bytes else "fsdp"


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """The parameters that FSDP gathers together."""

    largest_block: int  # parameters of the largest block
    outside: int  # parameters outside of all blocks: embeddings, output layer and last norm


def measure_blocks(param_budget: ParameterBudget) -> BlockSizes:
    """Return the sizes of the largest block and of everything else."""
    stacks = [group for group in param_budget.groups if any(row.role in BLOCK_ROLES for row in group.lines)]
    return BlockSizes(
        largest_block=max(group.per_layer for group in stacks),
        outside=param_budget.total - sum(group.total for group in stacks),
    )


def estimate_device_memory(
    engine: Engine, config: Config, sizes: DataSizes, workload: Workload, devices: int
) -> DeviceMemory:
    """Estimate the memory of one of `devices` devices that train a model together.

    Args:
        engine: "ddp" or "fsdp".
        config: The settings of the model.
        sizes: The sizes that depend on the data.
        workload: The batch of one device in one micro-batch, optimizer and precision.
        devices: The number of devices.
    """
    costs = estimate_costs(config, sizes, workload)
    state = [(item.name, item.total) for item in costs.training]
    if engine == "fsdp":
        blocks = measure_blocks(count_parameters(config, sizes))
        element_bytes = 2 if workload.precision == "bf16" else 4
        # Blocks are gathered in the precision of training, everything else in fp32.
        gathered = 2 * blocks.largest_block * element_bytes + 4 * blocks.outside
        # The gradients of one block, as the backward pass computes them and as they are sent to other devices.
        unreduced = max(
            blocks.largest_block * (element_bytes + REDUCED_GRADIENT_BYTES),
            blocks.outside * (4 + REDUCED_GRADIENT_BYTES),
        )
        state = [(name, -(-size // devices)) for name, size in state if name != BF16_WEIGHTS]
        state += [("gathered weights", gathered), ("gradients before they are summed", unreduced)]
    return DeviceMemory(engine=engine, devices=devices, items=(*state, (ACTIVATIONS, costs.activation_bytes)))
