"""Data structures of a reference system: data, variants, reported metrics and targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reproduce.length_bins import LengthBins
from triform.config import TaskName
from triform.config.settings import Settings
from triform.errors import ConfigError

VariantGroup = Literal["as-reported", "earlier", "best"]


@dataclass(frozen=True, kw_only=True)
class MetricColumn:
    """One column of a table: a metric on an evaluation set, and the format of its values."""

    eval_set: str
    metric: str
    title: str
    unit: Literal["percent", "plain", "seconds"] = "plain"
    decimals: int = 2

    @property
    def key(self) -> str:
        """The key of the column: the set and the metric, such as `test.accuracy`."""
        return f"{self.eval_set}.{self.metric}"


@dataclass(frozen=True, kw_only=True)
class SystemVariant:
    """One variant of a system. `reported_metrics` contains published values by column key."""

    name: str
    group: VariantGroup
    settings: Settings
    seeds: int
    reported_metrics: Mapping[str, float] = field(default_factory=dict)
    vocabulary_files: tuple[str, ...] = ()  # files of the word vocabulary, if not the training file
    use_word_vectors: bool = False  # start from the word vectors of the system
    init_from: str = ""  # folder of a published model to start from, next to the datasets
    search: str = ""  # the record in results/search that chose the settings
    trained: bool = True  # False: the published model is evaluated without training
    dynamic: bool = False  # a language model that learns from the text that it has already predicted
    ensemble_of: str = ""  # the variant whose runs are combined
    distill_from: str = ""  # the variant with the ensemble whose first one teaches the runs
    ensemble_size: int = 0  # the number of runs in each ensemble; `seeds` is the number of ensembles
    description: str = ""
    not_run_reason: str = ""  # why there are no results yet, for the results page


@dataclass(frozen=True, kw_only=True)
class Target:
    """The range that the mean of a column should be in, or a margin above every variant of a group."""

    variant: str
    column: str
    low: float = -math.inf
    high: float = math.inf
    above_group: VariantGroup | None = None
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
    """A reference system. Files have the names that the catalogue gives them in the dataset.

    Args:
        files: The file of each setting (`data.train`, `data.source`, ...).
        eval_files: The file of each evaluation set, `source,target`, or "" for data held out of the training file.
        monitor: The evaluation sets that are evaluated while a variant trains. They select nothing.
        measure_gradients: Also measure the norms of gradients by distance, as the set `gradients`.
        length_file: The file of the sets by length, as in `eval_files`.
        token_length_bins: Bins of lengths in tokens, which are the names of these sets; see
            `Run.evaluate_by_length`.
        n_headline_columns: The number of columns in the summary.
        reported_column: The column of the reported metrics, if it is not one of the headline columns.
        split_leaked_rows: Also evaluate seen test rows (those in the training file) and unseen ones separately.
        prompts: Texts to continue, each with a number of new tokens.
        attention_example: A text whose attention map is drawn.
        compared_group: The group whose variants are compared by BLEU, and drawn as curves of BLEU over epochs.
        word_length_bins: Bins of source lengths in words, for metrics of translations by length.
        long_sentences: A `variant` of the compared group, and the `question` whether it translates the longest
            sentences better than the others.
        n_examples: The number of test sentences whose translations by every variant are shown.
        failure_range: A `column`, and the range from `low` to `high` that contains the mean of a variant if its
            training failed as reported.
        word_vector_settings: Settings of the word vectors, which are learned from the training file.
        test_set_history: Settings that were evaluated on the test set before those of the variants, one each.
    """

    name: str
    title: str
    task: TaskName
    dataset: str
    files: Mapping[str, str]
    eval_files: Mapping[str, str]
    columns: tuple[MetricColumn, ...]
    variants: tuple[SystemVariant, ...]
    monitor: tuple[str, ...] = ()
    measure_gradients: bool = False
    length_file: str = ""
    token_length_bins: LengthBins | None = None
    n_headline_columns: int = 1
    reported_column: str = ""
    split_leaked_rows: bool = False
    prompts: tuple[tuple[str, int], ...] = ()
    attention_example: str = ""
    compared_group: str = ""
    word_length_bins: LengthBins | None = None
    long_sentences: Mapping[str, str] = field(default_factory=dict)
    n_examples: int = 0
    failure_range: Mapping[str, Any] = field(default_factory=dict)
    word_vector_settings: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    pairings: tuple[PairedComparison, ...] = ()
    notes: tuple[str, ...] = ()
    test_set_history: tuple[str, ...] = ()

    def find_variant(self, name: str) -> SystemVariant:
        """Return the variant with a name."""
        return next(variant for variant in self.variants if variant.name == name)

    def needs_ensemble(self, variant: SystemVariant) -> bool:
        """Return whether a variant is an ensemble, or learns from one."""
        teacher = variant.distill_from and self.find_variant(variant.distill_from)
        return bool(variant.ensemble_of or (teacher and teacher.ensemble_of))

    def select_variants(self, name: str) -> list[SystemVariant]:
        """Return the variants of a group, or the variant with this name.

        `both` selects all variants except those of the group `earlier`, which better settings have replaced.

        Raises:
            ConfigError: There is no such group or variant.
        """
        groups = {"as-reported", "best"} if name == "both" else {name}
        selected = [variant for variant in self.variants if variant.group in groups]
        selected = selected or [variant for variant in self.variants if variant.name == name]
        if not selected:
            known = ["both", *(variant.group for variant in self.variants), *(item.name for item in self.variants)]
            choices = ", ".join(dict.fromkeys(known))
            raise ConfigError(f"--variant {name}: {self.name} has no such variant; choose from {choices}")
        return selected
