"""What is compared, and on what: three tasks, and for each the settings of both models."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from triform.config.settings import Settings
from triform.experiments.reproduce.shakespeare import SHAKESPEARE_CHAR
from triform.experiments.reproduce.speeches import SPEECHES_CLASSIFIER
from triform.experiments.reproduce.system import MetricColumn, ReferenceSystem
from triform.experiments.reproduce.ted import TED_EN_FR

STUDY_NAME = "why-transformers"
STUDY_TITLE = "Why Transformers: an LSTM with as many parameters and as much time"
MODEL_KINDS = ("transformer", "lstm")
PARAMETER_TOLERANCE = 0.02  # how far their numbers of parameters may lie apart
PILOT_STEPS = 120  # of a run that only shows how fast a model learns; its second half counts
LSTM_WIDTHS = range(8, 4_096, 2)  # of an LSTM
LEARNING_RATES = (1e-3, 2e-3, 4e-3, 8e-3)  # `train.lr`: either kind tries each of them, in every part


@dataclass(frozen=True, kw_only=True)
class ComparisonTask:
    """One task. `seconds` is how long each seed of each model learns; `ends` cut lengths into bins.

    The rate is not set: it is the best of `RATES`, found for each kind alike.
    Seven seeds are the fewest with which a paired test, corrected for three looks, can tell anything.
    """

    name: str
    title: str
    system: ReferenceSystem  # whose data it is
    seconds: float
    seeds: int
    shared_settings: Settings
    transformer_settings: Settings
    lstm_settings: Settings  # its width is found
    columns: tuple[MetricColumn, ...]
    compared_column: str  # the column that is compared
    length_column: MetricColumn  # what is told of each bin; its set is the bin's name
    bin_edges: tuple[int, ...]
    length_unit: str  # what lengths are counted in

    @property
    def bin_names(self) -> tuple[str, ...]:
        names = [f"{low + 1} to {high}" for low, high in pairwise((0, *self.bin_edges))]
        return (*names, f"{self.bin_edges[-1] + 1} or more") if self.system.task != "generate" else tuple(names)

    def bin_name(self, length: int) -> str:
        return self.bin_names[sum(length > edge for edge in self.bin_edges)]

    def model_settings(self, kind: str) -> Settings:
        kind_settings = self.transformer_settings if kind == "transformer" else self.lstm_settings
        return {**self.shared_settings, "model.kind": kind, **kind_settings}


SPEECHES = ComparisonTask(
    name="speeches",
    title="Which of three presidents said it",
    system=SPEECHES_CLASSIFIER,
    seconds=1.5,
    seeds=7,
    shared_settings={
        "data.max_len": 64,
        "data.valid_fraction": 0.0,
        "tokenizer.kind": "word",
        "model.dropout": 0.5,
        "train.batch_size": 32,
        "train.weight_decay": 0.1,
        "train.label_smoothing": 0.1,
    },
    transformer_settings={"model.d_model": 128, "model.n_layers": 2, "model.n_heads": 4},
    lstm_settings={"model.n_layers": 1},
    columns=(
        MetricColumn(eval_set="test", metric="accuracy", title="all test rows", unit="percent"),
        MetricColumn(eval_set="unseen", metric="accuracy", title="unseen rows", unit="percent"),
    ),
    compared_column="unseen.accuracy",
    length_column=MetricColumn(eval_set="", metric="accuracy", title="accuracy on unseen rows", unit="percent"),
    bin_edges=(10, 20, 30),
    length_unit="words",
)
SHAKESPEARE = ComparisonTask(
    name="shakespeare",
    title="Shakespeare, character by character",
    system=SHAKESPEARE_CHAR,
    seconds=15.0,
    seeds=7,
    shared_settings={
        "data.max_len": 256,
        "tokenizer.kind": "char",
        "model.dropout": 0.2,
        "train.batch_size": 64,
        "train.weight_decay": 0.1,
    },
    transformer_settings={
        "model.d_model": 256,
        "model.d_ff": 1024,
        "model.n_layers": 4,
        "model.n_heads": 4,
        "model.positions": "rotary",
    },
    lstm_settings={"model.n_layers": 2},
    columns=(
        MetricColumn(eval_set="valid", metric="loss", title="validation loss", decimals=4),
        MetricColumn(
            eval_set="windows", metric="loss", title="the same loss, each window from an empty state", decimals=4
        ),
    ),
    compared_column="windows.loss",
    length_column=MetricColumn(eval_set="", metric="loss", title="loss from an empty state", decimals=3),
    bin_edges=(8, 32, 64, 128, 256),
    length_unit="characters read",
)
TED = ComparisonTask(
    name="ted",
    title="TED talks, English to French",
    system=TED_EN_FR,
    seconds=30.0,
    seeds=7,
    shared_settings={
        "data.max_len": 96,
        "data.valid_fraction": 0.0,
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": 6_000,
        "model.dropout": 0.2,
        "train.batch_tokens": 8_192,
        "train.label_smoothing": 0.1,
    },
    transformer_settings={
        "model.d_model": 256,
        "model.d_ff": 1024,
        "model.n_layers": 3,
        "model.n_heads": 4,
        "model.positions": "rotary",
    },
    lstm_settings={"model.n_layers": 2},
    columns=(
        MetricColumn(eval_set="test", metric="bleu", title="sacreBLEU, greedy"),
        MetricColumn(eval_set="test", metric="chrf", title="chrF"),
    ),
    compared_column="test.bleu",
    length_column=MetricColumn(eval_set="", metric="bleu", title="sacreBLEU", decimals=1),
    bin_edges=(10, 20, 30),
    length_unit="words of the source",
)
COMPARISON_TASKS = (SPEECHES, SHAKESPEARE, TED)
SMOKE_SETTINGS: dict[str, Settings] = {
    "transformer": {"model.d_model": 16, "model.d_ff": 32, "model.n_layers": 1, "model.n_heads": 2},
    "lstm": {"model.n_layers": 1},
}
SMOKE_STEPS = 4
SMOKE_VOCAB_SIZE = 300  # of byte pieces
