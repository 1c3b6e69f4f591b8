"""Fit a run into `train.max_minutes`: a few steps and a validation are timed and then undone."""

from __future__ import annotations

import gc
from itertools import count
from math import ceil
from statistics import fmean
from time import monotonic as now
from typing import NamedTuple

import torch

from triform.config import Config
from triform.config.settings import Settings, build_config
from triform.errors import WarningText
from triform.formatting import format_duration
from triform.progress import report_progress_to
from triform.tasks.defaults import resolve_step_defaults
from triform.tasks.task import PreparedTask
from triform.training.epochs import steps_per_validation
from triform.training.length import count_steps
from triform.training.rng import get_rng_state, set_rng_state
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer
from triform.world import broadcast_value

WARM_UP_STEPS = 2  # steps that are not timed, because the first ones take longer
MAX_TIMED_STEPS = 20
MAX_TIMING_SHARE = 0.03  # fraction of the budget for timing steps, and again for timing a validation
TRAINING_BUDGET_SHARE = 0.95  # fraction of the budget; the rest is for checkpoints and the report
DEFAULT_N_VALIDATIONS = 10  # used if train.eval_every is not set
MAX_VALIDATION_SHARE = 1 / 3  # maximum fraction of the budget if train.eval_every is not set


class StepTimes(NamedTuple):
    """The seconds of the parts of a run."""

    setups: float  # compiling and capturing, beyond the seconds of these steps
    step: float
    validation: float


class TimingLimitReached(Exception):
    """A validation has run for long enough to extrapolate its time."""


def fit_steps_to_budget(prepared: PreparedTask, folder: RunFolder) -> tuple[Config, list[str]]:
    """With `train.max_minutes`, choose as many steps as fit into it, up to the number of the settings.

    Returns:
        The settings with that number of steps, so that a resumed or repeated run is the same, and a notice that
        says how long training takes.
    """
    config = prepared.task.config
    budget, started_at = 60 * config.train.max_minutes, now()
    if not budget:
        return config, []
    try:
        setup_seconds, step_seconds, valid_seconds = measure_step_times(prepared, folder, budget)
    except torch.OutOfMemoryError:  # training will run out of memory too, and handles it
        return config, []
    max_steps = count_steps(config, prepared)
    remaining_seconds = TRAINING_BUDGET_SHARE * budget - (now() - started_at) - setup_seconds
    batches_per_epoch = prepared.train.sampler(config.train, config.seed).steps_per_epoch
    requested_every = steps_per_validation(config.train, batches_per_epoch)
    steps, eval_every = fit_steps(remaining_seconds, max_steps, step_seconds, valid_seconds, requested_every)
    seconds = estimate_seconds(steps, eval_every, step_seconds, valid_seconds)
    duration = format_duration(seconds + setup_seconds)
    if steps < max_steps:
        overrides: Settings = {
            "train.max_steps": steps,
            "train.epochs": 0.0,
            "train.eval_every": config.train.eval_every or eval_every,
        }
        fitted = build_config(overrides, config)
        if steps == 1 and seconds > remaining_seconds:
            message = f"train.max_minutes={config.train.max_minutes:g} is too short for one step and its validation"
            text = f"{message}, which take about {duration}; training takes one step anyway"
            return fitted, [WarningText(text)]
        summary = f"{steps} of {max_steps} steps fit into train.max_minutes={config.train.max_minutes:g}"
        return fitted, [f"{summary}, validated every {eval_every} steps: about {duration}"]
    return config, [f"about {duration} for {steps} steps, within train.max_minutes={config.train.max_minutes:g}"]


