"""The trials of a search, shared by all workers. A trial belongs to the worker that has locked its folder."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triform.config.settings import Settings
from triform.errors import CheckpointError, ConfigError, FolderInUseError
from triform.experiments.search.space import SearchSpace
from triform.experiments.search.storage import JOURNAL_FILE, hide_password, open_storage
from triform.formatting import metric_info
from triform.io.errors import write_run_text
from triform.io.files import refuse_special_files
from triform.io.locks import folder_lock

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

PLAN_FILE, TRIALS_FOLDER = "plan.json", "trials"
MAX_STARTS = 3  # how often a trial is started before the setting is held responsible for the end of its workers
MAX_REFUSED_RATIO = 10  # refused settings for each trial, after which the search ends
# Attributes of a trial in the storage.
REFUSED, REASON, STARTS, SEED_VALUES, WORKER = "refused", "reason", "starts", "seed_values", "worker"


@dataclass(frozen=True, kw_only=True)
class ClaimedTrial:
    """A trial that this worker runs: Optuna's trial, its values, its folder, and how often it was started."""

    trial: Trial
    settings: Settings
    folder: Path
    starts: int


class TrialQueue:
    """Trials in a storage, and their folders in a folder that all workers share.

    Args:
        space: The search.
        folder: The folder of the search.
        storage_url: The storage; empty: a journal in the folder.

    Raises:
        ConfigError: The storage cannot be reached, or holds another search of this name.
        CheckpointError: The folder holds something else.
    """

    def __init__(self, space: SearchSpace, folder: Path, storage_url: str) -> None:
        self.space, self.folder, self.storage_url = space, folder, storage_url
        with self._lock():
            self.study = self._open_study()

    def _lock(self) -> Any:
        return folder_lock(self.folder, "choosing a trial", wait=True)

    # -- the study

    def _open_study(self) -> Study:
        for folder in (self.folder, self.folder / TRIALS_FOLDER):
            refuse_special_files(folder, not_links="*")
        plan_file = self.folder / PLAN_FILE
        own_names = {
            JOURNAL_FILE,
            f"{JOURNAL_FILE}.lock",
        }  # which a worker that was killed early leaves without a plan
        if not plan_file.exists() and any(path.name not in own_names for path in self.folder.glob("[!.]*")):
            raise CheckpointError(f"{self.folder}: this folder does not contain a search; choose another --out")
        plan = _read_plan(plan_file) if plan_file.exists() else {}
        if plan:
            self._require_same_space(plan["space"], str(self.folder))
        storage = open_storage(self.storage_url, self.folder)
        import optuna

        study = optuna.create_study(
            study_name=self.space.name,
            storage=storage,
            pruner=self._build_pruner(),
            direction="maximize" if metric_info(self.space.metric).higher_is_better else "minimize",
            load_if_exists=True,
        )
        self._register(study, plan)
        return study

    def _register(self, study: Study, plan: Mapping[str, Any]) -> None:
        """Check that folder and storage hold the same search, and write both down if they are new."""
        shown_url = hide_password(self.storage_url) or f"the journal in {self.folder}"
        if stored := study.user_attrs.get("search"):
            self._require_same_space(stored["space"], shown_url)
            if plan.get("id") != stored["id"]:
                raise ConfigError(
                    f"{shown_url} has a search {self.space.name} whose folder is {stored['folder']}, and "
                    f"{self.folder.absolute()} on {socket.gethostname()} is another folder. All workers of a "
                    "search need the same shared folder: give it with --out, or change the name of the search"
                )
            return
        storage = hide_password(self.storage_url)
        is_new = not plan or (plan["storage"] == storage and not (self.folder / TRIALS_FOLDER).exists())
        if not is_new:
            raise ConfigError(
                f"{self.folder} contains a search that is not in {shown_url}; "
                "give the --storage of that search, or choose another --out"
            )
        # A worker that is killed before the last line leaves a plan for this storage, without trials.
        plan = {"id": secrets.token_hex(8), "space": self.space.describe(), "storage": storage}
        write_run_text(self.folder / PLAN_FILE, json.dumps(plan, indent=1) + "\n")
        location = f"{self.folder.absolute()} on {socket.gethostname()}"
        study.set_user_attr("search", {**plan, "folder": location})

    def _require_same_space(self, stored: Mapping[str, Any], location: str) -> None:
        current = json.loads(json.dumps(self.space.describe()))
        changes = [
            f"{name}: {current.get(name, 'nothing')} (stored: {stored.get(name, 'nothing')})"
            for name in dict.fromkeys((*stored, *current))
            if stored.get(name) != current.get(name)
        ]
        if changes:
            raise ConfigError(
                f"{location} has a search {self.space.name} with another space: {'; '.join(changes)}. "
                "Choose another --out, or change the name of the search"
            )

    def _build_pruner(self) -> BasePruner:
        from optuna.pruners import NopPruner, SuccessiveHalvingPruner

        pruning = self.space.pruning
        if pruning is None:
            return NopPruner()
        return SuccessiveHalvingPruner(min_resource=pruning.min_validations, reduction_factor=pruning.factor)

    @contextmanager
    def _sampler_of(self, number: int) -> Iterator[None]:
        """Use the sampler of one trial. Its seed depends on the number, so no two workers draw the same."""
        from optuna.samplers import GridSampler, RandomSampler, TPESampler

        seed = (self.space.seeds[0] * 1_000_003 + number) % 2**32
        sampler: BaseSampler = TPESampler(seed=seed)
        if self.space.sampler == "random":
            sampler = RandomSampler(seed=seed)
        if self.space.sampler == "grid":
            sampler = GridSampler(self.space.grid(), seed=self.space.seeds[0])
        previous, self.study.sampler = self.study.sampler, sampler
        try:
            yield
        finally:  # after the last trial, the sampler of a grid would stop a loop of Optuna, which does not run
            self.study.sampler = previous

    # -- trials

    def trials(self) -> list[FrozenTrial]:
        """Return all trials in the order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    def trial_folder(self, number: int) -> Path:
        """Return the folder of a trial."""
        return self.folder / TRIALS_FOLDER / f"trial-{number:04d}"

    def is_finished(self) -> bool:
        """Return whether no trial is running or left. `claim` must have found none before."""
        return all(trial.state.is_finished() for trial in self.trials())

    @contextmanager
    def claim(self) -> Iterator[ClaimedTrial | None]:
        """Lock a trial inside the `with` block: one whose worker has died, or a new one. None if there is none."""
        with ExitStack() as locks:
            with self._lock():
                claimed = self._claim_abandoned(locks) or self._claim_new(locks)
            yield claimed

    def _claim_abandoned(self, locks: ExitStack) -> ClaimedTrial | None:
        """Lock a running trial that no worker has locked."""
        from optuna import Trial
        from optuna.trial import TrialState

        for frozen in self.trials():
            if frozen.state != TrialState.RUNNING:
                continue
            with ExitStack() as attempt:
                try:
                    attempt.enter_context(folder_lock(self.trial_folder(frozen.number), "running a trial"))
                except FolderInUseError:
                    continue
                if self.trials()[frozen.number].state != TrialState.RUNNING:  # it was finished just now
                    continue
                locks.push(attempt.pop_all())
            with self._sampler_of(frozen.number):
                return self._start(Trial(self.study, frozen._trial_id), int(frozen.user_attrs.get(STARTS, 0)))
        return None

    def _claim_new(self, locks: ExitStack) -> ClaimedTrial | None:
        """Add a trial, unless there are enough."""
        trials = self.trials()
        n_refused = sum(REFUSED in trial.user_attrs for trial in trials)
        n_trials = self.space.trials
        if len(trials) - n_refused >= n_trials or n_refused >= max(100, MAX_REFUSED_RATIO * n_trials):
            return None
        if self.space.sampler == "grid" and len(trials) >= self.space.grid_size():
            return None
        locks.enter_context(folder_lock(self.trial_folder(len(trials)), "running a trial"))
        with self._sampler_of(len(trials)):
            return self._start(self.study.ask(), 0)

    def _start(self, trial: Trial, starts: int) -> ClaimedTrial:
        """Let the sampler choose the values that have not been chosen, and count the start."""
        settings: Settings = {}
        for setting in self.space.searched:
            if setting.is_active(settings):
                settings[setting.name] = setting.suggest(trial)
        trial.set_user_attr(WORKER, f"process {os.getpid()} on {socket.gethostname()}")
        trial.set_user_attr(STARTS, starts + 1)
        return ClaimedTrial(
            trial=trial, settings=settings, folder=self.trial_folder(trial.number), starts=starts + 1
        )


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        return {"id": str(plan["id"]), "space": dict(plan["space"]), "storage": plan.get("storage")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: the file is damaged ({error}); restore it, or remove the folder") from None
