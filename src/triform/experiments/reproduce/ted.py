"""R3: English to French TED talks, in four reported settings and a better one."""

from __future__ import annotations

from triform.config.settings import Settings
from triform.experiments.reproduce.system import (
    MetricColumn,
    ReferenceSystem,
    SystemVariant,
    Target,
    settings_from_preset,
)

BEST_SETTINGS: Settings = {
    "data.max_len": 128,
    "tokenizer.kind": "bpe",
    "tokenizer.vocab_size": 6_000,
    "tokenizer.bpe_dropout": 0.1,
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
    "train.r_drop": 4.0,
    "train.ema_decay": 0.998,
    "train.weight_decay": 0.05,
    "train.eval_every": 1_000,
}

# layers, heads and width are in the presets; what the report's table gives for epoch 10, set by set
REPORTED_FIGURES = (
    (1, 0.3701, 0.9028, 1.9431, 0.7480, 37.45, 108),
    (2, 0.3910, 0.8979, 1.9405, 0.7498, 37.96, 202),
    (3, 0.3744, 0.9011, 2.0753, 0.7403, 38.54, 198),
    (4, 2.9184, 0.6366, 4.7750, 0.6329, 31.54, 1626),
)
DESCRIPTIONS = {
    1: "2 layers, 8 heads, 512 wide, dropout 0.1",
    2: "4 layers, 8 heads, 512 wide, dropout 0.2",
    3: "4 layers, 12 heads, 768 wide, dropout 0.2",
    4: "6 layers, 12 heads, 768 wide, dropout 0.1; failed to train in the report",
}

TRANSLATION_COLUMNS = (
    MetricColumn(eval_set="test beam 5", metric="bleu", title="sacreBLEU, beam 5"),
    MetricColumn(eval_set="test greedy", metric="bleu", title="sacreBLEU, greedy"),
    MetricColumn(eval_set="test greedy", metric="sentence_bleu", title="mean sentence BLEU, greedy"),
    MetricColumn(eval_set="train", metric="loss", title="train loss", decimals=4),
    MetricColumn(eval_set="train", metric="token_accuracy", title="train tokens right", unit="percent"),
    MetricColumn(eval_set="valid", metric="loss", title="dev loss", decimals=4),
    MetricColumn(eval_set="valid", metric="token_accuracy", title="dev tokens right", unit="percent"),
    MetricColumn(eval_set="test greedy", metric="seconds", title="decoding, greedy", unit="seconds"),
    MetricColumn(eval_set="test beam 5", metric="seconds", title="decoding, beam 5", unit="seconds"),
)


def _reported_variant(set_number: int, *figures: float) -> SystemVariant:
    columns = (
        *("train.loss", "train.token_accuracy", "valid.loss", "valid.token_accuracy"),
        *("test greedy.sentence_bleu", "test greedy.seconds"),
    )
    return SystemVariant(
        name=f"set-{set_number}",
        group="as-reported",
        settings=settings_from_preset(f"ted-set{set_number}"),
        seeds=1,
        reported_metrics=dict(zip(columns, figures, strict=True)),
        description=DESCRIPTIONS[set_number],
    )


TED_EN_FR = ReferenceSystem(
    name="ted-en-fr",
    title="English to French, four settings compared",
    report="R3",
    task="translate",
    dataset="ted_en_fr",
    files={
        "data.source": "train.en",
        "data.target": "train.fr",
        "data.valid_source": "dev.en",
        "data.valid_target": "dev.fr",
    },
    eval_files={"train": "train.en,train.fr", "valid": "dev.en,dev.fr", "test": "test.en,test.fr"},
    columns=TRANSLATION_COLUMNS,
    attention_example="I do not know where this story begins.",
    reported_column="test greedy.sentence_bleu",
    variants=(
        *(_reported_variant(*row) for row in REPORTED_FIGURES),
        SystemVariant(
            name="best",
            group="best",
            settings=BEST_SETTINGS,
            seeds=1,
            description="6,000 shared pieces split at random, dropout 0.3, two readings that must agree (R-Drop), "
            "averaged weights",
        ),
    ),
    targets=(
        Target(variant="best", column="test beam 5.bleu", low=28.0),
        Target(variant="best", column="test beam 5.bleu", above_group="as-reported", margin=5.0),
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
