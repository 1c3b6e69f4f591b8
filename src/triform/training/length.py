"""How long a run trains: its steps, when it stops early, and how a run that has ended is trained longer."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from triform.config import Config
from triform.errors import ConfigError
from triform.settings import DEFAULTS, Value, build
from triform.tasks.defaults import settle_patience, settle_steps
from triform.tasks.task import Prepared
from triform.training.folder import RunFolder
from triform.training.trainer import Trainer, steps_in

LENGTH_SETTINGS = ("train.max_steps", "train.epochs", "train.patience")  # may be raised on a resume
DECAYING_SCHEDULES = ("cosine", "linear")  # schedules that end where training ends


def settle_length(prepared: Prepared) -> None:
    """Choose the settings that are still open: they depend on the number of steps, which the batches decide."""
    config = settle_steps(prepared.task.config, steps_of(prepared.task.config, prepared))
    epoch = prepared.train.sampler(config.train, config.seed).steps_per_epoch / config.train.accumulate
    n_valid = 0 if prepared.valid is None else len(prepared.valid)
    prepared.task.config = settle_patience(config, n_valid, ceil(epoch / config.train.eval_every))


def steps_of(config: Config, prepared: Prepared) -> int:
    """How many steps the settings come to with this data."""
    per_epoch = prepared.train.sampler(config.train, config.seed).steps_per_epoch
    return config.train.max_steps or steps_in(config.train.epochs, per_epoch, config.train.accumulate)


def early_stopping_notice(trainer: Trainer) -> list[str]:
    """When training may end before its last step, if it may."""
    train = trainer.config
    if train.patience <= 0 or trainer.valid_data is None or train.patience * train.eval_every >= trainer.max_steps:
        return []
    progress = "a better score or a lower loss" if trainer.task.lower_loss_is_progress else "a better score"
    return [f"training stops early after {train.patience} validations without {progress} (train.patience)"]


# -- longer than before


def with_length(stored: Config, asked: Mapping[str, Value]) -> Config:
    """A run's settings with the length that is asked for on a resume; what is left open stays as it is."""
    if stored.train.max_minutes and "train.max_minutes" in asked:  # as the command said before
        return stored
    given = {name: asked[name] for name in LENGTH_SETTINGS if asked.get(name, DEFAULTS[name]) != DEFAULTS[name]}
    if "train.max_steps" in given:
        given["train.epochs"] = 0.0
    elif "train.epochs" in given:
        given["train.max_steps"] = 0
    return build(given, stored)


def lengthen(folder: RunFolder, prepared: Prepared) -> list[str]:
    """Make a resumed run as long as its settings now say, and return notices for the user.

    Raises:
        ConfigError: The settings would make it shorter.
    """
    new, old = prepared.task.config, folder.read_config()
    if new == old:
        return []
    steps, before = (steps_of(config, prepared) for config in (new, old))
    patience, old_patience = new.train.patience, old.train.patience
    if steps < before or (patience and not 0 < old_patience <= patience):
        changes = "; ".join(_changes(old, new))
        raise ConfigError(
            f"{folder.path}: --resume can train a run longer, not shorter: {changes}; "
            "leave the setting out, or choose another --out"
        )
    notices = [f"the run is trained for {steps} steps instead of {before}"] if steps > before else []
    if steps > before and new.train.schedule in DECAYING_SCHEDULES:
        notices.append(
            f"the decay of the {new.train.schedule} schedule is computed again for {steps} steps: the result is "
            "not the same as that of having trained so long from the start"
        )
    elif steps > before and before % new.train.eval_every and folder.finished() and prepared.valid is not None:
        notices.append(
            f"the run was also validated at step {before}, where it ended: the best weights may differ from those "
            "of having trained so long from the start"
        )
    (folder.path / "report.html").unlink(missing_ok=True)  # first: a run without one is not taken for complete
    folder.write_config(new)
    return notices


def _changes(old: Config, new: Config) -> list[str]:
    names = [name.partition(".")[2] for name in LENGTH_SETTINGS]
    pairs = [(name, getattr(new.train, name), getattr(old.train, name)) for name in names]
    return [f"train.{name}: {value} (the run has {before})" for name, value, before in pairs if value != before]


def stopped_early_notice(trainer: Trainer) -> list[str]:
    """Why a run that has ended does not go on, where more steps were asked for."""
    progress = trainer.progress
    if progress.finished != "patience" or progress.step >= trainer.max_steps:
        return []
    when = f"the run stopped early at step {progress.step}, after {progress.stale} validations without progress"
    return [f"{when}, and would do so with more steps too; to train it on, add --set train.patience=0"]
