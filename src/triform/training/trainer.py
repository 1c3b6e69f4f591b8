"""The training loop of every task: step, log, validate, keep the best model, save, stop.

`callbacks` describes the events of a run.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from triform.data.samplers import Indices
from triform.errors import DivergedError, notice_level
from triform.evaluation.metrics import Metrics
from triform.io.errors import damaged_error
from triform.nn.lora import merge_lora
from triform.progress import report_progress_to
from triform.tasks.batch import Dataset
from triform.tasks.task import PreparedTask
from triform.training.build_step import build_train_step
from triform.training.callbacks import Callback
from triform.training.checkpoint import (
    UNLOGGED_LOSSES,
    CheckpointTensors,
    Progress,
    checkpoint_state,
    find_non_finite,
    restore_checkpoint,
)
from triform.training.checkpoint_writer import CheckpointWriter
from triform.training.epochs import is_validation_step, steps_for_epochs, steps_per_validation
from triform.training.linear_part import fit_mixture, select_fitted
from triform.training.lora_adapter import AdapterFile, merged_weights
from triform.training.optim import build_schedule
from triform.training.rng import get_rng_state, set_rng_state
from triform.training.run_folder import RunFolder
from triform.training.sharded_checkpoint import find_in_processes, write_sharded_checkpoint
from triform.training.stopping import Interruptible, ValidationInterrupted
from triform.training.tensors import load_weights, named_weights
from triform.training.throughput import ThroughputMeter
from triform.training.train_step import StepStats
from triform.world import GatherInterrupted, broadcast_value, current_world, interrupt_gather


class Trainer(Interruptible):
    """Trains a task and keeps its best model and its checkpoints in a run folder.

    Several processes may train one model together. Each of them has a trainer, and only that of the main process
    writes files and has callbacks.

    Args:
        prepared: The task, its data, and its final settings.
        folder: The run folder to write to.
        callbacks: Observers that receive the events of the run.
        metadata: Values that every checkpoint stores, such as the fingerprints of the data files.
        flops_per_token: Operations per training token, to report GPU utilisation; 0 if unknown.
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
        self.monitors = prepared.monitors
        self.config = prepared.task.config.train
        self.folder, self.callbacks, self.metadata = folder, callbacks, metadata
        self.world = current_world()
        self.stops_at_once = self.world.size == 1
        self.sampler = self.train_data.sampler(self.config, prepared.task.config.seed)
        self.max_steps = self.config.max_steps or steps_for_epochs(
            self.config.epochs, self.sampler.steps_per_epoch, self.config.grad_accumulation
        )
        self.train_step = build_train_step(self.task, self.train_data, self.max_steps)
        uses_lora = self.config.lora_rank > 0
        self.lora_adapter = (
            AdapterFile(folder.adapter_file, self.task.model, self.task.config) if uses_lora else None
        )
        self.schedule = build_schedule(self.config, self.max_steps)
        self.progress = Progress()
        self.checkpoint_tensors = CheckpointTensors(self.train_step)
        self.checkpoint_writer = CheckpointWriter()
        self.meter = ThroughputMeter(self.task.device, flops_per_token)
        self.eval_every = steps_per_validation(self.config, self.sampler.steps_per_epoch) if self.eval_sets else 0
        self.steps_since_log = 0
        self._stats_since_log: list[StepStats] = []  # fewer than steps_since_log after a resume

    @property
    def steps_per_epoch(self) -> float:
        """How many optimisation steps an epoch has."""
        return self.sampler.steps_per_epoch / self.config.grad_accumulation

    @property
    def n_setups(self) -> int:
        """How many steps say nothing about the time of later ones."""
        return self.train_step.n_setups

    @property
    def eval_sets(self) -> list[Dataset]:
        """The validation set, if there is one, and the sets that are evaluated with it."""
        return [*([] if self.valid_data is None else [self.valid_data]), *self.monitors.values()]

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
                while not self.progress.finished and not self.all_stop:
                    self.step()
                    self.after_step()
                self.end()
        finally:
            self.checkpoint_writer.close()
            self.close_callbacks()

    def skip_training(self) -> None:
        """Make `fit` validate the initial weights and finish at step 0."""
        self.max_steps, self.progress.validation_due = 0, True

    def start(self) -> None:
        """Set training mode and start the clocks."""
        self.task.model.train()
        self._started_at = time.monotonic() - self.progress.seconds
        self.meter.start()

    @property
    def all_stop(self) -> bool:
        """Whether to stop now. Several processes agree on it in their steps, so all stop after the same one."""
        return self.stop_requested if self.world.size == 1 else self.train_step.stop_requested

    def step(self) -> None:
        """Run one optimisation step."""
        batch_indices, lr = self.draw_batches()
        self.train_step.n_steps, self.train_step.stop_requested = self.progress.step, self.stop_requested
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
        """Log, validate, save a checkpoint and finish, each if it is due."""
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

        An interrupted validation stays due, and a resume calls this method before it takes a step.
        """
        step = self.progress.step
        if self.progress.validation_due:
            self._validate()
        if self.progress.validation_due:  # the validation was interrupted
            return
        if step == self.max_steps:
            self.progress.finished = self.progress.finished or "max_steps"
        elif not self.progress.finished and step % self.config.checkpoint_every == 0:
            self.save_checkpoint()

    def end(self) -> None:
        """Save the final or interrupted state of the run."""
        if not self.progress.finished:
            self.save_checkpoint()
            self.checkpoint_writer.wait()
            self._emit_now("end", reason="interrupted")
            return
        if self.valid_data is None:  # without validation, the last weights are the result
            with self.train_step.use_ema_weights(self.progress.step):
                self.save_model()
        best = {} if self.progress.best is None else {"best": self.progress.best[self.task.metric]}
        self._emit_now("end", reason=self.progress.finished, best_step=self.progress.best_step, **best)
        self.save_checkpoint()
        self.checkpoint_writer.wait()

    def release_memory(self) -> None:
        """Free the memory of the device. After this, the trainer cannot be used."""
        self.task.model.cpu()
        del self.train_step, self.checkpoint_tensors
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
        """Pass on the progress of a validation. A requested stop interrupts the validation here."""
        if self.stop_requested:
            raise ValidationInterrupted
        for callback in self.callbacks:
            callback.on_progress(label, done, total)

    # -- logging and validation

    def _log(self) -> None:
        self.checkpoint_writer.check()
        losses = self._read_losses()
        grad_norm = {"grad_norm": self.train_step.grad_norm.item()} if self.config.clip_norm else {}
        self._emit_now(
            "train",
            epoch=self.progress.step / self.steps_per_epoch,
            loss=sum(losses) / max(1, len(losses)),
            lr=self._lr,
            **self.meter.read(self._stats_since_log),
            **grad_norm,
        )
        self.train_step.restore_losses([])
        self._stats_since_log, self.steps_since_log = [], 0

    def _read_losses(self) -> list[float]:
        """Return the losses since the last log. Reading waits for the device, so it is done only when needed."""
        losses: list[float] = self.train_step.losses[: self.steps_since_log].tolist()
        if not math.isfinite(sum(losses)):
            self.checkpoint_writer.wait()  # it may be the last good checkpoint
            raise self._diverged_error("loss", self.progress.step)
        return losses

    def _diverged_error(self, quantity: str, step: int) -> DivergedError:
        checkpoint = self.folder.latest_checkpoint()
        checkpoint_message = (
            f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was written yet"
        )
        return DivergedError(
            f"the {quantity} is not finite at step {step}; {checkpoint_message}. "
            f"Try a lower train.lr than {self.config.lr:g}, a longer train.warmup_steps, or train.clip_norm=1"
        )

    def _is_validation_step(self, step: int) -> bool:
        return step == self.max_steps or is_validation_step(step, self.config, self.sampler.steps_per_epoch)

    def _validate(self) -> None:
        """Evaluate the validation set and all others. Nothing is emitted before all of them are evaluated."""
        self._read_losses()  # raises DivergedError if one is not finite
        if not self.eval_sets:
            self.progress.validation_due = False
            return
        started_at, random_state = time.monotonic(), get_rng_state(self.task.device)
        try:
            with self.train_step.use_ema_weights(self.progress.step):
                fit_mixture(self.task, self.valid_data)
                metrics = None if self.valid_data is None else self.evaluate(self.valid_data)
                monitored = {name: self.evaluate(data) for name, data in self.monitors.items()}
                self.task.model.train()
                for name, values in monitored.items():
                    self._emit_now("monitor", set=name, **values)
                if metrics is not None:
                    self._update_best(metrics)
            self.progress.validation_due = False
        except ValidationInterrupted:
            self.train_step.stop_requested = True
            self.task.model.train()
            set_rng_state(random_state, self.task.device)
        self.meter.exclude(time.monotonic() - started_at)

    def evaluate(self, data: Dataset) -> Metrics:
        """Return the validation metrics of the current weights. Several processes share the work."""
        try:
            with self.interruptible_validation(), report_progress_to(self.on_progress), self.train_step.autocast():
                metrics = self.task.evaluator.evaluate(data, quick=True, world=self.world)
            return dict(broadcast_value(metrics))
        except GatherInterrupted:  # one process was interrupted, so all are
            raise ValidationInterrupted from None
        except ValidationInterrupted:
            interrupt_gather()
            raise

    def _update_best(self, metrics: Metrics) -> None:
        """Save the model if it is the best so far, and finish training if patience has run out."""
        if not math.isfinite(metrics["loss"]):  # without decoding there is no metric to compare
            self.checkpoint_writer.wait()
            raise self._diverged_error("validation loss", self.progress.step)
        progress = self.progress
        self._emit_now("valid", **metrics)
        self.schedule.on_validation_loss(metrics["loss"])
        if self.task.evaluator.is_better(metrics, progress.best):
            progress.best, progress.best_step, progress.stale = metrics, progress.step, 0
            self.save_model()
            self._emit_now("best", metric=self.task.metric, value=metrics[self.task.metric])
        else:
            has_lower_loss = self.task.lower_loss_is_progress and metrics["loss"] < progress.lowest_loss
            progress.stale = 0 if has_lower_loss else progress.stale + 1
        progress.lowest_loss = min(metrics["loss"], progress.lowest_loss)
        progress.finished = "patience" if self._out_of_patience() else progress.finished

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def save_model(self) -> None:
        """Write the model with LoRA adapters merged, and the adapters also separately."""
        if self.world.is_main:
            self.folder.write_weights(merged_weights(self.task.model))
            if self.lora_adapter:
                self.lora_adapter.write()

    def load_best_weights(self) -> None:
        """Use the best weights, with merged LoRA adapters and the linear part that saw no validation texts."""
        merge_lora(self.task.model)
        fitted = select_fitted(named_weights(self.task.model))
        load_weights(self.task.model, self.folder.read_weights() | fitted, self.folder.model_file)

    # -- checkpoints

    def save_checkpoint(self) -> None:
        """Copy the state of the current step, and write it in the background if it is finite.

        Raises:
            CheckpointError, DivergedError: The previous checkpoint could not be written.
        """
        self.progress.seconds = time.monotonic() - self._started_at
        if self.world.is_main or self.train_step.is_sharded:
            write = partial(self._write_checkpoint, checkpoint_state(self), self.steps_since_log)
            self.checkpoint_writer.save(self.checkpoint_tensors.collect(), write)

    def _write_checkpoint(self, state: dict[str, Any], n_losses: int, copies: dict[str, Tensor]) -> None:
        """Write a state with copies of its tensors on the host. This may run in another thread."""
        losses: list[float] = copies.pop(UNLOGGED_LOSSES)[:n_losses].tolist()
        is_sharded = self.train_step.is_sharded
        quantity = find_non_finite(copies, losses)
        if quantity := find_in_processes(quantity) if is_sharded else quantity:
            raise self._diverged_error(quantity, state["progress"]["step"])
        state["window"] = {"losses": losses}
        if is_sharded:
            write_sharded_checkpoint(self.folder, copies, self.train_step.shard_slices(copies), state)
        else:
            self.folder.write_checkpoint(copies, state)

    def resume(self) -> None:
        """Continue from the latest checkpoint, or start from the beginning if there is none."""
        checkpoint = self.folder.latest_checkpoint()
        if checkpoint is None:
            return
        tensors, state = self.folder.read_checkpoint(checkpoint, self.train_step.new_tensor)
        try:
            restore_checkpoint(self, tensors, state)
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise damaged_error(checkpoint, error) from None
        # A run that has been extended is not validated again at its former last step.
        self.progress.validation_due &= self._is_validation_step(self.progress.step)
        if self._is_extended():
            self.progress.finished = ""
            self.emit("extended", step=self.progress.step, max_steps=self.max_steps)
        self.emit("resume", step=self.progress.step)

    def _is_extended(self) -> bool:
        """Return whether the settings let a run that had ended train for longer."""
        is_patient_again = self.progress.finished == "patience" and not self._out_of_patience()
        return (is_patient_again or self.progress.finished == "max_steps") and self.progress.step < self.max_steps
