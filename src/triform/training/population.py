"""Many runs of one small model trained together: a stack takes their steps, and each keeps a folder of its own.

A member is a trainer like any other. It draws its own batches, has its own rate, looks, stops early and keeps its
best weights; only the step itself, and the computing part of a validation, are done for all at once.
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
from triform.metrics import Scores
from triform.progress import reporting_to
from triform.tasks.resident import Plan, Resident
from triform.tasks.task import Dataset, Prepared, Task
from triform.training.learner import Learner, counted
from triform.training.replay import own_stream
from triform.training.speed import peak_memory
from triform.training.stack import Stack, joint_shape
from triform.training.stopping import ValidationInterrupted, interruptible
from triform.training.trainer import Trainer, resident_of

TRIED = 8  # steps whose batches are looked at before deciding
MOST_AT_ONCE = 128  # members of a stack; more gain nothing
SAVING = 0.1  # the share of the time that checkpoints may take
WRITTEN = 1 << 29  # bytes a second, until the first checkpoint shows how fast the disk is
FREE = ("lr", "weight_decay", "schedule", "warmup_steps", "final_lr_ratio", "plateau_factor", "plateau_patience",
        "clip_norm", "patience", "max_steps", "epochs", "eval_every", "checkpoint_every", "log_every")  # fmt: skip


class Limit(NamedTuple):
    """Up to where a stack is faster than one run after another."""

    work: float  # operations of a member's step; beyond, a single model keeps the device busy
    waste: float  # places computed for one that is needed, when batches of unequal shape become one shape


LIMITS = {"cpu": Limit(3e7, 1.5), "cuda": Limit(3e10, 4.0)}


def alike(config: Config) -> Config:
    """What the members of a stack must have in common: all but the seed, the rates and when to look and stop."""
    defaults = TrainConfig()
    open_ = {name: getattr(defaults, name) for name in FREE}
    return replace(config, seed=0, train=replace(config.train, **open_))


def together(task: Task, data: Dataset, seeds: Sequence[int]) -> Resident | None:
    """The data on the device, if these seeds are trained faster together; None: better one after another.

    That is so where the model is small, and where little is wasted when their batches are brought to one shape.
    """
    alone = single(task.config.train) or task.config.model.is_recurrent  # whose layers are torch's: a model each
    limit = None if alone else LIMITS.get(task.device.type)
    resident = resident_of(task, data) if limit and len(seeds) > 1 else None
    if limit is None or resident is None:
        return None
    samplers = [data.sampler(task.config.train, seed) for seed in seeds]
    own, joint = 0, 0
    for _ in range(TRIED):
        plans = [resident.plan(sampler.next()) for sampler in samplers]
        shape = joint_shape(plans)
        own += sum(plan.n_places for plan in plans)
        joint += len(plans) * shape[0] * sum(shape[1:])
    n_parameters = sum(p.numel() for p in task.model.parameters())
    work = 6 * n_parameters * joint / (TRIED * len(seeds))
    return resident if work <= limit.work and joint <= limit.waste * own else None


def single(config: TrainConfig) -> bool:
    """Whether a run asks for what a stack does not do."""
    some_learn_less = config.freeze >= 0 or config.layer_decay < 1 or config.lora_rank
    return bool(config.average or config.consistency or some_learn_less)


class Member(Trainer):
    """A trainer that leaves its steps to a population."""

    population: Population
    waits = asks = False  # whether a checkpoint can wait, and whether one is due
    failure: DivergedError | None = None

    def make_learner(self, prepared: Prepared) -> Learner:
        return Learner(prepared.task, prepared.train)

    def conclude_step(self) -> None:
        """As alone, but a checkpoint is only asked for: the population writes those of all together, or none."""
        self.waits, self.asks = True, False
        super().conclude_step()
        self.waits = False

    def save(self) -> None:
        if self.waits:
            self.asks = True
        else:
            super().save()

    def attempt(self, do: Callable[[Member], None]) -> None:
        """One that diverges leaves the others to go on, and says so: who waits for all to be heard must know."""
        try:
            do(self)
        except DivergedError as failure:
            self.failure = failure
            self._tell("diverged", text=str(failure))

    def judge(self, data: Dataset) -> Scores:
        return self.population.judge(self, data)

    def _check_finite(self) -> list[float]:
        self.population.look()
        return super()._check_finite()

    @property
    def going(self) -> bool:
        return not self.progress.finished and self.failure is None


class Population:
    """Members that share their data and differ in their seeds, and perhaps in what `alike` leaves free."""

    def __init__(self, members: Sequence[Member], resident: Resident) -> None:
        assert len({repr(alike(member.task.config)) for member in members}) == 1, "members of a stack are alike"
        self.members, self.resident = members, resident
        self.device = members[0].task.device
        self.stack: Stack | None = None
        self.stopping = self.interruptible = False
        self.most = MOST_AT_ONCE
        self._judged: tuple[Dataset, list[Scores]] | None = None
        self._memory = 0
        numbers = sum(p.numel() * p.element_size() for member in members for p in member.task.model.parameters())
        self._saved, self._saving = time.monotonic(), 3 * numbers / WRITTEN  # with two moments each
        for member in members:
            member.population = self
            member.meter.memory = self._peak

    def fit(self) -> None:
        """Train every member to its end, or until `stop` is called. One that diverges does not stop the others."""
        try:
            with own_stream(self.device), self.members[0].learner.running():
                going = [member for member in self.members if member.going]
                for member in going:
                    member.begin()
                while (crew := self._behind()) and not self.stopping:
                    self._train(crew)
                self._each([member for member in self.members if member.going], Member.end)
        finally:
            for member in self.members:
                if member.display is not None:
                    member.display.close()

    def stop(self) -> None:
        """Ask for a stop after the current step, or inside a validation at once; all states are saved first."""
        self.stopping = True
        if self.interruptible:
            raise ValidationInterrupted

    def _behind(self) -> list[Member]:
        """Who goes next: a kill while saving may leave some members behind the others."""
        going = [member for member in self.members if member.going]
        first = min((member.progress.step for member in going), default=0)
        return [member for member in going if member.progress.step == first][: self.most]

    def _train(self, crew: list[Member]) -> None:
        """Steps until all are done or level with the rest, or so few are left that a smaller stack is better."""
        self.stack, self._judged = Stack([member.learner for member in crew], self.resident), None
        ahead = [member.progress.step for member in self.members if member.going and member not in crew]
        level = min((step for step in ahead if step > crew[0].progress.step), default=-1)
        plans: list[list[Plan]] = [[] for _ in crew]
        if due := [member for member in crew if member.progress.validation_due]:
            self._between(due, Member.conclude_step)
            if not all(member.going for member in crew):  # the others go on in a smaller stack
                return
        while not self.stopping:
            rates = [0.0] * len(crew)
            going = [place for place, member in enumerate(crew) if member.going]
            before = [crew[place].sampler.state() for place in going]
            for place in going:
                drawn, rates[place] = crew[place].draw()
                plans[place] = [self.resident.plan(indices) for indices in drawn]
            try:  # who is done goes through old batches at no rate, and stays as it is
                self.stack.step(plans, rates, [member.seen for member in crew])
            except torch.OutOfMemoryError:
                for place, state in zip(going, before, strict=True):
                    crew[place].sampler.restore(state)
                self._shrink(len(crew))
                break
            self._judged = None
            for place in going:
                crew[place].took(rates[place], counted(plans[place]))
            self._between([crew[place] for place in going])
            left = [member for member in crew if member.going]
            if 2 * len(left) <= len(crew) or crew[going[0]].progress.step == level:
                break
        self.look()

    def _shrink(self, n: int) -> None:
        """So many do not fit into memory: from here on half of them at a time."""
        assert self.stack is not None
        if n == 1 or self.stack.moving:
            short = f"{self.device} has too little memory for {n} models"
            raise ConfigError(f"{short}; give fewer --seeds at a time, or a smaller batch") from None
        self.most = n // 2
        self.members[0].learner.notices.append(f"{n} models do not fit into memory: {self.most} at a time")
        self.stack.replay.graphs.clear()

    def _between(self, members: list[Member], do: Callable[[Member], None] = Member.after_step) -> None:
        """What each does between steps, files written side by side."""
        if self.stack is not None:
            members[0].learner.notices += self.stack.notices
            self.stack.notices.clear()
        for member in members:
            member.attempt(do)
        asking = [member for member in members if member.asks and member.going]
        if asking and time.monotonic() - self._saved >= self._saving / SAVING:
            self._saved = time.monotonic()
            self._each(asking, Member.save)
            self._saving = time.monotonic() - self._saved
        self._each([member for member in members if member.progress.finished and not member.failure], Member.end)

    def _each(self, members: Sequence[Member], do: Callable[[Member], None]) -> None:
        """For each member in a thread of its own: most of the time is spent waiting for the disk."""
        if not members:
            return
        self.look()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda member: member.attempt(do), members))

    # -- what members ask for

    def look(self) -> None:
        if self.stack is not None and not self.stack.looked:
            self.stack.look()
            self._memory = peak_memory(self.device)

    def _peak(self) -> int:
        """The memory of all: asked of the device once a look, not by each member."""
        return self._memory

    def judge(self, member: Member, data: Dataset) -> Scores:
        """The scores of a member; who asks first has all of them computed."""
        assert self.stack is not None, "only who has taken a step is judged"
        if self._judged is None:
            with interruptible(self), reporting_to(member.on_progress):
                self._judged = data, self.stack.judge(data)
        of, scores = self._judged
        assert of is data, "members share their validation data"
        return scores[self.stack.learners.index(member.learner)]
