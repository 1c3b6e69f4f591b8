"""Settings as dotted names: parsing, merging, reading and writing TOML, and hints for unknown names."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from triform.config import Config
from triform.config.bounds import format_value, shorten, validate_bound
from triform.errors import ConfigError, require_unicode

SettingValue = str | int | float | bool | tuple[str, ...] | tuple[float, ...]
Settings = dict[str, SettingValue]  # dotted name -> value, e.g. {"model.d_model": 64}


def _setting_types(config_class: type, prefix: str = "") -> dict[str, Any]:
    """Return the type of every setting by its dotted name."""
    types: dict[str, Any] = {}
    hints = get_type_hints(config_class)
    for name in (item.name for item in fields(config_class)):
        hint = hints[name]
        if is_dataclass(hint) and isinstance(hint, type):
            types |= _setting_types(hint, f"{prefix}{name}.")
        else:
            types[prefix + name] = hint
    return types


SETTING_TYPES = _setting_types(Config)


# Names that other libraries use for settings, where no similar spelling leads to ours.
SETTING_ALIASES = {
    "learning_rate": "train.lr",
    "hidden_size": "model.d_model",
    "embed_dim": "model.d_model",
    "block_size": "data.max_len",
    "context_length": "data.max_len",
    "num_beams": "decode.beam_size",
}


def unknown_setting_error(name: str, known_names: Iterable[str] = SETTING_TYPES) -> ConfigError:
    """Return the error for an unknown setting, with the nearest known name."""
    problem, key = f"unknown setting {format_value(name)}", name.rpartition(".")[2]
    nearest = SETTING_ALIASES.get(key) or find_nearest_name(name, known_names)
    hint = f"did you mean {nearest!r}?" if nearest else "run `triform settings` to see all settings"
    return ConfigError(f"{problem}; {hint}")


def suggest_name(name: str, known_names: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known name, or else all of them."""
    known_names = list(known_names)
    nearest = find_nearest_name(name, known_names)
    return f"did you mean {nearest!r}?" if nearest else f"known are {', '.join(known_names)}"


def find_nearest_name(name: str, known_names: Iterable[str]) -> str:
    """Return the known name that was most likely meant, or an empty string. The section may be wrong or missing."""
    known_names, key = list(known_names), name.rpartition(".")[2]
    names_by_key: dict[str, str] = {}
    for known in known_names:
        names_by_key.setdefault(known.rpartition(".")[2], known)
    if key in names_by_key:
        return names_by_key[key]
    close_keys = [] if "." in name else difflib.get_close_matches(key, names_by_key, n=1, cutoff=0.75)
    matches = [names_by_key[close] for close in close_keys]
    matches = matches or difflib.get_close_matches(name, known_names, n=1, cutoff=0.6)
    return matches[0] if matches else ""


