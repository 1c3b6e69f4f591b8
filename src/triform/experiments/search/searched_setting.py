"""One setting of a search: the values that it may have, and when it is searched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from triform.config.bounds import BOUNDS, format_value, validate_bound
from triform.config.settings import (
    SETTING_TYPES,
    Settings,
    SettingValue,
    coerce_setting,
    format_setting,
    split_number_or_word,
    unknown_setting_error,
)
from triform.errors import ConfigError
from triform.experiments.study.plan import require_known_keys

if TYPE_CHECKING:
    from optuna.trial import Trial

RANGE_KEYS = ("low", "high", "log", "step", "when")
CHOICE_KEYS = ("choices", "when")
MAX_GRID_VALUES = 10_000  # of one setting


@dataclass(frozen=True, kw_only=True)
class SearchedSetting:
    """A setting with choices, or with a range of numbers.

    Args:
        name: The dotted name of the setting.
        choices: The values, if they are listed.
        low: The smallest number of a range.
        high: The largest number of a range.
        log: Whether the logarithm of the number is distributed evenly.
        step: The distance between two numbers; None: any number of the range.
        conditions: The values of other settings with which this one is searched. Otherwise it keeps its default.
    """

    name: str
    choices: tuple[SettingValue, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    conditions: Mapping[str, tuple[SettingValue, ...]] = field(default_factory=dict)

    def is_active(self, values: Settings) -> bool:
        """Return whether the setting is searched, with these values of the settings before it."""
        return all(values.get(name) in allowed for name, allowed in self.conditions.items())

    def suggest(self, trial: Trial) -> SettingValue:
        """Let the sampler of a trial choose a value."""
        if self.choices:  # a storage keeps no lists, so these are text there
            labels = [format_setting(value) if isinstance(value, tuple) else value for value in self.choices]
            return coerce_setting(self.name, trial.suggest_categorical(self.name, labels))
        if isinstance(self.low, int):
            return trial.suggest_int(self.name, self.low, int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)

    def grid_values(self) -> list[Any]:
        """Return all values, in the form in which the sampler of a grid needs them.

        Raises:
            ConfigError: The setting has a continuous range.
        """
        if self.choices:
            return [format_setting(value) if isinstance(value, tuple) else value for value in self.choices]
        step = self.step or (1 if isinstance(self.low, int) and not self.log else 0)
        if not step:
            raise ConfigError(
                f"{self.name}: a grid needs a list of choices, or a range with a step; "
                'or search with sampler = "tpe" or "random"'
            )
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > MAX_GRID_VALUES:
            raise ConfigError(f"{self.name}: a grid of {count:,} values is too large; use a larger step")
        return [round(self.low + index * step, 12) for index in range(count)]

    def describe(self) -> str:
        """Return the values in words."""
        if self.choices:
            text = ", ".join(map(format_setting, self.choices))
        else:
            log_text = ", logarithmic" if self.log else ""
            step_text = f", step {self.step:g}" if self.step else ""
            text = f"{self.low:g} to {self.high:g}{log_text}{step_text}"
        conditions = [f"{name} is {' or '.join(map(format_setting, v))}" for name, v in self.conditions.items()]
        return f"{text}, if {' and '.join(conditions)}" if conditions else text


def parse_searched_settings(table: Mapping[str, Any], origin: str) -> tuple[SearchedSetting, ...]:
    """Return the settings of a `[space]` table, in the order of the file.

    Raises:
        ConfigError: A setting is unknown, or its values are not valid.
    """
    searched: dict[str, SearchedSetting] = {}
    for name, entry in _flatten(table).items():
        try:
            searched[name] = _parse_setting(name, entry, searched)
        except ConfigError as error:
            raise ConfigError(f"{origin}: space: {error}") from None
    if not searched:
        raise ConfigError(f"{origin}: the table [space] is empty; write at least one setting, for example "
                          "train.lr = { low = 1e-4, high = 1e-2, log = true }")  # fmt: skip
    return tuple(searched.values())


def _flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries by dotted names: `train.lr = …` in TOML is a table `train` with the key `lr`."""
    entries: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and name not in SETTING_TYPES and "." not in name:
            entries |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            entries[name] = value
    return entries


