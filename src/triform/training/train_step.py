"""One step of learning: forward, backward, clipping, update. `recorded.py` has the same for CUDA, replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triform.config import Config
from triform.data.samplers import Indices
from triform.tasks.batch import Batch, Dataset
from triform.tasks.device_data import BatchPlan
from triform.tasks.task import Task
from triform.training.optim import build_optimizer


class StepStats(NamedTuple):
    """How much a step learned from."""

    n_predictions: int  # predictions
    n_tokens: int  # real ones
    n_positions: int  # with the padding


def collect_step_stats(batches: Sequence[Batch] | Sequence[BatchPlan]) -> StepStats:
    """How much there is in the batches of a step, made or only planned."""
    return StepStats(
        sum(batch.n_predictions for batch in batches),
        sum(batch.n_tokens for batch in batches),
        sum(batch.n_positions for batch in batches),
    )


class TrainStep:
    """A model, its optimizer and its data. The losses of the last steps stay on the device until someone looks."""

    def __init__(self, task: Task, data: Dataset) -> None:
        self.task, self.data, self.config = task, data, task.config.train
        self.device = task.device
        self.optimizer = build_optimizer(task.model, self.config)
        parameter = next(task.model.parameters())
        self.losses = parameter.new_zeros(self.config.log_every)  # since the last look
        self.loss_index = torch.zeros(1, dtype=torch.long, device=self.device)  # where the next one goes
        self.grad_norm = parameter.new_zeros(())  # of the last gradient, before clipping
        self.notices: list[str] = []  # what a user may want to know of how it went
        self.compute_dtype = resolve_compute_dtype(task.config, self.device)
        self.trainable_weights = [p.detach() for p in task.model.parameters() if p.requires_grad]
        self.ema = [torch.zeros_like(p) for p in self.trainable_weights] if self.config.ema_decay else []

    def step(self, batch_indices: Sequence[Indices], lr: float) -> StepStats:
        """Learn from these batches at this rate."""
        batches = [self.data.batch(indices) for indices in batch_indices]
        stats = collect_step_stats(batches)
        self.optimize([batch.to(self.device) for batch in batches], stats.n_predictions, lr)
        return stats

    def optimize(self, batches: Sequence[Batch], n_predictions: int | Tensor, lr: float | Tensor) -> None:
        """Sums over micro-batches, divided once by the number of predictions in all of them."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr if group["scale"] == 1 else lr * group["scale"]
        total_loss = torch.zeros_like(self.grad_norm)
        for batch in batches:
            with self.autocast():
                loss = self.task.loss(batch) / n_predictions
            loss.backward()  # type: ignore[no-untyped-call]
            total_loss = total_loss + loss.detach()
        if self.config.clip_norm:
            grad_norm = torch.nn.utils.clip_grad_norm_(self.task.model.parameters(), self.config.clip_norm)
            self.grad_norm.copy_(grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema:
            torch._foreach_lerp_(self.ema, self.trainable_weights, 1.0 - self.config.ema_decay)
        self.losses.index_copy_(0, self.loss_index, total_loss[None])
        self.loss_index += 1

    @contextmanager
    def use_ema_weights(self, step: int) -> Iterator[None]:
        """With the moving average of the weights in the model, where one is kept; after so many steps."""
        if not self.ema or not step:
            yield
            return
        current_weights = [weight.clone() for weight in self.trainable_weights]
        bias_correction = 1.0 - self.config.ema_decay**step  # the sums began at nothing
        torch._foreach_copy_(self.trainable_weights, list(torch._foreach_div(self.ema, bias_correction)))
        try:
            yield
        finally:
            torch._foreach_copy_(self.trainable_weights, current_weights)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.compute_dtype == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def training_context(self) -> AbstractContextManager[Any]:
        """Around everything that happens while training."""
        return _tf32_matmul() if self.compute_dtype == "tf32" else nullcontext()

    def restore_losses(self, losses: Sequence[float]) -> None:
        """Stand where these losses have been seen since the last look; none: a new look begins."""
        self.losses[: len(losses)] = torch.tensor(losses)
        self.loss_index.fill_(len(losses))


TF32_MAX_WIDTH = 128  # a model no wider than this spends more on casting to half than its products gain


def resolve_compute_dtype(config: Config, device: torch.device) -> str:
    """What `precision = "auto"` comes to: on CUDA bf16, for narrow models float32 through the matrix units.

    Recurrent ones are read by cuDNN in float32 too.
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
