"""Read the parts of `why-transformers` from the TOML files in `reproduce/systems/why-transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from reproduce.length_bins import LengthBins
from reproduce.system import MetricColumn, ReferenceSystem
from reproduce.systems import WHY_TRANSFORMERS, get_system, parse_columns, read_declaration
from triform.config.settings import Settings, merge_settings
from triform.experiments.study.plan import parse_settings_table, require_known_keys

STUDY_TITLE = "Transformer and LSTM with equal parameters and training time"
PART_NAMES = ("speeches", "shakespeare", "ted")

PART_KEYS = (
    *("title", "system", "seeds", "time_budget", "lr_grid", "compared_column", "columns", "length_bins"),
    *("common", "variants"),
)


@dataclass(frozen=True, kw_only=True)
class ModelVariant:
    """One of the compared models. If it must match the parameters of another model, its width is computed."""

    name: str
    settings: Settings
    match_parameters: str = ""


@dataclass(frozen=True, kw_only=True)
class ComparisonTask:
    """One task on which both models are trained.

    Args:
        system: The reference system whose data is used.
        time_budget: Seconds of training for each seed of each model.
        lr_grid: Learning rates that each model tries; it is trained with the best of them.
        compared_column: The key of the column in which the models are compared.
        length_column: The metric of each length bin; its set is the name of the bin.
        length_bins: The bins of lengths.
        length_unit: The unit of lengths, such as "words".
    """

    name: str
    title: str
    system: ReferenceSystem
    seeds: int
    time_budget: float
    lr_grid: tuple[float, ...]
    variants: tuple[ModelVariant, ...]
    columns: tuple[MetricColumn, ...]
    compared_column: str
    length_column: MetricColumn
    length_bins: LengthBins
    length_unit: str


@cache
def load_comparison_tasks() -> tuple[ComparisonTask, ...]:
    """Return the parts of the study, in the order of the results page."""
    return tuple(_parse_part(read_declaration(f"{WHY_TRANSFORMERS}/{name}"), name) for name in PART_NAMES)


def _parse_part(spec: Mapping[str, Any], name: str) -> ComparisonTask:
    origin = f"{WHY_TRANSFORMERS}, {name}"
    require_known_keys(spec, PART_KEYS, origin, f"a part of {WHY_TRANSFORMERS}")
    bins = spec["length_bins"]
    length_keys = {key: value for key, value in bins.items() if key not in ("edges", "counted_in")}
    [length_column] = parse_columns([{"set": "", **length_keys}], origin)
    _, common_settings = parse_settings_table(spec["common"], f"{origin}: common")
    system = get_system(spec["system"])
    return ComparisonTask(
        name=name,
        title=spec["title"],
        system=system,
        seeds=spec["seeds"],
        time_budget=spec["time_budget"],
        lr_grid=tuple(spec["lr_grid"]),
        variants=tuple(
            _parse_model(variant, table, common_settings, f"{origin}: variants.{variant}")
            for variant, table in spec["variants"].items()
        ),
        columns=parse_columns(spec["columns"], origin),
        compared_column=spec["compared_column"],
        length_column=length_column,
        length_bins=LengthBins(tuple(bins["edges"]), open_ended=system.task != "generate"),
        length_unit=bins["counted_in"],
    )


def _parse_model(name: str, table: Mapping[str, Any], common_settings: Settings, location: str) -> ModelVariant:
    own = {key: value for key, value in table.items() if key != "match_parameters"}
    settings = merge_settings(common_settings, parse_settings_table(own, location)[1])
    return ModelVariant(name=name, settings=settings, match_parameters=table.get("match_parameters", ""))
