"""Read and validate the TOML file of a study before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triform.config import TASK_NAMES as TASK_NAMES
from triform.config import TaskName
from triform.config.bounds import BOUNDS, MAX_SEEDS, format_value
from triform.config.merging import DATA_FILE_SETTINGS
from triform.config.settings import Settings, flatten_config, load_toml, parse_settings, suggest_name
from triform.config.settings import build_config as build_config
from triform.data.files import BUILTIN_PREFIX
from triform.errors import ConfigError, DataError
from triform.launch import resolve_settings

STUDY_KEYS = ("name", "task", "preset", "seeds", "seed", "metric", "common", "variants", "tests")
STUDY_ONLY_KEYS = ("name", "task", "seeds", "seed", "metric", "tests")  # not allowed in a variant
# The metrics of each task; the first is the default of a study.
TASK_METRICS: dict[TaskName, tuple[str, ...]] = {
    "classify": ("accuracy", "f1", "loss"),
    "generate": ("perplexity", "loss", "bits_per_byte", "token_accuracy"),
    "translate": ("bleu", "chrf", "sentence_bleu", "exact_match", "token_accuracy", "loss"),
}
# Means over tokens, which are not comparable between vocabularies.
PER_TOKEN_METRICS = ("perplexity", "loss", "token_accuracy")
DEFAULT_N_SEEDS = 8  # enough for a verdict on up to six comparisons
VALIDATION_SET, TRAINING_SET = "validation", "training"  # sets that every study has
NAME_PATTERN = re.compile(r"\w[\w.+-]*")  # the name becomes a folder


@dataclass(frozen=True, kw_only=True)
class StudyVariant:
    """One variant of a study: its name and its resolved settings."""

    name: str
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Study:
    """Variants of one task, the seeds of each variant, the test files and the metric."""

    name: str
    task: TaskName
    metric: str
    seeds: tuple[int, ...]
    variants: tuple[StudyVariant, ...]
    test_files: Mapping[str, str]


def read_study(source: str | Path | Mapping[str, Any], seeds: int = 0) -> Study:
    """Read a study.

    Args:
        source: The TOML file, or a mapping of the same form. File names are relative to the TOML file, or to the
            working folder for a mapping.
        seeds: Number of seeds, instead of the number in the study.

    Raises:
        ConfigError: A key, setting or value is not valid, or the variants cannot be compared by the metric.
        DataError: A file does not exist.
    """
    if isinstance(source, Mapping):
        return _parse_study(source, "the study", Path.cwd(), seeds)
    path = Path(source)
    return _parse_study({"name": path.stem} | load_toml(path), str(path), path.absolute().parent, seeds)


def _parse_study(spec: Mapping[str, Any], origin: str, base_folder: Path, n_seeds: int) -> Study:
    require_known_keys(spec, STUDY_KEYS, origin, "a study")
    task = validate_task(spec.get("task"), origin)
    name = validate_name(spec.get("name", "study"), f"{origin}: name")
    study = Study(
        name=name,
        task=task,
        metric=validate_metric(spec.get("metric", TASK_METRICS[task][0]), task, origin),
        seeds=resolve_seeds(n_seeds or spec.get("seeds", DEFAULT_N_SEEDS), spec.get("seed", 0), origin),
        variants=_parse_variants(spec, task, origin, base_folder),
        test_files=_parse_test_files(spec.get("tests", {}), task, origin, base_folder),
    )
    _validate_comparable(study, origin)
    return study


def require_known_keys(table: Mapping[str, Any], keys: Collection[str], origin: str, kind: str) -> None:
    """Raise `ConfigError` for a key that this kind of table does not have, with the closest known key."""
    for key in table:
        if key not in keys:
            raise ConfigError(f"{origin}: unknown key {key!r} in {kind}; {suggest_name(key, keys)}")


def require_table(value: object, location: str) -> Mapping[str, Any]:
    """Return a value that must be a table; otherwise raise `ConfigError`."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{location} must be a table, not {value!r}")
    return value


