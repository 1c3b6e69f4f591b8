"""Train and evaluate variants, each with several seeds: the engine of `compare` and `reproduce`.

A variant has a name, settings and seeds; its runs are in `FOLDER/seed-N`. Finished work is not repeated: finished
runs are kept, unfinished runs resume, and a run is evaluated again only if its model or the file has changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triform.config.settings import Settings
from triform.data.files import BUILTIN_PREFIX
from triform.data.readers import fingerprint
from triform.errors import CheckpointError, DivergedError, FolderInUseError, RunInterruptedError
from triform.experiments.seeds import format_failures, train_seed_list
from triform.formatting import print_message
from triform.io.errors import damaged_error, write_run_text
from triform.io.events import read_events
from triform.io.files import read_regular, write_text
from triform.io.locks import find_lock_holder, folder_lock
from triform.launch import RunOptions, write_untrained_run
from triform.run import Run, load
from triform.training.run_folder import RunFolder

JsonDict = dict[str, Any]
POLL_SECONDS = 1.0  # between two looks at the runs of other workers


@dataclass(frozen=True, kw_only=True)
class VariantSpec:
    """One variant to train: its resolved settings, its seeds, and the folder with a run folder for each seed."""

    name: str
    settings: Settings
    seeds: Sequence[int]
    folder: Path
    title: str = ""  # printed when training starts
    trained: bool = True  # False: the runs have the weights of the base model, `train.init_from`
    ensemble_of: VariantSpec | None = None
    ensemble_size: int = 0  # number of runs of `ensemble_of` in each ensemble
    teacher: VariantSpec | None = None  # trained first, because the runs are distilled from it

    def members(self, seed: int) -> tuple[RunFolder, ...]:
        """Return the run folder of a seed, or those of an ensemble."""
        if self.ensemble_of is None:
            return (RunFolder(self.folder / f"seed-{seed}"),)
        first = seed * self.ensemble_size
        member_seeds = self.ensemble_of.seeds[first : first + self.ensemble_size]
        return tuple(self.ensemble_of.members(member_seed)[0] for member_seed in member_seeds)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation sets of every trained run, and the function that evaluates it.

    Args:
        eval_sets: The file of each set, `source,target`, or "" for data that is held out of the training file.
        evaluate: Called with the run, the name of the set and its file; None if the set has no rows.
        metric: A cached evaluation without this metric is repeated.
    """

    eval_sets: Mapping[str, str] = field(default_factory=dict)
    evaluate: Callable[[Run, str, str], JsonDict | None] = lambda run, name, file: None
    metric: str = ""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run or ensemble: the reason why it diverged, or its evaluation on each set."""

    seed: int
    members: tuple[RunFolder, ...]
    failure: str = ""
    evaluations: Mapping[str, JsonDict] = field(default_factory=dict)

    @property
    def folder(self) -> RunFolder:
        """The run folder; for an ensemble, that of its first member."""
        return self.members[0]

    def load(self, device: str) -> Run:
        """Open the run or the ensemble."""
        return load([folder.path for folder in self.members], device=device)

    def progress(self) -> JsonDict:
        """Return the state of training in the latest checkpoint: step, best metrics, seconds."""
        return self.folder.read_progress()


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """The runs of a variant, and the total seconds of training in all calls."""

    spec: VariantSpec
    runs: tuple[SeedResult, ...]
    seconds: float

    @property
    def failure(self) -> str:
        """The seeds that diverged and the reason; empty if none did."""
        return format_failures(
            {run.folder.path.name: run.failure for run in self.runs if run.failure}, len(self.runs)
        )


@contextmanager
def experiment_folder(path: Path, purpose: str, options: RunOptions, *, wait: bool = False) -> Iterator[None]:
    """Lock the folder of an experiment; with `wait`, after other processes have released it."""
    with folder_lock(path, purpose, wait=wait) as notice:
        if notice and not options.quiet:
            print_message(notice, options.progress)
        yield


@contextmanager
def name_resume_command(command: str) -> Iterator[None]:
    """Let the error of an interruption name the command that resumes the experiment."""
    try:
        yield
    except (RunInterruptedError, KeyboardInterrupt):  # during training or during evaluation
        raise RunInterruptedError(f"stopped; finished work is kept; to resume, run: {command}") from None


def run_variants(
    specs: Sequence[VariantSpec], evaluation: Evaluation, options: RunOptions
) -> Iterator[VariantResult]:
    """Train and evaluate each variant in turn. A variant that diverges does not stop the others.

    Args:
        specs: The variants.
        evaluation: What each run is evaluated on.
        options: Device and progress output; `out` and `resume` are set for each variant.
    """
    for spec in specs:
        timer = PersistentTimer((spec.ensemble_of or spec).folder / "seconds.json")
        train_variant(spec, timer, options, quiet=options.quiet)
        runs = tuple(_evaluate_run(spec, seed, evaluation, options) for seed in spec.seeds)
        yield VariantResult(spec=spec, runs=runs, seconds=timer.total_seconds)


def share_variants(
    specs: Sequence[VariantSpec], evaluation: Evaluation, options: RunOptions, *, by_seed: bool
) -> list[VariantResult]:
    """Train and evaluate variants together with all other processes that do the same in the same folders.

    A process takes work whose run folders no other process has locked, and ends when all work is finished. The
    locks of a process that dies are released, and another process continues its runs from their checkpoints.

    Args:
        specs: The variants.
        evaluation: What each run is evaluated on.
        options: Device and progress output.
        by_seed: Take single runs. Otherwise take whole variants, whose seeds share their data.
    """
    units = list(specs)
    if by_seed:
        units = [
            replace(spec, seeds=(seed,), title=f"variant {spec.name}, seed {seed}")
            for spec in specs
            for seed in spec.seeds
        ]
    announced = options.quiet
    while units:
        waiting = [unit for unit in units if not _finish_unit(unit, evaluation, options, by_seed=by_seed)]
        if len(waiting) == len(units):
            if not announced:
                print_message("waiting for the runs of other workers", options.progress)
                announced = True
            time.sleep(POLL_SECONDS)
        units = waiting
    return [_collect_variant(spec, evaluation, options) for spec in specs]


def _finish_unit(unit: VariantSpec, evaluation: Evaluation, options: RunOptions, *, by_seed: bool) -> bool:
    """Train and evaluate the runs of a unit. Return False if another process is working on them."""
    if _is_locked(unit):
        return False
    try:
        timer = nullcontext() if by_seed else PersistentTimer(unit.folder / "seconds.json")
        train_variant(unit, timer, options, quiet=options.quiet or by_seed)
        for seed in unit.seeds:
            if _pending_sets(unit, seed, evaluation):
                with _run_folder(unit, seed).lock("evaluating"):
                    _evaluate_run(unit, seed, evaluation, options)
    except FolderInUseError:
        return False
    except (CheckpointError, FileNotFoundError):
        if _is_locked(unit):  # another process has started, and replaces the checkpoint that was read here
            return False
        raise
    return True


def _is_locked(unit: VariantSpec) -> bool:
    """Return whether a process writes to a run folder of the unit."""
    return any(find_lock_holder(_run_folder(unit, seed).path) for seed in unit.seeds)


def _collect_variant(spec: VariantSpec, evaluation: Evaluation, options: RunOptions) -> VariantResult:
    """Return the result of a variant whose runs are finished."""
    runs = tuple(_evaluate_run(spec, seed, evaluation, options) for seed in spec.seeds)
    seconds_file = spec.folder / "seconds.json"  # exists if one process trained all seeds
    run_seconds = sum(float(run.progress().get("seconds", 0.0)) for run in runs)
    seconds = PersistentTimer(seconds_file).total_seconds if seconds_file.exists() else run_seconds
    return VariantResult(spec=spec, runs=runs, seconds=seconds)


def _run_folder(spec: VariantSpec, seed: int) -> RunFolder:
    return RunFolder(spec.folder / f"seed-{seed}")


def train_variant(
    spec: VariantSpec, timer: AbstractContextManager[None], options: RunOptions, *, quiet: bool
) -> None:
    """Train the seeds that are not finished. A run that has diverged would diverge again and is skipped.

    With `quiet`, the progress of training is not shown; titles and failures are.
    """
    if spec.teacher:
        teacher_timer = PersistentTimer((spec.teacher.ensemble_of or spec.teacher).folder / "seconds.json")
        train_variant(spec.teacher, teacher_timer, options, quiet=quiet)
        if _failure_reasons(spec.teacher, 0):
            return
    spec = spec.ensemble_of or spec
    seeds = [seed for seed in spec.seeds if not failure_reason(_run_folder(spec, seed))]
    folders = [_run_folder(spec, seed) for seed in seeds]
    if all(folder.config_file.exists() and folder.is_complete() for folder in folders):
        return
    if spec.title and not options.quiet:
        print_message(spec.title, options.progress)
    if not spec.trained:
        for seed, folder in zip(seeds, folders, strict=True):
            write_untrained_run(spec.settings | {"seed": seed}, replace(options, out=str(folder.path)))
        return
    train_options = replace(options, out=str(spec.folder), resume=True, quiet=quiet)
    try:
        with timer:
            train_seed_list(spec.folder, spec.settings, seeds, train_options)
    except DivergedError as error:
        if not any(failure_reason(folder) for folder in folders):
            raise
        if not options.quiet:
            print_message(f"{spec.name}: {error}", options.progress)


def _pending_sets(spec: VariantSpec, seed: int, evaluation: Evaluation) -> list[str]:
    """Return the sets on which a run must still be evaluated."""
    if _failure_reasons(spec, seed):
        return []
    cache = EvaluationCache.of(spec, seed)
    return [name for name, file in evaluation.eval_sets.items() if not cache.get(name, file, evaluation.metric)]


def _evaluate_run(spec: VariantSpec, seed: int, evaluation: Evaluation, options: RunOptions) -> SeedResult:
    """Return the result of a trained run or ensemble. It is evaluated on the sets that are pending."""
    result = SeedResult(seed=seed, members=spec.members(seed), failure=_failure_reasons(spec, seed))
    if result.failure:
        return result
    cache = EvaluationCache.of(spec, seed)
    if pending := _pending_sets(spec, seed, evaluation):
        if seed == spec.seeds[0] and not options.quiet:
            print_message(f"evaluating {spec.name} on {', '.join(pending)}", options.progress)
        run = result.load(options.device)
        for name in pending:
            file = evaluation.eval_sets[name]
            cache.add(name, file, evaluation.evaluate(run, name, file), run.precision)
    entries = {name: cache.get(name, file, evaluation.metric) for name, file in evaluation.eval_sets.items()}
    return replace(result, evaluations={name: entry for name, entry in entries.items() if entry is not None})


def _failure_reasons(spec: VariantSpec, seed: int) -> str:
    """Return why a run, a member of an ensemble, or the teacher of a run diverged, or "" if none did."""
    if spec.teacher and (reason := _failure_reasons(spec.teacher, 0)):
        return f"teacher: {reason}"
    return "; ".join(filter(None, map(failure_reason, spec.members(seed))))


def failure_reason(folder: RunFolder) -> str:
    """Return the reason why training diverged, from the log of the run, or "" if it did not."""
    diverged_events = [event for event in read_events(folder.metrics_file) if event["event"] == "diverged"]
    return str(diverged_events[-1].get("text", "diverged")) if diverged_events else ""


def describe_file(path: str) -> str:
    """Return a file's name and a digest of its content. Built-in sets have no digest."""
    return path if path.startswith(BUILTIN_PREFIX) else f"{Path(path).name} ({fingerprint(path)})"


