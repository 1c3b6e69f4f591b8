"""One optimisation step: forward, backward, clip, update.

`TrainStep` runs eagerly. `CudaGraphTrainStep` (cuda_graph_step.py) replays CUDA graphs with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from triform.config import Config
from triform.data.samplers import Indices
from triform.tasks.batch import Batch, Dataset
from triform.tasks.device_data import BatchPlan
from triform.tasks.task import Task
from triform.training.optim import build_optimizer
from triform.training.tensors import NewTensor, local_part

if TYPE_CHECKING:
    from triform.training.sharded_tensors import ShardSlice


class StepStats(NamedTuple):
    """The amount of data in a step."""

    n_predictions: int
    n_tokens: int  # without padding
    n_positions: int  # with padding


def collect_step_stats(batches: Sequence[Batch] | Sequence[BatchPlan]) -> StepStats:
    """Add up the sizes of a step's micro-batches, collated or only planned."""
    return StepStats(
        sum(batch.n_predictions for batch in batches),
        sum(batch.n_tokens for batch in batches),
        sum(batch.n_positions for batch in batches),
    )


class TrainStep:
    """A model with its optimizer, and the step that updates it.

    Losses stay on the device, one per step in `losses`, until the trainer reads them, because reading waits for the
    device.

    Args:
        task: The task, whose model is on its device.
        data: The training data, from which batches are collated.
    """

    is_sharded = False  # whether each process has only a part of the weights
    use_compile: bool | None = None  # whether blocks are compiled; None: not decided yet
    was_compiled = False  # whether they were before a resume
    new_tensor: NewTensor | None = None  # memory for the tensors of a checkpoint; None: read them as a whole

    def __init__(self, task: Task, data: Dataset) -> None:
        self.task, self.data, self.config = task, data, task.config.train
        self.device = task.device
        self.optimizer = build_optimizer(task.model, self.config)
        dtype = next(task.model.parameters()).dtype
        self.losses = torch.zeros(
            self.config.log_every, dtype=dtype, device=self.device
        )  # of the steps since the last log
        self.loss_index = torch.zeros(1, dtype=torch.long, device=self.device)  # where the next loss goes
        self.grad_norm = torch.zeros((), dtype=dtype, device=self.device)  # of the last step, before clipping
        self.notices: list[str] = []  # for the user; the trainer emits them
        self.n_steps = 0  # taken so far; the trainer sets it before each step
        self.stop_requested = False  # by this process; after a step of several processes, by any of them
        self.compute_dtype = resolve_compute_dtype(task.config, self.device)
        self.trainable_weights = [local_part(p.detach()) for p in task.model.parameters() if p.requires_grad]
        self.ema = [torch.zeros_like(p) for p in self.trainable_weights] if self.config.ema_decay else []

    @property
    def n_setups(self) -> int:
        """How many steps took longer than later ones will, because they compiled or captured a shape of batches."""
        return 0

    @property
    def optimizer_parameters(self) -> list[Tensor]:
        """The trainable parameters, in the order of the optimizer."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def shard_slices(self, parts: Mapping[str, Tensor]) -> dict[str, ShardSlice]:
        """Return the slices of those tensors of a checkpoint that are sharded."""
        return {}

    def step(self, batch_indices: Sequence[Indices], lr: float) -> StepStats:
        """Take one step.

        Args:
            batch_indices: The examples of each micro-batch.
            lr: The learning rate.
        """
        batches = [self.data.batch(indices) for indices in batch_indices]
        stats = collect_step_stats(batches)
        if self.device.type != "cpu":  # batches are collated on the CPU
            batches = [batch.to(self.device) for batch in batches]
        self.optimize(batches, stats.n_predictions, lr)
        return stats

    def optimize(self, batches: Sequence[Batch], n_predictions: int | Tensor, lr: float | Tensor) -> None:
        """Update the weights. The loss is summed over all micro-batches and divided once, by all predictions."""
        self.set_lr(lr)
        total_loss = torch.zeros_like(self.grad_norm)
        for batch in batches:
            with self.autocast():
                loss = self.task.loss(batch) / n_predictions
            loss.backward()  # type: ignore[no-untyped-call]
            total_loss = total_loss + loss.detach()
        self.apply_gradients(total_loss)

    def set_lr(self, lr: float | Tensor) -> None:
        """Set the learning rate of the next update."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr if group["lr_scale"] == 1 else lr * group["lr_scale"]

    def clip_gradients(self) -> Tensor:
        """Limit the norm of the gradients, and return what it was."""
        return torch.nn.utils.clip_grad_norm_(self.task.model.parameters(), self.config.clip_norm)

    def apply_gradients(self, loss: Tensor) -> None:
        """Clip the gradients, update the weights and their moving average, and record the loss of the step."""
        if self.config.clip_norm:
            self.grad_norm.copy_(self.clip_gradients())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.config.ema_decay:
            torch._foreach_lerp_(self.ema, self.trainable_weights, 1.0 - self.config.ema_decay)
        self.losses.index_copy_(0, self.loss_index, loss[None])
        self.loss_index += 1

    @contextmanager
    def use_ema_weights(self, step: int) -> Iterator[None]:
        """Put the average of the weights into the model inside the `with` block, if the settings ask for one.

        Args:
            step: The number of steps in the average; with 0, the weights stay as they are.
        """
        if not self.ema or not step:
            yield
            return
        current_weights = [weight.clone() for weight in self.trainable_weights]
        bias_correction = 1.0 - self.config.ema_decay**step  # the average started at zero
        torch._foreach_copy_(self.trainable_weights, list(torch._foreach_div(self.ema, bias_correction)))
        try:
            yield
        finally:
            torch._foreach_copy_(self.trainable_weights, current_weights)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for forward passes: bf16 autocast, or nothing."""
        if self.compute_dtype == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def training_context(self) -> AbstractContextManager[Any]:
        """Return the context in which all steps and validations of a run take place."""
        return _tf32_matmul() if self.compute_dtype == "tf32" else nullcontext()

    def restore_losses(self, losses: Sequence[float]) -> None:
        """Set the losses since the last log from a checkpoint. An empty list clears them."""
        self.losses[: len(losses)] = torch.tensor(losses)
        self.loss_index.fill_(len(losses))


TF32_MAX_WIDTH = 128  # up to this d_model, casting to bf16 costs more time than it saves


def resolve_compute_dtype(config: Config, device: torch.device) -> str:
    """Return the precision of `train.precision` on this device.

    On CUDA, "auto" is bf16, or tf32 for narrow and for recurrent models. Elsewhere it is fp32.
    """
    if config.train.precision != "auto":
        return config.train.precision
    if device.type != "cuda" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return "fp32"
    return "tf32" if config.model.is_recurrent or config.model.d_model <= TF32_MAX_WIDTH else "bf16"


@contextmanager
def _tf32_matmul() -> Iterator[None]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)