def split_number_or_word(hint: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the type of a setting, and the words that it accepts beside numbers: `int | Literal["epoch"]`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, ()
    number_type, literal = get_args(hint)
    return number_type, get_args(literal)


def coerce_setting(name: str, value: object) -> SettingValue:
    """Convert a value to the type of a setting.

    Args:
        name: The dotted name of the setting.
        value: Text, as in `--set`, is parsed. Any other value must have the right type already.

    Raises:
        ConfigError: The setting is unknown, or the value does not fit it.
    """
    if name not in SETTING_TYPES:
        raise unknown_setting_error(name)
    hint, words = split_number_or_word(SETTING_TYPES[name])
    if value in words:
        return str(value)
    if get_origin(hint) is Literal:
        return _coerce_choice(name, value, get_args(hint))
    if get_origin(hint) is tuple:
        if isinstance(value, str):  # 8,-1 or, as in TOML, [8, -1]
            inner = value.strip()
            inner = inner[1:-1] if inner.startswith("[") and inner.endswith("]") else inner
            value = [part for part in inner.split(",") if part.strip()]
        parts = value
        if not isinstance(parts, list | tuple):
            raise ConfigError(f"{name}={format_value(value)} must be a list")
        item_type = get_args(hint)[0]
        stripped = [part.strip() if isinstance(part, str) else part for part in parts]
        if get_origin(item_type) is Literal:
            return tuple(_coerce_choice(name, part, get_args(item_type)) for part in stripped)
        return tuple(_coerce_scalar(name, part, item_type) for part in stripped)
    return _coerce_scalar(name, value, hint, words)


def _coerce_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return a value that must be one of the choices."""
    if value not in choices:
        nearest = find_nearest_name(str(value), choices)
        suggestion = f" (did you mean {nearest!r}?)" if nearest else ""
        raise ConfigError(
            f"{name}={shorten(str(value))} is not valid; choose from {', '.join(choices)}{suggestion}"
        )
    return str(value)


_TYPE_DESCRIPTIONS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _coerce_scalar(name: str, value: object, scalar_type: type, words: Sequence[str] = ()) -> Any:
    description = " or ".join([_TYPE_DESCRIPTIONS[scalar_type], *words])
    if scalar_type is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if scalar_type in (int, float) and isinstance(value, str):
        try:
            value = scalar_type(value.replace("_", ""))
        except ValueError:  # also if it has more digits than Python converts
            raise ConfigError(f"{name}={format_value(value)} must be {description}") from None
    if scalar_type is float and type(value) is int:
        value = float(value) if abs(value) < 2**1023 else math.inf
    if type(value) is not scalar_type or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{name}={format_value(value)} must be {description}")
    if isinstance(value, str):
        require_unicode(value, f"{name}=")
    return value


def parse_assignments(assignments: Iterable[str]) -> Settings:
    """Parse `--set name=value` arguments."""
    settings: Settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment!r} has no '='; write --set name=value")
        settings[name.strip()] = coerce_setting(name.strip(), value.strip())
    return settings


def format_setting(value: SettingValue) -> str:
    """Return a value as `--set` accepts it.

    >>> format_setting((0.9, 0.98)), format_setting(True), format_setting(8.0), format_setting("rotary")
    ('0.9,0.98', 'true', '8', 'rotary')
    """
    if isinstance(value, tuple):
        return ",".join(map(format_setting, value))
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def flatten_config(config: Any, prefix: str = "") -> Settings:
    """Return a config as dotted settings, in the order of its fields."""
    flat: Settings = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            flat |= flatten_config(value, f"{prefix}{item.name}.")
        else:
            flat[prefix + item.name] = value
    return flat


def given_settings(config: Config) -> Settings:
    """Return the settings that a config was given, as dotted settings. One that was read from a run has all."""
    given: Settings = {}
    for name, value in flatten_config(config).items():
        section, _, key = name.rpartition(".")
        owner: Any = getattr(config, section) if section else config
        if key in owner.given:
            given[name] = value
    return given


def build_config(settings: Mapping[str, SettingValue], base: Config | None = None) -> Config:
    """Build a config from dotted settings.

    The config counts as given what `settings` and `base` give.

    Args:
        settings: The settings that differ from `base`.
        base: The config for all other settings; by default, the default settings.

    Raises:
        ConfigError: A setting is unknown or invalid, or settings contradict each other.
    """
    flat = flatten_config(base or Config()) | {
        name: coerce_setting(name, value) for name, value in settings.items()
    }
    all_given = settings.keys() | (given_settings(base) if base else {}).keys()
    values: dict[str, dict[str, Any]] = {}
    given: dict[str, set[str]] = {}
    for name, value in flat.items():
        section, _, key = name.rpartition(".")
        values.setdefault(section, {})[key] = value
        given.setdefault(section, set()).update({key} if name in all_given else ())
    section_classes = get_type_hints(Config)
    sections = {
        section: section_classes[section](given=frozenset(given[section]), **values[section])
        for section in values
        if section
    }
    return Config(given=frozenset(given[""]), **values[""], **sections)


DEFAULTS = flatten_config(Config())


def non_default_settings(settings: Settings) -> Settings:
    """Return the settings whose values differ from the defaults."""
    return {name: value for name, value in settings.items() if value != DEFAULTS[name]}


# Settings whose default means that training chooses the value.
_AUTO_SETTINGS_BY_SECTION = {
    "data": ("train", "valid", "labels", "max_len"),
    "tokenizer": ("kind", "vocab_size"),
    "model": ("d_model", "d_ff", "n_layers", "n_heads"),
    "train": (
        "lr",
        "warmup_steps",
        "batch_size",
        "batch_tokens",
        "max_steps",
        "epochs",
        "eval_every",
        "checkpoint_every",
        "log_every",
        "patience",
    ),
}
AUTO_SETTINGS = frozenset(
    f"{section}.{name}" for section, names in _AUTO_SETTINGS_BY_SECTION.items() for name in names
)
# Pairs of which only one can be set. Setting one of them discards an earlier value of the other.
EXCLUSIVE_SETTINGS = (
    ("train.batch_size", "train.batch_tokens"),
    ("train.max_steps", "train.epochs"),
    ("model.window", "model.layer_windows"),
)


def leaves_choice(name: str, value: SettingValue) -> bool:
    """Return whether the value of a setting is the one that asks training to choose, such as 0 steps."""
    return name in AUTO_SETTINGS and value == DEFAULTS[name]


def merge_settings(*layers: Settings) -> Settings:
    """Merge layers of settings; later layers take precedence."""
    merged: Settings = {}
    for layer in layers:
        for pair in EXCLUSIVE_SETTINGS:
            if any(name in layer and not leaves_choice(name, layer[name]) for name in pair):
                merged = {name: value for name, value in merged.items() if name not in pair}
        merged |= layer
    return merged


def describe_differences(requested: Mapping[str, SettingValue], stored: Config) -> list[str]:
    """Describe where requested settings differ from a stored config. Automatic settings never differ."""
    stored_settings = flatten_config(stored)
    return [
        f"{name}: {value} (the run has {stored_settings[name]})"
        for name, value in requested.items()
        if value != stored_settings[name] and not leaves_choice(name, value)
    ]


METADATA_KEYS = ("format", "triform")  # keys of a file that describe the file itself


def read_settings(path: Path) -> Settings:
    """Return the settings of a TOML file."""
    return parse_settings(load_toml(path), path)


def load_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ConfigError: The file does not exist, cannot be read, or is not valid TOML.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} cannot be read: it is a folder, a pipe or a device, not a file")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse TOML text; `path` is for error messages."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: brackets nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except ValueError:  # Python converts no more digits than `sys.get_int_max_str_digits`
        raise ConfigError(f"{path}: not valid TOML: a number has thousands of digits") from None


def parse_settings(tree: Mapping[str, Any], path: Path) -> Settings:
    """Return the settings in the content of a TOML file; `path` is for error messages."""
    settings: Settings = {}
    for name, value in tree.items():
        if name in METADATA_KEYS:
            continue
        entries = (
            {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        )
        for key, item in entries.items():
            try:
                settings[key] = coerce_setting(key, item)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from None
    return settings


def to_toml(config: Config, metadata: Mapping[str, object]) -> str:
    """Return a config as TOML text that `read_settings` reads back unchanged."""
    lines = [f"{name} = {format_toml_value(value)}" for name, value in metadata.items()]
    section = ""
    for name, value in flatten_config(config).items():
        head, dot, key = name.rpartition(".")
        if dot and head != section:
            section = head
            lines += ["", f"[{section}]"]
        lines.append(f"{key} = {format_toml_value(value)}")
    return "\n".join(lines) + "\n"


def format_toml_value(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def validate_seed(seed: object) -> None:
    """Refuse a random seed that is not an integer or is out of bounds."""
    coerce_setting("seed", seed)
    validate_bound("seed", seed)  # type: ignore[arg-type]
