"""Plan the training of a model on many GPUs: memory, time of a step, duration, checkpoints and failures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triform.analysis.cluster import Cluster
from triform.analysis.cost_model import Workload
from triform.analysis.costs import estimate_costs
from triform.analysis.device_memory import (
    DeviceMemory,
    Engine,
    estimate_device_memory,
    find_fewest_devices,
    find_micro_batch,
    measure_blocks,
)
from triform.analysis.failures import CheckpointPlan, Reliability, plan_checkpoints
from triform.analysis.parameters import count_parameters
from triform.analysis.step_time import DeviceBatch, ModelSize, StepTime, estimate_step_time
from triform.config import Config, DataSizes
from triform.errors import ConfigError

ENGINES: tuple[Engine, ...] = ("ddp", "fsdp")
MAX_GPUS = 1 << 20  # more GPUs are not considered for a model that does not fit
TOKENS_PER_PARAM = 20  # default length of training (Hoffmann et al. 2022, "Chinchilla")


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The estimates for one training run. Times are in seconds, sizes in bytes."""

    config: Config
    cluster: Cluster
    model: ModelSize
    workload: Workload  # of one device in one micro-batch
    engine: Engine
    batch: DeviceBatch
    fits: dict[Engine, bool]
    memory: dict[Engine, DeviceMemory]  # with the micro-batch of the plan
    step: StepTime
    node_step: StepTime  # the same batch of each device on one node
    training_tokens: int
    checkpoints: CheckpointPlan

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all devices in one step."""
        return self.cluster.gpus * self.batch.tokens

    @property
    def tokens_per_second(self) -> float:
        """Training tokens per second of all devices."""
        return self.tokens_per_step / self.step.total

    @property
    def model_flop_utilisation(self) -> float:
        """The share of the peak operations of all devices that the model needs."""
        flops = self.tokens_per_second * self.model.flops_per_token
        return flops / (self.cluster.gpus * self.cluster.peak_flops)

    @property
    def scaling_efficiency(self) -> float:
        """Tokens per second and device, compared with one node."""
        return self.node_step.total / self.step.total

    @property
    def n_steps(self) -> int:
        """Steps for all training tokens."""
        return -(-self.training_tokens // self.tokens_per_step)

    @property
    def training_seconds(self) -> float:
        """The time of all steps, without checkpoints and failures."""
        return self.n_steps * self.step.total

    @property
    def expected_seconds(self) -> float:
        """The expected duration with checkpoints and failures."""
        return self.training_seconds * self.checkpoints.slowdown


def count_text_tokens(config: Config, length: int) -> int:
    """Return the tokens of a text, or of a text and its translation."""
    return length * (2 if config.task == "translate" else 1)


def measure_model(config: Config, sizes: DataSizes, workload: Workload) -> ModelSize:
    """Return the size of the model that these settings build."""
    param_budget = count_parameters(config, sizes)
    costs = estimate_costs(config, sizes, replace(workload, batch_size=1))
    return ModelSize(
        n_params=param_budget.total,
        n_trainable=param_budget.total if workload.trainable is None else workload.trainable,
        n_blocks=measure_blocks(param_budget).n_blocks,
        flops_per_token=3 * costs.forward_flops / count_text_tokens(config, workload.length),
    )


def plan_training(
    config: Config,
    sizes: DataSizes,
    workload: Workload,
    cluster: Cluster,
    *,
    reliability: Reliability,
    engine: Engine | None = None,
    training_tokens: int = 0,
) -> TrainingPlan:
    """Plan a training run.

    Args:
        config: The settings of the model.
        sizes: The sizes that depend on the data.
        workload: All texts of one device in one step, optimizer and precision.
        cluster: The devices and their links.
        reliability: Failures and checkpoints.
        engine: "ddp" or "fsdp". By default DDP if the model fits, otherwise FSDP.
        training_tokens: Tokens to train on, by default 20 for each parameter.

    Raises:
        ConfigError: The model does not fit the devices.
    """
    gpus, memory_bytes = cluster.gpus, cluster.memory_bytes
    micro_batch = {name: find_micro_batch(name, config, sizes, workload, gpus, memory_bytes) for name in ENGINES}
    resolved: Engine = engine or ("ddp" if micro_batch["ddp"] else "fsdp")
    if not micro_batch[resolved]:
        raise ConfigError(_describe_too_large(resolved, config, sizes, workload, cluster))
    micro_batches = -(-workload.batch_size // micro_batch[resolved])
    workload = replace(workload, batch_size=-(-workload.batch_size // micro_batches))
    model = measure_model(config, sizes, workload)
    batch = DeviceBatch(
        tokens=micro_batches * workload.batch_size * count_text_tokens(config, workload.length),
        micro_batches=micro_batches,
        element_bytes=2 if workload.precision == "bf16" else 4,
    )
    one_node = replace(cluster, gpus=cluster.gpus_per_node)
    saved = _count_checkpoint_bytes(config, sizes, workload)
    copied = saved if resolved == "ddp" else -(-saved // gpus)
    return TrainingPlan(
        config=config,
        cluster=cluster,
        model=model,
        workload=workload,
        engine=resolved,
        batch=batch,
        fits={name: bool(micro_batch[name]) for name in ENGINES},
        memory={name: estimate_device_memory(name, config, sizes, workload, gpus) for name in ENGINES},
        step=estimate_step_time(resolved, model, batch, cluster),
        node_step=estimate_step_time(resolved, model, batch, one_node),
        training_tokens=training_tokens or TOKENS_PER_PARAM * model.n_params,
        checkpoints=plan_checkpoints(saved, copied, gpus, reliability),
    )


def _count_checkpoint_bytes(config: Config, sizes: DataSizes, workload: Workload) -> int:
    """Return the bytes of the weights and of the optimizer state, which a checkpoint contains."""
    items = estimate_costs(config, sizes, workload).training
    return sum(item.total for item in items if item.name == "weights" or item.name.startswith("state of"))


def _describe_too_large(
    engine: Engine, config: Config, sizes: DataSizes, workload: Workload, cluster: Cluster
) -> str:
    """Return which memory is missing, and the smallest number of GPUs that would do."""
    smallest = replace(workload, batch_size=1)
    needed = estimate_device_memory(engine, config, sizes, smallest, cluster.gpus).total
    problem = (
        f"with {engine.upper()} on {cluster.gpus:,} GPUs, each GPU needs {needed / 10**9:,.0f} GB for one text of "
        f"{workload.length:,} tokens; four fifths of {cluster.memory_bytes / 10**9:,.0f} GB are available"
    )
    fewest = find_fewest_devices(config, sizes, smallest, cluster.memory_bytes, cluster.gpus_per_node, MAX_GPUS)
    if not fewest:
        return f"{problem}. No number of GPUs is enough: use shorter texts, a smaller model or larger GPUs."
    if engine == "ddp" and fewest <= cluster.gpus:
        return f"{problem}. FSDP fits: write --parallel fsdp."
    return f"{problem}. With FSDP, {fewest:,} GPUs are the smallest number that is enough."
