"""The training loop of every task: step, log, validate, keep the best model, save, stop.

`Trainer.emit` passes every event of a run to the callbacks. An event is a dictionary with a name under `event`:

| name | when | fields |
|---|---|---|
| `start` | a new run begins | task, metric, parameters, device, max_steps, … |
| `notice` | the user should know something | level, text |
| `train` | every `log_every` steps | step, epoch, loss, lr, tokens_per_s, … |
| `valid` | after each validation | step, loss and the task's metrics |
| `best` | a validation was the best so far | step, metric, value |
| `resume` | a run continues from a checkpoint | step |
| `extended` | a run that had ended is trained for longer | step, max_steps |
| `diverged` | one of several seeds has diverged | step, text |
| `end` | training ended or was interrupted | step, reason, best, best_step |
| `sample` | a prediction of the finished model | step and what was read and predicted |
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from triform.data.samplers import Indices
from triform.errors import DivergedError, notice_level
from triform.evaluation.metrics import Metrics
from triform.io.errors import damaged_error
from triform.nn.lora import merge_lora
from triform.progress import report_progress_to
from triform.tasks.batch import Dataset
from triform.tasks.device_data import DeviceDataset
from triform.tasks.task import PreparedTask, Task
from triform.training.checkpoint import Progress, checkpoint_state, checkpoint_tensors, restore_checkpoint
from triform.training.cuda_graph_step import CudaGraphTrainStep
from triform.training.lora_adapter import AdapterFile, merged_weights
from triform.training.optim import build_schedule
from triform.training.rng import get_rng_state, set_rng_state
from triform.training.run_folder import RunFolder
from triform.training.stopping import ValidationInterrupted, interruptible_validation
from triform.training.tensors import load_weights
from triform.training.throughput import ThroughputMeter
from triform.training.train_step import StepStats, TrainStep

Event = dict[str, Any]


class Callback:
    """Receives every event of a run. Subclass it and override `on_event`.

    A callback with a state that must survive a resume overrides `state_dict` and `load_state_dict` too. The state
    is stored in each checkpoint as JSON, under the name of the class.

    >>> class PrintLoss(Callback):
    ...     def on_event(self, event: Event) -> None:
    ...         if event["event"] == "train":
    ...             print(f"step {event['step']}: loss {event['loss']:.2f}")
    >>> PrintLoss().on_event({"event": "train", "step": 10, "loss": 0.6931})
    step 10: loss 0.69
    """

    def on_event(self, event: Event) -> None:
        """Receive an event. The module's docstring lists the events and their fields."""

    def on_progress(self, label: str, done: int, total: int) -> None:
        """Receive how far the current work has come: `step` of training, or a part of a validation."""

    def close(self) -> None:
        """Release what the callback holds, such as a terminal. Called when training ends, also by an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this callback, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class Trainer:
    """Trains a task and keeps its best model and its checkpoints in a run folder.

    Args:
        prepared: The task, its data, and its final settings.
        folder: The run folder to write to.
        callbacks: Observers that receive the events of the run.
        metadata: Facts that every checkpoint carries, such as the fingerprints of the data files.
        flops_per_token: Operations of training on one token, to report the utilisation of a GPU; 0: unknown.
    """

    def __init__(
        self,
        prepared: PreparedTask,
        folder: RunFolder,
        callbacks: Sequence[Callback],
        metadata: dict[str, Any],
        flops_per_token: float = 0.0,
    ) -> None:
        self.task, self.train_data, self.valid_data = prepared.task, prepared.train, prepared.valid
        self.config = prepared.task.config.train
        self.folder, self.callbacks, self.metadata = folder, callbacks, metadata
        self.sampler = self.train_data.sampler(self.config, prepared.task.config.seed)
        self.max_steps = self.config.max_steps or steps_for_epochs(
            self.config.epochs, self.sampler.steps_per_epoch, self.config.grad_accumulation
        )
        self.train_step = self.build_train_step()
        uses_lora = self.config.lora_rank > 0
        self.lora_adapter = (
            AdapterFile(folder.adapter_file, self.task.model, self.task.config) if uses_lora else None
        )
        self.schedule = build_schedule(self.config, self.max_steps)
        self.progress = Progress()
        self.meter = ThroughputMeter(self.task.device, flops_per_token)
        self.eval_every = self.config.eval_every if self.valid_data is not None else 0
        self.stop_requested = self.is_validating = False
        self.steps_since_log = 0
        self._stats_since_log: list[StepStats] = []  # fewer than steps_since_log after a resume

    def build_train_step(self) -> TrainStep:
        """Use CUDA graphs where there is a GPU with room for the training data; otherwise run eagerly."""
        device_dataset = (
            load_device_dataset(self.task, self.train_data) if self.task.device.type == "cuda" else None
        )
        if device_dataset is None:
            return TrainStep(self.task, self.train_data)
        return CudaGraphTrainStep(self.task, self.train_data, device_dataset, self.max_steps)

    # -- the loop

    def fit(self) -> None:
        """Train to the last step, to early stopping, or until `stop` is called."""
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
            self.close_callbacks()

    def start(self) -> None:
        """Prepare for the first step: training mode, and the clocks."""
        self.task.model.train()
        self._started_at = time.monotonic() - self.progress.seconds
        self.meter.start()

    def step(self) -> None:
        """Run one optimisation step."""
        batch_indices, lr = self.draw_batches()
        self.record_step(lr, self.train_step.step(batch_indices, lr))

    def draw_batches(self) -> tuple[list[Indices], float]:
        """Return the batches of the next step, one per micro-batch, and its learning rate."""
        lr = self.config.lr * self.schedule.lr_factor(self.progress.step + 1)
        return [self.sampler.next_batch() for _ in range(self.config.grad_accumulation)], lr

    def record_step(self, lr: float, stats: StepStats) -> None:
        """Count a step that has been taken."""
        self.progress.step, self._lr = self.progress.step + 1, lr
        self.steps_since_log += 1
        self._stats_since_log.append(stats)
        for callback in self.callbacks:
            callback.on_progress("step", self.progress.step, self.max_steps)

    def after_step(self) -> None:
        """Log, validate, save a checkpoint and finish, each where it is due."""
        step = self.progress.step
        for text in self.train_step.notices:
            self._emit_now("notice", level=notice_level(text), text=text)
        self.train_step.notices.clear()
        if step % self.config.log_every == 0:
            self._log()
        self.progress.validation_due = self._is_validation_step(step)
        self.finish_step()

    def finish_step(self) -> None:
        """Validate if due, then save a checkpoint or finish.

        An interrupted validation stays due: a resume calls this method before it takes a step.
        """
        step = self.progress.step
        if self.progress.validation_due:
            self._validate()
        if self.progress.validation_due:  # it was interrupted
            return
        if step == self.max_steps:
            self.progress.finished = self.progress.finished or "max_steps"
        elif not self.progress.finished and step % self.config.checkpoint_every == 0:
            self.save_checkpoint()

    def end(self) -> None:
        """Save the final state of the run, or where it was interrupted."""
        if not self.progress.finished:
            self.save_checkpoint()
            self._emit_now("end", reason="interrupted")
            return
        if self.valid_data is None:  # no validation has kept a model: the last one is the result
            with self.train_step.use_ema_weights(self.progress.step):
                self._save_model()
        best = {} if self.progress.best is None else {"best": self.progress.best[self.task.metric]}
        self._emit_now("end", reason=self.progress.finished, best_step=self.progress.best_step, **best)
        self.save_checkpoint()

    def stop(self) -> None:
        """Ask for a stop after the current step, or at once during a validation. The state is saved first."""
        self.stop_requested = True
        if self.is_validating:
            raise ValidationInterrupted

    def release_memory(self) -> None:
        """Free the memory of the device. The trainer cannot be used afterwards."""
        self.task.model.cpu()
        del self.train_step
        gc.collect()
        torch.cuda.empty_cache()

    # -- events

    def emit(self, name: str, **fields: object) -> None:
        """Send an event to every callback."""
        for callback in self.callbacks:
            callback.on_event({"event": name, **fields})

    def _emit_now(self, name: str, **fields: object) -> None:
        """Send an event that happens at the current step."""
        self.progress.seconds = time.monotonic() - self._started_at
        self.emit(name, **{"step": self.progress.step, **fields, "seconds": self.progress.seconds})

    def close_callbacks(self) -> None:
        """Close all callbacks, such as a progress bar."""
        for callback in self.callbacks:
            callback.close()

    def on_progress(self, label: str, done: int, total: int) -> None:
        """Pass on the progress of a validation. A requested stop interrupts the validation here at the latest."""
        if self.stop_requested:
            raise ValidationInterrupted
        for callback in self.callbacks:
            callback.on_progress(label, done, total)

    # -- logging and validation

    def _log(self) -> None:
        losses = self._read_losses()
        grad_norm = {"grad_norm": self.train_step.grad_norm.item()} if self.config.clip_norm else {}
        self._emit_now(
            "train",
            epoch=self.progress.step * self.config.grad_accumulation / self.sampler.steps_per_epoch,
            loss=sum(losses) / max(1, len(losses)),
            lr=self._lr,
            **self.meter.read(self._stats_since_log),
            **grad_norm,
        )
        self.train_step.restore_losses([])
        self._stats_since_log, self.steps_since_log = [], 0

    def _read_losses(self) -> list[float]:
        """Return the losses since the last log. Reading waits for the device, so this is done only when needed."""
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

    def _is_validation_step(self, step: int) -> bool:
        return step % self.config.eval_every == 0 or step == self.max_steps

    def _validate(self) -> None:
        self._read_losses()  # raises DivergedError where one is not finite
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
        self.meter.exclude(time.monotonic() - started_at)

    def evaluate(self, data: Dataset) -> Metrics:
        """Return the validation metrics of the current weights."""
        with interruptible_validation(self), report_progress_to(self.on_progress), self.train_step.autocast():
            return self.task.evaluator.evaluate(data, quick=True)

    def _update_best(self, metrics: Metrics) -> None:
        """Keep the model if it is the best so far, and finish training if progress has stopped."""
        if not math.isfinite(metrics["loss"]):  # a translation may not have been decoded then: no metric to compare
            raise self._diverged_error("validation loss")
        progress = self.progress
        self._emit_now("valid", **metrics)
        self.schedule.on_validation_loss(metrics["loss"])
        if self.task.evaluator.is_better(metrics, progress.best):
            progress.best, progress.best_step, progress.stale = metrics, progress.step, 0
            self._save_model()
            self._emit_now("best", metric=self.task.metric, value=metrics[self.task.metric])
        elif self.task.lower_loss_is_progress and metrics["loss"] < progress.lowest_loss:
            progress.stale = 0
        else:
            progress.stale += 1
        progress.lowest_loss = min(metrics["loss"], progress.lowest_loss)
        if self._out_of_patience():
            progress.finished = "patience"

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def _save_model(self) -> None:
        """Write the model with LoRA adapters merged into it, and the adapters also on their own."""
        self.folder.write_weights(merged_weights(self.task.model))
        if self.lora_adapter:
            self.lora_adapter.write()

    def load_best_weights(self) -> None:
        """Replace the weights by the best ones, once training is over. LoRA adapters are merged."""
        merge_lora(self.task.model)
        load_weights(self.task.model, self.folder.read_weights(), self.folder.model_file)

    # -- checkpoints

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the current step.

        Raises:
            DivergedError: A loss or a weight is not finite. Such a state is never saved.
        """
        losses = self._read_losses()
        if not torch.stack([p.isfinite().all() for p in self.task.model.parameters()]).all():
            raise self._diverged_error("model")
        self.progress.seconds = time.monotonic() - self._started_at
        self.folder.write_checkpoint(
            self.progress.step,
            checkpoint_tensors(self),
            checkpoint_state(self, losses),
            validation_due=self.progress.validation_due,
        )

    def resume(self) -> None:
        """Continue from the latest checkpoint, or from the beginning if there is none."""
        checkpoint = self.folder.latest_checkpoint()
        if checkpoint is None:
            return
        tensors, state = self.folder.read_checkpoint(checkpoint)
        try:
            restore_checkpoint(self, tensors, state)
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise damaged_error(checkpoint, error) from None
        # a run that is now longer does not validate where it had ended
        self.progress.validation_due &= self._is_validation_step(self.progress.step)
        if self._is_extended():
            self.progress.finished = ""
            self.emit("extended", step=self.progress.step, max_steps=self.max_steps)
        self.emit("resume", step=self.progress.step)

    def _is_extended(self) -> bool:
        """Whether the settings now let a run that had ended train for longer."""
        if self.progress.finished == "patience":
            return not self._out_of_patience() and self.progress.step < self.max_steps
        return self.progress.finished == "max_steps" and self.progress.step < self.max_steps


def load_device_dataset(task: Task, data: Dataset) -> DeviceDataset | None:
    """Return the data on the task's device, or None where there is no room for it beside the model."""
    try:
        return data.to_device(task.device, task.config.train)
    except torch.OutOfMemoryError:
        return None


def steps_for_epochs(epochs: float, steps_per_epoch: int, grad_accumulation: int) -> int:
    """Return how many optimisation steps so many epochs take, at least one."""
    return max(1, math.ceil(epochs * steps_per_epoch / grad_accumulation))
