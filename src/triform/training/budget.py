"""Fitting a run into `train.max_minutes`: a few steps and a validation are timed, then undone."""

from __future__ import annotations

import gc
from math import ceil
from time import monotonic as now

import torch

from triform.config import TrainConfig
from triform.errors import WarningText
from triform.progress import reporting_to
from triform.settings import Settings, build
from triform.tasks.defaults import settle_steps
from triform.tasks.task import Prepared
from triform.training.display import clock
from triform.training.folder import RunFolder
from triform.training.length import steps_of
from triform.training.rng import rng_state, set_rng_state
from triform.training.trainer import Trainer

WARM_UP_STEPS = 2  # not timed: the first ones take longer
TIMED_STEPS = 20  # at most
TIMED_SHARE = 0.03  # of the budget that timing steps may take, and timing a validation too
USED_SHARE = 0.95  # of the budget; the rest is for checkpoints and the report
VALIDATIONS = 10  # where the settings leave open how often to validate
VALIDATING_SHARE = 1 / 3  # of the budget, at most, where that is left open


class EnoughTimed(Exception):
    """A validation has been timed for long enough to tell how long all of it takes."""


def fit_to_budget(prepared: Prepared, folder: RunFolder) -> list[str]:
    """Choose as many steps as fit into the budget, up to those of the settings, and say how long they take.

    The steps are written to the settings, so a run that is resumed, or repeated with as many steps, is the same.
    """
    config = prepared.task.config
    budget, began = 60 * config.train.max_minutes, now()
    if not budget:
        return []
    try:
        step_seconds, valid_seconds = time_steps(prepared, folder, budget)
    except torch.OutOfMemoryError:  # training meets the same, and knows what to do
        return []
    most = steps_of(config, prepared)
    left = USED_SHARE * budget - (now() - began)
    steps, eval_every = steps_within(left, most, step_seconds, valid_seconds, config.train)
    seconds = seconds_of(steps, eval_every, step_seconds, valid_seconds)
    expected = clock(seconds)
    if steps < most:
        chosen: Settings = {"train.max_steps": steps, "train.epochs": 0.0, "train.eval_every": eval_every}
        prepared.task.config = build(chosen, config)
        if steps == 1 and seconds > left:
            short = f"train.max_minutes={config.train.max_minutes:g} is too short for one step and its validation"
            return [WarningText(f"{short}, which take about {expected}; training for one step all the same")]
        fits = f"{steps} of {most} steps fit into train.max_minutes={config.train.max_minutes:g}"
        return [f"{fits}, validated every {eval_every} steps: about {expected}"]
    return [f"about {expected} for {steps} steps, within train.max_minutes={config.train.max_minutes:g}"]


def steps_within(
    seconds: float, most: int, step_seconds: float, valid_seconds: float, train: TrainConfig
) -> tuple[int, int]:
    """How many steps take so long, `most` at most, and how many steps apart the validations are."""
    every = train.eval_every or max(1, min(1_000, most // VALIDATIONS))
    if seconds_of(most, every, step_seconds, valid_seconds) <= seconds:
        return most, every
    if train.eval_every:
        steps = int(seconds / (step_seconds + valid_seconds / every))
        return max(1, min(most, steps)), every
    affordable = int(VALIDATING_SHARE * seconds / valid_seconds) if valid_seconds else VALIDATIONS
    validations = max(1, min(VALIDATIONS, affordable))
    steps = max(1, min(most, int((seconds - validations * valid_seconds) / step_seconds)))
    return steps, ceil(steps / validations)


def seconds_of(steps: int, eval_every: int, step_seconds: float, valid_seconds: float) -> float:
    return steps * step_seconds + ceil(steps / eval_every) * valid_seconds


def time_steps(prepared: Prepared, folder: RunFolder, budget: float) -> tuple[float, float]:
    """Seconds of a step and of a validation. Weights and random state are as before afterwards."""
    task, config = prepared.task, prepared.task.config
    before = {name: parameter.detach().clone() for name, parameter in task.model.named_parameters()}
    random_state = rng_state(task.device)
    try:
        task.config = settle_steps(config, steps_of(config, prepared))
        trainer = Trainer(prepared, folder, [], {})
        with trainer.learner.running():
            task.model.train()
            step_seconds = _step_seconds(trainer, TIMED_SHARE * budget)
            valid_seconds = _valid_seconds(trainer, TIMED_SHARE * budget)
    finally:
        task.config = config
        task.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, parameter in task.model.named_parameters():
                parameter.copy_(before[name])
        task.model.train()
        set_rng_state(random_state, task.device)
        gc.collect()
    return step_seconds, valid_seconds


def _step_seconds(trainer: Trainer, limit: float) -> float:
    began, steps = 0.0, -WARM_UP_STEPS
    while True:
        trainer.step()
        trainer.learner.recall([])
        steps += 1
        if trainer.task.device.type == "cuda":
            torch.cuda.synchronize(trainer.task.device)
        if steps == 0:
            began = now()
        elif steps == TIMED_STEPS or (steps > 0 and now() - began >= limit):
            return max((now() - began) / steps, 1e-6)


def _valid_seconds(trainer: Trainer, limit: float) -> float:
    """Of a whole validation; one that takes longer than `limit` is broken off, and the rest is extrapolated."""
    if trainer.valid_data is None:
        return 0.0
    began = phase_began = reported = now()
    phase, estimate = "", 0.0

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal phase, phase_began, reported, estimate
        if what != phase:  # first batches, then, for some tasks, decoding
            phase, phase_began = what, reported
        reported = now()
        if done and reported - began > limit:
            estimate = phase_began - began + (reported - phase_began) * total / done
            raise EnoughTimed

    try:
        with reporting_to(on_progress), trainer.learner.precision():
            trainer.task.evaluate(trainer.valid_data, quick=True)
    except EnoughTimed:
        return estimate
    return now() - began