def validate_task(task: object, origin: str) -> TaskName:
    """Return a valid name of a task; otherwise raise `ConfigError`."""
    if task not in TASK_NAMES:
        problem = "task is missing" if task is None else f"task={task!r} is not known"
        raise ConfigError(f"{origin}: {problem}; choose from {', '.join(TASK_NAMES)}")
    return task


def validate_name(value: object, location: str) -> str:
    """Return a valid name of a folder; otherwise raise `ConfigError`."""
    if not isinstance(value, str) or not NAME_PATTERN.fullmatch(value):
        raise ConfigError(f"{location}={value!r} is used as a folder name; use only letters, digits and . _ + -")
    return value


def validate_metric(metric: object, task: TaskName, origin: str) -> str:
    """Return a metric that the task has; otherwise raise `ConfigError`."""
    if metric not in TASK_METRICS[task]:
        suggestion = suggest_name(str(metric), TASK_METRICS[task])
        raise ConfigError(f"{origin}: {task} has no metric {metric!r}; {suggestion}")
    return str(metric)


def resolve_seeds(count: object, first: object, origin: str) -> tuple[int, ...]:
    """Return `count` seeds from the first one; raise `ConfigError` if they are not valid."""
    if type(count) is not int or not 1 <= count <= MAX_SEEDS:
        raise ConfigError(
            f"{origin}: seeds={format_value(count)} must be the number of runs per variant, from 1 to {MAX_SEEDS}"
        )
    max_first = BOUNDS["seed"][1] - count + 1
    if type(first) is not int or not 0 <= first <= max_first:
        raise ConfigError(
            f"{origin}: seed={format_value(first)}: the first seed must be a whole number from 0 to {max_first:.0f}"
        )
    return tuple(range(first, first + count))


def _parse_variants(
    spec: Mapping[str, Any], task: TaskName, origin: str, base_folder: Path
) -> tuple[StudyVariant, ...]:
    variant_tables = require_table(spec.get("variants", {}), f"{origin}: variants")
    if len(variant_tables) < 2:
        found_text = f"one variant, {next(iter(variant_tables))}" if variant_tables else "no variants"
        raise ConfigError(f"{origin}: found {found_text}; a study needs at least two [variants.NAME] tables")
    preset, common_settings = _parse_settings(spec.get("common", {}), f"{origin}: common", task, base_folder)
    variants = []
    for name, table in variant_tables.items():
        location = f"{origin}: variants.{validate_name(name, f'{origin}: variants')}"
        own_preset, own_settings = _parse_settings(table, location, task, base_folder)
        try:
            settings = resolve_settings(
                task, own_preset or preset or spec.get("preset", ""), None, common_settings | own_settings
            )
        except ConfigError as error:
            raise ConfigError(f"{location}: {error}") from None
        for key in DATA_FILE_SETTINGS:
            validate_exists(str(settings.get(key, "")), f"{location}: {key}")
        variants.append(StudyVariant(name=name, settings=settings))
    return tuple(variants)


def _parse_settings(table: object, location: str, task: TaskName, base_folder: Path) -> tuple[str, Settings]:
    """Return the preset that a table names, and its settings, with files relative to the study."""
    for key in STUDY_ONLY_KEYS:
        if key in require_table(table, location):
            raise ConfigError(f"{location}: {key} is the same for all variants; set it at the top of the study")
    preset, settings = parse_settings_table(table, location)
    return preset, resolve_setting_files(settings, task, base_folder)


def resolve_setting_files(settings: Settings, task: TaskName, base_folder: Path) -> Settings:
    """Return settings with data files relative to a folder."""
    return settings | {
        key: resolve_files(str(settings[key]), task, base_folder) for key in DATA_FILE_SETTINGS if settings.get(key)
    }


