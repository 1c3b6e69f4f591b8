"""Run `why-transformers`: both models get the same training time, and each its best learning rate.

A pilot run measures how many steps a model takes per second, a short search finds its learning rate, and then every
seed is trained for the number of steps that fits the time budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.data import ExperimentData
from reproduce.options import ReproduceOptions
from reproduce.result_file import (
    FORMAT,
    ExperimentResult,
    read_result,
    write_result,
)
from reproduce.smoke import SMOKE_SEEDS, SMOKE_STEPS, smoke_model_settings
from reproduce.systems import WHY_TRANSFORMERS
from reproduce.why.comparison import ComparisonTask, ModelVariant, load_comparison_tasks
from reproduce.why.evaluation import evaluate_by_length
from reproduce.why.matching import (
    match_width,
    sizes_from_config,
    steps_per_second,
    total_parameters,
    training_seconds,
)
from triform.config.settings import Settings, flatten_config, merge_settings
from triform.device import resolve_device
from triform.errors import ConfigError, DivergedError
from triform.experiments.engine import (
    Evaluation,
    VariantResult,
    VariantSpec,
    experiment_folder,
    name_resume_command,
    run_variants,
    settings_hash,
)
from triform.experiments.search.record import environment_info
from triform.io.events import read_events
from triform.io.run_layout import METRICS_FILE
from triform.launch import resolve_settings
from triform.run import Run, load

PARAMETER_TOLERANCE = 0.02  # largest relative difference of the numbers of parameters
PILOT_STEPS = 120
LOG_EVERY = 5
EVAL_SET = "by length"  # all sets and length bins are evaluated at once
TRIAL_METRICS = ("loss", "accuracy", "bleu")


def why_transformers(options: ReproduceOptions) -> ExperimentResult:
    """Run the study. Runs that were trained before with the same settings are not trained again."""
    if options.variant != "both":
        raise ConfigError(
            f"--variant {options.variant}: {WHY_TRANSFORMERS} has no groups of variants; remove the option"
        )
    device = resolve_device(options.device)
    folder = options.experiment_folder(WHY_TRANSFORMERS)
    command = options.command(WHY_TRANSFORMERS, with_paths=True)
    with (
        name_resume_command(command),
        experiment_folder(folder, f"reproducing {WHY_TRANSFORMERS}", options.run_options),
    ):
        new_result: ExperimentResult = {"format": FORMAT, "system": WHY_TRANSFORMERS, "parts": {}}
        result = read_result(options.results_folder, WHY_TRANSFORMERS) or new_result
        result["quick"] = options.smoke
        result.pop("notes", None)  # notes are about the figures that are replaced now
        for comparison in load_comparison_tasks():
            data_folder = folder / comparison.name / "data"
            data = ExperimentData.prepare(comparison.system, options.data, data_folder, smoke=options.smoke)
            environment = environment_info(device, options.command(WHY_TRANSFORMERS))
            part_result = ComparisonRun(comparison, data, options, folder / comparison.name).run()
            result["parts"][comparison.name] = {"made": environment, "data": data.checksums()} | part_result
            write_result(options.results_folder, result)
        return result


class ComparisonRun:
    """Run one part of the study: both models on one task."""

    def __init__(
        self, comparison: ComparisonTask, data: ExperimentData, options: ReproduceOptions, folder: Path
    ) -> None:
        self.comparison, self.data, self.options, self.folder = comparison, data, options, folder
        self.title = f"{WHY_TRANSFORMERS}, {comparison.name}"
        self.task = comparison.system.task
        # validation files are not used: the learning rate is chosen on a part of the training data
        files = {name: file for name, file in comparison.system.files.items() if "valid" not in name}
        self.file_settings: Settings = {setting: data.resolve_path(name) for setting, name in files.items()}

    def run(self) -> dict[str, Any]:
        """Train the pilots, match the numbers of parameters, and train all seeds of both models."""
        models: dict[str, tuple[Settings, Run]] = {}
        for variant in self.comparison.variants:
            settings = self.settings(variant)
            if variant.match_parameters:
                settings["model.d_model"] = self._find_width(settings, models[variant.match_parameters][1])
            models[variant.name] = settings, self._run_pilot(variant.name, settings)
        return {
            "seconds": self.comparison.time_budget,
            "variants": [self._train_seeds(name, *model) for name, model in models.items()],
        }

    def settings(self, variant: ModelVariant) -> Settings:
        settings = variant.settings
        if self.options.smoke:
            settings = merge_settings(settings, smoke_model_settings(settings))
        return merge_settings(settings, self.file_settings)

    def _find_width(self, settings: Settings, reference: Run) -> int:
        """Return the width with which a model has as many parameters as the model of another pilot run."""
        sizes, task_setting = sizes_from_config(reference.config), {"task": self.task}
        target = total_parameters(_resolved_model_settings(reference) | task_setting, sizes)
        width = match_width(settings | task_setting, sizes, target)
        count = total_parameters(settings | task_setting | {"model.d_model": width}, sizes)
        if abs(count - target) > PARAMETER_TOLERANCE * target and not self.options.smoke:
            raise ConfigError(
                f"{self.title}: no width gives {target:,} parameters within 2 %; the closest has {count:,}"
            )
        return width

    def _run_pilot(self, kind: str, settings: Settings) -> Run:
        """Train a short run that shows the speed of a model and the sizes of the data."""
        title = f"{self.title}: measuring the speed of the {kind}"
        steps = SMOKE_STEPS if self.options.smoke else PILOT_STEPS
        [result] = self._run_variants([self._spec(f"pilot-{kind}", settings, steps, title)])
        _require_finished(result)
        return load(result.runs[0].folder.path, device=self.options.device)

    def _train_seeds(self, kind: str, settings: Settings, pilot: Run) -> dict[str, Any]:
        pilot_events = _read_run_events(pilot)
        rate = steps_per_second(pilot_events)
        steps = SMOKE_STEPS if self.options.smoke else max(2 * LOG_EVERY, round(self.comparison.time_budget * rate))
        trials = self._search_learning_rate(kind, settings, steps, pilot)
        settings = {**settings, "train.lr": best_learning_rate(trials)}
        seeds = self.options.seeds or (SMOKE_SEEDS if self.options.smoke else self.comparison.seeds)
        title = f"{self.title}: {kind}, {steps} steps at {rate:.1f} steps/s, {seeds} seeds"
        spec = self._spec(kind, settings, steps, title, seeds=seeds)
        evaluation = Evaluation(
            eval_sets={EVAL_SET: self.data.resolve_path(self.comparison.system.eval_files.get("test", ""))},
            evaluate=lambda run, *_: {"scores": evaluate_by_length(run, self.comparison, self.data)},
        )
        [result] = self._run_variants([spec], evaluation)
        _require_finished(result)
        return {
            "name": kind,
            "settings": {name: value for name, value in settings.items() if name not in self.file_settings},
            "parameters": sum(parameter.numel() for parameter in pilot.task.model.parameters()),
            "vocabulary": pilot.config.tokenizer.vocab_size,
            "trained_in": pilot_events[0]["precision"],
            "pilot_steps_per_s": rate,
            "tries": trials,
            "runs": [_describe_run(run.seed, steps, read_events(run.folder.metrics_file), run.evaluations[EVAL_SET])
                     for run in result.runs],
        }  # fmt: skip

    def _search_learning_rate(self, kind: str, settings: Settings, steps: int, pilot: Run) -> list[dict[str, Any]]:
        """Return the final loss of each learning rate on a held-out tenth of the training data."""
        validation_settings: Settings = {"data.valid_fraction": 0.1}
        if (
            self.task == "generate"
        ):  # the end of the file is the evaluation set and must not influence the learning rate
            train_file = self.data.folder / "learned.txt"
            text = "".join(piece.text for piece in pilot.task.data.training_examples())
            train_file.write_text(text, encoding="utf-8", newline="")
            validation_settings["data.train"] = str(train_file.absolute())
        rates = self.comparison.lr_grid[: 2 if self.options.smoke else None]
        specs = [
            self._spec(
                f"try-{kind}",
                merge_settings(settings, {**validation_settings, "train.lr": rate}),
                steps,
                f"{self.title}: {kind}, {steps} steps at a learning rate of {rate:g}",
            )
            for rate in rates
        ]
        return [
            {"rate": rate, **_trial_metrics(result)}
            for rate, result in zip(rates, self._run_variants(specs), strict=True)
        ]

    def _spec(self, name: str, settings: Settings, steps: int, title: str, *, seeds: int = 1) -> VariantSpec:
        step_settings: Settings = {
            "train.max_steps": steps,
            "train.eval_every": steps,
            "train.checkpoint_every": steps,
            "train.log_every": 1 if self.options.smoke else LOG_EVERY,
        }
        settings = merge_settings(settings, step_settings)
        return VariantSpec(
            name=f"{self.title}, {name}",
            settings=resolve_settings(self.task, "", None, settings),
            seeds=range(seeds),
            folder=self.folder / f"{name}-{settings_hash(settings)}",
            title=title,
        )

    def _run_variants(
        self, specs: Sequence[VariantSpec], evaluation: Evaluation | None = None
    ) -> list[VariantResult]:
        return list(run_variants(specs, evaluation or Evaluation(), self.options.run_options))


def best_learning_rate(trials: Sequence[Mapping[str, Any]]) -> float:
    """Return the learning rate with the lowest loss, or the first of several. A trial that diverged has no loss."""
    finished = [trial for trial in trials if trial["loss"] is not None]
    if not finished:
        raise DivergedError(f"{WHY_TRANSFORMERS}: a model diverged at every learning rate")
    return float(min(finished, key=lambda trial: trial["loss"])["rate"])


def _require_finished(result: VariantResult) -> None:
    if result.failure:
        raise DivergedError(f"{result.spec.name}: {result.failure}")


def _trial_metrics(result: VariantResult) -> dict[str, Any]:
    """Return the validation metrics at the end of a trial."""
    if result.failure:
        return {"loss": None}
    events = read_events(result.runs[0].folder.metrics_file)
    last_validation = next(event for event in reversed(events) if event["event"] == "valid")
    return {name: value for name, value in last_validation.items() if name in TRIAL_METRICS}


def _describe_run(
    seed: int, steps: int, events: Sequence[Mapping[str, Any]], evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "seed": seed,
        "steps": steps,
        "epochs": next(event["epoch"] for event in reversed(events) if event["event"] == "train"),
        "seconds": training_seconds(events),
        "steps_per_s": steps_per_second(events),
        "scores": evaluation["scores"],
    }


def _resolved_model_settings(run: Run) -> Settings:
    """Return the model settings of a run with all defaults resolved."""
    return {name: value for name, value in flatten_config(run.config).items() if name.startswith("model.")}


def _read_run_events(run: Run) -> list[dict[str, Any]]:
    return read_events(run.path / METRICS_FILE)
