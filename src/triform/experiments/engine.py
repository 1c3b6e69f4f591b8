"""Train and evaluate variants, each with several seeds: the engine of `compare` and `reproduce`.

A variant has a name, settings and seeds; its runs are in `FOLDER/seed-N`. Finished work is not repeated: finished
runs are kept, unfinished runs resume, and a run is evaluated again only if its model or the file has changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triform.config.settings import Settings
from triform.data.files import BUILTIN_PREFIX
from triform.data.readers import fingerprint
from triform.errors import DivergedError, RunInterruptedError
from triform.experiments.seeds import format_failures, train_seed_list
from triform.formatting import print_message
from triform.io.errors import damaged_error, write_run_text
from triform.io.files import write_text
from triform.io.locks import folder_lock
from triform.launch import RunOptions, write_untrained_run
from triform.run import Run, load
from triform.training.run_folder import RunFolder

JsonDict = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class VariantSpec:
    """One variant to train: its resolved settings, its seeds, and the folder with a run folder for each seed."""

    name: str
    settings: Settings
    seeds: Sequence[int]
    folder: Path
    title: str = ""  # printed when training starts
    trained: bool = True  # False: the runs have the weights of the base model, `train.init_from`


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
    """One run: the reason why it diverged, or its evaluation on each set."""

    seed: int
    folder: RunFolder
    failure: str = ""
    evaluations: Mapping[str, JsonDict] = field(default_factory=dict)

    def progress(self) -> JsonDict:
        """Return the state of training in the latest checkpoint: step, best metrics, seconds."""
        latest = self.folder.latest_checkpoint()
        return dict(self.folder.read_state(latest)["progress"]) if latest else {}


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
def experiment_folder(path: Path, purpose: str, resume_command: str, options: RunOptions) -> Iterator[None]:
    """Lock the folder of an experiment. The error of an interruption names the command that resumes it."""
    with folder_lock(path, purpose) as notice:
        if notice and not options.quiet:
            print_message(notice, options.progress)
        try:
            yield
        except (RunInterruptedError, KeyboardInterrupt):  # during training or during evaluation
            raise RunInterruptedError(f"stopped; finished work is kept; to resume, run: {resume_command}") from None


def run_variants(
    specs: Sequence[VariantSpec], evaluation: Evaluation, options: RunOptions, *, ensemble: bool = True
) -> Iterator[VariantResult]:
    """Train and evaluate each variant in turn. A variant that diverges does not stop the others.

    Args:
        specs: The variants.
        evaluation: What each run is evaluated on.
        options: Device and progress output; `out` and `resume` are set for each variant.
        ensemble: Train small models of several seeds together. Set to False to measure training time.
    """
    for spec in specs:
        timer = PersistentTimer(spec.folder / "seconds.json")
        _train_variant(spec, timer, options, ensemble=ensemble)
        yield VariantResult(
            spec=spec, runs=tuple(_evaluate_variant(spec, evaluation, options)), seconds=timer.total_seconds
        )


def _run_folder(spec: VariantSpec, seed: int) -> RunFolder:
    return RunFolder(spec.folder / f"seed-{seed}")


def _train_variant(spec: VariantSpec, timer: PersistentTimer, options: RunOptions, *, ensemble: bool) -> None:
    """Train the seeds that are not finished. A run that has diverged would diverge again and is skipped."""
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
    resume = any(folder.config_file.exists() for folder in folders)
    options = replace(options, out=str(spec.folder), resume=resume)
    try:
        with timer:
            train_seed_list(spec.folder, spec.settings, seeds, options, ensemble=ensemble)
    except DivergedError as error:
        if not any(failure_reason(folder) for folder in folders):
            raise
        if not options.quiet:
            print_message(f"{spec.name}: {error}", options.progress)


def _evaluate_variant(spec: VariantSpec, evaluation: Evaluation, options: RunOptions) -> Iterator[SeedResult]:
    announced = options.quiet
    for seed in spec.seeds:
        folder = _run_folder(spec, seed)
        if failure := failure_reason(folder):
            yield SeedResult(seed=seed, folder=folder, failure=failure)
            continue
        cache = EvaluationCache(folder, str(spec.settings["task"]))
        entries = {name: cache.get(name, file, evaluation.metric) for name, file in evaluation.eval_sets.items()}
        pending = [name for name, entry in entries.items() if entry is None]
        if pending and not announced:
            print_message(f"evaluating {spec.name} on {', '.join(pending)}", options.progress)
            announced = True
        if pending:
            run = load(folder.path, device=options.device)
            for name in pending:
                file = evaluation.eval_sets[name]
                entries[name] = cache.add(name, file, evaluation.evaluate(run, name, file), run.precision)
        evaluations = {name: entry for name, entry in entries.items() if entry is not None}
        yield SeedResult(seed=seed, folder=folder, evaluations=evaluations)


def failure_reason(folder: RunFolder) -> str:
    """Return the reason why training diverged, from the log of the run, or "" if it did not."""
    if not folder.metrics_file.exists():
        return ""
    lines = folder.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines()
    diverged_events = [json.loads(line) for line in lines if '"event": "diverged"' in line]
    return str(diverged_events[-1].get("text", "diverged")) if diverged_events else ""


def describe_file(path: str) -> str:
    """Return a file's name and a digest of its content. Built-in sets have no digest."""
    return path if path.startswith(BUILTIN_PREFIX) else f"{Path(path).name} ({fingerprint(path)})"


class EvaluationCache:
    """The evaluations of one run, in `tests.json` next to it. An entry is valid for one model and one file."""

    def __init__(self, folder: RunFolder, task: str) -> None:
        self.folder, self.task = folder, task
        self.path = folder.path / "tests.json"

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
        write_run_text(self.path, json.dumps(entries, ensure_ascii=False) + "\n")
        return entry

    def _key(self, file: str) -> list[Any]:
        paths = file.split(",") if self.task == "translate" else [file]
        return [*(describe_file(path) for path in paths if path), self.folder.model_file.stat().st_mtime_ns]

    def _read_entries(self) -> JsonDict:
        if not self.path.exists():
            return {}
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged_error(self.path, error) from None
        return entries if isinstance(entries, dict) else {}


class PersistentTimer:
    """Sum the seconds spent inside `with timer:` over all calls, in a file because a call may be interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total_seconds = float(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *exc_info: object) -> None:
        self.total_seconds += time.perf_counter() - self.start
        if self.path.parent.is_dir():
            write_text(self.path, json.dumps(self.total_seconds))


def settings_hash(settings: Settings) -> str:
    """Return a short digest for the folder name of a variant, so that other settings get another folder."""
    serialised = json.dumps({name: to_json_value(value) for name, value in sorted(settings.items())})
    return hashlib.sha256(serialised.encode()).hexdigest()[:8]


def to_json_value(value: object) -> object:
    """Return a setting as a JSON value."""
    return list(value) if isinstance(value, tuple) else value
