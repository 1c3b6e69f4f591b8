"""On a CPU, the size of the model and the number of steps fit a budget, and settings of the user are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triform.config import Config
from triform.config.settings import Settings, build_config, flatten_config
from triform.launch import train
from triform.run import load
from triform.tasks.cpu_budget import BUDGETS, FLOPS_PER_SECOND, CpuBudget, Plan

MILLION = 1_000_000
GENERATE: Settings = {"task": "generate", "data.max_len": 128, "tokenizer.vocab_size": 2_048}
TRANSLATE: Settings = {"task": "translate", "data.max_len": 128, "tokenizer.vocab_size": 4_096}


def resolve(settings: Settings, n_tokens: int, n_rows: int = 1) -> tuple[Config, str]:
    config = build_config(settings)
    budget = CpuBudget.choose(config, settings, "cpu")
    assert budget is not None
    return budget.resolve(config, n_tokens, n_rows)


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "classify"},
        {"task": "generate", "train.max_steps": 5},
        {"task": "generate", "train.epochs": 1.0},
        {"task": "generate", "train.init_from": "runs/base"},
        {"task": "generate", "model.kind": "lstm"},
        {"task": "translate", "train.distill_from": "runs/teacher"},
        {"task": "translate", "train.objective": "denoise"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_only_training_from_scratch_without_a_length_has_a_budget(settings: Settings) -> None:
    assert CpuBudget.choose(build_config(settings), settings, "cpu") is None
    task: Settings = {"task": "generate"}
    assert CpuBudget.choose(build_config(task), task, "cpu") is not None
    assert CpuBudget.choose(build_config(task), task, "cuda") is None


@pytest.mark.parametrize(
    ("settings", "n_rows"), [(GENERATE, 1), (TRANSLATE, 100_000)], ids=["generate", "translate"]
)
def test_the_steps_use_up_the_budget_but_do_not_exceed_it(settings: Settings, n_rows: int) -> None:
    config, notice = resolve(settings, 3 * MILLION, n_rows)
    task = config.task
    plan = Plan.estimate(config, 3 * MILLION, 128 if task == "generate" else 3 * MILLION // n_rows)
    flops = 60 * BUDGETS[task].minutes * FLOPS_PER_SECOND
    assert flops - plan.step_flops < config.train.max_steps * plan.step_flops <= flops
    assert 5 <= config.train.max_steps / float(config.train.eval_every) <= 6
    assert f"{config.train.max_steps} steps" in notice
    assert "train.max_minutes" in notice


def test_the_model_grows_with_the_minutes_and_the_steps_stay_below_the_largest_number_of_epochs() -> None:
    widths = [
        resolve({**GENERATE, "train.max_minutes": minutes}, 10 * MILLION)[0].model.d_model
        for minutes in (1.0, 5.0, 60.0, 600.0, 6_000.0)
    ]
    assert widths == sorted(widths)
    assert widths[0] == 128 < widths[-1]
    config, notice = resolve(GENERATE, 10_240)
    assert config.train.max_steps == 15 * 10
    assert "15 epochs" in notice
    assert "max_minutes" not in notice


def test_a_language_model_needs_dropout_only_if_it_sees_its_text_several_times() -> None:
    assert resolve(GENERATE, 10 * MILLION)[0].model.dropout == 0
    assert resolve(GENERATE, 100_000)[0].model.dropout == 0.1
    assert resolve(TRANSLATE, 10 * MILLION, 300_000)[0].model.dropout == 0.1


@pytest.mark.parametrize(
    "user_settings",
    [
        {"model.dropout": 0.1},
        {"train.optimizer": "adamw"},
        {"train.lr": 1e-3},
        {"train.batch_size": 3},
        {"train.batch_tokens": 500},
        {"train.eval_every": 7},
        {"model.positions": "alibi"},
        {"model.d_model": 96},
        {"model.n_layers": 1, "model.n_heads": 3},
    ],
    ids=lambda user_settings: "-".join(user_settings),
)
def test_settings_of_the_user_are_kept(user_settings: dict[str, Any]) -> None:
    config = flatten_config(resolve(GENERATE | user_settings, 10 * MILLION)[0])
    assert {name: config[name] for name in user_settings} == user_settings
    assert config["train.max_steps"]


@pytest.mark.parametrize(
    "settings", [{"model.d_model": 6, "model.n_heads": 2}, {"model.attention_score": "additive"}], ids=str
)
def test_positions_are_rotary_unless_the_attention_does_not_allow_it(settings: Settings) -> None:
    assert resolve(GENERATE, MILLION)[0].model.positions == "rotary"
    assert resolve(GENERATE | settings, MILLION)[0].model.positions == "learned"


@pytest.mark.parametrize(
    ("task", "n_characters", "size"),
    [
        ("generate", 60_000, 512),
        ("generate", MILLION, 1_000),
        ("generate", 5 * MILLION, 2_048),
        ("translate", 60_000, 4_096),
    ],
)
def test_the_vocabulary_of_a_language_model_grows_with_the_text(task: str, n_characters: int, size: int) -> None:
    config = build_config({"task": task})
    budget = CpuBudget.choose(config, (), "cpu")
    assert budget is not None
    assert budget.choose_vocabulary(config, n_characters).tokenizer.max_vocab_size == size
    unchanged = CpuBudget(["tokenizer.max_vocab_size"]).choose_vocabulary(config, n_characters)
    assert unchanged.tokenizer.max_vocab_size == config.tokenizer.max_vocab_size


def test_a_translator_has_sinusoidal_positions_unless_the_settings_of_the_user_do_not_fit() -> None:
    model = resolve(TRANSLATE, MILLION, 30_000)[0].model
    assert (model.positions, model.scale_embeddings) == ("sinusoidal", True)
    for user_settings in ({"model.positions": "rotary"}, {"model.d_model": 63, "model.n_heads": 1}):
        model = resolve(TRANSLATE | user_settings, MILLION, 30_000)[0].model
        assert model.positions == user_settings.get("model.positions", "learned")
        assert not model.scale_embeddings
    assert not resolve({**TRANSLATE, "model.scale_embeddings": False}, MILLION, 30_000)[0].model.scale_embeddings


def test_several_processes_that_share_a_model_do_not_use_muon() -> None:
    assert resolve(GENERATE, MILLION)[0].train.optimizer == "muon"
    assert resolve(TRANSLATE, MILLION, 30_000)[0].train.optimizer == "muon"
    assert resolve({**GENERATE, "train.parallel": "fsdp"}, MILLION)[0].train.optimizer == "adamw"


def test_a_run_on_a_cpu_stores_what_was_chosen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of a short text\n" for number in range(150)), encoding="utf-8")
    size = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    options: dict[str, Any] = {"data": text, "model": size, "device": "cpu", "train.baseline": False}
    train("generate", out=tmp_path / "run", **options)
    config = load(tmp_path / "run", device="cpu").config
    assert (config.train.optimizer, config.train.epochs, config.tokenizer.max_vocab_size) == ("muon", 0, 512)
    assert f"chosen for a CPU: 1 layer of width 16, {config.train.max_steps} steps" in capfd.readouterr().err
    train("generate", out=tmp_path / "epochs", **options, **{"train.epochs": 1.0})
    config = load(tmp_path / "epochs", device="cpu").config
    assert (config.train.optimizer, config.train.max_steps, config.tokenizer.max_vocab_size) == ("adamw", 0, 16_384)
    assert "chosen for a CPU" not in capfd.readouterr().err


@pytest.mark.parametrize("settings", [{"model.n_kv_heads": 4}, {"model.layer_windows": (8, 8, 8, -1)}], ids=str)
def test_sizes_that_the_settings_of_the_user_do_not_fit_are_not_tried(settings: Settings) -> None:
    config, _ = resolve(GENERATE | settings, 10 * MILLION)
    assert (config.model.n_layers, config.model.n_heads) == (4, 4)