def parse_settings_table(table: object, location: str) -> tuple[str, Settings]:
    """Return the preset that a table names, or "", and its settings as dotted names."""
    entries = dict(require_table(table, location))
    preset = entries.pop("preset", "")
    if not isinstance(preset, str):
        raise ConfigError(f"{location}: preset={preset!r} must be text")
    return preset, parse_settings(entries, Path(location))


def resolve_files(files: str, task: TaskName, base_folder: Path) -> str:
    """Resolve a file name relative to the folder of the study; for translate, two names joined by a comma."""
    if files.startswith(BUILTIN_PREFIX):
        return files
    paths = files.split(",") if task == "translate" and not (base_folder / files).exists() else [files]
    return ",".join(str(base_folder / path) for path in paths)


def _parse_test_files(table: object, task: TaskName, origin: str, base_folder: Path) -> dict[str, str]:
    test_files = {}
    for name, value in require_table(table, f"{origin}: tests").items():
        location = f"{origin}: tests.{name}"
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{location}={value!r} must name a file")
        if name in (VALIDATION_SET, TRAINING_SET):
            raise ConfigError(f"{location}: this name is reserved for a set that every study has; choose another")
        test_files[name] = resolve_files(value, task, base_folder)
        for path in test_files[name].split(",") if task == "translate" else [test_files[name]]:
            validate_exists(path, location)
    return test_files


def validate_exists(path: str, location: str) -> None:
    """Raise `DataError` if a data file does not exist."""
    if path and not path.startswith(BUILTIN_PREFIX) and not Path(path).exists():
        raise DataError("no such file", path=f"{location}: {path}")


def has_validation(settings: Settings) -> bool:
    """Return whether runs with these settings have validation data."""
    data_config = build_config(settings).data
    return bool(data_config.valid or data_config.valid_source or data_config.valid_fraction)


def validation_source(settings: Settings) -> tuple[object, ...]:
    """Return the settings that determine the validation rows."""
    resolved = flatten_config(build_config(settings))
    validation_files = tuple(resolved[f"data.{key}"] for key in ("valid", "valid_source", "valid_target"))
    split_settings = tuple(resolved[f"data.{key}"] for key in ("train", "source", "target", "valid_fraction"))
    return validation_files if any(validation_files) else split_settings


def vocabulary_settings(settings: Settings) -> tuple[object, ...]:
    """Return the settings that determine the tokens of a text. BPE dropout affects only training text."""
    resolved = flatten_config(build_config(settings))
    tokenizer_settings = [
        value for key, value in resolved.items() if key.startswith("tokenizer.") and key != "tokenizer.bpe_dropout"
    ]
    return (*tokenizer_settings, *(resolved[f"data.{key}"] for key in ("train", "source", "target")))


def _validate_comparable(study: Study, origin: str) -> None:
    """Raise `ConfigError` if metrics of the variants are computed on different tokens or different rows."""
    for variant in study.variants:
        if study.metric == "bits_per_byte" and variant.settings.get("tokenizer.kind") in ("word", "wordpiece"):
            raise ConfigError(
                f"{origin}: {variant.name}: words leave out the spaces between them, so bytes cannot be counted; "
                "compare by another metric, or with tokenizer.kind char or bpe"
            )
    first, *others = study.variants
    for other in others:
        pair_location = f"{origin}: {first.name} and {other.name}"
        per_token = study.task != "classify" and study.metric in PER_TOKEN_METRICS
        if per_token and vocabulary_settings(first.settings) != vocabulary_settings(other.settings):
            suggested = "bits_per_byte" if study.task == "generate" else "bleu"
            raise ConfigError(
                f"{pair_location} differ in their vocabulary, so their {study.metric} is not the same measure: "
                f'compare by metric = "{suggested}"'
            )
        is_validated = has_validation(first.settings)
        same_rows = validation_source(first.settings) == validation_source(other.settings) or (
            study.test_files and not is_validated
        )
        if is_validated != has_validation(other.settings) or not same_rows:
            raise ConfigError(f"{pair_location} are not judged on the same rows; give all variants one data.valid")
