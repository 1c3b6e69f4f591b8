"""What a study asks for: its TOML file, read and checked before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triform.config import TASKS as TASK_NAMES
from triform.config import TaskName
from triform.config.bounds import BOUNDS, MAX_SEEDS, format_value
from triform.data.files import BUILTIN
from triform.errors import ConfigError, DataError
from triform.launch import FILES, collect
from triform.settings import Settings, flatten, load_toml, nearest, settings_of
from triform.settings import build as build_config

KEYS = ("name", "task", "preset", "seeds", "seed", "metric", "common", "variants", "tests")
ALIKE = ("name", "task", "seeds", "seed", "metric", "tests")  # what no variant has for itself
# The scores of each task, the one it is judged by unless another is named first.
METRICS: dict[TaskName, tuple[str, ...]] = {
    "classify": ("accuracy", "f1", "loss"),
    "generate": ("perplexity", "loss", "bits_per_byte", "token_accuracy"),
    "translate": ("bleu", "chrf", "sentence_bleu", "exact_match", "token_accuracy", "loss"),
}
BY_TOKEN = ("perplexity", "loss", "token_accuracy")  # means over tokens: another vocabulary, another score
SEEDS = 8  # enough for a verdict on up to six comparisons
VALIDATION, TRAINING = "validation", "training"  # sets that a study has of itself
NAME = re.compile(r"\w[\w.+-]*")  # it becomes a folder


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the things that are compared: a name, and all that was asked for."""

    name: str
    asked: Settings


@dataclass(frozen=True, kw_only=True)
class Study:
    """Variants of one task, the seeds each is trained with, and what they are judged on and by."""

    name: str
    task: TaskName
    metric: str
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    tests: Mapping[str, str]


def read_study(source: str | Path | Mapping[str, Any], seeds: int = 0) -> Study:
    """A study from its file, or from a mapping of the same form; `seeds`, if given, counts instead of the file's.

    File names are relative to the study's file; in a mapping, to the working folder.
    """
    if isinstance(source, Mapping):
        return _checked(source, "the study", Path.cwd(), seeds)
    path = Path(source)
    return _checked({"name": path.stem} | load_toml(path), str(path), path.absolute().parent, seeds)


def _checked(tree: Mapping[str, Any], origin: str, base: Path, seeds: int) -> Study:
    for key in tree:
        if key not in KEYS:
            raise ConfigError(f"{origin}: unknown key {key!r} in a study; {nearest(key, KEYS)}")
    task = tree.get("task")
    if task not in TASK_NAMES:
        what = "no task is named" if task is None else f"task={task!r} is not known"
        raise ConfigError(f"{origin}: {what}; choose from {', '.join(TASK_NAMES)}")
    name = _name(tree.get("name", "study"), f"{origin}: name")
    study = Study(
        name=name,
        task=task,
        metric=_metric(tree.get("metric", METRICS[task][0]), task, origin),
        seeds=_seeds(seeds or tree.get("seeds", SEEDS), tree.get("seed", 0), origin),
        variants=_variants(tree, task, origin, base),
        tests=_tests(tree.get("tests", {}), task, origin, base),
    )
    _check_comparable(study, origin)
    return study


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table, not {value!r}")
    return value


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ConfigError(f"{where}={value!r}: it becomes a folder; use letters, digits and . _ + - only")
    return value


def _metric(metric: object, task: TaskName, origin: str) -> str:
    if metric not in METRICS[task]:
        raise ConfigError(
            f"{origin}: metric={metric!r}: {task} has no such score; {nearest(str(metric), METRICS[task])}"
        )
    return str(metric)


def _seeds(count: object, first: object, origin: str) -> tuple[int, ...]:
    if type(count) is not int or not 1 <= count <= MAX_SEEDS:
        raise ConfigError(
            f"{origin}: seeds={format_value(count)}: give how many models to train of each variant, "
            f"from 1 to {MAX_SEEDS}"
        )
    largest = BOUNDS["seed"][1] - count + 1
    if type(first) is not int or not 0 <= first <= largest:
        raise ConfigError(
            f"{origin}: seed={format_value(first)}: the first seed must be a whole number from 0 to {largest:.0f}"
        )
    return tuple(range(first, first + count))


