"""R1: Shakespeare, character by character."""

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
    "data.max_len": 256,
    "tokenizer.kind": "char",
    "model.d_model": 384,
    "model.d_ff": 1536,
    "model.n_layers": 6,
    "model.n_heads": 6,
    "model.dropout": 0.35,
    "model.attention_dropout": 0.2,
    "model.positions": "rotary",
    "train.lr": 1e-3,
    "train.betas": (0.9, 0.99),
    "train.weight_decay": 0.1,
    "train.ema_decay": 0.995,
    "train.batch_size": 64,
    "train.max_steps": 4_000,
    "train.eval_every": 250,
    "train.patience": 3,
}

SHAKESPEARE_CHAR = ReferenceSystem(
    name="shakespeare-char",
    title="A character language model on tiny Shakespeare",
    report="R1",
    task="generate",
    dataset="tinyshakespeare",
    files={"data.train": "input.txt"},
    eval_files={"valid": ""},
    prompts=(("", 1_000), ("JULIET: ", 200)),
    columns=(
        MetricColumn(eval_set="valid", metric="loss", title="validation loss", decimals=4),
        MetricColumn(eval_set="valid", metric="bits_per_byte", title="bits a byte", decimals=4),
    ),
    variants=(
        SystemVariant(
            name="as-reported",
            group="as-reported",
            settings=settings_from_preset("shakespeare-char"),
            seeds=5,
            description="4 layers, 64 wide, 32 characters of context",
        ),
        SystemVariant(
            name="best",
            group="best",
            settings=BEST_SETTINGS,
            seeds=3,
            reported_metrics={"valid.loss": 1.4697},
            description="6 layers, 384 wide, 256 characters of context; reported is nanoGPT's figure for this size",
        ),
    ),
    targets=(Target(variant="best", column="valid.loss", high=1.45, note="at most 11 million parameters"),),
    notes=(
        (
            "The last tenth of the text validates, and there is no test set: the best weights are those with the "
            "lowest validation loss, as in the report and in nanoGPT. Here the whole tenth is scored once, in "
            "windows side by side, where those estimate the loss on random batches."
        ),
    ),
)
