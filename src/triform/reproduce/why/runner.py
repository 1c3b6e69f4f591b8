"""From data to outcome: each model tries how fast it learns and at which rate; then all seeds learn for as long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triform.data.files import digest
from triform.errors import ConfigError, DivergedError, InterruptedRun
from triform.formatting import print_message
from triform.io.locks import locked
from triform.launch import Options, train
from triform.reproduce import outcome as outcomes
from triform.reproduce.material import Material
from triform.reproduce.outcome import Outcome
from triform.reproduce.runner import Asked, mark
from triform.reproduce.why.equal import equal_width, parameters, seconds_of, sizes_of, steps_per_second
from triform.reproduce.why.parts import (
    KINDS,
    NAME,
    PARTS,
    PILOT_STEPS,
    QUICK,
    QUICK_STEPS,
    QUICK_VOCABULARY,
    RATES,
    WITHIN,
    Part,
)
from triform.reproduce.why.score import judged, plain
from triform.run import Run, load, pick_device
from triform.settings import Settings, flatten, overlay
from triform.tasks.generate import own_pieces
from triform.training.folder import RunFolder

if TYPE_CHECKING:
    import torch

LOG_EVERY = 5


def why_transformers(asked: Asked) -> Outcome:
    """Run the study; what was trained before under the same settings is not trained again."""
    if asked.setting != "both":
        raise ConfigError(f"--setting {asked.setting}: {NAME} has one setting of each model; leave it out")
    device = pick_device(asked.device)
    place = asked.out / (f"{NAME}-quick" if asked.quick else NAME)
    with locked(place, f"reproducing {NAME}") as notice:
        if notice:
            print_message(notice)
        return _run(asked, place, device)


def _run(asked: Asked, place: Path, device: torch.device) -> Outcome:
    outcome = outcomes.read(asked.kept, NAME) or {"format": outcomes.FORMAT, "system": NAME, "parts": {}}
    outcome["quick"] = asked.quick
    outcome.pop("notes", None)  # of figures that are made anew now
    for part in PARTS:
        material = Material.gather(part.system, asked.data, place / part.name / "data", quick=asked.quick)
        study = Study(part, material, asked, place / part.name)
        made = outcomes.circumstances(device, asked.command_of(NAME))
        found = {"made": made, "data": {name: digest(str(path)) for name, path in material.files.items()}}
        try:
            outcome["parts"][part.name] = found | study.run()
        except (InterruptedRun, KeyboardInterrupt):  # while training, or while scoring
            again = asked.command_of(NAME, whole=True)
            raise InterruptedRun(f"stopped; what was saved is kept; go on with: {again}") from None
        outcomes.write(asked.kept, outcome)
    return outcome


class Study:
    """One part of it."""

    def __init__(self, part: Part, material: Material, asked: Asked, place: Path) -> None:
        self.part, self.material, self.asked, self.place = part, material, asked, place
        files = {name: file for name, file in part.system.files.items() if "valid" not in name}  # none is looked at
        self.places: Settings = {setting: material.path(name) for setting, name in files.items()}

    def run(self) -> dict[str, Any]:
        settings = self.settings("transformer")
        pilot = self._pilot("transformer", settings)
        sizes, whole = sizes_of(pilot.config), {"task": self.part.system.task}
        wanted = parameters(_shape(pilot) | whole, sizes)
        models = {"transformer": (settings, pilot)}
        own = self.settings("lstm")
        own["model.d_model"] = equal_width(own | whole, sizes, wanted)
        models["lstm"] = own, self._pilot("lstm", own)
        found = parameters(own | whole, sizes)
        if abs(found - wanted) > WITHIN * wanted and not self.asked.quick:
            raise ConfigError(f"{NAME}, {self.part.name}: {found:,} parameters are not within 2 % of {wanted:,}")
        return {"seconds": self.part.seconds, "variants": [self._learn(kind, *models[kind]) for kind in KINDS]}

    def settings(self, kind: str) -> Settings:
        settings = self.part.settings(kind)
        if self.asked.quick:
            settings = overlay(settings, {**QUICK[kind], "data.max_len": 24})
            if settings["tokenizer.kind"] == "bpe":
                settings["tokenizer.vocab_size"] = QUICK_VOCABULARY
        return overlay(settings, self.places)

    def _pilot(self, kind: str, settings: Settings) -> Run:
        """A short run that shows the rate, and the sizes of the data."""
        print_message(f"{NAME}, {self.part.name}: how fast does the {kind} learn?")
        return self._trained(f"pilot-{kind}", settings, QUICK_STEPS if self.asked.quick else PILOT_STEPS, seed=0)

    def _learn(self, kind: str, settings: Settings, pilot: Run) -> dict[str, Any]:
        rate = steps_per_second(_heard(pilot))
        steps = QUICK_STEPS if self.asked.quick else max(2 * LOG_EVERY, round(self.part.seconds * rate))
        tries = self._tries(kind, settings, steps, pilot)
        settings = {**settings, "train.lr": best_rate(tries)}
        seeds = self.asked.seeds or (2 if self.asked.quick else self.part.seeds)
        print_message(f"{NAME}, {self.part.name}: {kind}, {rate:.1f} steps/s, so {steps} steps; {seeds} seeds")
        runs = []
        for seed in range(seeds):
            run = self._trained(kind, settings, steps, seed)
            heard = _heard(run)
            runs.append(
                {
                    "seed": seed,
                    "steps": steps,
                    "epochs": next(event["epoch"] for event in reversed(heard) if event["event"] == "train"),
                    "seconds": seconds_of(heard),
                    "steps_per_s": steps_per_second(heard),
                    "scores": plain(judged(run, self.part, self.material)),
                }
            )
        return {
            "name": kind,
            "settings": {name: value for name, value in settings.items() if name not in self.places},
            "parameters": sum(each.numel() for each in pilot.task.model.parameters()),
            "vocabulary": pilot.config.tokenizer.vocab_size,
            "trained_in": _heard(pilot)[0]["precision"],
            "pilot_steps_per_s": rate,
            "tries": tries,
            "runs": runs,
        }

    def _tries(self, kind: str, settings: Settings, steps: int, pilot: Run) -> list[dict[str, Any]]:
        """The loss each rate ends with on a tenth of the training data, held out; nothing else is looked at."""
        held: Settings = {"data.valid_fraction": 0.1}
        if self.part.system.task == "generate":  # the end of its file judges, so it must not choose
            learned = self.material.folder / "learned.txt"
            text = "".join(piece.text for piece in own_pieces(pilot.config, held=False))
            learned.write_text(text, encoding="utf-8", newline="")
            held["data.train"] = str(learned.absolute())
        tries: list[dict[str, Any]] = []
        for rate in RATES[:2] if self.asked.quick else RATES:
            print_message(f"{NAME}, {self.part.name}: {kind}, {steps} steps at a rate of {rate:g}")
            try:
                run = self._trained(f"try-{kind}", overlay(settings, {**held, "train.lr": rate}), steps, seed=0)
            except DivergedError as error:
                print_message(str(error))
                found = {"loss": None}
            else:
                found = next(event for event in reversed(_heard(run)) if event["event"] == "valid")
            scores = {name: value for name, value in found.items() if name in ("loss", "accuracy", "bleu")}
            tries.append({"rate": rate, **scores})
        return tries

    def _trained(self, name: str, settings: Settings, steps: int, seed: int) -> Run:
        """A run of its own, not one of a population: how long it takes is what is compared."""
        every: Settings = {"train.max_steps": steps, "train.eval_every": steps, "train.checkpoint_every": steps}
        settings = overlay(settings, {**every, "train.log_every": 1 if self.asked.quick else LOG_EVERY})
        out = self.place / f"{name}-{mark(settings)}" / f"seed-{seed}"
        options = Options(out=str(out), resume=(out / "config.toml").exists(), device=self.asked.device)
        train(self.part.system.task, options=options, seed=seed, **settings)  # type: ignore[arg-type]
        return load(out, device=self.asked.device)


def best_rate(tries: Sequence[Mapping[str, Any]]) -> float:
    """That of the lowest loss; the first of equals. A run that diverged has none."""
    ended = [each for each in tries if each["loss"] is not None]
    if not ended:
        raise DivergedError(f"{NAME}: a model diverged at every rate that was tried")
    return float(min(ended, key=lambda each: each["loss"])["rate"])


def _shape(run: Run) -> Settings:
    """The settings of a run's model, none of them open."""
    return {name: value for name, value in flatten(run.config).items() if name.startswith("model.")}


def _heard(run: Run) -> list[dict[str, Any]]:
    return outcomes.events(RunFolder(run.path).metrics_file)
