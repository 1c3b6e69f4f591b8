"""R3: English to French TED talks, in four reported settings and a better one."""

from __future__ import annotations

from triform.reproduce.system import Column, System, Target, Variant, reported
from triform.settings import Settings

BEST: Settings = {
    "data.max_len": 128,
    "tokenizer.kind": "bpe",
    "tokenizer.vocab_size": 6_000,
    "tokenizer.dropout": 0.1,
    "model.d_model": 512,
    "model.d_ff": 1024,
    "model.n_layers": 5,
    "model.n_heads": 8,
    "model.dropout": 0.3,
    "model.positions": "rotary",
    "train.lr": 1e-3,
    "train.warmup_steps": 1_000,
    "train.batch_tokens": 8_192,
    "train.epochs": 60.0,
    "train.label_smoothing": 0.1,
    "train.consistency": 4.0,
    "train.average": 0.998,
    "train.weight_decay": 0.05,
    "train.eval_every": 1_000,
}

# layers, heads and width are in the presets; what the report's table gives for epoch 10, set by set
TABLE = (
    (1, 0.3701, 0.9028, 1.9431, 0.7480, 37.45, 108),
    (2, 0.3910, 0.8979, 1.9405, 0.7498, 37.96, 202),
    (3, 0.3744, 0.9011, 2.0753, 0.7403, 38.54, 198),
    (4, 2.9184, 0.6366, 4.7750, 0.6329, 31.54, 1626),
)
ABOUT = {
    1: "2 layers, 8 heads, 512 wide, dropout 0.1",
    2: "4 layers, 8 heads, 512 wide, dropout 0.2",
    3: "4 layers, 12 heads, 768 wide, dropout 0.2",
    4: "6 layers, 12 heads, 768 wide, dropout 0.1; failed to train in the report",
}

TRANSLATION_COLUMNS = (
    Column(set="test beam 5", score="bleu", title="sacreBLEU, beam 5"),
    Column(set="test greedy", score="bleu", title="sacreBLEU, greedy"),
    Column(set="test greedy", score="sentence_bleu", title="mean sentence BLEU, greedy"),
    Column(set="train", score="loss", title="train loss", digits=4),
    Column(set="train", score="token_accuracy", title="train tokens right", kind="percent"),
    Column(set="valid", score="loss", title="dev loss", digits=4),
    Column(set="valid", score="token_accuracy", title="dev tokens right", kind="percent"),
    Column(set="test greedy", score="seconds", title="decoding, greedy", kind="seconds"),
    Column(set="test beam 5", score="seconds", title="decoding, beam 5", kind="seconds"),
)


def _set(number: int, *figures: float) -> Variant:
    columns = (
        *("train.loss", "train.token_accuracy", "valid.loss", "valid.token_accuracy"),
        *("test greedy.sentence_bleu", "test greedy.seconds"),
    )
    return Variant(
        name=f"set-{number}",
        setting="as-reported",
        settings=reported(f"ted-set{number}"),
        seeds=1,
        reported=dict(zip(columns, figures, strict=True)),
        about=ABOUT[number],
    )


TED_EN_FR = System(
    name="ted-en-fr",
    title="English to French, four settings compared",
    report="R3",
    task="translate",
    known="ted_en_fr",
    files={
        "data.source": "train.en",
        "data.target": "train.fr",
        "data.valid_source": "dev.en",
        "data.valid_target": "dev.fr",
    },
    tests={"train": "train.en,train.fr", "valid": "dev.en,dev.fr", "test": "test.en,test.fr"},
    columns=TRANSLATION_COLUMNS,
    look="I do not know where this story begins.",
    reported_instead="test greedy.sentence_bleu",
    variants=(
        *(_set(*row) for row in TABLE),
        Variant(
            name="best",
            setting="best",
            settings=BEST,
            seeds=1,
            about="6,000 shared pieces split at random, dropout 0.3, two readings that must agree (R-Drop), "
            "averaged weights",
        ),
    ),
    targets=(
        Target(variant="best", column="test beam 5.bleu", low=28.0),
        Target(variant="best", column="test beam 5.bleu", above_all="as-reported", by=5.0),
    ),
    notes=(
        (
            "How the reported BLEU was computed is not said; its figures, times 100, stand beside the mean of "
            "smoothed sentence BLEU, the score they resemble most. Token accuracy near 63 % with a failed "
            "model suggests that the report counted padding; here none is counted. Training loss and accuracy "
            "are those of the kept weights, without dropout and without label smoothing. Its decoding was "
            "timed one sentence at a time; ours is given all of them."
        ),
        (
            "The report does not say its vocabulary, learning rate or schedule: ours are 16,384 shared byte-"
            "level pieces and an inverse square root after 1,000 steps of warm-up."
        ),
    ),
)
