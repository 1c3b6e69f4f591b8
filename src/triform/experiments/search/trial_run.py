"""Run one trial: train its setting with every seed, and report the validations of the first seed to the pruner."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from triform.config.settings import Settings
from triform.errors import ConfigError, RunInterruptedError
from triform.experiments.engine import VariantSpec, failure_reason, train_variant
from triform.experiments.search.space import SearchSpace
from triform.experiments.search.trial_queue import MAX_STARTS, REASON, REFUSED, SEED_VALUES, STARTS, ClaimedTrial
from triform.formatting import metric_info
from triform.io.events import Event
from triform.io.run_layout import CONFIG_FILE
from triform.launch import RunOptions
from triform.training.callbacks import Callback
from triform.training.run_folder import RunFolder

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial


class SettingRefusedError(Exception):
    """The setting is outside a constraint. Nothing was trained."""


class TrialStoppedError(Exception):
    """The pruner has stopped the trial."""


class TrialObserver(Callback):
    """Checks the constraints when a run starts, and reports every validation to the pruner.

    Validations are counted from 1. What is reported is the best value so far, because the best weights are the
    result of a run.
    """

    def __init__(self, trial: Trial, space: SearchSpace) -> None:
        self.trial, self.space = trial, space
        self.values: list[float] = []

    def on_event(self, event: Event) -> None:
        limit = self.space.max_parameters
        if event["event"] == "start" and limit and event["parameters"] > limit:
            raise SettingRefusedError(f"{event['parameters']:,} parameters exceed max_parameters = {limit:,}")
        if event["event"] == "valid":
            self.values.append(float(event[self.space.metric]))
            self._report()

    def _report(self) -> None:
        best = max if metric_info(self.space.metric).higher_is_better else min
        with warnings.catch_warnings():  # a resumed run repeats validations that were reported
            warnings.simplefilter("ignore")
            self.trial.report(best(self.values), step=len(self.values))
        if self.trial.should_prune():
            raise TrialStoppedError

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = [float(value) for value in state["values"]]


def run_trial(study: Study, claimed: ClaimedTrial, space: SearchSpace, options: RunOptions) -> None:
    """Train a trial that this worker has claimed, and store its result.

    An interrupted trial stays open: its runs are saved, and the next worker continues it.
    """
    from optuna.trial import TrialState

    trial = claimed.trial
    try:
        if claimed.starts > MAX_STARTS:
            reason = f"its worker ended {MAX_STARTS} times without a result"
            values: Sequence[float] = ()
        else:
            values, reason = _train(claimed, space, options)
    except SettingRefusedError as refusal:
        trial.set_user_attr(REFUSED, str(refusal))
        for run_folder in claimed.folder.glob("seed-*"):
            shutil.rmtree(run_folder)
        study.tell(trial, state=TrialState.PRUNED)
        return
    except TrialStoppedError:
        study.tell(trial, state=TrialState.PRUNED)
        return
    except (RunInterruptedError, KeyboardInterrupt):
        trial.set_user_attr(STARTS, claimed.starts - 1)
        raise
    if reason:
        trial.set_user_attr(REASON, reason)
        study.tell(trial, state=TrialState.FAIL)
        return
    trial.set_user_attr(SEED_VALUES, list(values))
    study.tell(trial, fmean(values))


def _train(claimed: ClaimedTrial, space: SearchSpace, options: RunOptions) -> tuple[list[float], str]:
    """Return the metric of each seed, or the reason why training failed."""
    settings = _resolve(space, claimed.settings)
    observer = TrialObserver(claimed.trial, space)
    values = []
    for seed in space.seeds:
        spec = VariantSpec(
            name=f"trial {claimed.trial.number}", settings=settings, seeds=[seed], folder=claimed.folder
        )
        callbacks = [observer] if seed == space.seeds[0] else []
        try:
            quiet_options = replace(options, quiet=True, callbacks=callbacks)
            train_variant(spec, nullcontext(), quiet_options, quiet=True)
        except ConfigError as error:  # for example, the model does not fit into memory
            if (claimed.folder / f"seed-{seed}" / CONFIG_FILE).exists():  # the run has been started before
                raise
            raise SettingRefusedError(str(error)) from None
        folder = RunFolder(claimed.folder / f"seed-{seed}")
        if reason := failure_reason(folder):
            return [], reason
        checkpoint = folder.latest_checkpoint()
        assert checkpoint is not None, folder.path  # the run has just finished
        values.append(float(folder.read_state(checkpoint)["progress"]["best"][space.metric]))
    return values, ""


def _resolve(space: SearchSpace, values: Settings) -> Settings:
    try:
        return space.resolve(values)
    except ConfigError as error:
        raise SettingRefusedError(str(error)) from None
