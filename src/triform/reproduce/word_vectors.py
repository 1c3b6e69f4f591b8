"""Whether word vectors, learned from the training texts alone, are a better beginning than chance."""

from __future__ import annotations

from triform.reproduce.system import Column, Pairing, System, Variant
from triform.settings import Settings

SEEDS = 8  # fewer could not tell, with so many looks
SIZE = 128  # of a vector, and so of a model that begins with it
# A plain encoder of words: whether vectors help is asked without what else was found to help a system.
WORDS: Settings = {
    "tokenizer.kind": "word",
    "model.d_model": SIZE,
    "model.n_layers": 1,
    "model.n_heads": 4,
    "model.dropout": 0.5,
    "train.lr": 1e-3,
    "train.batch_size": 32,
    "train.weight_decay": 0.1,
    "train.label_smoothing": 0.1,
}
SPEECHES = WORDS | {"data.max_len": 64, "data.valid_fraction": 0.0, "train.epochs": 15.0}
REVIEWS = WORDS | {
    "data.max_len": 256,
    "tokenizer.lowercase": True,
    "tokenizer.min_count": 3,
    "train.epochs": 4.0,
    "train.eval_every": 235,
}
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
    vectors={"size": SIZE, "min_count": 1, "epochs": 40},
    columns=(
        Column(set="test", score="accuracy", title="all test rows", kind="percent"),
        Column(set="test, unseen", score="accuracy", title="unseen rows", kind="percent"),
    ),
    variants=_variants(SPEECHES),
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
    vectors={"size": SIZE, "min_count": 3, "epochs": 5, "lowercase": True},
    columns=(
        Column(set="test", score="accuracy", title="test accuracy", kind="percent"),
        Column(set="test", score="f1", title="test F1", kind="percent"),
    ),
    variants=_variants(REVIEWS),
    pairings=_pairings("test.accuracy"),
    notes=(NOTE,),
)
