"""What a reference system is: its data, the settings it is run under, what was reported, what is asked of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from triform.config import TaskName
from triform.presets import preset
from triform.settings import Settings, chosen, flatten, overlay

Setting = Literal["as-reported", "best"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One figure of a table: a score on a set. `kind` says how it is written."""

    set: str
    score: str
    title: str
    kind: Literal["percent", "plain", "seconds"] = "plain"
    digits: int = 2

    @property
    def key(self) -> str:
        return f"{self.set}.{self.score}"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One setting of a system. `reported` holds published figures by column key, where there are any."""

    name: str
    setting: Setting
    settings: Settings
    seeds: int
    reported: Mapping[str, float] = field(default_factory=dict)
    vocabulary: tuple[str, ...] = ()  # files that a word vocabulary is learned from, where not the training file
    vectors: bool = False  # whether it begins with the system's word vectors
    base: str = ""  # the folder beside the sets, of a published model, that it begins with
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the mean of a column should come to: between two numbers, or better than another variant by so much."""

    variant: str
    column: str
    low: float = -math.inf
    high: float = math.inf
    above_all: Setting | None = None  # better than every variant of that setting
    by: float = 0.0
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Two variants whose seeds are paired: is the second better than the first?"""

    first: str
    second: str
    columns: tuple[str, ...]
    question: str


@dataclass(frozen=True, kw_only=True)
class System:
    """A reference system, declared. Files are named as in the catalogue's set `known`."""

    name: str
    title: str
    report: str  # which of the reports it is from
    task: TaskName
    known: str
    files: Mapping[str, str]  # data.train, data.valid, data.source ... -> file
    tests: Mapping[str, str]  # a name -> file, `source,target`, or "" for what was held out of the training file
    columns: tuple[Column, ...]
    variants: tuple[Variant, ...]
    headline: int = 1  # how many columns stand for the system in a summary
    reported_instead: str = ""  # the column of what was reported, where that is none of these
    apart: bool = False  # score test rows that are in the training file, and those that are not, apart
    prompts: tuple[tuple[str, int], ...] = ()  # to be gone on with, each by so many tokens
    look: str = ""  # a text whose attention is drawn
    vectors: Mapping[str, Any] = field(default_factory=dict)  # how word vectors are learned from the training file
    targets: tuple[Target, ...] = ()
    pairings: tuple[Pairing, ...] = ()
    notes: tuple[str, ...] = ()

    def chosen(self, setting: str) -> list[Variant]:
        return [variant for variant in self.variants if setting in ("both", variant.setting)]


def reported(name: str, **more: object) -> Settings:
    """The settings of a preset; `more` is laid over them, with __ for the dot."""
    changes = {key.replace("__", "."): value for key, value in more.items()}
    settings = overlay(chosen(flatten(preset(name))), changes)  # type: ignore[arg-type]
    return {key: value for key, value in settings.items() if key != "task"}
