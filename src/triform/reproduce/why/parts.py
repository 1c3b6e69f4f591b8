"""What is compared, and on what: three tasks, and for each the settings of both models."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from triform.reproduce.shakespeare import SHAKESPEARE_CHAR
from triform.reproduce.speeches import SPEECHES_CLASSIFIER
from triform.reproduce.system import Column, System
from triform.reproduce.ted import TED_EN_FR
from triform.settings import Settings

NAME = "why-transformers"
TITLE = "Why Transformers: an LSTM with as many parameters and as much time"
KINDS = ("transformer", "lstm")
WITHIN = 0.02  # how far their numbers of parameters may lie apart
PILOT_STEPS = 120  # of a run that only shows how fast a model learns; its second half counts
WIDTHS = range(8, 4_096, 2)  # of an LSTM
RATES = (1e-3, 2e-3, 4e-3, 8e-3)  # `train.lr`: either kind tries each of them, in every part


@dataclass(frozen=True, kw_only=True)
class Part:
    """One task. `seconds` is how long each seed of each model learns; `ends` cut lengths into bins.

    The rate is not set: it is the best of `RATES`, found for each kind alike.
    Seven seeds are the fewest with which a paired test, corrected for three looks, can tell anything.
    """

    name: str
    title: str
    system: System  # whose data it is
    seconds: float
    seeds: int
    common: Settings
    transformer: Settings
    lstm: Settings  # its width is found
    columns: tuple[Column, ...]
    judged: str  # the column that is compared
    by_length: Column  # what is told of each bin; its set is the bin's name
    ends: tuple[int, ...]
    counted: str  # what lengths are counted in

    @property
    def bins(self) -> tuple[str, ...]:
        names = [f"{low + 1} to {high}" for low, high in pairwise((0, *self.ends))]
        return (*names, f"{self.ends[-1] + 1} or more") if self.system.task != "generate" else tuple(names)

    def bin_of(self, length: int) -> str:
        return self.bins[sum(length > end for end in self.ends)]

    def settings(self, kind: str) -> Settings:
        own = self.transformer if kind == "transformer" else self.lstm
        return {**self.common, "model.kind": kind, **own}


SPEECHES = Part(
    name="speeches",
    title="Which of three presidents said it",
    system=SPEECHES_CLASSIFIER,
    seconds=1.5,
    seeds=7,
    common={
        "data.max_len": 64,
        "data.valid_fraction": 0.0,
        "tokenizer.kind": "word",
        "model.dropout": 0.5,
        "train.batch_size": 32,
        "train.weight_decay": 0.1,
        "train.label_smoothing": 0.1,
    },
    transformer={"model.d_model": 128, "model.n_layers": 2, "model.n_heads": 4},
    lstm={"model.n_layers": 1},
    columns=(
        Column(set="test", score="accuracy", title="all test rows", kind="percent"),
        Column(set="unseen", score="accuracy", title="unseen rows", kind="percent"),
    ),
    judged="unseen.accuracy",
    by_length=Column(set="", score="accuracy", title="accuracy on unseen rows", kind="percent"),
    ends=(10, 20, 30),
    counted="words",
)
SHAKESPEARE = Part(
    name="shakespeare",
    title="Shakespeare, character by character",
    system=SHAKESPEARE_CHAR,
    seconds=15.0,
    seeds=7,
    common={
        "data.max_len": 256,
        "tokenizer.kind": "char",
        "model.dropout": 0.2,
        "train.batch_size": 64,
        "train.weight_decay": 0.1,
    },
    transformer={
        "model.d_model": 256,
        "model.d_ff": 1024,
        "model.n_layers": 4,
        "model.n_heads": 4,
        "model.positions": "rotary",
    },
    lstm={"model.n_layers": 2},
    columns=(
        Column(set="valid", score="loss", title="validation loss", digits=4),
        Column(set="windows", score="loss", title="the same loss, each window from an empty state", digits=4),
    ),
    judged="windows.loss",
    by_length=Column(set="", score="loss", title="loss from an empty state", digits=3),
    ends=(8, 32, 64, 128, 256),
    counted="characters read",
)
TED = Part(
    name="ted",
    title="TED talks, English to French",
    system=TED_EN_FR,
    seconds=30.0,
    seeds=7,
    common={
        "data.max_len": 96,
        "data.valid_fraction": 0.0,
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": 6_000,
        "model.dropout": 0.2,
        "train.batch_tokens": 8_192,
        "train.label_smoothing": 0.1,
    },
    transformer={
        "model.d_model": 256,
        "model.d_ff": 1024,
        "model.n_layers": 3,
        "model.n_heads": 4,
        "model.positions": "rotary",
    },
    lstm={"model.n_layers": 2},
    columns=(
        Column(set="test", score="bleu", title="sacreBLEU, greedy"),
        Column(set="test", score="chrf", title="chrF"),
    ),
    judged="test.bleu",
    by_length=Column(set="", score="bleu", title="sacreBLEU", digits=1),
    ends=(10, 20, 30),
    counted="words of the source",
)
PARTS = (SPEECHES, SHAKESPEARE, TED)
QUICK: dict[str, Settings] = {
    "transformer": {"model.d_model": 16, "model.d_ff": 32, "model.n_layers": 1, "model.n_heads": 2},
    "lstm": {"model.n_layers": 1},
}
QUICK_STEPS = 4
QUICK_VOCABULARY = 300  # of byte pieces
