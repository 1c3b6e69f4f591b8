"""One trainer for every task: step, look, keep the best, save, stop."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from triform.data.samplers import Indices
from triform.errors import DivergedError, notice_level
from triform.evaluation.metrics import Metrics
from triform.io.errors import damaged_error
from triform.nn.lora import merge_lora, merged_weights
from triform.progress import report_progress_to
from triform.tasks.device_data import DeviceDataset
from triform.tasks.task import Dataset, PreparedTask, Task
from triform.training.adapter import AdapterFile
from triform.training.checkpoint_schema import validate_optimizer_state
from triform.training.cuda_graph_step import CudaGraphTrainStep
from triform.training.optim import build_schedule
from triform.training.rng import get_rng_state, set_rng_state
from triform.training.run_folder import RunFolder
from triform.training.stopping import ValidationInterrupted, interruptible
from triform.training.tensors import load_weights, named_weights
from triform.training.throughput import ThroughputMeter
from triform.training.train_step import StepStats, TrainStep

Event = dict[str, Any]


class Callback(Protocol):
    """Hears of every event and may keep a state of its own across a resume."""

    def on_event(self, event: Event) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class Progress:
    """Where a run stands; all of it is in every checkpoint."""

    step: int = 0
    best: Metrics | None = None
    best_step: int = 0
    stale: int = 0  # validations since the last one that showed progress
    lowest_loss: float = sys.float_info.max  # of all validations; JSON has no infinity
    seconds: float = 0.0
    finished: str = ""  # why training ended, once it has
    validation_due: bool = False  # whether this step's validation was interrupted, and is done first after a resume


class Display(Protocol):
    """Shows how far training has come."""

    def update(self, label: str, done: int, total: int) -> None: ...

    def close(self) -> None: ...


class Trainer:
    def __init__(
        self,
        prepared: PreparedTask,
        folder: RunFolder,
        callbacks: Sequence[Callback],
        metadata: dict[str, Any],
        flops_per_token: float = 0.0,
    ) -> None:
        """`marks` are facts that every checkpoint carries, such as the fingerprints of the data.

        `operations` is the work of learning from one token, for the share of the device's rate that is used.
        """
        self.task, self.train_data, self.valid_data = prepared.task, prepared.train, prepared.valid
        self.config = prepared.task.config.train
        self.folder, self.callbacks, self.metadata = folder, callbacks, metadata
        self.sampler = self.train_data.sampler(self.config, prepared.task.config.seed)
        self.max_steps = self.config.max_steps or steps_for_epochs(
            self.config.epochs, self.sampler.steps_per_epoch, self.config.grad_accumulation
        )
        self.train_step = self.build_train_step(prepared)
        uses_lora = self.config.lora_rank > 0
        self.adapter = AdapterFile(folder.adapter_file, self.task.model, self.task.config) if uses_lora else None
        self.schedule = build_schedule(self.config, self.max_steps)
        self.progress = Progress()
        self.meter = ThroughputMeter(self.task.device, flops_per_token)
        self.eval_every = self.config.eval_every if self.valid_data is not None else 0
        self.display: Display | None = None
        self.stop_requested = self.interruptible = False
        self.steps_since_log = 0  # steps since the last look

    def build_train_step(self, prepared: PreparedTask) -> TrainStep:
        """Recorded where that pays: on CUDA, with data that fits there."""
        task, data = prepared.task, prepared.train
        device_dataset = load_device_dataset(task, data) if task.device.type == "cuda" else None
        return (
            TrainStep(task, data)
            if device_dataset is None
            else CudaGraphTrainStep(task, data, device_dataset, self.max_steps)
        )

    def fit(self) -> None:
        """Train to the end, to early stopping, or until `stop` is called."""
        if self.progress.finished:
            return
        try:
            with self.train_step.training_context():
                self.start()
                if self.progress.validation_due:
                    self.finish_step()
                while not self.progress.finished and not self.stop_requested:
                    self.step()
                    self.after_step()
                self.end()
        finally:
            if self.display is not None:
                self.display.close()

    def start(self) -> None:
        self.task.model.train()
        self._started_at = time.monotonic() - self.progress.seconds
        self.meter.start()

    def after_step(self) -> None:
        """Log, validate, save and end where it is time to."""
        step = self.progress.step
        for text in self.train_step.notices:
            self._emit("notice", level=notice_level(text), text=text)
        self.train_step.notices.clear()
        if step % self.config.log_every == 0:
            self._log()
        self.progress.validation_due = self._is_validation_step(step)
        self.finish_step()

    def _is_validation_step(self, step: int) -> bool:
        return step % self.config.eval_every == 0 or step == self.max_steps

    def finish_step(self) -> None:
        """Validate if that is due, then save or end; an interrupted validation leaves all of it to a resume."""
        step = self.progress.step
        if self.progress.validation_due:
            self._validate()
        if self.progress.validation_due:
            return
        if step == self.max_steps:
            self.progress.finished = self.progress.finished or "max_steps"
        elif not self.progress.finished and step % self.config.checkpoint_every == 0:
            self.save_checkpoint()

    def end(self) -> None:
        """Write down what the run came to, or where it was stopped."""
        if self.progress.finished:
            self._finish()
        else:
            self.save_checkpoint()
            self._emit("end", reason="interrupted")

    def stop(self) -> None:
        """Ask for a stop after the current step, or inside a validation at once; the state is saved first."""
        self.stop_requested = True
        if self.interruptible:
            raise ValidationInterrupted

    def release_memory(self) -> None:
        """Give the memory of the device back; this trainer is of no more use."""
        self.task.model.cpu()
        del self.train_step
        gc.collect()
        torch.cuda.empty_cache()

    # -- one step

    def draw_batches(self) -> tuple[list[Indices], float]:
        """The batches of the next step, and its rate."""
        step = self.progress.step + 1
        lr = self.config.lr * self.schedule.lr_factor(step)
        return [self.sampler.next_batch() for _ in range(self.config.grad_accumulation)], lr

    def record_step(self, lr: float, stats: StepStats) -> None:
        """A step has been taken: at this rate, from so much."""
        self.progress.step, self._lr = self.progress.step + 1, lr
        self.steps_since_log += 1
        self.meter.add(stats)
        if self.display is not None:
            self.display.update("step", self.progress.step, self.max_steps)

    def step(self) -> None:
        batch_indices, lr = self.draw_batches()
        self.record_step(lr, self.train_step.step(batch_indices, lr))

    # -- what happens between steps

    def _check_losses(self) -> list[float]:
        """The losses since the last look; reading them waits for the device, so it is done only now and then."""
        losses: list[float] = self.train_step.losses[: self.steps_since_log].tolist()
        if not math.isfinite(sum(losses)):
            raise self._diverged_error("loss")
        return losses

    def _diverged_error(self, quantity: str) -> DivergedError:
        checkpoint = self.folder.latest_checkpoint()
        checkpoint_message = (
            f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was written yet"
        )
        return DivergedError(
            f"the {quantity} is not finite at step {self.progress.step}; {checkpoint_message}. "
            f"Try a lower train.lr than {self.config.lr:g}, a longer train.warmup_steps, or train.clip_norm=1"
        )

    def _log(self) -> None:
        losses = self._check_losses()
        grad_norm = {"grad_norm": self.train_step.grad_norm.item()} if self.config.clip_norm else {}
        self._emit(
            "train",
            epoch=self.progress.step * self.config.grad_accumulation / self.sampler.steps_per_epoch,
            loss=sum(losses) / max(1, len(losses)),
            lr=self._lr,
            **self.meter.read(),
            **grad_norm,
        )
        self.train_step.restore_losses([])
        self.steps_since_log = 0

    def _validate(self) -> None:
        self._check_losses()
        if self.valid_data is None:
            self.progress.validation_due = False
            return
        started_at, random_state = time.monotonic(), get_rng_state(self.task.device)
        try:
            with self.train_step.use_ema_weights(self.progress.step):
                metrics = self.evaluate(self.valid_data)
                self.task.model.train()
                self._update_best(metrics)
            self.progress.validation_due = False
        except ValidationInterrupted:
            self.task.model.train()
            set_rng_state(random_state, self.task.device)
        self.meter.exclude(time.monotonic() - started_at)  # the rate of training is not slowed by looking

    def _update_best(self, metrics: Metrics) -> None:
        if not math.isfinite(
            metrics["loss"]
        ):  # nothing was decoded with such weights, so the metric may be missing
            raise self._diverged_error("validation loss")
        self._emit("valid", **metrics)
        self.schedule.on_validation_loss(metrics["loss"])
        if self.task.is_better(metrics, self.progress.best):
            self.progress.best, self.progress.best_step, self.progress.stale = metrics, self.progress.step, 0
            self._save_model()
            self._emit("best", metric=self.task.metric, value=metrics[self.task.metric])
        elif not (self.task.lower_loss_is_progress and metrics["loss"] < self.progress.lowest_loss):
            self.progress.stale += 1
        else:
            self.progress.stale = 0
        self.progress.lowest_loss = min(metrics["loss"], self.progress.lowest_loss)
        if self._out_of_patience():
            self.progress.finished = "patience"

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def _save_model(self) -> None:
        """As a model like any other; adapters also by themselves."""
        self.folder.write_weights(merged_weights(self.task.model))
        if self.adapter:
            self.adapter.write()

    def load_best_weights(self) -> None:
        """The weights that were kept, in a model like any other: training is over."""
        merge_lora(self.task.model)
        load_weights(self.task.model, self.folder.read_weights(), self.folder.model_file)

    def evaluate(self, data: Dataset) -> Metrics:
        with interruptible(self), report_progress_to(self.on_progress), self.train_step.autocast():
            return self.task.evaluate(data, quick=True)

    def on_progress(self, label: str, done: int, total: int) -> None:
        """So much of a validation is done; a stop that was asked for breaks it off here at the latest."""
        if self.stop_requested:
            raise ValidationInterrupted
        if self.display is not None:
            self.display.update(label, done, total)

    def _finish(self) -> None:
        if self.valid_data is None:
            with self.train_step.use_ema_weights(self.progress.step):
                self._save_model()
        best = {} if self.progress.best is None else {"best": self.progress.best[self.task.metric]}
        self._emit("end", reason=self.progress.finished, best_step=self.progress.best_step, **best)
        self.save_checkpoint()

    def _emit(self, name: str, **fields: object) -> None:
        self.progress.seconds = time.monotonic() - self._started_at
        event: Event = {"event": name, "step": self.progress.step, **fields, "seconds": self.progress.seconds}
        for callback in self.callbacks:
            callback.on_event(event)

    # -- saving and going on

    def save_checkpoint(self) -> None:
        self._check_losses()
        if not torch.stack([p.isfinite().all() for p in self.task.model.parameters()]).all():
            raise self._diverged_error("model")
        self.progress.seconds = time.monotonic() - self._started_at
        tensors = {f"model.{name}": tensor for name, tensor in named_weights(self.task.model).items()}
        optimizer_state = self.train_step.optimizer.state_dict()["state"]
        for index, values in optimizer_state.items():
            tensors |= {
                f"optimizer.{index}.{key}": value for key, value in values.items() if torch.is_tensor(value)
            }
        tensors |= {f"average.{index}": tensor for index, tensor in enumerate(self.train_step.ema)}
        tensors |= {f"rng.{name}": tensor for name, tensor in get_rng_state(self.task.device).items()}
        state = {
            "progress": vars(self.progress),
            "sampler": self.sampler.state_dict(),
            "schedule": self.schedule.state_dict(),
            "listeners": {type(callback).__name__: callback.state_dict() for callback in self.callbacks},
            "window": {"losses": self._check_losses()},
            "marks": self.metadata,
            "finished": self.progress.finished,
        }
        due = self.progress.validation_due
        self.folder.write_checkpoint(self.progress.step, tensors, state, validation_due=due)

    def resume(self) -> None:
        """Go on from the latest checkpoint; with none, from the beginning."""
        checkpoint = self.folder.latest_checkpoint()
        if checkpoint is None:
            return
        tensors, state = self.folder.read_checkpoint(checkpoint)
        try:
            self._restore(tensors, state)
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise damaged_error(checkpoint, error) from None
        self.progress.validation_due &= self._is_validation_step(
            self.progress.step
        )  # not where it ended, if now longer
        if self._should_continue():
            self.progress.finished = ""
            for callback in self.callbacks:
                callback.on_event({"event": "longer", "step": self.progress.step, "max_steps": self.max_steps})
        for callback in self.callbacks:
            callback.on_event({"event": "resume", "step": self.progress.step})

    def _should_continue(self) -> bool:
        """Whether a run that has ended is to be trained longer: its settings now allow more."""
        if self.progress.finished == "patience":
            return not self._out_of_patience() and self.progress.step < self.max_steps
        return self.progress.finished == "max_steps" and self.progress.step < self.max_steps

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}, "rng": {}}
        for name, tensor in tensors.items():
            part, _, suffix = name.partition(".")
            if part not in parts:
                raise ValueError(f"{name} is no tensor of a checkpoint")
            parts[part][suffix] = tensor
        load_weights(self.task.model, parts["model"], self.folder.checkpoints_folder)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
        validate_optimizer_state(moments, self.train_step.optimizer)
        self.train_step.optimizer.load_state_dict(self.train_step.optimizer.state_dict() | {"state": moments})
        for number, average in enumerate(self.train_step.ema):
            average.copy_(parts["average"][str(number)])
        self.progress = Progress(**state["progress"])
        if self.progress.best is not None and self.task.metric not in self.progress.best:
            raise ValueError(f"progress.best has no {self.task.metric}")
        self.sampler.load_state_dict(state["sampler"])
        self.schedule.load_state_dict(state["schedule"])
        for callback in self.callbacks:
            callback.load_state_dict(state["listeners"].get(type(callback).__name__, {}))
        losses = state["window"]["losses"]
        self.steps_since_log = len(losses)
        self.train_step.restore_losses(losses)
        set_rng_state(parts["rng"], self.task.device)


def load_device_dataset(task: Task, data: Dataset) -> DeviceDataset | None:
    """The data on the task's device; None where there is no room for it beside the model."""
    try:
        return data.to_device(task.device, task.config.train)
    except torch.OutOfMemoryError:
        return None


def steps_for_epochs(epochs: float, steps_per_epoch: int, grad_accumulation: int) -> int:
    return max(1, math.ceil(epochs * steps_per_epoch / grad_accumulation))
