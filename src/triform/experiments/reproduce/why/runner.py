"""From data to outcome: each model tries how fast it learns and at which rate; then all seeds learn for as long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triform.config.settings import Settings, flatten_config, merge_settings
from triform.data.files import content_sha256
from triform.errors import ConfigError, DivergedError, RunInterruptedError
from triform.experiments.reproduce import outcome as outcomes
from triform.experiments.reproduce.data import ExperimentData
from triform.experiments.reproduce.outcome import ExperimentResult
from triform.experiments.reproduce.runner import ReproduceOptions, settings_hash
from triform.experiments.reproduce.why.matching import (
    match_width,
    sizes_from_config,
    steps_per_second,
    total_parameters,
    training_seconds,
)
from triform.experiments.reproduce.why.parts import (
    COMPARISON_TASKS,
    LEARNING_RATES,
    MODEL_KINDS,
    PARAMETER_TOLERANCE,
    PILOT_STEPS,
    SMOKE_SETTINGS,
    SMOKE_STEPS,
    SMOKE_VOCAB_SIZE,
    STUDY_NAME,
    ComparisonTask,
)
from triform.experiments.reproduce.why.scoring import evaluate_by_length, to_floats
from triform.formatting import print_message
from triform.io.locks import folder_lock
from triform.launch import RunOptions, train
from triform.run import Run, load, resolve_device
from triform.tasks.generate import iter_split_pieces
from triform.training.run_folder import RunFolder

if TYPE_CHECKING:
    import torch

LOG_EVERY = 5


def why_transformers(options: ReproduceOptions) -> ExperimentResult:
    """Run the study; what was trained before under the same settings is not trained again."""
    if options.variant != "both":
        raise ConfigError(f"--variant {options.variant}: {STUDY_NAME} has one setting of each model; leave it out")
    device = resolve_device(options.device)
    folder = options.out / (f"{STUDY_NAME}-quick" if options.smoke else STUDY_NAME)
    with folder_lock(folder, f"reproducing {STUDY_NAME}") as notice:
        if notice:
            print_message(notice)
        return _run_tasks(options, folder, device)


def _run_tasks(options: ReproduceOptions, folder: Path, device: torch.device) -> ExperimentResult:
    result = outcomes.read_result(options.results_folder, STUDY_NAME) or {
        "format": outcomes.FORMAT,
        "system": STUDY_NAME,
        "parts": {},
    }
    result["quick"] = options.smoke
    result.pop("notes", None)  # of figures that are made anew now
    for comparison in COMPARISON_TASKS:
        data = ExperimentData.prepare(
            comparison.system, options.data, folder / comparison.name / "data", smoke=options.smoke
        )
        comparison_run = ComparisonRun(comparison, data, options, folder / comparison.name)
        environment = outcomes.environment_info(device, options.command_for(STUDY_NAME))
        metadata = {
            "made": environment,
            "data": {name: content_sha256(str(path)) for name, path in data.files.items()},
        }
        try:
            result["parts"][comparison.name] = metadata | comparison_run.run()
        except (RunInterruptedError, KeyboardInterrupt):  # while training, or while scoring
            resume_command = options.command_for(STUDY_NAME, with_paths=True)
            raise RunInterruptedError(f"stopped; what was saved is kept; go on with: {resume_command}") from None
        outcomes.write_result(options.results_folder, result)
    return result


class ComparisonRun:
    """One part of it."""

    def __init__(
        self, comparison: ComparisonTask, data: ExperimentData, options: ReproduceOptions, folder: Path
    ) -> None:
        self.comparison, self.data, self.options, self.folder = comparison, data, options, folder
        files = {
            name: file for name, file in comparison.system.files.items() if "valid" not in name
        }  # none is looked at
        self.file_settings: Settings = {setting: data.resolve_path(name) for setting, name in files.items()}

    def run(self) -> dict[str, Any]:
        settings = self.settings("transformer")
        pilot = self._run_pilot("transformer", settings)
        sizes, task_setting = sizes_from_config(pilot.config), {"task": self.comparison.system.task}
        target_count = total_parameters(_resolved_model_settings(pilot) | task_setting, sizes)
        models = {"transformer": (settings, pilot)}
        lstm_settings = self.settings("lstm")
        lstm_settings["model.d_model"] = match_width(lstm_settings | task_setting, sizes, target_count)
        models["lstm"] = lstm_settings, self._run_pilot("lstm", lstm_settings)
        lstm_count = total_parameters(lstm_settings | task_setting, sizes)
        if abs(lstm_count - target_count) > PARAMETER_TOLERANCE * target_count and not self.options.smoke:
            counts_text = f"{lstm_count:,} parameters are not within 2 % of {target_count:,}"
            raise ConfigError(f"{STUDY_NAME}, {self.comparison.name}: {counts_text}")
        return {
            "seconds": self.comparison.seconds,
            "variants": [self._train_seeds(kind, *models[kind]) for kind in MODEL_KINDS],
        }

    def settings(self, kind: str) -> Settings:
        settings = self.comparison.model_settings(kind)
        if self.options.smoke:
            settings = merge_settings(settings, {**SMOKE_SETTINGS[kind], "data.max_len": 24})
            if settings["tokenizer.kind"] == "bpe":
                settings["tokenizer.vocab_size"] = SMOKE_VOCAB_SIZE
        return merge_settings(settings, self.file_settings)

    def _run_pilot(self, kind: str, settings: Settings) -> Run:
        """A short run that shows the rate, and the sizes of the data."""
        print_message(f"{STUDY_NAME}, {self.comparison.name}: how fast does the {kind} learn?")
        return self._train_run(
            f"pilot-{kind}", settings, SMOKE_STEPS if self.options.smoke else PILOT_STEPS, seed=0
        )

    def _train_seeds(self, kind: str, settings: Settings, pilot: Run) -> dict[str, Any]:
        rate = steps_per_second(_read_run_events(pilot))
        steps = SMOKE_STEPS if self.options.smoke else max(2 * LOG_EVERY, round(self.comparison.seconds * rate))
        trials = self._search_learning_rate(kind, settings, steps, pilot)
        settings = {**settings, "train.lr": best_learning_rate(trials)}
        seeds = self.options.seeds or (2 if self.options.smoke else self.comparison.seeds)
        print_message(
            f"{STUDY_NAME}, {self.comparison.name}: {kind}, {rate:.1f} steps/s, so {steps} steps; {seeds} seeds"
        )
        runs = []
        for seed in range(seeds):
            run = self._train_run(kind, settings, steps, seed)
            events = _read_run_events(run)
            runs.append(
                {
                    "seed": seed,
                    "steps": steps,
                    "epochs": next(event["epoch"] for event in reversed(events) if event["event"] == "train"),
                    "seconds": training_seconds(events),
                    "steps_per_s": steps_per_second(events),
                    "scores": to_floats(evaluate_by_length(run, self.comparison, self.data)),
                }
            )
        return {
            "name": kind,
            "settings": {name: value for name, value in settings.items() if name not in self.file_settings},
            "parameters": sum(parameter.numel() for parameter in pilot.task.model.parameters()),
            "vocabulary": pilot.config.tokenizer.vocab_size,
            "trained_in": _read_run_events(pilot)[0]["precision"],
            "pilot_steps_per_s": rate,
            "tries": trials,
            "runs": runs,
        }

    def _search_learning_rate(self, kind: str, settings: Settings, steps: int, pilot: Run) -> list[dict[str, Any]]:
        """The loss each rate ends with on a tenth of the training data, held out; nothing else is looked at."""
        validation_settings: Settings = {"data.valid_fraction": 0.1}
        if self.comparison.system.task == "generate":  # the end of its file judges, so it must not choose
            train_file = self.data.folder / "learned.txt"
            text = "".join(piece.text for piece in iter_split_pieces(pilot.config, held_out=False))
            train_file.write_text(text, encoding="utf-8", newline="")
            validation_settings["data.train"] = str(train_file.absolute())
        trials: list[dict[str, Any]] = []
        for rate in LEARNING_RATES[:2] if self.options.smoke else LEARNING_RATES:
            print_message(f"{STUDY_NAME}, {self.comparison.name}: {kind}, {steps} steps at a rate of {rate:g}")
            try:
                run = self._train_run(
                    f"try-{kind}",
                    merge_settings(settings, {**validation_settings, "train.lr": rate}),
                    steps,
                    seed=0,
                )
            except DivergedError as error:
                print_message(str(error))
                validation_event = {"loss": None}
            else:
                validation_event = next(
                    event for event in reversed(_read_run_events(run)) if event["event"] == "valid"
                )
            metrics = {
                name: value for name, value in validation_event.items() if name in ("loss", "accuracy", "bleu")
            }
            trials.append({"rate": rate, **metrics})
        return trials

    def _train_run(self, name: str, settings: Settings, steps: int, seed: int) -> Run:
        """A run of its own, not one of a population: how long it takes is what is compared."""
        step_settings: Settings = {
            "train.max_steps": steps,
            "train.eval_every": steps,
            "train.checkpoint_every": steps,
        }
        settings = merge_settings(
            settings, {**step_settings, "train.log_every": 1 if self.options.smoke else LOG_EVERY}
        )
        out = self.folder / f"{name}-{settings_hash(settings)}" / f"seed-{seed}"
        train_options = RunOptions(out=str(out), resume=(out / "config.toml").exists(), device=self.options.device)
        train(self.comparison.system.task, options=train_options, seed=seed, **settings)  # type: ignore[arg-type]
        return load(out, device=self.options.device)


def best_learning_rate(trials: Sequence[Mapping[str, Any]]) -> float:
    """That of the lowest loss; the first of equals. A run that diverged has none."""
    finished = [trial for trial in trials if trial["loss"] is not None]
    if not finished:
        raise DivergedError(f"{STUDY_NAME}: a model diverged at every rate that was tried")
    return float(min(finished, key=lambda trial: trial["loss"])["rate"])


def _resolved_model_settings(run: Run) -> Settings:
    """The settings of a run's model, none of them open."""
    return {name: value for name, value in flatten_config(run.config).items() if name.startswith("model.")}


def _read_run_events(run: Run) -> list[dict[str, Any]]:
    return outcomes.read_events(RunFolder(run.path).metrics_file)
