"""Several seeds of one thing: a folder each, trained together where that is faster, and what they came to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from triform.config import Config, TaskName
from triform.config.bounds import MAX_SEEDS, format_value
from triform.errors import CheckpointError, ConfigError, DataError, DivergedError, show_notice
from triform.formatting import print_message
from triform.interrupts import handle_signals
from triform.launch import (
    Options,
    announce,
    close,
    collect,
    dotted,
    fit,
    out_folder,
    prepare,
    ready,
)
from triform.run import Run, load, pick_device
from triform.settings import Settings, build
from triform.stats import Spread, spread
from triform.tasks import TASKS, Prepared
from triform.training.base import begin, with_base
from triform.training.chorus import Chorus
from triform.training.claim import claimed
from triform.training.display import ProgressLine
from triform.training.folder import RunFolder
from triform.training.length import early_stopping_notice
from triform.training.listeners import MetricsFile
from triform.training.population import Member, Population, together
from triform.training.stopping import interrupted, resume_command, stopped_at_once
from triform.training.trainer import Trainer

TRAINING_LOSS = "training loss"  # what is compared where nothing was held out


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Runs that differ in nothing but their seeds, and how far apart they ended."""

    path: Path
    folders: tuple[Path, ...]
    metric: str
    values: tuple[float, ...]  # of the best weights of each; of the last ones, where nothing was held out

    @property
    def spread(self) -> Spread:
        return spread(self.values)

    def runs(self, *, device: str = "auto", verify: bool = True) -> list[Run]:
        return [load(folder, device=device, verify=verify) for folder in self.folders]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A seed, its folder, and the settings that are stored there if its run is to go on."""

    seed: int
    folder: RunFolder
    stored: Config | None


def train_seeds(
    task: TaskName,
    seeds: int,
    *,
    preset: str = "",
    config: str | Path | Config | None = None,
    options: Options | None = None,
    **settings: Any,
) -> Seeds:
    """Train `seeds` models that differ only in their seeds, counted from `seed`, each in OUT/seed-NUMBER.

    Everything else is said as to `train`. Small models are trained all at once, which costs little more than one.
    """
    how = {name: settings.pop(name) for name in Options.__dataclass_fields__ if name in settings}
    options = replace(options or Options(), **how)
    if not 1 <= seeds <= MAX_SEEDS:
        raise ConfigError(f"--seeds {format_value(seeds)}: give how many models to train, from 1 to {MAX_SEEDS}")
    asked = collect(task, preset, config, dotted(settings))
    out = out_folder(asked, options)
    first = build(asked).seed
    again = f" --seeds {seeds}" + (f" --seed {first}" if first else "")
    return _outcome(out, train_these(out, asked, range(first, first + seeds), options, again))


def train_these(out: Path, asked: Settings, seeds: Sequence[int], options: Options, again: str = "") -> list[Place]:
    """Train these seeds, each in OUT/seed-NUMBER, but for those that are done; one that diverges stops no other.

    `again` is what the user must say of seeds to go on with an interrupted command.
    """
    if options.resume and not out.is_dir():
        raise CheckpointError(f"{out}: nothing to resume: no such folder")
    with ExitStack() as held:
        notice = held.enter_context(RunFolder(out).locked(f"training {asked['task']} with several seeds"))
        if notice and not options.quiet:
            print_message(notice, options.progress)
        places = _claim(out, asked, seeds, options, held)
        _train_places(places, asked, options, out, again)
        for place in places:
            place.folder.drop_tokens()
    return places


def _train_places(places: Sequence[Place], asked: Settings, options: Options, out: Path, again: str) -> None:
    """Train those of the claimed folders that are not done."""
    todo = [place for place in places if place.stored is None or not place.folder.complete(place.stored)]
    if not todo:
        return
    stored = next((place.stored for place in places if place.stored), None)
    folders, command = [place.folder for place in places], resume_command(asked["task"], out, options.device, again)
    try:
        with handle_signals(out=options.progress, exit_message=lambda: stopped_at_once(folders, command)):
            _train(todo, stored or build(with_base(asked, verify=options.verify)), options, again)
    except KeyboardInterrupt:
        for folder in folders:
            folder.discard_if_unused()
        raise stopped_at_once(folders, command) from None


def _claim(out: Path, asked: Settings, seeds: Sequence[int], options: Options, held: ExitStack) -> list[Place]:
    """Lock the folder of every seed, until `held` is closed."""
    if (out / "config.toml").exists():
        raise CheckpointError(f"{out}: holds a single run; choose another --out for several seeds")
    if options.resume and not any((out / f"seed-{seed}" / "config.toml").exists() for seed in seeds):
        raise CheckpointError(f"{out}: nothing to resume: it holds none of the seeds {seeds[0]} to {seeds[-1]}")
    places = []
    for seed in seeds:
        folder = RunFolder(out / f"seed-{seed}", verify=options.verify)
        resume = options.resume and folder.config_file.exists()
        claim = claimed(folder, asked | {"seed": seed}, resume=resume, overwrite=options.overwrite)
        places.append(Place(seed=seed, folder=folder, stored=held.enter_context(claim)[0]))
    return places


def _train(places: Sequence[Place], common: Config, options: Options, again: str) -> None:
    """`common` is what all of them train with, their seeds aside; who joins later takes it from the others."""
    device = pick_device(options.device)
    lead = next((place for place in places if place.stored), places[0])  # it reads the data, for all
    config = lead.stored or replace(common, seed=lead.seed)
    older = [notice for place in places if place.stored for notice in place.folder.check_before_resume()]
    try:
        prepared = prepare(config, lead.folder, device, resume=lead.stored is not None)
        prepared = replace(prepared, notices=(*older, *prepared.notices))
    except (ConfigError, DataError):
        for place in places:
            place.folder.discard_if_unused()
        raise
    crew = Crew(prepared, lead, [lead, *(place for place in places if place is not lead)], options, again)
    resident = together(prepared.task, prepared.train, [place.seed for place in places])
    if resident is None:
        crew.one_by_one()
    else:
        crew.together(resident)


class Crew:
    """The seeds of one command: prepared once, trained together or one after another."""

    def __init__(
        self, prepared: Prepared, lead: Place, places: Sequence[Place], options: Options, again: str
    ) -> None:
        """`again` is what must be said of seeds to go on with this command: those that are done count too."""
        self.prepared, self.lead, self.places, self.options, self.again = prepared, lead, places, options, again
        self.config = prepared.task.config  # settled as far as it is the same for all

    def one_by_one(self) -> None:
        failures: dict[str, DivergedError] = {}
        for number, place in enumerate(self.places):
            if not self.options.quiet:
                print_message(f"seed {place.seed}:", self.options.progress)
            trainer = ready(self._of(place), place.folder, self.options, resume=bool(place.stored), kind=Trainer)
            announce(trainer, self.prepared.notices if number == 0 else (), self.options)
            try:
                trainer = fit(trainer, self.options)
            except DivergedError as failure:
                failures[place.folder.path.name] = failure
                told = {"event": "diverged", "step": trainer.progress.step, "text": str(failure)}
                MetricsFile(place.folder.metrics_file).hear(told)
                continue
            close(trainer, samples=place is self.lead)
            self._check_finished([trainer])
        self._check_failures(failures)

    def together(self, resident: Any) -> None:
        quiet = replace(self.options, quiet=True)
        members = [
            ready(self._of(place), place.folder, quiet, resume=bool(place.stored), kind=Member)
            for place in self.places
        ]
        self._say(members)
        for member in members:
            announce(member, self.prepared.notices, quiet)
        if not self.options.quiet:
            steps = max(member.max_steps for member in members)
            every, metric = members[0].eval_every, self.prepared.task.metric
            line = ProgressLine(steps, metric, self.options.progress, eval_every=every)
            chorus = Chorus(line)
            for member in members:
                if member.going:
                    member.listeners, member.display = [*member.listeners, chorus.voice()], line
        population = Population(members, resident)
        with handle_signals(population, self.options.progress):
            population.fit()
        for member in members:
            if member.failure is None:
                close(member, samples=member is members[0])
        self._check_finished([member for member in members if not member.failure])
        self._check_failures({member.folder.path.name: member.failure for member in members if member.failure})

    def _of(self, place: Place) -> Prepared:
        """What a seed trains: the common data, and a model with the weights it would have drawn alone."""
        if place is self.lead:
            return self.prepared
        torch.manual_seed(place.seed)
        config = place.stored or replace(self.config, seed=place.seed)
        task = TASKS[config.task].load(config, self.lead.folder.path)
        begin(task, place.folder, resume=bool(place.stored))
        task.model.to(self.prepared.task.device)
        return replace(self.prepared, task=task)

    def _say(self, members: Sequence[Member]) -> None:
        if self.options.quiet:
            return
        task, out = self.prepared.task, self.options.progress
        parameters, steps = sum(p.numel() for p in task.model.parameters()), max(each.max_steps for each in members)
        what = f"{len(members)} seeds of {parameters:,} parameters together on {task.device}"
        notices = (*self.prepared.notices, *early_stopping_notice(members[0]))
        for line in (*map(show_notice, notices), f"{task.name}: {what}, {steps} steps"):
            print_message(line, out)
        if begun := min(member.progress.step for member in members):
            print_message(f"going on from step {begun}", out)

    def _check_failures(self, failures: Mapping[str, DivergedError]) -> None:
        if failures:
            first = next(iter(failures.values()))
            names = ", ".join(failures)
            others = ", the others went on" if len(failures) < len(self.places) else ""
            raise DivergedError(f"{names} of {len(self.places)} diverged{others}: {first}")

    def _check_finished(self, trainers: Sequence[Trainer]) -> None:
        stopped = [trainer.progress.step for trainer in trainers if not trainer.progress.finished]
        if stopped:
            out = self.lead.folder.path.parent
            again = resume_command(self.config.task, out, self.options.device, self.again)
            raise interrupted(min(stopped), again)


def _outcome(out: Path, places: Sequence[Place]) -> Seeds:
    metric = TASKS[places[0].folder.read_config().task].metric
    values = [_best(place.folder, metric) for place in places]
    if None in values:
        metric, values = TRAINING_LOSS, [_last_loss(place.folder) for place in places]
    found = tuple(value for value in values if value is not None)
    return Seeds(path=out, folders=tuple(place.folder.path for place in places), metric=metric, values=found)


def _best(folder: RunFolder, metric: str) -> float | None:
    latest = folder.latest_checkpoint()
    best = folder.read_state(latest)["progress"]["best"] if latest else None
    return None if best is None else float(best[metric])


def _last_loss(folder: RunFolder) -> float:
    events = (json.loads(line) for line in folder.metrics_file.read_text(encoding="utf-8").splitlines())
    return [float(event["loss"]) for event in events if event["event"] == "train"][-1]