def _variants(tree: Mapping[str, Any], task: TaskName, origin: str, base: Path) -> tuple[Variant, ...]:
    tables = _table(tree.get("variants", {}), f"{origin}: variants")
    if len(tables) < 2:
        have = f"one variant, {next(iter(tables))}" if tables else "no variants"
        raise ConfigError(f"{origin}: has {have}; a comparison needs two [variants.NAME] tables or more")
    preset, common = _settings(tree.get("common", {}), f"{origin}: common", task, base)
    found = []
    for name, table in tables.items():
        where = f"{origin}: variants.{_name(name, f'{origin}: variants')}"
        own_preset, own = _settings(table, where, task, base)
        try:
            asked = collect(task, own_preset or preset or tree.get("preset", ""), None, common | own)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        for key in FILES:
            _check_there(str(asked.get(key, "")), f"{where}: {key}")
        found.append(Variant(name=name, asked=asked))
    return tuple(found)


def _settings(table: object, where: str, task: TaskName, base: Path) -> tuple[str, Settings]:
    """The preset that a table names, and its settings, with files found from the study's folder."""
    tree = dict(_table(table, where))
    for key in ALIKE:
        if key in tree:
            raise ConfigError(f"{where}: {key} is the same for all variants; set it at the top of the study")
    preset = tree.pop("preset", "")
    if not isinstance(preset, str):
        raise ConfigError(f"{where}: preset={preset!r} must be text")
    settings = settings_of(tree, Path(where))
    return preset, settings | {key: _located(str(settings[key]), task, base) for key in FILES if settings.get(key)}


def _located(name: str, task: TaskName, base: Path) -> str:
    """A file name as seen from the study's folder; for translate two may be joined by a comma."""
    if name.startswith(BUILTIN):
        return name
    parts = name.split(",") if task == "translate" and not (base / name).exists() else [name]
    return ",".join(str(base / part) for part in parts)


def _tests(table: object, task: TaskName, origin: str, base: Path) -> dict[str, str]:
    tests = {}
    for name, value in _table(table, f"{origin}: tests").items():
        where = f"{origin}: tests.{name}"
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}={value!r} must name a file")
        if name in (VALIDATION, TRAINING):
            raise ConfigError(f"{where}: a study has a set of this name already; choose another")
        tests[name] = _located(value, task, base)
        for part in tests[name].split(",") if task == "translate" else [tests[name]]:
            _check_there(part, where)
    return tests


def _check_there(name: str, where: str) -> None:
    if name and not name.startswith(BUILTIN) and not Path(name).exists():
        raise DataError("no such file", path=f"{where}: {name}")


def _held_out(asked: Settings) -> bool:
    """Whether runs with these settings are validated."""
    config = build_config(asked).data
    return bool(config.valid or config.valid_source or config.valid_fraction)


def _judged_on(asked: Settings) -> tuple[object, ...]:
    """What decides which rows validate a run."""
    have = flatten(build_config(asked))
    given = tuple(have[f"data.{key}"] for key in ("valid", "valid_source", "valid_target"))
    drawn = tuple(have[f"data.{key}"] for key in ("train", "source", "target", "valid_fraction"))
    return given if any(given) else drawn


def _vocabulary(asked: Settings) -> tuple[object, ...]:
    """What decides how text is cut into tokens; merges are left out of training text alone."""
    have = flatten(build_config(asked))
    cut = [value for key, value in have.items() if key.startswith("tokenizer.") and key != "tokenizer.dropout"]
    return (*cut, *(have[f"data.{key}"] for key in ("train", "source", "target")))


def _check_comparable(study: Study, origin: str) -> None:
    """Scores of different tokens or different rows are no comparison, however alike they are called."""
    for variant in study.variants:
        if study.metric == "bits_per_byte" and variant.asked.get("tokenizer.kind") == "word":
            raise ConfigError(
                f"{origin}: {variant.name}: words leave out the spaces between them, so bytes cannot be counted; "
                "compare by another metric, or with tokenizer.kind char or bpe"
            )
    first, *others = study.variants
    for other in others:
        both = f"{origin}: {first.name} and {other.name}"
        by_token = study.task != "classify" and study.metric in BY_TOKEN
        if by_token and _vocabulary(first.asked) != _vocabulary(other.asked):
            fit = "bits_per_byte" if study.task == "generate" else "bleu"
            raise ConfigError(
                f"{both} differ in their vocabulary, so their {study.metric} is not the same measure: "
                f'compare by metric = "{fit}"'
            )
        held = _held_out(first.asked)
        same = _judged_on(first.asked) == _judged_on(other.asked) or (study.tests and not held)
        if held != _held_out(other.asked) or not same:
            raise ConfigError(f"{both} are not judged on the same rows; give all variants one data.valid")
