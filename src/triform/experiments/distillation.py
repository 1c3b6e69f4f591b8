"""Distillation: train one model on the outputs of an ensemble, or of any other run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from triform.config import Config
from triform.config.merging import flatten_settings
from triform.config.settings import Settings, flatten_config, merge_settings
from triform.errors import ConfigError
from triform.io.ensembles import RunPath, find_member_folders, join_run_paths
from triform.io.run_layout import CONFIG_FILE
from triform.launch import RunOptions, train
from triform.run import Run
from triform.tasks.learned_tokenizers import has_two_tokenizers
from triform.training.run_folder import RunFolder

# Settings that are chosen from the number of steps.
STEP_SETTINGS = tuple(
    f"train.{name}" for name in ("warmup_steps", "eval_every", "checkpoint_every", "log_every", "patience")
)

REFIT_CONDITIONS = ("data.valid", "data.valid_fraction", "model.term_buckets")  # of train.refit_linear_part


def distill(teacher: RunPath, *, options: RunOptions | None = None, **settings: Any) -> Run:
    """Train one model on the outputs of an ensemble, and return its run.

    The loss of each prediction is `train.distill_weight` times the divergence from the probabilities of the teacher
    (Hinton et al., 2015), plus the rest times the usual loss of the label or the token.

    Args:
        teacher: The folder of `triform train --seeds`, a run folder, or a list of run folders.
        options: How to run; `out`, `resume`, `overwrite`, `device`, `verify`, `progress`, `quiet`, `callbacks` and
            `track` can also be given as keyword arguments.
        **settings: Settings as for `triform.train`; `data` and `valid` are files. The others are those of the first
            run of the teacher, or of the student if it is resumed.

    Raises:
        CheckpointError: The teacher cannot be read.
        ConfigError: A setting is unknown or invalid, or does not fit the teacher, or neither the teacher nor the
            settings name training data.

    Example:
        >>> from pathlib import Path
        >>> import triform
        >>> _ = Path("rows.tsv").write_text("a good film\\tyes\\na bad film\\tno\\n" * 20)
        >>> tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
        >>> shared = {"device": "cpu", "quiet": True}
        >>> _ = triform.train_seeds(
        ...     "classify", 2, data="rows.tsv", out="two", model=tiny, train={"max_steps": 2}, **shared
        ... )
        >>> student = triform.distill("two", out="one", **shared)
        >>> Path(student.config.train.distill_from).name
        'two'
    """
    option_values = {name: settings.pop(name) for name in RunOptions.__dataclass_fields__ if name in settings}
    options = replace(options or RunOptions(), **option_values)
    path = join_run_paths(teacher)
    folder = find_member_folders(path)[0]
    config = RunFolder(folder, verify=options.verify).read_config()
    requested = flatten_settings(settings)
    is_resumed = options.resume and bool(options.out) and (Path(options.out) / CONFIG_FILE).exists()
    inherited = {} if is_resumed else inherit_settings(config, folder, requested)
    merged: dict[str, Any] = merge_settings(inherited, requested | {"train.distill_from": str(path)})
    return train(config.task, options=options, **merged)


def inherit_settings(config: Config, folder: Path, requested: Settings) -> Settings:
    """Return the settings of a teacher's run for its student, with its tokenizer.

    R-Drop, which cannot be combined with distillation, is left out. So is refitting the linear part if a setting is
    requested that decides whether it is possible. If the student is trained for another number of
    steps, what follows from that number is chosen again.

    Raises:
        ConfigError: The teacher has no training data, and none is requested.
    """
    if not (config.data.train or config.data.source or requested.keys() & {"data.train", "data.source"}):
        raise ConfigError(f"{folder} is an imported model without training data; give the data to train on")
    settings = {
        name: value for name, value in flatten_config(config).items() if name not in ("task", "train.r_drop")
    }
    if not config.train.init_from:  # otherwise the student starts from the same base, which has the tokenizer
        file = folder / "tokenizer.json"
        settings["tokenizer.file"] = str((folder if has_two_tokenizers(str(folder)) else file).absolute())
    if not requested.keys().isdisjoint(REFIT_CONDITIONS):
        settings.pop("train.refit_linear_part")
    if not requested.keys().isdisjoint(("train.max_steps", "train.epochs", "train.max_minutes")):
        settings = {name: value for name, value in settings.items() if name not in STEP_SETTINGS}
    return settings
