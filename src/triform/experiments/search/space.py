"""Read and validate the TOML file of a search before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from triform.config import TaskName
from triform.config.bounds import format_value
from triform.config.merging import DATA_FILE_SETTINGS
from triform.config.settings import Settings, coerce_setting, load_toml, merge_settings, suggest_name
from triform.errors import ConfigError
from triform.experiments.engine import JsonDict, describe_file, to_json_value
from triform.experiments.search.searched_setting import SearchedSetting, parse_searched_settings
from triform.experiments.study.plan import (
    PER_TOKEN_METRICS,
    TASK_METRICS,
    has_validation,
    parse_settings_table,
    require_known_keys,
    require_table,
    resolve_seeds,
    resolve_setting_files,
    validate_exists,
    validate_metric,
    validate_name,
    validate_task,
)
from triform.launch import resolve_settings

SamplerName = Literal["tpe", "random", "grid"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
SPACE_KEYS = (
    *("name", "task", "preset", "metric", "sampler", "trials", "seeds", "seed", "final_seeds"),
    *("common", "space", "constraints", "pruning"),
)
DEFAULT_TRIALS = 20
DEFAULT_FINAL_SEEDS = 6  # the fewest with which one comparison can be significant
MAX_TRIALS = 100_000
# Settings that change the rows or what is computed from them, so that scores could not be compared.
FIXED_SETTINGS = ("seed", "task", *DATA_FILE_SETTINGS, "data.monitor", "data.valid_fraction", "data.valid_name")


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """Successive halving: of the trials with so many validations, only the best fraction continues.

    Args:
        min_validations: After how many validations a trial can be stopped first.
        factor: One of `factor` trials continues; the next decision is after `factor` times as many validations.
    """

    min_validations: int = 1
    factor: int = 3


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """A search: what all settings have in common, the settings to search, and how to search them."""

    name: str
    task: TaskName
    metric: str
    sampler: SamplerName
    trials: int
    seeds: tuple[int, ...]  # of each setting
    final_seeds: tuple[int, ...]  # of the comparison with the default setting
    preset: str
    common: Settings
    searched: tuple[SearchedSetting, ...]
    max_parameters: int  # 0: no limit
    pruning: Pruning | None

    def resolve(self, values: Settings) -> Settings:
        """Return the complete settings of a trial; without values, those of the default setting.

        Raises:
            ConfigError: The values cannot be combined.
        """
        return resolve_settings(self.task, self.preset, None, merge_settings(self.common, values))

    def grid(self) -> dict[str, list[Any]]:
        """Return the values of every searched setting."""
        return {setting.name: setting.grid_values() for setting in self.searched}

    def grid_size(self) -> int:
        """Return the number of settings of a grid."""
        return prod(len(values) for values in self.grid().values())

    def describe(self) -> dict[str, object]:
        """Return what distinguishes this search from others, by name. Files are described by their content."""
        common: JsonDict = {name: to_json_value(value) for name, value in self.common.items()}
        common |= {name: describe_file(str(common[name])) for name in DATA_FILE_SETTINGS if common.get(name)}
        pruning = self.pruning
        return {
            "task": self.task,
            "metric": self.metric,
            "sampler": self.sampler,
            "preset": self.preset,
            "seed": self.seeds[0],
            "seeds": len(self.seeds),
            **{f"common.{name}": value for name, value in common.items()},
            **{f"space.{setting.name}": setting.describe() for setting in self.searched},
            "constraints.max_parameters": self.max_parameters,
            "pruning": f"after {pruning.min_validations} validations, 1 of {pruning.factor}" if pruning else "none",
        }


def read_space(path: Path, *, trials: int = 0, seeds: int = 0) -> SearchSpace:
    """Read a search space.

    Args:
        path: The TOML file. File names in it are relative to its folder.
        trials: Number of settings to try, instead of the number in the file.
        seeds: Number of seeds for each setting, instead of the number in the file.

    Raises:
        ConfigError: A key, setting or value is not valid, or the settings cannot be compared by the metric.
        DataError: A file does not exist.
    """
    spec, origin = {"name": path.stem} | load_toml(path), str(path)
    _refuse_test_data(spec, origin)
    require_known_keys(spec, SPACE_KEYS, origin, "a search space")
    task = validate_task(spec.get("task"), origin)
    first_seed, n_seeds = spec.get("seed", 0), seeds or spec.get("seeds", 1)
    n_final = spec.get("final_seeds", DEFAULT_FINAL_SEEDS)
    own_seeds = resolve_seeds(n_seeds, first_seed, origin)
    if type(n_final) is not int or n_final < 0:
        raise ConfigError(f"{origin}: final_seeds={format_value(n_final)} must be a number of seeds, or 0")
    location = f"{origin}: common"
    common_preset, common = parse_settings_table(spec.get("common", {}), location)
    space = SearchSpace(
        name=validate_name(spec["name"], f"{origin}: name"),
        task=task,
        metric=validate_metric(spec.get("metric", TASK_METRICS[task][0]), task, origin),
        sampler=_validate_sampler(spec.get("sampler", "tpe"), origin),
        trials=0,
        seeds=own_seeds,
        final_seeds=resolve_seeds(n_final, own_seeds[-1] + 1, origin) if n_final else (),
        preset=common_preset or spec.get("preset", ""),
        common=resolve_setting_files(common, task, path.absolute().parent),
        searched=parse_searched_settings(require_table(spec.get("space", {}), f"{origin}: space"), origin),
        max_parameters=_parse_counts(spec, "constraints", {"max_parameters": 0}, origin)["max_parameters"],
        pruning=_parse_pruning(spec, origin),
    )
    _validate_default(space, origin)
    _validate_comparable(space, origin)
    return replace(space, trials=_resolve_trials(space, trials or spec.get("trials"), origin))


def _refuse_test_data(spec: Mapping[str, Any], origin: str) -> None:
    if "tests" in spec:
        raise ConfigError(
            f"{origin}: a search must not see test data; remove [tests], and evaluate the model that you train "
            "with the best setting with `triform evaluate`"
        )


def _validate_sampler(sampler: object, origin: str) -> SamplerName:
    if sampler not in SAMPLERS:
        raise ConfigError(f"{origin}: sampler={format_value(sampler)}; {suggest_name(str(sampler), SAMPLERS)}")
    return sampler


def _parse_counts(
    spec: Mapping[str, Any], table_name: str, defaults: Mapping[str, int], origin: str
) -> dict[str, int]:
    """Return a table of positive numbers, with defaults for those that are missing."""
    table = require_table(spec.get(table_name, {}), f"{origin}: {table_name}")
    require_known_keys(table, tuple(defaults), f"{origin}: {table_name}", f"the table [{table_name}]")
    for name, value in table.items():
        if type(value) is not int or value < 1:
            raise ConfigError(
                f"{origin}: {table_name}.{name}={format_value(value)} must be a whole number of 1 or more"
            )
    return {**defaults, **table}


def _parse_pruning(spec: Mapping[str, Any], origin: str) -> Pruning | None:
    if "pruning" not in spec:
        return None
    counts = _parse_counts(spec, "pruning", {"min_validations": 1, "factor": 3}, origin)
    if counts["factor"] < 2:
        raise ConfigError(f"{origin}: pruning.factor=1 would stop no trial; use 2 or more")
    return Pruning(**counts)


def _validate_default(space: SearchSpace, origin: str) -> None:
    """Check the setting without any searched value, with which the best one is compared."""
    try:
        settings = space.resolve({})
    except ConfigError as error:
        raise ConfigError(f"{origin}: common: {error}") from None
    for name in DATA_FILE_SETTINGS:
        validate_exists(str(settings.get(name, "")), f"{origin}: common: {name}")
    if settings.get("data.monitor"):
        raise ConfigError(
            f"{origin}: common: data.monitor: a search evaluates only the validation data; remove data.monitor"
        )
    if not has_validation(settings):
        raise ConfigError(
            f"{origin}: common: a search needs validation data; set data.valid or data.valid_fraction"
        )


def _validate_comparable(space: SearchSpace, origin: str) -> None:
    """Raise `ConfigError` for searched settings with which scores of trials could not be compared."""
    for setting in space.searched:
        section, _, key = setting.name.partition(".")
        if setting.name in FIXED_SETTINGS:
            raise ConfigError(f"{origin}: space: {setting.name} must be equal for all trials; set it in [common]")
        if section == "decode":
            raise ConfigError(f"{origin}: space: {setting.name} has no effect on training; remove it from [space]")
        per_token = space.task != "classify" and space.metric in PER_TOKEN_METRICS
        if per_token and section == "tokenizer" and key != "bpe_dropout":
            suggested = "bits_per_byte" if space.task == "generate" else "bleu"
            raise ConfigError(
                f"{origin}: space: {setting.name} changes the vocabulary, so {space.metric} would not be the same "
                f'measure for all trials; search with metric = "{suggested}"'
            )


def _resolve_trials(space: SearchSpace, trials: object, origin: str) -> int:
    """Return the number of settings to try; all settings of a grid if no number is given."""
    if trials is not None and (type(trials) is not int or not 1 <= trials <= MAX_TRIALS):
        raise ConfigError(f"{origin}: trials={format_value(trials)} must be a number from 1 to {MAX_TRIALS:,}")
    if space.sampler != "grid":
        return trials or DEFAULT_TRIALS
    if conditional := [setting.name for setting in space.searched if setting.conditions]:
        raise ConfigError(f"{origin}: space: {conditional[0]}: a grid cannot have settings with `when`")
    try:
        size = space.grid_size()
    except ConfigError as error:
        raise ConfigError(f"{origin}: space: {error}") from None
    if size > MAX_TRIALS:
        raise ConfigError(f"{origin}: the grid has {size:,} settings; use fewer values or another sampler")
    return min(trials or size, size)


def trial_settings(parameters: Mapping[str, Any]) -> Settings:
    """Return the values of a stored trial as settings."""
    return {name: coerce_setting(name, value) for name, value in parameters.items()}
