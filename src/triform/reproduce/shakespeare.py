"""R1: Shakespeare, character by character."""

from __future__ import annotations

from triform.reproduce.system import Column, System, Target, Variant, reported
from triform.settings import Settings

BEST: Settings = {
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
    "train.average": 0.995,
    "train.batch_size": 64,
    "train.max_steps": 4_000,
    "train.eval_every": 250,
    "train.patience": 3,
}

SHAKESPEARE_CHAR = System(
    name="shakespeare-char",
    title="A character language model on tiny Shakespeare",
    report="R1",
    task="generate",
    known="tinyshakespeare",
    files={"data.train": "input.txt"},
    tests={"valid": ""},
    prompts=(("", 1_000), ("JULIET: ", 200)),
    columns=(
        Column(set="valid", score="loss", title="validation loss", digits=4),
        Column(set="valid", score="bits_per_byte", title="bits a byte", digits=4),
    ),
    variants=(
        Variant(
            name="as-reported",
            setting="as-reported",
            settings=reported("shakespeare-char"),
            seeds=5,
            about="4 layers, 64 wide, 32 characters of context",
        ),
        Variant(
            name="best",
            setting="best",
            settings=BEST,
            seeds=3,
            reported={"valid.loss": 1.4697},
            about="6 layers, 384 wide, 256 characters of context; reported is nanoGPT's figure for this size",
        ),
    ),
    targets=(Target(variant="best", column="valid.loss", high=1.45, about="at most 11 million parameters"),),
    notes=(
        (
            "The last tenth of the text validates, and there is no test set: the best weights are those with the "
            "lowest validation loss, as in the report and in nanoGPT. Here the whole tenth is scored once, in "
            "windows side by side, where those estimate the loss on random batches."
        ),
    ),
)