class EvaluationCache:
    """The evaluations of one run, in `tests.json` next to it, or of an ensemble.

    An entry is valid for one file and one model, or the models of the members.
    """

    def __init__(self, path: Path, members: Sequence[RunFolder], task: str) -> None:
        self.path, self.members, self.task = path, members, task

    @classmethod
    def of(cls, spec: VariantSpec, seed: int) -> EvaluationCache:
        """Return the cache of a seed of a variant."""
        members, task = spec.members(seed), str(spec.settings["task"])
        path = spec.folder / f"ensemble-{seed}.json" if spec.ensemble_of else members[0].path / "tests.json"
        return cls(path, members, task)

    def get(self, eval_set: str, file: str, metric: str = "") -> JsonDict | None:
        """Return the entry of a set, or None if it is outdated or lacks the metric."""
        entry: JsonDict = self._read_entries().get(eval_set, {})
        is_current = entry.get("of") == self._key(file) and (not metric or metric in entry["scores"])
        return entry if is_current else None

    def add(self, eval_set: str, file: str, entry: JsonDict | None, precision: str) -> JsonDict | None:
        """Store the evaluation of a set."""
        if entry is None:
            return None
        entry = {"of": self._key(file), "precision": precision, **entry}
        entries = self._read_entries() | {eval_set: entry}
        self.path.parent.mkdir(parents=True, exist_ok=True)  # no run of an ensemble is in its folder
        write_run_text(self.path, json.dumps(entries, ensure_ascii=False) + "\n")
        return entry

    def _key(self, file: str) -> list[Any]:
        paths = file.split(",") if self.task == "translate" else [file]
        times = [folder.model_file.stat().st_mtime_ns for folder in self.members]
        return [*(describe_file(path) for path in paths if path), *times]

    def _read_entries(self) -> JsonDict:
        if not self.path.exists():
            return {}
        try:
            entries = json.loads(read_regular(self.path))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged_error(self.path, error) from None
        return entries if isinstance(entries, dict) else {}


class PersistentTimer:
    """Sum the seconds spent inside `with timer:` over all calls, in a file because a call may be interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total_seconds = self._read()

    def _read(self) -> float:
        return float(json.loads(read_regular(self.path))) if self.path.exists() else 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *exc_info: object) -> None:
        if isinstance(exc_info[1], FolderInUseError):  # nothing was trained here
            return
        # Another worker may have added its time meanwhile.
        self.total_seconds = self._read() + time.perf_counter() - self.start
        if self.path.parent.is_dir():
            write_text(self.path, json.dumps(self.total_seconds))


def settings_hash(settings: Settings) -> str:
    """Return a short digest for the folder name of a variant, so that other settings get another folder."""
    serialised = json.dumps({name: to_json_value(value) for name, value in sorted(settings.items())})
    return hashlib.sha256(serialised.encode()).hexdigest()[:8]


def to_json_value(value: object) -> object:
    """Return a setting as a JSON value."""
    return list(value) if isinstance(value, tuple) else value
