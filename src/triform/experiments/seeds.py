"""Train several seeds of one configuration, each in its own run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from triform.config import Config, TaskName
from triform.config.bounds import MAX_SEEDS, format_value
from triform.config.merging import flatten_settings
from triform.config.settings import Settings, build_config
from triform.device import resolve_device
from triform.errors import CheckpointError, ConfigError, DataError, DivergedError
from triform.experiments.seed_results import SeedResults, collect_results
from triform.formatting import print_message
from triform.interrupts import handle_signals
from triform.io.files import refuse_special_file
from triform.io.run_layout import CONFIG_FILE
from triform.launch import (
    RunOptions,
    fit_with_oom_retry,
    resolve_out_folder,
    resolve_settings,
)
from triform.run_log import finish_run, log_start, record_divergence
from triform.tasks import PreparedTask, choose_task
from triform.training.claim import claim_run_folder
from triform.training.data_copies import copy_in_memory_data
from triform.training.init_from import apply_base
from triform.training.run_folder import RunFolder
from triform.training.setup import (
    UserSettings,
    initialise_model,
    initialise_trainer,
    prepare_data_and_model,
)
from triform.training.stopping import format_resume_command, interrupted_error, stopped_without_saving_error
from triform.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """A seed, its folder, and the stored settings if its run will be resumed."""

    seed: int
    folder: RunFolder
    stored_config: Config | None


def train_seeds(
    task: TaskName,
    seeds: int,
    *,
    preset: str = "",
    config: str | Path | Config | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> SeedResults:
    """Train models that differ only in their seeds, each in OUT/seed-N.

    The data is read and encoded once.

    Args:
        task: `classify`, `generate` or `translate`.
        seeds: Number of models. Their seeds are consecutive numbers from the setting `seed`.
        preset: Name of a preset.
        config: A TOML file or a `Config`.
        options: How to run; the fields of `RunOptions` may also be given as keyword arguments.
        **settings: Settings as for `train`.

    Raises:
        DivergedError: At least one of the models diverged; the others were trained.
        RunInterruptedError: Training was interrupted; the message names the command that resumes it.

    Example:
        >>> from pathlib import Path
        >>> import triform
        >>> _ = Path("rows.tsv").write_text("a good film\\tyes\\na bad film\\tno\\n" * 20)
        >>> tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
        >>> options = {"data": "rows.tsv", "out": "seeds", "device": "cpu", "quiet": True}
        >>> results = triform.train_seeds("classify", 2, model=tiny, train={"max_steps": 2}, **options)
        >>> results.metric, len(results.values)
        ('accuracy', 2)
    """
    option_values = {name: settings.pop(name) for name in RunOptions.__dataclass_fields__ if name in settings}
    options = replace(options or RunOptions(), **option_values)
    if not 1 <= seeds <= MAX_SEEDS:
        raise ConfigError(f"--seeds {format_value(seeds)} must be a number of models from 1 to {MAX_SEEDS}")
    with copy_in_memory_data(task, preset, config, settings, str(options.out)) as (file_settings, out):
        requested = resolve_settings(task, preset, config, flatten_settings(file_settings))
        return _train_seeds(task, seeds, requested, replace(options, out=out))


def _train_seeds(task: TaskName, seeds: int, requested: Settings, options: RunOptions) -> SeedResults:
    out = resolve_out_folder(requested, options)
    first_seed = build_config(requested).seed
    seed_options = f" --seeds {seeds}" + (f" --seed {first_seed}" if first_seed else "")
    seed_list = range(first_seed, first_seed + seeds)
    if options.resume:
        _require_runs(out, seed_list)
    with RunFolder(out).lock(f"training {task} with several seeds") as notice:
        if notice and not options.quiet:
            print_message(notice, options.progress)
        seed_runs = train_seed_list(out, requested, seed_list, options, seed_options)
    return collect_results(out, [seed_run.folder for seed_run in seed_runs])


def _require_runs(out: Path, seeds: Sequence[int]) -> None:
    """Raise `CheckpointError` if there is no run to resume."""
    if not out.is_dir():
        raise CheckpointError(f"{out}: nothing to resume, because there is no such folder")
    if not any((out / f"seed-{seed}" / CONFIG_FILE).exists() for seed in seeds):
        raise CheckpointError(
            f"{out}: nothing to resume, because there are no runs of the seeds {seeds[0]} to {seeds[-1]}"
        )


def train_seed_list(
    out: Path,
    requested: Settings,
    seeds: Sequence[int],
    options: RunOptions,
    seed_options: str = "",
) -> list[SeedRun]:
    """Train the seeds that are not finished, each in OUT/seed-N. A seed that diverges does not stop the others.

    Args:
        out: The folder for the run folders of all seeds.
        requested: Resolved settings; the seed is replaced.
        seeds: The seeds.
        options: How to run. With `resume`, runs that exist are continued and the others are started.
        seed_options: The command-line options about seeds that resume an interrupted command.

    Raises:
        FolderInUseError: Another process trains one of the seeds.
    """
    with ExitStack() as exit_stack:
        seed_runs = _claim_folders(out, requested, seeds, options, exit_stack)
        _train_unfinished(seed_runs, requested, options, out, seed_options)
        for seed_run in seed_runs:
            seed_run.folder.delete_tokens()
    return seed_runs


def _train_unfinished(
    seed_runs: Sequence[SeedRun],
    requested: Settings,
    options: RunOptions,
    out: Path,
    seed_options: str,
) -> None:
    """Train the runs in the claimed folders that are not finished."""
    unfinished = [
        seed_run
        for seed_run in seed_runs
        if seed_run.stored_config is None or not seed_run.folder.is_complete(seed_run.stored_config)
    ]
    if not unfinished:
        return
    stored = next((seed_run.stored_config for seed_run in seed_runs if seed_run.stored_config), None)
    folders, command = (
        [seed_run.folder for seed_run in seed_runs],
        format_resume_command(requested["task"], out, options.device, seed_options),
    )
    try:
        with handle_signals(
            stream=options.progress, exit_message=lambda: stopped_without_saving_error(folders, command)
        ):
            _train_group(
                unfinished,
                stored or build_config(apply_base(requested, verify=options.verify)),
                options,
                seed_options,
                user_settings=None if stored else requested,  # stored settings are final
            )
    except KeyboardInterrupt:
        for folder in folders:
            folder.discard_if_unused()
        raise stopped_without_saving_error(folders, command) from None


def _claim_folders(
    out: Path, requested: Settings, seeds: Sequence[int], options: RunOptions, exit_stack: ExitStack
) -> list[SeedRun]:
    """Lock the folder of every seed until the exit stack is closed."""
    if (out / CONFIG_FILE).exists():
        raise CheckpointError(f"{out} contains a single run; choose another --out for several seeds")
    seed_runs = []
    for seed in seeds:
        folder = RunFolder(out / f"seed-{seed}", verify=options.verify)
        refuse_special_file(folder.path)
        claim = claim_run_folder(
            folder, requested | {"seed": seed}, resume=options.resume, overwrite=options.overwrite, required=False
        )
        seed_runs.append(SeedRun(seed=seed, folder=folder, stored_config=exit_stack.enter_context(claim)[0]))
    return seed_runs


def _train_group(
    seed_runs: Sequence[SeedRun],
    common_config: Config,
    options: RunOptions,
    seed_options: str,
    *,
    user_settings: UserSettings,
) -> None:
    """Train runs that share all settings except the seed. A seed that is added later uses the stored settings."""
    device = resolve_device(options.device)
    # The lead run prepares the data for all seeds.
    lead_run = next((seed_run for seed_run in seed_runs if seed_run.stored_config), seed_runs[0])
    config = lead_run.stored_config or replace(common_config, seed=lead_run.seed)
    notices = [
        notice for seed_run in seed_runs if seed_run.stored_config for notice in seed_run.folder.prepare_resume()
    ]
    try:
        prepared = prepare_data_and_model(
            config, lead_run.folder, device, resume=lead_run.stored_config is not None, user_settings=user_settings
        )
        prepared = replace(prepared, notices=(*notices, *prepared.notices))
    except (ConfigError, DataError):
        for seed_run in seed_runs:
            seed_run.folder.discard_if_unused()
        raise
    ordered = [lead_run, *(seed_run for seed_run in seed_runs if seed_run is not lead_run)]
    SeedGroup(prepared, lead_run, ordered, options, seed_options).train()


class SeedGroup:
    """The unfinished seeds of one configuration. Data is prepared once; models are trained in turn."""

    def __init__(
        self,
        prepared: PreparedTask,
        lead_run: SeedRun,
        seed_runs: Sequence[SeedRun],
        options: RunOptions,
        seed_options: str,
    ) -> None:
        self.prepared, self.lead_run, self.seed_runs, self.options, self.seed_options = (
            prepared,
            lead_run,
            seed_runs,
            options,
            seed_options,
        )
        self.config = prepared.task.config  # resolved as far as it is the same for all seeds

    def train(self) -> None:
        """Train one seed after another. One that diverges does not stop the others."""
        failures: dict[str, DivergedError] = {}
        for index, seed_run in enumerate(self.seed_runs):
            if not self.options.quiet:
                print_message(f"seed {seed_run.seed}:", self.options.progress)
            trainer = initialise_trainer(
                self._prepare_seed(seed_run),
                seed_run.folder,
                resume=bool(seed_run.stored_config),
                quiet=self.options.quiet,
                stream=self.options.progress,
                callbacks=self.options.callbacks,
                track=self.options.track,
            )
            notices = self.prepared.notices if index == 0 else ()
            log_start(trainer, notices, quiet=self.options.quiet, stream=self.options.progress)
            try:
                trainer = fit_with_oom_retry(trainer, self.options)
            except DivergedError as failure:
                failures[seed_run.folder.path.name] = failure
                record_divergence(trainer, failure)
                continue
            finish_run(trainer, samples=seed_run is self.lead_run)
            self._check_finished([trainer])
        self._check_failures(failures)

    def _prepare_seed(self, seed_run: SeedRun) -> PreparedTask:
        """Return the common data, and a model with the initial weights that the seed has in a separate run."""
        if seed_run is self.lead_run:
            return self.prepared
        torch.manual_seed(seed_run.seed)
        config = seed_run.stored_config or replace(self.config, seed=seed_run.seed)
        task = choose_task(config).load(config, self.lead_run.folder.path)
        prepared = replace(self.prepared, task=task)
        initialise_model(prepared, seed_run.folder, resume=bool(seed_run.stored_config))
        task.model.to(self.prepared.task.device)
        task.teacher = self.prepared.task.teacher
        return prepared

    def _check_failures(self, failures: Mapping[str, DivergedError]) -> None:
        reasons = {name: str(failure) for name, failure in failures.items()}
        if message := format_failures(reasons, len(self.seed_runs)):
            raise DivergedError(message)

    def _check_finished(self, trainers: Sequence[Trainer]) -> None:
        stopped_steps = [trainer.progress.step for trainer in trainers if not trainer.progress.finished]
        if stopped_steps:
            out = self.lead_run.folder.path.parent
            command = format_resume_command(self.config.task, out, self.options.device, self.seed_options)
            raise interrupted_error(min(stopped_steps), command)


def format_failures(reasons: Mapping[str, str], n_runs: int) -> str:
    """Return one line about the runs that diverged. `reasons` maps the name of each to its reason."""
    if not reasons:
        return ""
    others = " (the others continued)" if len(reasons) < n_runs else ""
    return f"{', '.join(reasons)} of {n_runs} diverged{others}: {next(iter(reasons.values()))}"
