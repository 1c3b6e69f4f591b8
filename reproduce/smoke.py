"""Smoke runs: the first rows of every file and tiny models, which run every step but learn nothing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from triform.config.settings import Settings
from triform.data.files import iter_text_lines

SMOKE_TRAIN_ROWS, SMOKE_EVAL_ROWS = 400, 16
SMOKE_STEPS, SMOKE_SEEDS, SMOKE_NEW_TOKENS = 4, 2, 20
SMOKE_VOCAB_SIZE, SMOKE_BIGRAM_BUCKETS = 300, 1_009
SMOKE_MAX_LEN = 24


def write_first_rows(path: Path, target: Path) -> Path:
    """Copy the first rows of a file, more of them for a training file."""
    n_rows = SMOKE_TRAIN_ROWS if path.name.startswith(("train", "input")) else SMOKE_EVAL_ROWS
    with target.open("w", encoding="utf-8", newline="") as file:
        file.writelines(islice(iter_text_lines(str(path)), n_rows))
    return target


def smoke_model_settings(settings: Settings) -> Settings:
    """Return the settings that make a model of any kind tiny."""
    overrides: Settings = {"data.max_len": SMOKE_MAX_LEN, "model.n_layers": 1}
    if settings["model.kind"] == "transformer":
        overrides |= {"model.d_model": 16, "model.d_ff": 32, "model.n_heads": 2}
    if settings["tokenizer.kind"] == "bpe":
        overrides["tokenizer.vocab_size"] = SMOKE_VOCAB_SIZE
    return overrides


def smoke_settings(settings: Settings) -> Settings:
    """Return the settings that make a variant tiny and its training short."""
    n_heads = settings.get("model.n_heads", 2)
    assert isinstance(n_heads, int)
    model_settings: Settings = {"model.d_model": 8 * n_heads, "model.n_layers": 1}
    if settings.get("model.kind", "transformer") == "transformer":
        model_settings["model.d_ff"] = 32
    if "train.embeddings" in settings:
        del model_settings["model.d_model"]  # the vectors determine the width
    overrides: Settings = {
        "data.max_len": SMOKE_MAX_LEN,
        **({} if "train.init_from" in settings else model_settings),
        "train.max_steps": SMOKE_STEPS,
        "train.eval_every": 2,
        "train.log_every": 1,
        "train.warmup_steps": 1,
    }
    if "data.train_max_len" in settings:
        overrides["data.max_len"] = settings["data.max_len"]  # the system compares lengths
    if settings.get("model.bigram_buckets"):
        overrides["model.bigram_buckets"] = SMOKE_BIGRAM_BUCKETS
    if settings.get("tokenizer.kind") == "bpe":
        overrides["tokenizer.vocab_size"] = SMOKE_VOCAB_SIZE
        overrides["data.train_max_len"] = 0  # texts have more tokens of a tiny vocabulary
    return overrides
