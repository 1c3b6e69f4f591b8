"""Without a chosen size or length, a classifier gets one layer, strong regularisation and enough steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from triform.config import Config
from triform.config.settings import Settings, build_config
from triform.launch import RunOptions, build_trainer, train
from triform.tasks.classifier_defaults import MAX_TOKENS, MIN_SELECTION_ROWS, MIN_STEPS, ClassifierDefaults
from triform.training.run_folder import RunFolder


def resolve(settings: Settings, n_tokens: int, n_rows: int) -> Config:
    config = build_config({"task": "classify", **settings})
    defaults = ClassifierDefaults.choose(config, settings)
    assert defaults is not None
    resolved, notice = defaults.resolve(config, n_tokens, n_rows)
    assert bool(notice) == (n_tokens <= MAX_TOKENS)
    return resolved


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "generate"},
        {"model.d_model": 64},
        {"model.n_layers": 1},
        {"model.layer_windows": (8, -1)},
        {"train.max_steps": 10},
        {"train.epochs": 2.0},
        {"train.init_from": "runs/base"},
        {"train.embeddings": "vectors.txt"},
        {"train.distill_from": "runs/teacher"},
        {"model.kind": "gru"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_a_user_who_chooses_a_model_or_a_length_gets_the_ordinary_defaults(settings: Settings) -> None:
    assert ClassifierDefaults.choose(build_config({"task": "classify", **settings}), settings) is None


def test_small_data_gets_enough_steps_and_one_validation_at_the_end() -> None:
    config = resolve({}, n_tokens=1_000, n_rows=100)
    assert config.train.max_steps == config.train.eval_every == MIN_STEPS
    assert config.train.r_drop > 0
    assert (config.model.n_layers, config.model.dropout) == (1, 0.5)


def test_with_more_rows_validation_selects_the_weights() -> None:
    config = resolve({}, n_tokens=60_000, n_rows=5_000)
    assert config.train.max_steps == 8 * 5_000 // config.train.batch_size > MIN_STEPS
    assert config.train.eval_every == 0  # chosen later, ten validations
    assert config.train.r_drop == 0
    assert resolve({}, 60_000, MIN_SELECTION_ROWS).train.eval_every == 0


def test_very_large_data_gets_the_ordinary_defaults() -> None:
    config = resolve({}, n_tokens=MAX_TOKENS + 1, n_rows=MAX_TOKENS)
    assert config == build_config({"task": "classify"})


def test_settings_of_the_user_are_kept() -> None:
    user_settings: Settings = {
        "model.dropout": 0.1,
        "train.batch_tokens": 512,
        "train.lr": 0.001,
        "train.r_drop": 0.0,
    }
    config = resolve(user_settings, n_tokens=1_000, n_rows=100)
    assert config.model.dropout == 0.1
    assert (config.train.lr, config.train.r_drop) == (0.001, 0.0)
    assert resolve({"model.dropout": 0.0}, n_tokens=1_000, n_rows=100).train.r_drop == 0.0
    assert (config.train.batch_tokens, config.train.batch_size) == (512, 0)


@pytest.mark.parametrize(
    ("settings", "steps_per_epoch"),
    [
        ({"train.batch_size": 8}, 625),
        ({"train.batch_tokens": 120}, 500),
        ({"train.grad_accumulation": 4}, 39.0625),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_number_of_epochs_does_not_depend_on_the_batches_of_the_user(
    settings: Settings, steps_per_epoch: float
) -> None:
    assert resolve(settings, n_tokens=60_000, n_rows=5_000).train.max_steps == round(8 * steps_per_epoch)


@pytest.mark.parametrize("name", ["data.valid", "train.patience", "train.schedule"])
def test_a_user_who_wants_the_best_weights_gets_several_validations(name: str) -> None:
    values: Settings = {"data.valid": "dev.csv", "train.patience": 3, "train.schedule": "plateau"}
    assert resolve({name: values[name]}, n_tokens=1_000, n_rows=100).train.eval_every == 0


def test_settings_that_a_run_has_stored_are_final(tmp_path: Path) -> None:
    data = tmp_path / "films.csv"
    data.write_text("text,label\n" + "a good film,pos\na bad film,neg\n" * 20, encoding="utf-8")
    options = RunOptions(device="cpu", quiet=True)
    model, steps = {"d_model": 8, "n_layers": 1, "n_heads": 1}, {"max_steps": 2, "baseline": False}
    stored = train("classify", data=data, out=tmp_path / "run", options=options, model=model, train=steps).config
    trainer, _ = build_trainer(stored, RunFolder(tmp_path / "other"), options, resume=False)
    assert trainer.task.config == stored


@pytest.mark.parametrize("kind", ["auto", "word", "bpe"])
def test_only_words_that_were_chosen_automatically_become_lower_case(kind: str) -> None:
    settings: Settings = {} if kind == "auto" else {"tokenizer.kind": kind}
    defaults = ClassifierDefaults.choose(build_config({"task": "classify", **settings}), settings)
    assert defaults is not None
    config = build_config({"task": "classify", "tokenizer.kind": "word" if kind == "auto" else kind})
    assert defaults.choose_vocabulary(config, 1_000).tokenizer.lowercase == (kind == "auto")


def test_a_few_rows_are_learned_with_these_settings(tmp_path: Path) -> None:
    rows = [f"{word} film number {index},{label}" for index in range(20) for word, label in WORDS.items()]
    data = tmp_path / "films.csv"
    data.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    run = train("classify", data=data, out=tmp_path / "run", device="cpu", quiet=True, train={"baseline": False})
    assert (run.config.model.d_model, run.config.train.max_steps) == (64, MIN_STEPS)
    assert run.config.tokenizer.lowercase
    assert [prediction.output for prediction in run.predict(["a GOOD one", "a bad one"])] == ["pos", "neg"]


WORDS = {"good": "pos", "bad": "neg", "fine": "pos", "awful": "neg"}
