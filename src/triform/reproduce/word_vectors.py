"""Whether word vectors, learned from the training texts alone, are a better beginning than chance."""

from __future__ import annotations

from triform.reproduce.imdb import BEST
from triform.reproduce.speeches import CLASSIFIER_BEST
from triform.reproduce.system import Column, Pairing, System, Variant
from triform.settings import Settings

SEEDS = 8  # fewer could not tell, with so many looks
NOTE = (
    "The vectors are those that `triform vectors train` learns from the training file alone: no other text, no "
    "test text. What begins with them has the same other weights and the same batches as the same seed without. "
    "Rows without a vector (special tokens, rare words) begin at random; frozen, they stay so, and positions learn."
)


def _variants(settings: Settings) -> tuple[Variant, ...]:
    def variant(name: str, about: str, *, vectors: bool = True, **more: int) -> Variant:
        changes = {f"train.{key}": value for key, value in more.items()}
        return Variant(
            name=name, setting="best", settings=settings | changes, seeds=SEEDS, vectors=vectors, about=about
        )

    return (
        variant("random", "every row of the embedding drawn at random", vectors=False),
        variant("vectors", "rows begin with word vectors, and learn"),
        variant("vectors-frozen", "rows begin with word vectors, and do not learn", freeze=0),
    )


def _pairings(*columns: str) -> tuple[Pairing, ...]:
    return (
        Pairing(first="random", second="vectors", columns=columns, question="Do word vectors help?"),
        Pairing(first="random", second="vectors-frozen", columns=columns, question="And when they do not learn?"),
    )


WORD_VECTORS_SPEECHES = System(
    name="word-vectors-speeches",
    title="Word vectors or chance to begin with: speeches",
    report="study",
    task="classify",
    known="speeches",
    files={"data.train": "train_CLS.tsv"},
    tests={"test": "test_CLS.tsv"},
    apart=True,
    headline=2,
    vectors={"size": 128, "min_count": 1, "epochs": 40},
    columns=(
        Column(set="test", score="accuracy", title="all test rows", kind="percent"),
        Column(set="test, unseen", score="accuracy", title="unseen rows", kind="percent"),
    ),
    variants=_variants(CLASSIFIER_BEST),
    pairings=_pairings("test.accuracy", "test, unseen.accuracy"),
    notes=(NOTE,),
)
WORD_VECTORS_IMDB = System(
    name="word-vectors-imdb",
    title="Word vectors or chance to begin with: film reviews",
    report="study",
    task="classify",
    known="imdb",
    files={"data.train": "train.jsonl", "data.valid": "valid.jsonl"},
    tests={"test": "test.jsonl"},
    vectors={"size": 128, "min_count": 3, "epochs": 5, "lowercase": True},
    columns=(
        Column(set="test", score="accuracy", title="test accuracy", kind="percent"),
        Column(set="test", score="f1", title="test F1", kind="percent"),
    ),
    variants=_variants(BEST),
    pairings=_pairings("test.accuracy"),
    notes=(NOTE,),
)
