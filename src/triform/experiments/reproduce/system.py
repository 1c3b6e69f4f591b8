"""What a reference system is: its data, the settings it is run under, what was reported, what is asked of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from triform.config import TaskName
from triform.config.presets import preset
from triform.config.settings import Settings, flatten_config, merge_settings, non_default_settings

VariantGroup = Literal["as-reported", "best"]


@dataclass(frozen=True, kw_only=True)
class MetricColumn:
    """One figure of a table: a score on a set. `kind` says how it is written."""

    eval_set: str
    metric: str
    title: str
    unit: Literal["percent", "plain", "seconds"] = "plain"
    decimals: int = 2

    @property
    def key(self) -> str:
        return f"{self.eval_set}.{self.metric}"


@dataclass(frozen=True, kw_only=True)
class SystemVariant:
    """One setting of a system. `reported` holds published figures by column key, where there are any."""

    name: str
    group: VariantGroup
    settings: Settings
    seeds: int
    reported_metrics: Mapping[str, float] = field(default_factory=dict)
    vocabulary_files: tuple[
        str, ...
    ] = ()  # files that a word vocabulary is learned from, where not the training file
    use_word_vectors: bool = False  # whether it begins with the system's word vectors
    init_from: str = ""  # the folder beside the sets, of a published model, that it begins with
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the mean of a column should come to: between two numbers, or better than another variant by so much."""

    variant: str
    column: str
    low: float = -math.inf
    high: float = math.inf
    above_group: VariantGroup | None = None  # better than every variant of that setting
    margin: float = 0.0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Two variants whose seeds are paired: is the second better than the first?"""

    first: str
    second: str
    columns: tuple[str, ...]
    question: str


@dataclass(frozen=True, kw_only=True)
class ReferenceSystem:
    """A reference system, declared. Files are named as in the catalogue's set `known`."""

    name: str
    title: str
    report: str  # which of the reports it is from
    task: TaskName
    dataset: str
    files: Mapping[str, str]  # data.train, data.valid, data.source ... -> file
    eval_files: Mapping[
        str, str
    ]  # a name -> file, `source,target`, or "" for what was held out of the training file
    columns: tuple[MetricColumn, ...]
    variants: tuple[SystemVariant, ...]
    n_headline_columns: int = 1  # how many columns stand for the system in a summary
    reported_column: str = ""  # the column of what was reported, where that is none of these
    split_leaked_rows: bool = False  # score test rows that are in the training file, and those that are not, apart
    prompts: tuple[tuple[str, int], ...] = ()  # to be gone on with, each by so many tokens
    attention_example: str = ""  # a text whose attention is drawn
    word_vector_settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # how word vectors are learned from the training file
    targets: tuple[Target, ...] = ()
    pairings: tuple[PairedComparison, ...] = ()
    notes: tuple[str, ...] = ()

    def select_variants(self, group: str) -> list[SystemVariant]:
        return [variant for variant in self.variants if group in ("both", variant.group)]


def settings_from_preset(name: str, **overrides: object) -> Settings:
    """The settings of a preset; `more` is laid over them, with __ for the dot."""
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    settings = merge_settings(non_default_settings(flatten_config(preset(name))), changes)  # type: ignore[arg-type]
    return {key: value for key, value in settings.items() if key != "task"}
