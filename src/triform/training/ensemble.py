"""Train several runs of one small model together, each with its own seed and run folder.

Training together only saves time. Each member becomes a separate run; `models/ensemble.py` combines predictions.

A member is an ordinary trainer, which draws its batches, follows its schedule, stops early and keeps its best
weights. Only the steps and the forward passes of validations are computed for all members at once, by
`StackedModels`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import torch

from triform.config import Config, TrainConfig
from triform.errors import ConfigError, DivergedError
from triform.evaluation.metrics import Metrics
from triform.progress import report_progress_to
from triform.tasks.batch import Dataset
from triform.tasks.device_data import BatchPlan, DeviceDataset
from triform.tasks.task import Task
from triform.training.build_step import load_device_dataset
from triform.training.graph_cache import side_stream
from triform.training.stacked_models import StackedModels, common_shape
from triform.training.stopping import Interruptible
from triform.training.throughput import peak_memory
from triform.training.train_step import TrainStep, collect_step_stats
from triform.training.trainer import Trainer

PROBE_STEPS = 8  # steps whose batch shapes decide whether training together is faster
MAX_MEMBERS = 128  # members that are stacked at once; more are not faster
MAX_CHECKPOINT_SHARE = 0.1  # fraction of the training time that checkpoints may take
DISK_BYTES_PER_SECOND = 1 << 29  # assumed until the first checkpoint is timed
PER_MEMBER_SETTINGS = (
    "lr", "weight_decay", "schedule", "warmup_steps", "min_lr_ratio", "plateau_factor", "plateau_patience",
    "clip_norm", "patience", "max_steps", "epochs", "eval_every", "checkpoint_every", "log_every",
)  # fmt: skip


class StackLimit(NamedTuple):
    """The limits up to which training together is faster than one run after another."""

    max_step_flops: float  # of one member's step; a single larger model keeps the device busy
    max_padding_ratio: float  # positions computed per position needed, when batches are padded to one shape


STACK_LIMITS = {"cpu": StackLimit(3e7, 1.5), "cuda": StackLimit(3e10, 4.0)}


def stack_key(config: Config) -> Config:
    """Return the settings that members must share: all except the seed and `PER_MEMBER_SETTINGS`."""
    defaults = TrainConfig()
    reset_values = {name: getattr(defaults, name) for name in PER_MEMBER_SETTINGS}
    return replace(config, seed=0, train=replace(config.train, **reset_values))


def load_if_stackable(task: Task, data: Dataset, seeds: Sequence[int]) -> DeviceDataset | None:
    """Return the data on the device if training these seeds together is faster, else None.

    It is faster if the model is small and padding the batches to one shape wastes little.
    """
    model = task.config.model  # the layers of cuDNN have no vmap, and a linear part is not trained by steps
    separate = must_train_alone(task.config.train) or model.is_recurrent or bool(model.term_buckets)
    limit = None if separate else STACK_LIMITS.get(task.device.type)
    device_dataset = load_device_dataset(task, data) if limit and len(seeds) > 1 else None
    if limit is None or device_dataset is None:
        return None
    samplers = [data.sampler(task.config.train, seed) for seed in seeds]
    separate_positions, stacked_positions = 0, 0
    for _ in range(PROBE_STEPS):
        plans = [device_dataset.plan(sampler.next_batch()) for sampler in samplers]
        shape = common_shape(plans)
        separate_positions += sum(plan.n_positions for plan in plans)
        stacked_positions += len(plans) * shape[0] * sum(shape[1:])
    n_parameters = sum(p.numel() for p in task.model.parameters())
    step_flops = 6 * n_parameters * stacked_positions / (PROBE_STEPS * len(seeds))
    return (
        device_dataset
        if step_flops <= limit.max_step_flops and stacked_positions <= limit.max_padding_ratio * separate_positions
        else None
    )


def must_train_alone(config: TrainConfig) -> bool:
    """Return whether the settings need something that `StackedModels` does not support."""
    partly_frozen = config.freeze_layers >= 0 or config.layer_decay < 1 or config.lora_rank
    is_averaged = config.ema_decay or config.swa_fraction
    is_pretraining = config.objective != "auto"
    return bool(
        is_averaged or is_pretraining or config.r_drop or config.mixup or config.distill_from or partly_frozen
    )


class EnsembleMember(Trainer):
    """A trainer whose steps and validations are computed by an `Ensemble`."""

    background_checkpoints = False  # the ensemble writes the checkpoints of all members in parallel
    ensemble: Ensemble
    defer_checkpoint = checkpoint_requested = False  # whether a due checkpoint is only recorded and written later
    failure: DivergedError | None = None

    def build_train_step(self) -> TrainStep:
        return TrainStep(self.task, self.train_data)

    def finish_step(self) -> None:
        """Finish a step like a single trainer. The ensemble writes the checkpoints of all members together."""
        self.defer_checkpoint, self.checkpoint_requested = True, False
        super().finish_step()
        self.defer_checkpoint = False

    def save_checkpoint(self) -> None:
        if self.defer_checkpoint:
            self.checkpoint_requested = True
        else:
            super().save_checkpoint()

    def run_guarded(self, action: Callable[[EnsembleMember], None]) -> None:
        """Run an action. If the member diverges, the error is kept in `failure` and the others continue."""
        try:
            action(self)
        except DivergedError as failure:
            self.failure = failure
            self._emit_now("diverged", text=str(failure))

    def evaluate(self, data: Dataset) -> Metrics:
        return self.ensemble.evaluate_member(self, data)

    def _read_losses(self) -> list[float]:
        self.ensemble.sync_losses()
        return super()._read_losses()

    @property
    def n_setups(self) -> int:
        stacked_models = self.ensemble.stacked_models
        return 0 if stacked_models is None else stacked_models.graph_cache.n_setups

    @property
    def is_training(self) -> bool:
        """Whether the member has neither ended nor diverged."""
        return not self.progress.finished and self.failure is None


class Ensemble(Interruptible):
    """Trains several members together. They share their data and the settings of `stack_key`.

    Args:
        members: The trainers.
        device_dataset: Their training data on their device.
    """

    def __init__(self, members: Sequence[EnsembleMember], device_dataset: DeviceDataset) -> None:
        assert len({repr(stack_key(member.task.config)) for member in members}) == 1, (
            "members of an ensemble must have the same settings"
        )
        self.members, self.device_dataset = members, device_dataset
        self.device = members[0].task.device
        self.stacked_models: StackedModels | None = None
        self.max_members = MAX_MEMBERS
        self._eval_cache: dict[int, list[Metrics]] = {}  # by the id of the dataset, which the members share
        self._peak_memory = 0
        n_bytes = sum(p.numel() * p.element_size() for member in members for p in member.task.model.parameters())
        self._last_saved_at = time.monotonic()
        self._save_seconds = 3 * n_bytes / DISK_BYTES_PER_SECOND  # weights, and two moments of the optimizer
        for member in members:
            member.ensemble = self
            member.meter.get_peak_memory = self._get_peak_memory

    def fit(self) -> None:
        """Train every member to its end, or until `stop` is called. A diverging member does not stop the others."""
        try:
            with side_stream(self.device), self.members[0].train_step.training_context():
                active = [member for member in self.members if member.is_training]
                for member in active:
                    member.start()
                while (group := self._next_group()) and not self.stop_requested:
                    self._train_group(group)
                self._run_in_threads([member for member in self.members if member.is_training], EnsembleMember.end)
        finally:
            for member in self.members:
                member.close_callbacks()

    def _next_group(self) -> list[EnsembleMember]:
        """Return the members at the lowest step. A kill while saving may have left some of them behind."""
        active = [member for member in self.members if member.is_training]
        first_step = min((member.progress.step for member in active), default=0)
        return [member for member in active if member.progress.step == first_step][: self.max_members]

    def _train_group(self, group: list[EnsembleMember]) -> None:
        """Train until the group catches up with the other members, or until half of it has ended."""
        self.stacked_models = StackedModels([member.train_step for member in group], self.device_dataset)
        self._eval_cache = {}
        other_steps = [
            member.progress.step for member in self.members if member.is_training and member not in group
        ]
        target_step = min((step for step in other_steps if step > group[0].progress.step), default=-1)
        plans: list[list[BatchPlan]] = [[] for _ in group]
        if pending := [member for member in group if member.progress.validation_due]:
            self._run_between_steps(pending, EnsembleMember.finish_step)
            if not all(member.is_training for member in group):  # the others continue in a smaller group
                return
        while not self.stop_requested:
            lrs = [0.0] * len(group)
            active = [index for index, member in enumerate(group) if member.is_training]
            sampler_states = [group[index].sampler.state_dict() for index in active]
            for index in active:
                batch_indices, lrs[index] = group[index].draw_batches()
                plans[index] = [self.device_dataset.plan(indices) for indices in batch_indices]
            try:  # members that have ended get old batches with a learning rate of 0, which changes nothing
                self.stacked_models.step(plans, lrs, [member.steps_since_log for member in group])
            except torch.OutOfMemoryError:
                for index, state in zip(active, sampler_states, strict=True):
                    group[index].sampler.load_state_dict(state)
                self._reduce_group_size(len(group))
                break
            self._eval_cache = {}
            for index in active:
                group[index].record_step(lrs[index], collect_step_stats(plans[index]))
            self._run_between_steps([group[index] for index in active])
            remaining = [member for member in group if member.is_training]
            if 2 * len(remaining) <= len(group) or group[active[0]].progress.step == target_step:
                break
        self.sync_losses()

    def _reduce_group_size(self, n_models: int) -> None:
        """Train half as many members at a time after running out of memory."""
        assert self.stacked_models is not None
        if n_models == 1 or self.stacked_models.updating:
            message = f"{self.device} has too little memory for {n_models} models"
            raise ConfigError(f"{message}; use fewer --seeds at a time, or a smaller batch") from None
        self.max_members = n_models // 2
        self.members[0].train_step.notices.append(
            f"{n_models} models do not fit into memory; {self.max_members} are trained at a time"
        )
        self.stacked_models.graph_cache.graphs.clear()

    def _run_between_steps(
        self, members: list[EnsembleMember], action: Callable[[EnsembleMember], None] = EnsembleMember.after_step
    ) -> None:
        """Let each member log and validate, then write the files of all members in parallel."""
        if self.stacked_models is not None:
            members[0].train_step.notices += self.stacked_models.notices
            self.stacked_models.notices.clear()
        for member in members:
            member.run_guarded(action)
        to_save = [member for member in members if member.checkpoint_requested and member.is_training]
        if to_save and time.monotonic() - self._last_saved_at >= self._save_seconds / MAX_CHECKPOINT_SHARE:
            self._last_saved_at = time.monotonic()
            self._run_in_threads(to_save, EnsembleMember.save_checkpoint)
            self._save_seconds = time.monotonic() - self._last_saved_at
        self._run_in_threads(
            [member for member in members if member.progress.finished and not member.failure], EnsembleMember.end
        )

    def _run_in_threads(self, members: Sequence[EnsembleMember], action: Callable[[EnsembleMember], None]) -> None:
        """Run an action of each member in a thread, because most of the time is spent waiting for the disk."""
        if not members:
            return
        self.sync_losses()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda member: member.run_guarded(action), members))

    # -- called by the members

    def sync_losses(self) -> None:
        """Copy the losses of all members to the host, unless this has been done since the last step."""
        if self.stacked_models is not None and not self.stacked_models.synced:
            self.stacked_models.sync_losses()
            self._peak_memory = peak_memory(self.device)

    def _get_peak_memory(self) -> int:
        """Return the peak memory of the whole ensemble. It is read once per log and not for each member."""
        return self._peak_memory

    def evaluate_member(self, member: EnsembleMember, data: Dataset) -> Metrics:
        """Return the metrics of a member. The first call computes those of all members."""
        assert self.stacked_models is not None, "a validation follows a step"
        if id(data) not in self._eval_cache:
            with self.interruptible_validation(), report_progress_to(member.on_progress):
                self._eval_cache[id(data)] = self.stacked_models.evaluate(data)
        return self._eval_cache[id(data)][self.stacked_models.train_steps.index(member.train_step)]