def _parse_setting(name: str, entry: object, earlier: Mapping[str, SearchedSetting]) -> SearchedSetting:
    if name not in SETTING_TYPES:
        raise unknown_setting_error(name)
    if isinstance(entry, list):
        entry = {"choices": entry}
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"{name}={format_value(entry)} must be a list of choices, or a range such as {{ low = 1, high = 4 }}; "
            "a setting with one value belongs in [common]"
        )
    conditions = _parse_conditions(name, entry.get("when", {}), earlier)
    if "choices" in entry:
        require_known_keys(entry, CHOICE_KEYS, name, "a list of choices")
        return SearchedSetting(name=name, choices=_parse_choices(name, entry["choices"]), conditions=conditions)
    require_known_keys(entry, RANGE_KEYS, name, "a range")
    return _parse_range(name, entry, conditions)


def _parse_choices(name: str, values: object) -> tuple[SettingValue, ...]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{name}: the list of choices is empty; write at least one value")
    choices = tuple(_validated(name, value) for value in values)
    if len(set(choices)) < len(choices):
        raise ConfigError(f"{name}: a choice is listed twice: {', '.join(map(format_setting, choices))}")
    return choices


def _validated(name: str, value: object) -> SettingValue:
    coerced = coerce_setting(name, value)
    if name in BOUNDS:
        for number in coerced if isinstance(coerced, tuple) else (coerced,):
            if isinstance(number, int | float):
                validate_bound(name, number)
    return coerced


def _parse_range(
    name: str, entry: Mapping[str, Any], conditions: Mapping[str, tuple[SettingValue, ...]]
) -> SearchedSetting:
    number_type, _ = split_number_or_word(SETTING_TYPES[name])
    if number_type not in (int, float):
        raise ConfigError(f"{name} has no range, because it is not a number; write a list of choices")
    for key in ("low", "high"):
        if key not in entry:
            raise ConfigError(f"{name}: the range has no {key}; write {{ low = …, high = … }}")
    numbers = {key: _parse_number(name, key, entry[key]) for key in ("low", "high", "step") if key in entry}
    low, high, step, log = numbers["low"], numbers["high"], numbers.get("step"), entry.get("log", False)
    if low >= high:
        order = "is above" if low > high else "is"
        raise ConfigError(f"{name}: low = {low:g} {order} high = {high:g}; a range needs low below high")
    if not isinstance(log, bool):
        raise ConfigError(f"{name}: log={format_value(log)} must be true or false")
    if log and low <= 0:
        raise ConfigError(f"{name}: log = true needs a low above 0, not {low:g}")
    if step is not None and (log or not 0 < step <= high - low):
        reason = "cannot be used with log = true" if log else f"must be above 0 and at most {high - low:g}"
        raise ConfigError(f"{name}: step = {step:g} {reason}")
    if number_type is int and step is None and not log:
        step = 1
    return SearchedSetting(name=name, low=low, high=high, log=log, step=step, conditions=conditions)


def _parse_number(name: str, key: str, value: object) -> float:
    """Return a number of the type of the setting."""
    try:
        coerced = coerce_setting(name, value) if key == "step" else _validated(name, value)
    except ConfigError as error:
        raise ConfigError(f"{key} of {error}") from None
    if isinstance(value, str) or not isinstance(coerced, int | float):
        raise ConfigError(f"{key} of {name}={format_value(value)} must be a number")
    return coerced


def _parse_conditions(
    name: str, table: object, earlier: Mapping[str, SearchedSetting]
) -> dict[str, tuple[SettingValue, ...]]:
    """Return the values that other settings must have. They have to be searched earlier, with choices."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name}: when={format_value(table)} must be a table of settings and their values")
    conditions = {}
    for other, value in _flatten(table).items():
        if other not in earlier or not earlier[other].choices:
            raise ConfigError(f"{name}: when names {other}, which is not a setting with choices above {name}")
        values: Sequence[object] = value if isinstance(value, list) else [value]
        conditions[other] = tuple(coerce_setting(other, item) for item in values)
        if missing := [item for item in conditions[other] if item not in earlier[other].choices]:
            raise ConfigError(f"{name}: {other} never is {format_setting(missing[0])}, so when cannot be true")
    return conditions
