"""The length of training: the number of steps, early stopping, and extending a run that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from triform.config import Config
from triform.config.settings import SettingValue, build_config, leaves_choice
from triform.errors import ConfigError
from triform.io.run_layout import REPORT_FILE
from triform.tasks.defaults import resolve_patience, resolve_step_defaults
from triform.tasks.task import PreparedTask
from triform.training.epochs import is_validation_step, steps_for_epochs, steps_per_validation
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer

LENGTH_SETTINGS = ("train.max_steps", "train.epochs", "train.patience")  # may be raised on a resume
RESUME_SETTINGS = (*LENGTH_SETTINGS, "train.parallel")  # may be changed on a resume
DECAYING_SCHEDULES = ("cosine", "linear")  # schedules that end where training ends


def resolve_length(prepared: PreparedTask) -> Config:
    """Return the settings with defaults that depend on the number of steps."""
    config = resolve_step_defaults(prepared.task.config, count_steps(prepared.task.config, prepared))
    batches_per_epoch = prepared.train.sampler(config.train, config.seed).steps_per_epoch
    steps_per_epoch = batches_per_epoch / config.train.grad_accumulation
    n_valid = 0 if prepared.valid is None else len(prepared.valid)
    return resolve_patience(
        config, n_valid, ceil(steps_per_epoch / steps_per_validation(config.train, batches_per_epoch))
    )


def count_steps(config: Config, prepared: PreparedTask) -> int:
    """Return the number of steps that follows from the settings and the data."""
    steps_per_epoch = prepared.train.sampler(config.train, config.seed).steps_per_epoch
    return config.train.max_steps or steps_for_epochs(
        config.train.epochs, steps_per_epoch, config.train.grad_accumulation
    )


def format_early_stopping_notice(trainer: Trainer) -> list[str]:
    """Return a notice if training may stop before its last step."""
    train = trainer.config
    if (
        train.patience <= 0
        or trainer.valid_data is None
        or train.patience * trainer.eval_every >= trainer.max_steps
    ):
        return []
    criterion = "a better metric or a lower loss" if trainer.task.lower_loss_is_progress else "a better metric"
    return [f"training stops early after {train.patience} validations without {criterion} (train.patience)"]


# -- extending a run


def apply_length(stored: Config, requested: Mapping[str, SettingValue]) -> Config:
    """Return a run's settings with those of `RESUME_SETTINGS` that a resume requests."""
    if stored.train.max_minutes and "train.max_minutes" in requested:  # the same command was repeated
        return stored
    overrides = {
        name: requested[name]
        for name in RESUME_SETTINGS
        if name in requested and not leaves_choice(name, requested[name])
    }
    if "train.max_steps" in overrides:
        overrides["train.epochs"] = 0.0
    elif "train.epochs" in overrides:
        overrides["train.max_steps"] = 0
    return build_config(overrides, stored)


def extend_run(folder: RunFolder, prepared: PreparedTask) -> list[str]:
    """Write the settings of a resumed run that trains for longer, and return notices for the user.

    Raises:
        ConfigError: The settings would make the run shorter.
    """
    new, old = prepared.task.config, folder.read_config()
    if new == old:
        return []
    steps, old_steps = (count_steps(config, prepared) for config in (new, old))
    patience, old_patience = new.train.patience, old.train.patience
    if steps < old_steps or (patience and not 0 < old_patience <= patience):
        changes = "; ".join(_format_changes(old, new))
        raise ConfigError(
            f"{folder.path}: --resume can make training longer, not shorter: {changes}; "
            "remove the setting, or choose another --out"
        )
    notices = [f"the run is trained for {steps} steps instead of {old_steps}"] if steps > old_steps else []
    if steps > old_steps and new.train.schedule in DECAYING_SCHEDULES:
        notices.append(
            f"the {new.train.schedule} schedule is computed again for {steps} steps, so the result differs from "
            "that of a run with as many steps from the start"
        )
    elif (
        steps > old_steps
        and not is_validation_step(
            old_steps, new.train, prepared.train.sampler(new.train, new.seed).steps_per_epoch
        )
        and folder.is_finished()
        and prepared.valid is not None
    ):
        notices.append(
            f"the run was also validated at step {old_steps}, where it ended, so the best weights may differ from "
            "those of a run with as many steps from the start"
        )
    (folder.path / REPORT_FILE).unlink(missing_ok=True)  # first, so that the run no longer counts as complete
    folder.write_config(new)
    return notices


def _format_changes(old: Config, new: Config) -> list[str]:
    names = [name.partition(".")[2] for name in LENGTH_SETTINGS]
    pairs = [(name, getattr(new.train, name), getattr(old.train, name)) for name in names]
    return [
        f"train.{name}: {value} (the run has {old_value})" for name, value, old_value in pairs if value != old_value
    ]


def format_stopped_early_notice(trainer: Trainer) -> list[str]:
    """Return a notice if a run had stopped early, so that more steps do not make it continue."""
    progress = trainer.progress
    if progress.finished != "patience" or progress.step >= trainer.max_steps:
        return []
    message = f"the run stopped early at step {progress.step}, after {progress.stale} validations without progress"
    return [f"{message}, and would also stop with more steps; to continue, add --set train.patience=0"]
