"""One step of learning: forward, backward, clipping, update. `recorded.py` has the same for CUDA, replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triform.config import Config
from triform.data.loader import Indices
from triform.tasks.resident import Plan
from triform.tasks.task import Batch, Dataset, Task
from triform.training.optim import make_optimizer


class Counts(NamedTuple):
    """How much a step learned from."""

    weight: int  # predictions
    n_tokens: int  # real ones
    n_places: int  # with the padding


def counted(batches: Sequence[Batch] | Sequence[Plan]) -> Counts:
    """How much there is in the batches of a step, made or only planned."""
    return Counts(
        sum(batch.weight for batch in batches),
        sum(batch.n_tokens for batch in batches),
        sum(batch.n_places for batch in batches),
    )


class Learner:
    """A model, its optimizer and its data. The losses of the last steps stay on the device until someone looks."""

    def __init__(self, task: Task, data: Dataset) -> None:
        self.task, self.data, self.config = task, data, task.config.train
        self.device = task.device
        self.optimizer = make_optimizer(task.model, self.config)
        weight = next(task.model.parameters())
        self.losses = weight.new_zeros(self.config.log_every)  # since the last look
        self.place = torch.zeros(1, dtype=torch.long, device=self.device)  # where the next one goes
        self.norm = weight.new_zeros(())  # of the last gradient, before clipping
        self.notices: list[str] = []  # what a user may want to know of how it went
        self.number_format = number_format(task.config, self.device)
        self.weights = [p.detach() for p in task.model.parameters() if p.requires_grad]
        self.sums = [torch.zeros_like(p) for p in self.weights] if self.config.average else []

    def step(self, drawn: Sequence[Indices], rate: float) -> Counts:
        """Learn from these batches at this rate."""
        batches = [self.data.batch(indices) for indices in drawn]
        counts = counted(batches)
        self.learn([batch.to(self.device) for batch in batches], counts.weight, rate)
        return counts

    def learn(self, batches: Sequence[Batch], weight: int | Tensor, rate: float | Tensor) -> None:
        """Sums over micro-batches, divided once by the number of predictions in all of them."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate if group["scale"] == 1 else rate * group["scale"]
        total = torch.zeros_like(self.norm)
        for batch in batches:
            with self.precision():
                loss = self.task.loss(batch) / weight
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        if self.config.clip_norm:
            norm = torch.nn.utils.clip_grad_norm_(self.task.model.parameters(), self.config.clip_norm)
            self.norm.copy_(norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.sums:
            torch._foreach_lerp_(self.sums, self.weights, 1.0 - self.config.average)
        self.losses.index_copy_(0, self.place, total[None])
        self.place += 1

    @contextmanager
    def averaged(self, step: int) -> Iterator[None]:
        """With the moving average of the weights in the model, where one is kept; after so many steps."""
        if not self.sums or not step:
            yield
            return
        latest = [weight.clone() for weight in self.weights]
        begun = 1.0 - self.config.average**step  # the sums began at nothing
        torch._foreach_copy_(self.weights, list(torch._foreach_div(self.sums, begun)))
        try:
            yield
        finally:
            torch._foreach_copy_(self.weights, latest)

    def precision(self) -> AbstractContextManager[Any]:
        if self.number_format == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def running(self) -> AbstractContextManager[Any]:
        """Around everything that happens while training."""
        return _tf32() if self.number_format == "tf32" else nullcontext()

    def recall(self, losses: Sequence[float]) -> None:
        """Stand where these losses have been seen since the last look; none: a new look begins."""
        self.losses[: len(losses)] = torch.tensor(losses)
        self.place.fill_(len(losses))


NARROW = 128  # a model no wider than this spends more on casting to half than its products gain


def number_format(config: Config, device: torch.device) -> str:
    """What `precision = "auto"` comes to: on CUDA bf16, for narrow models float32 through the matrix units.

    Recurrent ones are read by cuDNN in float32 too.
    """
    if config.train.precision != "auto":
        return config.train.precision
    if device.type != "cuda" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return "fp32"
    return "tf32" if config.model.is_recurrent or config.model.d_model <= NARROW else "bf16"


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
