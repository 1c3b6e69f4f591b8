"""Run a search from its file to its report: `triform search`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from triform.errors import ConfigError
from triform.experiments.engine import POLL_SECONDS, experiment_folder, name_resume_command
from triform.experiments.search.results import (
    SearchResult,
    TrialResult,
    best_trial,
    collect_trials,
    describe_trial,
    format_settings,
    search_to_dict,
    search_to_markdown,
    to_config_toml,
)
from triform.experiments.search.space import SearchSpace, read_space
from triform.experiments.search.storage import hide_password
from triform.experiments.search.trial_queue import TrialQueue
from triform.experiments.search.trial_run import run_trial
from triform.experiments.study.plan import Study, StudyVariant
from triform.experiments.study.results import StudyResult
from triform.experiments.study.runner import run_study
from triform.formatting import print_message
from triform.io.errors import write_run_text
from triform.launch import RunOptions

BEST_FILE = "best.toml"


def search(
    space_file: str | Path,
    *,
    out: str | Path = "",
    storage: str = "",
    trials: int = 0,
    seeds: int = 0,
    device: str = "auto",
    quiet: bool = False,
    progress: TextIO | None = None,
    on_start: Callable[[], None] | None = None,
) -> SearchResult:
    """Search for good settings, together with all other processes that run the same search.

    Each process takes trials until none is left, waits for those of the others, and takes part in the comparison of
    the best setting with the default one. The results are written to `search.md`, `search.json` and `best.toml`.

    Args:
        space_file: The TOML file of the search.
        out: The folder of the search, which all workers share; the default is `runs/NAME`.
        storage: URL of the storage; the default is a journal file in the folder.
        trials: Number of settings to try, instead of the number in the file.
        seeds: Number of seeds for each setting, instead of the number in the file.
        device: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Print no progress.
        progress: Stream for the progress output; the default is standard error.
        on_start: Called when space and storage are known to be valid, before anything is trained.

    Raises:
        ConfigError: The space is not valid, the storage cannot be reached, or it holds another search.
        RunInterruptedError: The search was interrupted; the message names the command that resumes it.
    """
    space = read_space(Path(space_file), trials=trials, seeds=seeds)
    folder = Path(out or Path("runs") / space.name)
    options = RunOptions(device=device, quiet=quiet, progress=progress)
    with name_resume_command(_resume_command(space_file, folder, storage, trials, seeds, device)):
        queue = TrialQueue(space, folder, storage)
        if on_start:
            on_start()
        _work(queue, options)
        result = _collect(queue)
        if result.best and space.final_seeds:
            result = replace(result, comparison=_compare(space, result.best, folder, options))
        _write(result, options)
    return result


def _work(queue: TrialQueue, options: RunOptions) -> None:
    """Run trials until none is left, and wait for those of other workers."""
    announced = options.quiet
    while True:
        with queue.claim() as claimed:
            if claimed is not None:
                run_trial(queue.study, claimed, queue.space, options)
                if not options.quiet:
                    _print_trial(queue, claimed.trial.number, options)
                continue
        if queue.is_finished():
            return
        if not announced:
            print_message("waiting for the trials of other workers", options.progress)
            announced = True
        time.sleep(POLL_SECONDS)


def _print_trial(queue: TrialQueue, number: int, options: RunOptions) -> None:
    [trial] = [trial for trial in collect_trials(queue) if trial.number == number]
    result_text = describe_trial(trial, queue.space.metric)
    print_message(f"trial {number}: {result_text}; {format_settings(trial.settings)}", options.progress)


def _collect(queue: TrialQueue) -> SearchResult:
    """Return the trials of a search in which none is left."""
    trials = collect_trials(queue)
    if all(trial.state == "refused" for trial in trials):
        raise ConfigError(f"all {len(trials)} settings were refused; the first reason: {trials[0].reason}")
    return SearchResult(space=queue.space, path=queue.folder, trials=trials, best=best_trial(queue.space, trials))


def _compare(space: SearchSpace, best: TrialResult, folder: Path, options: RunOptions) -> StudyResult:
    """Train the best and the default setting with seeds that the search has not used."""
    study = Study(
        name=f"{space.name}-comparison",
        task=space.task,
        metric=space.metric,
        seeds=space.final_seeds,
        variants=(
            StudyVariant(name="default", settings=space.resolve({})),
            StudyVariant(name=f"trial-{best.number}", settings=space.resolve(best.settings)),
        ),
        test_files={},
    )
    return run_study(study, folder / "comparison", options, by_seed=True)


def _write(result: SearchResult, options: RunOptions) -> None:
    with experiment_folder(result.path, "writing the tables of a search", options, wait=True):
        write_run_text(result.path / "search.md", search_to_markdown(result))
        text = json.dumps(search_to_dict(result), ensure_ascii=False, indent=2)
        write_run_text(result.path / "search.json", text + "\n")
        if result.best:
            settings = result.space.resolve(result.best.settings)
            write_run_text(result.path / BEST_FILE, to_config_toml(settings))


def train_command(result: SearchResult) -> str:
    """Return the command that trains a model with the best setting."""
    config, out = (shlex.quote(str(path)) for path in (result.path / BEST_FILE, result.path / "best"))
    return f"triform train {result.space.task} --config {config} --out {out}"


def _resume_command(
    space_file: str | Path, folder: Path, storage: str, trials: int, seeds: int, device: str
) -> str:
    arguments = [shlex.quote(str(space_file)), f"--out {shlex.quote(str(folder))}"]
    arguments += [f"--storage {shlex.quote(hide_password(storage))}"] if storage else []
    arguments += [f"--trials {trials}"] if trials else []
    arguments += [f"--seeds {seeds}"] if seeds else []
    arguments += [f"--device {device}"] if device != "auto" else []
    return f"triform search {' '.join(arguments)}"
