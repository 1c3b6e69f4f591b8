"""Whether word vectors, learned from the training texts alone, are a better beginning than chance."""

from __future__ import annotations

from triform.config.settings import Settings
from triform.experiments.reproduce.system import MetricColumn, PairedComparison, ReferenceSystem, SystemVariant

N_SEEDS = 8  # fewer could not tell, with so many looks
VECTOR_SIZE = 128  # of a vector, and so of a model that begins with it
# A plain encoder of words: whether vectors help is asked without what else was found to help a system.
WORD_ENCODER_SETTINGS: Settings = {
    "tokenizer.kind": "word",
    "model.d_model": VECTOR_SIZE,
    "model.n_layers": 1,
    "model.n_heads": 4,
    "model.dropout": 0.5,
    "train.lr": 1e-3,
    "train.batch_size": 32,
    "train.weight_decay": 0.1,
    "train.label_smoothing": 0.1,
}
SPEECHES_SETTINGS = WORD_ENCODER_SETTINGS | {"data.max_len": 64, "data.valid_fraction": 0.0, "train.epochs": 15.0}
REVIEWS_SETTINGS = WORD_ENCODER_SETTINGS | {
    "data.max_len": 256,
    "tokenizer.lowercase": True,
    "tokenizer.min_count": 3,
    "train.epochs": 4.0,
    "train.eval_every": 235,
}
VECTORS_NOTE = (
    "The vectors are those that `triform vectors train` learns from the training file alone: no other text, no "
    "test text. What begins with them has the same other weights and the same batches as the same seed without. "
    "Rows without a vector (special tokens, rare words) begin at random; frozen, they stay so, and positions learn."
)


def _vector_variants(settings: Settings) -> tuple[SystemVariant, ...]:
    def make_variant(
        name: str, description: str, *, use_word_vectors: bool = True, **train_settings: int
    ) -> SystemVariant:
        changes = {f"train.{key}": value for key, value in train_settings.items()}
        return SystemVariant(
            name=name,
            group="best",
            settings=settings | changes,
            seeds=N_SEEDS,
            use_word_vectors=use_word_vectors,
            description=description,
        )

    return (
        make_variant("random", "every row of the embedding drawn at random", use_word_vectors=False),
        make_variant("vectors", "rows begin with word vectors, and learn"),
        make_variant("vectors-frozen", "rows begin with word vectors, and do not learn", freeze_layers=0),
    )


def _vector_pairings(*columns: str) -> tuple[PairedComparison, ...]:
    return (
        PairedComparison(first="random", second="vectors", columns=columns, question="Do word vectors help?"),
        PairedComparison(
            first="random", second="vectors-frozen", columns=columns, question="And when they do not learn?"
        ),
    )


WORD_VECTORS_SPEECHES = ReferenceSystem(
    name="word-vectors-speeches",
    title="Word vectors or chance to begin with: speeches",
    report="study",
    task="classify",
    dataset="speeches",
    files={"data.train": "train_CLS.tsv"},
    eval_files={"test": "test_CLS.tsv"},
    split_leaked_rows=True,
    n_headline_columns=2,
    word_vector_settings={"size": VECTOR_SIZE, "min_count": 1, "epochs": 40},
    columns=(
        MetricColumn(eval_set="test", metric="accuracy", title="all test rows", unit="percent"),
        MetricColumn(eval_set="test, unseen", metric="accuracy", title="unseen rows", unit="percent"),
    ),
    variants=_vector_variants(SPEECHES_SETTINGS),
    pairings=_vector_pairings("test.accuracy", "test, unseen.accuracy"),
    notes=(VECTORS_NOTE,),
)
WORD_VECTORS_IMDB = ReferenceSystem(
    name="word-vectors-imdb",
    title="Word vectors or chance to begin with: film reviews",
    report="study",
    task="classify",
    dataset="imdb",
    files={"data.train": "train.jsonl", "data.valid": "valid.jsonl"},
    eval_files={"test": "test.jsonl"},
    word_vector_settings={"size": VECTOR_SIZE, "min_count": 3, "epochs": 5, "lowercase": True},
    columns=(
        MetricColumn(eval_set="test", metric="accuracy", title="test accuracy", unit="percent"),
        MetricColumn(eval_set="test", metric="f1", title="test F1", unit="percent"),
    ),
    variants=_vector_variants(REVIEWS_SETTINGS),
    pairings=_vector_pairings("test.accuracy"),
    notes=(VECTORS_NOTE,),
)