def fit_steps(
    seconds: float, max_steps: int, step_seconds: float, valid_seconds: float, requested_every: int
) -> tuple[int, int]:
    """Return the steps that fit into `seconds`, at most `max_steps`, and the steps between validations.

    `requested_every` is the number of steps between validations in the settings; 0 if it is not set.
    """
    eval_every = requested_every or max(1, min(1_000, max_steps // DEFAULT_N_VALIDATIONS))
    if estimate_seconds(max_steps, eval_every, step_seconds, valid_seconds) <= seconds:
        return max_steps, eval_every
    if requested_every:
        steps = int(seconds / (step_seconds + valid_seconds / eval_every))
        return max(1, min(max_steps, steps)), eval_every
    max_validations = (
        int(MAX_VALIDATION_SHARE * seconds / valid_seconds) if valid_seconds else DEFAULT_N_VALIDATIONS
    )
    n_validations = max(1, min(DEFAULT_N_VALIDATIONS, max_validations))
    steps = max(1, min(max_steps, int((seconds - n_validations * valid_seconds) / step_seconds)))
    return steps, ceil(steps / n_validations)


def estimate_seconds(steps: int, eval_every: int, step_seconds: float, valid_seconds: float) -> float:
    """Return the estimated seconds of a number of steps with their validations."""
    return steps * step_seconds + ceil(steps / eval_every) * valid_seconds


def measure_step_times(prepared: PreparedTask, folder: RunFolder, budget: float) -> StepTimes:
    """Measure a few steps and a validation. Weights and random state are restored afterwards."""
    task, config = prepared.task, prepared.task.config
    initial_weights = {name: parameter.detach().clone() for name, parameter in task.model.named_parameters()}
    random_state = get_rng_state(task.device)
    try:
        timing_config = resolve_step_defaults(config, count_steps(config, prepared))
        trainer = Trainer(prepared.with_config(timing_config), folder, [], {})
        with trainer.train_step.training_context():
            task.model.train()
            setup_seconds, step_seconds = _measure_step(trainer, MAX_TIMING_SHARE * budget)
            valid_seconds = _measure_validation(trainer, MAX_TIMING_SHARE * budget)
    finally:
        task.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, parameter in task.model.named_parameters():
                parameter.copy_(initial_weights[name])
        task.model.train()
        set_rng_state(random_state, task.device)
        gc.collect()
    return StepTimes(setup_seconds, step_seconds, valid_seconds)


def _measure_step(trainer: Trainer, limit_seconds: float) -> tuple[float, float]:
    """Return the additional seconds of setups, which a run will repeat, and those of a step without one."""
    setups: list[float] = []
    steady: list[float] = []
    for n_steps in count(1):
        n_setups, started_at = trainer.n_setups, now()
        trainer.step()
        trainer.train_step.restore_losses([])
        if trainer.task.device.type == "cuda":
            torch.cuda.synchronize(trainer.task.device)
        if n_steps > WARM_UP_STEPS:
            (steady if trainer.n_setups == n_setups else setups).append(now() - started_at)
            if len(steady) == MAX_TIMED_STEPS or broadcast_value(sum(setups) + sum(steady) >= limit_seconds):
                break
    step_seconds = max(fmean(steady or setups), 1e-6)
    return max(0.0, sum(setups) - len(setups) * step_seconds), step_seconds


def _measure_validation(trainer: Trainer, limit_seconds: float) -> float:
    """Return the seconds of a validation. One that takes longer than the limit is interrupted and extrapolated.

    Several processes share each validation, but here each of them measures the whole.
    """
    if not trainer.eval_sets:
        return 0.0
    started_at = phase_started_at = reported_at = now()
    phase, estimate = "", 0.0

    def on_progress(label: str, done: int, total: int) -> None:
        nonlocal phase, phase_started_at, reported_at, estimate
        if label != phase:  # first batches, then, for some tasks, decoding
            phase, phase_started_at = label, reported_at
        reported_at = now()
        if done and reported_at - started_at > limit_seconds:
            estimate = phase_started_at - started_at + (reported_at - phase_started_at) * total / done
            raise TimingLimitReached

    try:
        with report_progress_to(on_progress), trainer.train_step.autocast():
            for data in trainer.eval_sets:
                trainer.task.evaluator.evaluate(data, quick=True)
    except TimingLimitReached:
        return estimate / trainer.world.size
    return (now() - started_at) / trainer.world.size
