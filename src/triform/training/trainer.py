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

from triform.data.loader import Indices
from triform.errors import DivergedError, notice_level
from triform.metrics import Scores
from triform.nn.lora import merge, merged_weights
from triform.progress import reporting_to
from triform.tasks.resident import Resident
from triform.tasks.task import Dataset, Prepared, Task
from triform.training.adapter import AdapterFile
from triform.training.folder import RunFolder, damaged, load_weights, weights_of
from triform.training.learner import Counts, Learner
from triform.training.optim import make_schedule
from triform.training.recorded import Recorded
from triform.training.rng import rng_state, set_rng_state
from triform.training.speed import Meter
from triform.training.state import check_moments
from triform.training.stopping import ValidationInterrupted, interruptible

Event = dict[str, Any]


class Listener(Protocol):
    """Hears of every event and may keep a state of its own across a resume."""

    def hear(self, event: Event) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass
class Progress:
    """Where a run stands; all of it is in every checkpoint."""

    step: int = 0
    best: Scores | None = None
    best_step: int = 0
    stale: int = 0  # validations since the last one that showed progress
    lowest_loss: float = sys.float_info.max  # of all validations; JSON has no infinity
    seconds: float = 0.0
    finished: str = ""  # why training ended, once it has
    validation_due: bool = False  # whether this step's validation was interrupted, and is done first after a resume


class Display(Protocol):
    """Shows how far training has come."""

    def tick(self, what: str, done: int, total: int) -> None: ...

    def close(self) -> None: ...


