"""Merging the settings that a user gives: keyword arguments or options, a config file and a preset.

The result is a dictionary of dotted settings, such as `{"task": "classify", "model.d_model": 64}`. It has only the
settings that were given. All others keep their default or are chosen from the data later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from triform.config import TASK_NAMES, Config, DecodeConfig, TaskName
from triform.config.presets import preset as load_preset
from triform.config.settings import (
    AUTO_SETTINGS,
    DEFAULTS,
    EXCLUSIVE_SETTINGS,
    SETTING_TYPES,
    Settings,
    build_config,
    coerce_setting,
    flatten_config,
    given_settings,
    merge_settings,
    read_settings,
    unknown_setting_error,
)
from triform.errors import ConfigError

DATA_FILE_SETTINGS = tuple(
    f"data.{name}" for name in ("train", "valid", "source", "target", "valid_source", "valid_target")
)
TOKENIZER_FILE_SETTINGS = ("tokenizer.kind", "tokenizer.vocab_size")  # a tokenizer file decides these
BASE_RUN_SETTINGS = (  # settings besides those of the model that a run takes over from `train.init_from`
    "data.max_len",
    *(f"tokenizer.{name}" for name in ("kind", "lowercase", "joint_vocab", "file")),
)
DATA_SOURCE = "chosen from the data"
OPTION_SOURCE = "option"  # the source of settings given as options or keyword arguments
# Settings that only one strategy uses: setting one selects that strategy.
IMPLIED_STRATEGY = {
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "beam_size": "beam",
    "length_penalty": "beam",
}
KEYWORD_ALIASES = {
    "data": "data.train",
    "valid": "data.valid",
    "source": "data.source",
    "target": "data.target",
    "seed": "seed",
    "init_from": "train.init_from",
    "embeddings": "train.embeddings",
}


def flatten_settings(settings: Mapping[str, Any]) -> Settings:
    """Turn keyword arguments into dotted settings.

    >>> flatten_settings({"data": "reviews.csv", "model": {"d_model": 64}})
    {'data.train': 'reviews.csv', 'model.d_model': 64}

    Raises:
        ConfigError: A setting is unknown or has a value of the wrong type.
    """
    flat: Settings = {}
    for name, value in settings.items():
        if name == "valid" and isinstance(value, Mapping):
            flat |= validation_settings(value)
        elif isinstance(value, Mapping):
            flat |= {f"{name}.{key}": coerce_setting(f"{name}.{key}", item) for key, item in value.items()}
        elif (dotted_name := KEYWORD_ALIASES.get(name, name)) in SETTING_TYPES:
            flat[dotted_name] = coerce_setting(dotted_name, str(value) if isinstance(value, Path) else value)
        elif name == "base":  # the keyword's name before run-folder format 2
            raise ConfigError("base is now init_from")
        else:
            raise unknown_setting_error(name, [*KEYWORD_ALIASES, *SETTING_TYPES])
    return flat


def validation_settings(sets: Mapping[str, str | Path]) -> Settings:
    """Return the settings that evaluate several sets during training. The first one selects the best weights.

    >>> validation_settings({"dev": "dev.csv", "test": "test.csv"})
    {'data.valid_name': 'dev', 'data.valid': 'dev.csv', 'data.monitor': ('test=test.csv',)}
    """
    (valid_name, valid), *others = sets.items()
    settings: Settings = {"data.valid_name": valid_name, "data.valid": str(valid)}
    return settings | ({"data.monitor": tuple(f"{name}={file}" for name, file in others)} if others else {})


def merge_request(task: TaskName, preset: str, config: str | Path | Config | None, settings: Settings) -> Settings:
    """Merge a preset, a config and dotted settings; of these, the later ones take precedence.

    Args:
        task: The task; the config must not be for another one.
        preset: The name of a preset, or an empty string.
        config: A config, or the path of a TOML file.
        settings: Dotted settings.

    Returns:
        The merged settings, with absolute paths for files: a run must find its data from any working directory.

    Raises:
        ConfigError: A setting is unknown or invalid, or settings contradict each other.
    """
    if task not in TASK_NAMES:
        raise ConfigError(f"unknown task {task!r}; choose from {', '.join(TASK_NAMES)}")
    requested = merge_settings(*(layer for _, layer in _request_layers(task, preset, config, settings)))
    if requested.get("task", task) != task:
        raise ConfigError(f"the settings are for {requested['task']}, not {task}")
    requested["task"] = task
    config_data = build_config(requested).data
    if config_data.monitor:
        requested["data.monitor"] = tuple(
            f"{name}={_absolute_paths(file, task)}" for name, file in config_data.monitored_files
        )
    if config_data.extra:
        requested["data.extra"] = tuple(_absolute_paths(file, task) for file in config_data.extra)
    paths = (*DATA_FILE_SETTINGS, "tokenizer.file", "train.embeddings")
    return requested | {name: absolute_path(str(requested[name])) for name in paths if requested.get(name)}


def request_sources(
    task: TaskName, preset: str, config: str | Path | Config | None, settings: Settings
) -> dict[str, str]:
    """Return where each setting that `merge_request` returns comes from: a preset, a file or an option."""
    layers = _request_layers(task, preset, config, settings)
    sources = {"task": OPTION_SOURCE}
    for source, layer in layers:
        sources |= dict.fromkeys(layer, source)
    merged = merge_settings(*(layer for _, layer in layers))
    return {name: source for name, source in sources.items() if name == "task" or name in merged}


def describe_sources(config: Config, recorded: Mapping[str, str] | None, *, resolved: bool) -> dict[str, str]:
    """Return where every setting of a config comes from, as words for the user.

    Args:
        config: The settings.
        recorded: The sources of the settings that the user gave; None: they are not known.
        resolved: Whether the settings that depend on the data have been chosen, as in a trained run.
    """
    settings = flatten_config(config)
    return {name: _describe_source(name, settings, recorded, resolved=resolved) for name in settings}


def _describe_source(name: str, settings: Settings, recorded: Mapping[str, str] | None, *, resolved: bool) -> str:
    is_default = settings[name] == DEFAULTS[name]
    if recorded is not None and name in recorded:
        return recorded[name]
    if is_default and (resolved or not is_automatic(name, settings)):
        return "default"
    if recorded is None:
        return "saved in the run"
    if name in DATA_FILE_SETTINGS:  # a built-in dataset
        return "default"
    if settings["train.init_from"] and (name.startswith("model.") or name in BASE_RUN_SETTINGS):
        return "base run"
    adapts = settings["train.max_minutes"] or settings["train.auto_batch"]
    return DATA_SOURCE if name in AUTO_SETTINGS and not adapts else "chosen automatically"


def is_automatic(name: str, settings: Settings) -> bool:
    """Return whether training will choose the value of a setting that has its default."""
    if name not in AUTO_SETTINGS or (name == "data.labels" and settings["task"] != "classify"):
        return False
    pairs = [pair for pair in EXCLUSIVE_SETTINGS if name in pair]
    return all(settings[other] == DEFAULTS[other] for pair in pairs for other in pair)


def _request_layers(
    task: TaskName, preset: str, config: str | Path | Config | None, settings: Settings
) -> list[tuple[str, Settings]]:
    """Return the source and the settings of each layer of a request, the strongest last."""
    layers = [(OPTION_SOURCE, settings)]
    if isinstance(config, Config):
        layers.insert(0, (OPTION_SOURCE, given_settings(config)))
    elif config is not None:
        layers.insert(0, (f"file {config}", read_settings(Path(config))))
    if preset:
        overrides = merge_settings(*(layer for _, layer in layers))
        layers.insert(0, (f"preset {preset}", _preset_settings(task, preset, overrides)))
    return [(source, _split_aligned_files(layer, task)) for source, layer in layers]


def is_url(path: str) -> bool:
    """Return whether a path is an address such as `s3://bucket/file.jsonl`."""
    return "://" in path


def absolute_path(path: str) -> str:
    """Return an absolute path. Names of built-in datasets and addresses stay as they are."""
    return path if path.startswith("builtin:") or is_url(path) else str(Path(path).absolute())


def _absolute_paths(name: str, task: TaskName) -> str:
    """Return a file, or two aligned files `a.en,a.fr`, as absolute paths."""
    return ",".join(map(absolute_path, split_aligned_name(name) if task == "translate" else [name]))


def split_aligned_name(name: str) -> list[str]:
    """Return the two files of `a.en,a.fr`, or the one file of any other name.

    >>> split_aligned_name("a.en,a.fr"), split_aligned_name("pairs.tsv")
    (['a.en', 'a.fr'], ['pairs.tsv'])
    """
    return name.split(",", 1) if "," in name and not Path(name).exists() else [name]


def _preset_settings(task: TaskName, preset: str, overrides: Settings) -> Settings:
    kind: Any = overrides.get("model.kind", "transformer")  # presets exist for recurrent models too
    settings = given_settings(load_preset(preset, task, kind))
    if not overrides.get("tokenizer.file"):
        return settings
    return {name: value for name, value in settings.items() if name not in TOKENIZER_FILE_SETTINGS}


def _split_aligned_files(settings: Settings, task: TaskName) -> Settings:
    """Split two aligned files that are given as one name: `a.en,a.fr`."""
    for name, source, target in (
        ("data.train", "data.source", "data.target"),
        ("data.valid", "data.valid_source", "data.valid_target"),
    ):
        files = split_aligned_name(str(settings.get(name, "")))
        if task == "translate" and len(files) == 2:
            settings = {key: value for key, value in settings.items() if key != name}
            settings |= {source: files[0], target: files[1]}
    return settings


def override_decode(decode: DecodeConfig, /, **settings: object) -> DecodeConfig:
    """Return decoding settings, overridden by those of one call. Equal settings are validated only once."""
    try:
        return _override_decode(decode, **settings)
    except TypeError:  # a value that cannot be hashed for the cache, such as a list
        return _override_decode.__wrapped__(decode, **settings)


@lru_cache(maxsize=256, typed=True)
def _override_decode(decode: DecodeConfig, /, **settings: object) -> DecodeConfig:
    overrides: dict[str, Any] = {name: coerce_setting(f"decode.{name}", value) for name, value in settings.items()}
    if implied := [strategy for name, strategy in IMPLIED_STRATEGY.items() if name in overrides]:
        overrides.setdefault("strategy", implied[-1])
    return replace(decode, **overrides)
