"""Read the reference systems from the TOML files in `reproduce/systems`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from reproduce.length_bins import LengthBins
from reproduce.system import (
    MetricColumn,
    PairedComparison,
    ReferenceSystem,
    SystemVariant,
    Target,
)
from triform.config.presets import preset
from triform.config.settings import Settings, flatten_config, merge_settings, non_default_settings, suggest_name
from triform.errors import ConfigError
from triform.experiments.study.plan import (
    parse_settings_table,
    require_known_keys,
    require_table,
    validate_task,
)

SYSTEM_NAMES = (
    *("imdb-encoder", "shakespeare-char", "ted-en-fr", "ted-set4-failure"),
    *("speeches-classifier", "speeches-lm", "speeches-window", "multi30k-en-de"),
    *("word-vectors-speeches", "word-vectors-imdb", "long-range"),
    *("positions-classify", "positions-generate", "positions-translate"),
    "finetune-gpt2",
)
SYSTEMS_FOLDER = Path(__file__).parent / "systems"
WHY_TRANSFORMERS = "why-transformers"  # a separate study, in `reproduce/why`

SYSTEM_KEYS = (
    *("title", "task", "dataset", "files", "tests", "columns", "common", "variants", "n_headline_columns"),
    *("reported_column", "split_leaked_rows", "prompts", "attention_example", "word_vectors", "targets"),
    *("pairings", "notes", "monitor", "measure_gradients", "failure_range", "length_file", "token_length_bins"),
    "test_set_history",
)
TRANSLATION_KEYS = ("compared_group", "word_length_bins", "long_sentences", "n_examples")
VARIANT_KEYS = (
    *("group", "seeds", "description", "vocabulary_files", "use_word_vectors", "init_from", "trained", "reported"),
    *("search", "not_run_reason", "dynamic", "ensemble_of", "ensemble_size", "distill_from"),
)


@cache
def load_systems() -> dict[str, ReferenceSystem]:
    """Return all reference systems by name, in the order of the results page."""
    return {name: parse_system(read_declaration(name), name) for name in SYSTEM_NAMES}


def get_system(name: str) -> ReferenceSystem:
    """Return the system with this name; raise `ConfigError` if there is none."""
    if name not in SYSTEM_NAMES:
        raise ConfigError(f"unknown system {name!r}; {suggest_name(name, (*SYSTEM_NAMES, WHY_TRANSFORMERS))}")
    return load_systems()[name]


def match_systems(name: str) -> list[ReferenceSystem]:
    """Return the system with this name, or the systems whose names start with it, such as `word-vectors`."""
    matches = [system_name for system_name in SYSTEM_NAMES if system_name.startswith(f"{name}-")]
    return [get_system(match) for match in matches if name not in SYSTEM_NAMES] or [get_system(name)]


def read_declaration(name: str) -> dict[str, Any]:
    """Read `NAME.toml` from the package."""
    path = SYSTEMS_FOLDER / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def parse_system(spec: Mapping[str, Any], name: str) -> ReferenceSystem:
    """Build a reference system from its declaration.

    Raises:
        ConfigError: A key is unknown or a setting is not valid.
    """
    require_known_keys(spec, (*SYSTEM_KEYS, *TRANSLATION_KEYS), name, "a reference system")
    if spec.get("task") != "translate" and (unusable := [key for key in TRANSLATION_KEYS if key in spec]):
        raise ConfigError(f'{name}: {unusable[0]!r} needs task = "translate"')
    declared = dict(spec)
    prompts = declared.pop("prompts", ())
    word_edges, token_edges = (tuple(declared.pop(f"{unit}_length_bins", ())) for unit in ("word", "token"))
    return ReferenceSystem(
        name=name,
        task=validate_task(declared.pop("task", None), name),
        columns=parse_columns(declared.pop("columns"), name),
        variants=_parse_variants(declared.pop("variants"), declared.pop("common", {}), name),
        eval_files=declared.pop("tests", {}),
        word_vector_settings=declared.pop("word_vectors", {}),
        prompts=tuple((prompt["text"], prompt["max_new_tokens"]) for prompt in prompts),
        targets=tuple(Target(**target) for target in declared.pop("targets", ())),
        pairings=tuple(
            PairedComparison(**{**pairing, "columns": tuple(pairing["columns"])})
            for pairing in declared.pop("pairings", ())
        ),
        notes=tuple(declared.pop("notes", ())),
        test_set_history=tuple(declared.pop("test_set_history", ())),
        monitor=tuple(declared.pop("monitor", ())),
        word_length_bins=LengthBins(word_edges) if word_edges else None,
        token_length_bins=LengthBins(token_edges, open_ended=False) if token_edges else None,
        **declared,
    )


def parse_columns(rows: list[dict[str, Any]], name: str) -> tuple[MetricColumn, ...]:
    """Build the columns of a table from their declarations."""
    columns = []
    for row in rows:
        require_known_keys(row, ("set", "metric", "title", "unit", "decimals"), f"{name}: columns", "a column")
        options = {key: value for key, value in row.items() if key != "set"}
        columns.append(MetricColumn(eval_set=row["set"], **options))
    return tuple(columns)


def _parse_variants(tables: object, common: object, name: str) -> tuple[SystemVariant, ...]:
    common_preset, common_settings = parse_settings_table(common, f"{name}: common")
    variants: dict[str, SystemVariant] = {}
    for variant_name, table in require_table(tables, f"{name}: variants").items():
        location = f"{name}: variants.{variant_name}"
        fields = {key: table[key] for key in VARIANT_KEYS if key in table}
        rest = {key: value for key, value in table.items() if key not in fields}
        preset_name, settings = parse_settings_table(rest, location)
        inherited = merge_settings(_preset_settings(preset_name or common_preset), common_settings)
        if base := fields.get("ensemble_of") or fields.get("distill_from"):
            if base not in variants:
                raise ConfigError(f"{location}: {base!r} is not the name of an earlier variant")
            is_ensemble, is_of_ensemble = bool(fields.get("ensemble_of")), bool(variants[base].ensemble_of)
            if is_ensemble and (is_of_ensemble or fields.get("ensemble_size", 0) < 2):
                raise ConfigError(f"{location}: an ensemble needs an ensemble_size of 2 or more, and single models")
            inherited = variants[base].settings
            for key in ("vocabulary_files", "use_word_vectors", "init_from"):
                fields.setdefault(key, getattr(variants[base], key))
        variants[variant_name] = SystemVariant(
            name=variant_name,
            settings=merge_settings(inherited, settings),
            reported_metrics=fields.pop("reported", {}),
            vocabulary_files=tuple(fields.pop("vocabulary_files", ())),
            **fields,
        )
    return tuple(variants.values())


def _preset_settings(name: str) -> Settings:
    """Return the settings in which a preset differs from the defaults, without the task."""
    settings = non_default_settings(flatten_config(preset(name))) if name else {}
    return {key: value for key, value in settings.items() if key != "task"}