class Trainer:
    def __init__(
        self,
        prepared: Prepared,
        folder: RunFolder,
        listeners: Sequence[Listener],
        marks: dict[str, Any],
        operations: float = 0.0,
    ) -> None:
        """`marks` are facts that every checkpoint carries, such as the fingerprints of the data.

        `operations` is the work of learning from one token, for the share of the device's rate that is used.
        """
        self.task, self.train_data, self.valid_data = prepared.task, prepared.train, prepared.valid
        self.config = prepared.task.config.train
        self.folder, self.listeners, self.marks = folder, listeners, marks
        self.sampler = self.train_data.sampler(self.config, prepared.task.config.seed)
        self.max_steps = self.config.max_steps or steps_in(
            self.config.epochs, self.sampler.steps_per_epoch, self.config.accumulate
        )
        self.learner = self.make_learner(prepared)
        lora = self.config.lora_rank > 0
        self.adapter = AdapterFile(folder.adapter_file, self.task.model, self.task.config) if lora else None
        self.schedule = make_schedule(self.config, self.max_steps)
        self.progress = Progress()
        self.meter = Meter(self.task.device, operations)
        self.eval_every = self.config.eval_every if self.valid_data is not None else 0
        self.display: Display | None = None
        self.stopping = self.interruptible = False
        self.seen = 0  # steps since the last look

    def make_learner(self, prepared: Prepared) -> Learner:
        """Recorded where that pays: on CUDA, with data that fits there."""
        task, data = prepared.task, prepared.train
        resident = resident_of(task, data) if task.device.type == "cuda" else None
        return Learner(task, data) if resident is None else Recorded(task, data, resident, self.max_steps)

    def fit(self) -> None:
        """Train to the end, to early stopping, or until `stop` is called."""
        if self.progress.finished:
            return
        try:
            with self.learner.running():
                self.begin()
                if self.progress.validation_due:
                    self.conclude_step()
                while not self.progress.finished and not self.stopping:
                    self.step()
                    self.after_step()
                self.end()
        finally:
            if self.display is not None:
                self.display.close()

    def begin(self) -> None:
        self.task.model.train()
        self._began = time.monotonic() - self.progress.seconds
        self.meter.start()

    def after_step(self) -> None:
        """Log, validate, save and end where it is time to."""
        step = self.progress.step
        for text in self.learner.notices:
            self._tell("notice", level=notice_level(text), text=text)
        self.learner.notices.clear()
        if step % self.config.log_every == 0:
            self._log()
        self.progress.validation_due = self._validates_at(step)
        self.conclude_step()

    def _validates_at(self, step: int) -> bool:
        return step % self.config.eval_every == 0 or step == self.max_steps

    def conclude_step(self) -> None:
        """Validate if that is due, then save or end; an interrupted validation leaves all of it to a resume."""
        step = self.progress.step
        if self.progress.validation_due:
            self._validate()
        if self.progress.validation_due:
            return
        if step == self.max_steps:
            self.progress.finished = self.progress.finished or "max_steps"
        elif not self.progress.finished and step % self.config.checkpoint_every == 0:
            self.save()

    def end(self) -> None:
        """Write down what the run came to, or where it was stopped."""
        if self.progress.finished:
            self._finish()
        else:
            self.save()
            self._tell("end", reason="interrupted")

    def stop(self) -> None:
        """Ask for a stop after the current step, or inside a validation at once; the state is saved first."""
        self.stopping = True
        if self.interruptible:
            raise ValidationInterrupted

    def release(self) -> None:
        """Give the memory of the device back; this trainer is of no more use."""
        self.task.model.cpu()
        del self.learner
        gc.collect()
        torch.cuda.empty_cache()

    # -- one step

    def draw(self) -> tuple[list[Indices], float]:
        """The batches of the next step, and its rate."""
        step = self.progress.step + 1
        rate = self.config.lr * self.schedule.share(step)
        return [self.sampler.next() for _ in range(self.config.accumulate)], rate

    def took(self, rate: float, counts: Counts) -> None:
        """A step has been taken: at this rate, from so much."""
        self.progress.step, self._rate = self.progress.step + 1, rate
        self.seen += 1
        self.meter.count(counts)
        if self.display is not None:
            self.display.tick("step", self.progress.step, self.max_steps)

    def step(self) -> None:
        drawn, rate = self.draw()
        self.took(rate, self.learner.step(drawn, rate))

    # -- what happens between steps

    def _check_finite(self) -> list[float]:
        """The losses since the last look; reading them waits for the device, so it is done only now and then."""
        losses: list[float] = self.learner.losses[: self.seen].tolist()
        if not math.isfinite(sum(losses)):
            raise self._diverged("loss")
        return losses

    def _diverged(self, what: str) -> DivergedError:
        latest = self.folder.latest_checkpoint()
        kept = f"the last good checkpoint is {latest}" if latest else "no checkpoint was written yet"
        return DivergedError(
            f"the {what} is not finite at step {self.progress.step}; {kept}. "
            f"Try a lower train.lr than {self.config.lr:g}, a longer train.warmup_steps, or train.clip_norm=1"
        )

    def _log(self) -> None:
        losses = self._check_finite()
        norm = {"grad_norm": self.learner.norm.item()} if self.config.clip_norm else {}
        self._tell(
            "train",
            epoch=self.progress.step * self.config.accumulate / self.sampler.steps_per_epoch,
            loss=sum(losses) / max(1, len(losses)),
            lr=self._rate,
            **self.meter.read(),
            **norm,
        )
        self.learner.recall([])
        self.seen = 0

    def _validate(self) -> None:
        self._check_finite()
        if self.valid_data is None:
            self.progress.validation_due = False
            return
        began, random_state = time.monotonic(), rng_state(self.task.device)
        try:
            with self.learner.averaged(self.progress.step):
                scores = self.judge(self.valid_data)
                self.task.model.train()
                self._keep_best(scores)
            self.progress.validation_due = False
        except ValidationInterrupted:
            self.task.model.train()
            set_rng_state(random_state, self.task.device)
        self.meter.leave_out(time.monotonic() - began)  # the rate of training is not slowed by looking

    def _keep_best(self, scores: Scores) -> None:
        if not math.isfinite(scores["loss"]):  # nothing was decoded with such weights, so the metric may be missing
            raise self._diverged("validation loss")
        self._tell("valid", **scores)
        self.schedule.observe(scores["loss"])
        if self.task.better(scores, self.progress.best):
            self.progress.best, self.progress.best_step, self.progress.stale = scores, self.progress.step, 0
            self._keep_weights()
            self._tell("best", metric=self.task.metric, value=scores[self.task.metric])
        elif not (self.task.lower_loss_is_progress and scores["loss"] < self.progress.lowest_loss):
            self.progress.stale += 1
        else:
            self.progress.stale = 0
        self.progress.lowest_loss = min(scores["loss"], self.progress.lowest_loss)
        if self._out_of_patience():
            self.progress.finished = "patience"

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def _keep_weights(self) -> None:
        """As a model like any other; adapters also by themselves."""
        self.folder.write_weights(merged_weights(self.task.model))
        if self.adapter:
            self.adapter.write()

    def take_best(self) -> None:
        """The weights that were kept, in a model like any other: training is over."""
        merge(self.task.model)
        load_weights(self.task.model, self.folder.read_weights(), self.folder.model_file)

    def judge(self, data: Dataset) -> Scores:
        with interruptible(self), reporting_to(self.on_progress), self.learner.precision():
            return self.task.evaluate(data, quick=True)

    def on_progress(self, what: str, done: int, total: int) -> None:
        """So much of a validation is done; a stop that was asked for breaks it off here at the latest."""
        if self.stopping:
            raise ValidationInterrupted
        if self.display is not None:
            self.display.tick(what, done, total)

    def _finish(self) -> None:
        if self.valid_data is None:
            with self.learner.averaged(self.progress.step):
                self._keep_weights()
        best = {} if self.progress.best is None else {"best": self.progress.best[self.task.metric]}
        self._tell("end", reason=self.progress.finished, best_step=self.progress.best_step, **best)
        self.save()

    def _tell(self, name: str, **facts: object) -> None:
        self.progress.seconds = time.monotonic() - self._began
        event: Event = {"event": name, "step": self.progress.step, **facts, "seconds": self.progress.seconds}
        for listener in self.listeners:
            listener.hear(event)

    # -- saving and going on

    def save(self) -> None:
        self._check_finite()
        if not torch.stack([p.isfinite().all() for p in self.task.model.parameters()]).all():
            raise self._diverged("model")
        self.progress.seconds = time.monotonic() - self._began
        tensors = {f"model.{name}": tensor for name, tensor in weights_of(self.task.model).items()}
        optimizer = self.learner.optimizer.state_dict()["state"]
        for index, values in optimizer.items():
            tensors |= {
                f"optimizer.{index}.{key}": value for key, value in values.items() if torch.is_tensor(value)
            }
        tensors |= {f"average.{index}": tensor for index, tensor in enumerate(self.learner.sums)}
        tensors |= {f"rng.{name}": tensor for name, tensor in rng_state(self.task.device).items()}
        state = {
            "progress": vars(self.progress),
            "sampler": self.sampler.state(),
            "schedule": self.schedule.state(),
            "listeners": {type(listener).__name__: listener.state() for listener in self.listeners},
            "window": {"losses": self._check_finite()},
            "marks": self.marks,
            "finished": self.progress.finished,
        }
        due = self.progress.validation_due
        self.folder.write_checkpoint(self.progress.step, tensors, state, validation_due=due)

    def resume(self) -> None:
        """Go on from the latest checkpoint; with none, from the beginning."""
        latest = self.folder.latest_checkpoint()
        if latest is None:
            return
        tensors, state = self.folder.read_checkpoint(latest)
        try:
            self._restore(tensors, state)
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise damaged(latest, error) from None
        self.progress.validation_due &= self._validates_at(self.progress.step)  # not where it ended, if now longer
        if self._may_go_on():
            self.progress.finished = ""
            for listener in self.listeners:
                listener.hear({"event": "longer", "step": self.progress.step, "max_steps": self.max_steps})
        for listener in self.listeners:
            listener.hear({"event": "resume", "step": self.progress.step})

    def _may_go_on(self) -> bool:
        """Whether a run that has ended is to be trained longer: its settings now allow more."""
        if self.progress.finished == "patience":
            return not self._out_of_patience() and self.progress.step < self.max_steps
        return self.progress.finished == "max_steps" and self.progress.step < self.max_steps

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}, "rng": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            if part not in parts:
                raise ValueError(f"{name} is no tensor of a checkpoint")
            parts[part][rest] = tensor
        load_weights(self.task.model, parts["model"], self.folder.checkpoints)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
        check_moments(moments, self.learner.optimizer)
        self.learner.optimizer.load_state_dict(self.learner.optimizer.state_dict() | {"state": moments})
        for number, total in enumerate(self.learner.sums):
            total.copy_(parts["average"][str(number)])
        self.progress = Progress(**state["progress"])
        if self.progress.best is not None and self.task.metric not in self.progress.best:
            raise ValueError(f"progress.best has no {self.task.metric}")
        self.sampler.restore(state["sampler"])
        self.schedule.restore(state["schedule"])
        for listener in self.listeners:
            listener.restore(state["listeners"].get(type(listener).__name__, {}))
        losses = state["window"]["losses"]
        self.seen = len(losses)
        self.learner.recall(losses)
        set_rng_state(parts["rng"], self.task.device)


def resident_of(task: Task, data: Dataset) -> Resident | None:
    """The data on the task's device; None where there is no room for it beside the model."""
    try:
        return data.on(task.device, task.config.train)
    except torch.OutOfMemoryError:
        return None


def steps_in(epochs: float, steps_per_epoch: int, accumulate: int) -> int:
    return max(1, math.ceil(epochs * steps_per_epoch / accumulate))
