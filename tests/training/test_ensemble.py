"""A member of a population is the same run as the same seed trained alone."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from triform.config import Config, TaskName, TrainConfig
from triform.config.settings import build_config
from triform.errors import ConfigError, DivergedError, RunInterruptedError
from triform.experiments.seeds import train_seeds
from triform.launch import train
from triform.nn.kernels.sdpa import mask_cache
from triform.tasks import TASKS, PreparedTask, losses
from triform.training import ensemble
from triform.training.aggregate_progress import AggregateProgress
from triform.training.batched_optimizer import build_batched_optimizer, clip_grad_norms
from triform.training.display import ProgressDisplay
from triform.training.ensemble import Ensemble, EnsembleMember, StackLimit, load_if_stackable, stack_key
from triform.training.optim import build_optimizer
from triform.training.run_folder import RunFolder
from triform.training.setup import initialise_trainer
from triform.training.stacked_models import StackedModels
from triform.training.train_step import TrainStep
from triform.training.trainer import Trainer

WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "jetty"]
MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.0}
TRAIN_SETTINGS = {
    "max_steps": 9,
    "eval_every": 3,
    "checkpoint_every": 3,
    "log_every": 2,
    "lr": 0.01,
    "warmup_steps": 2,
}
TASK_NAMES: tuple[TaskName, ...] = ("classify", "generate", "translate")


def write_data(task: TaskName, folder: Path) -> str:
    """Texts of unequal length, so that batches are padded."""
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 15, size=90)]
    path = folder / ("text.txt" if task == "generate" else f"{task}.tsv")
    if task == "generate":
        path.write_text("\n".join(texts), encoding="utf-8")
        return str(path)
    second_columns = [str(len(t) % 3) if task == "classify" else " ".join(t.split()[::-1]) for t in texts]
    rows = [
        f"{first_column}\t{second_column}\n"
        for first_column, second_column in zip(texts, second_columns, strict=True)
    ]
    path.write_text("".join(rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def exact() -> Iterator[None]:
    """In float64 what differs is a mistake and not rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def _always_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ensemble.STACK_LIMITS, "cpu", StackLimit(math.inf, math.inf))


def build_settings(task: TaskName, folder: Path, **kwargs: Any) -> dict[str, Any]:
    settings_dict: dict[str, Any] = {"data": write_data(task, folder), "device": "cpu", "quiet": True}
    settings_dict |= {"model": MODEL | kwargs.pop("model", {}), "train": TRAIN_SETTINGS | kwargs.pop("train", {})}
    batch_key = "batch_size" if task == "generate" else "batch_tokens"
    settings_dict["train"] = {batch_key: 4 if task == "generate" else 80} | settings_dict["train"]
    return settings_dict | {"data.max_len": 12, "tokenizer.kind": "word"} | kwargs


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """All that the last checkpoint holds, and the best weights."""
    checkpoint = RunFolder(folder).latest_checkpoint()
    assert checkpoint is not None
    loaded = load_file(checkpoint / "tensors.safetensors") | load_file(folder / "model.safetensors")
    return {name: tensor for name, tensor in loaded.items() if not name.startswith("rng")}


def read_events(folder: Path, event_name: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    timing_fields = ("seconds", "tokens_per_s", "step_ms", "peak_memory", "real_share")
    all_events = [json.loads(line) for line in lines]
    return [
        {k: v for k, v in event.items() if k not in timing_fields}
        for event in all_events
        if event["event"] == event_name
    ]


def assert_same_event(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name] == (value if isinstance(value, str) else pytest.approx(value, rel=tolerance)), name


def assert_same_run(member_path: Path, single_path: Path, *, tolerance: float) -> None:
    actual, expected = load_tensors(member_path), load_tensors(single_path)
    assert actual.keys() == expected.keys()
    for name in actual:
        assert actual[name].shape == expected[name].shape
        torch.testing.assert_close(actual[name], expected[name], rtol=tolerance, atol=tolerance, msg=name)
    for event_name in ("train", "valid", "best", "end"):
        actual_events, expected_events = read_events(member_path, event_name), read_events(single_path, event_name)
        assert len(actual_events) == len(expected_events) > 0
        for actual_event, expected_event in zip(actual_events, expected_events, strict=True):
            assert_same_event(actual_event, expected_event, 1e3 * tolerance)
    states = [
        RunFolder(path).read_state(RunFolder(path).latest_checkpoint() or path)
        for path in (member_path, single_path)
    ]
    assert states[0]["sampler"] == states[1]["sampler"]
    assert states[0]["schedule"] == pytest.approx(states[1]["schedule"])


VARIANTS: dict[str, dict[str, Any]] = {
    "adamw": {"train": {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.5}},
    "adam": {"train": {"optimizer": "adam", "weight_decay": 0.1, "schedule": "plateau", "plateau_patience": 0}},
    "momentum": {"train": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "grad_accumulation": 2}},
    "muon": {"train": {"optimizer": "muon", "weight_decay": 0.1, "clip_norm": 0.5}},
    "sgd": {"train": {"optimizer": "sgd", "momentum": 0.0, "clip_norm": 0.0, "label_smoothing": 0.1}},
    "window": {"model": {"window": 3, "n_kv_heads": 1, "positions": "t5"}},
    "formula": {"model": {"attention_score": "additive", "tie_embeddings": True, "norm_position": "post"}},
}


# An optimizer does not know the task, so one task suffices for each of the others.
VARIANT_CASES = [
    *((task, kind) for task in TASK_NAMES for kind in ("adamw", "window", "formula")),
    *zip(("classify", "translate", "generate", "classify"), ("adam", "momentum", "muon", "sgd"), strict=True),
]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("task", "kind"), VARIANT_CASES)
def test_each_member_equals_the_same_seed_trained_alone(task: TaskName, kind: str, tmp_path: Path) -> None:
    overrides = build_settings(task, tmp_path, **VARIANTS[kind])
    result = train_seeds(task, 3, out=tmp_path / "seeds", seed=4, **overrides)
    assert [folder.name for folder in result.folders] == ["seed-4", "seed-5", "seed-6"]
    alone = train(task, out=tmp_path / "alone", seed=5, **overrides)
    assert_same_run(result.folders[1], alone.path, tolerance=1e-9)
    config, second = (RunFolder(path).read_config() for path in (result.folders[1], alone.path))
    assert config == second


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("task", "simcut"), [("classify", 0.0), ("classify", 2.0), ("translate", 2.0)])
def test_a_member_with_cut_tokens_equals_the_same_seed_trained_alone(
    task: TaskName, simcut: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members draw their tokens from one generator, so that tokens are chosen by their place here."""
    monkeypatch.setattr(
        losses, "draw_cut_tokens", lambda shape, share, device: (torch.arange(shape[-1]) % 4 == 1).expand(shape)
    )
    overrides = build_settings(task, tmp_path, train={"token_cutoff": 0.25, "simcut": simcut})
    result = train_seeds(task, 2, out=tmp_path / "seeds", seed=4, **overrides)
    assert RunFolder(result.folders[1]).read_config().train.token_cutoff == 0.25
    alone = train(task, out=tmp_path / "alone", seed=5, **overrides)
    assert_same_run(result.folders[1], alone.path, tolerance=1e-9)


def test_in_float32_a_member_differs_by_rounding_only(tmp_path: Path) -> None:
    # Adam makes much of the smallest gradient.
    overrides = build_settings("classify", tmp_path, train={"optimizer": "sgd"})
    result = train_seeds("classify", 2, out=tmp_path / "seeds", seed=7, **overrides)
    alone = train("classify", out=tmp_path / "alone", seed=8, **overrides)
    actual, expected = (
        load_file(result.folders[1] / "model.safetensors"),
        load_file(alone.path / "model.safetensors"),
    )
    for name in actual:
        assert float((actual[name] - expected[name]).norm() / expected[name].norm()) < 1e-4, name


def test_initial_weights_are_those_of_the_seed_alone_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = build_settings("translate", tmp_path)
    initial_weights: list[dict[str, Tensor]] = []

    def record_members(self: Ensemble) -> None:
        initial_weights.extend({k: p.clone() for k, p in m.task.model.named_parameters()} for m in self.members)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ensemble, "fit", record_members)
    with pytest.raises(RunInterruptedError):
        train_seeds("translate", 3, out=tmp_path / "seeds", seed=1, **overrides)
    monkeypatch.setattr(Trainer, "fit", lambda self: (_ for _ in ()).throw(SingleRun(self)))
    for seed in (1, 2, 3):
        with pytest.raises(SingleRun) as caught:
            train("translate", out=tmp_path / f"alone-{seed}", seed=seed, **overrides)
        for name, parameter in caught.value.trainer.task.model.named_parameters():
            assert parameter.equal(initial_weights[seed - 1][name])


class SingleRun(Exception):
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer


def test_what_does_not_pay_together_is_trained_one_by_one_to_the_same_bits_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ensemble.STACK_LIMITS, "cpu", StackLimit(0, 0))
    overrides = build_settings("classify", tmp_path, model={"dropout": 0.2})
    result = train_seeds("classify", 3, out=tmp_path / "seeds", **overrides)
    for seed in (0, 2):
        alone = train("classify", out=tmp_path / f"alone-{seed}", seed=seed, **overrides)
        actual, expected = load_tensors(result.folders[seed]), load_tensors(alone.path)
        assert all(actual[name].equal(expected[name]) for name in expected)


@pytest.mark.usefixtures("exact")
def test_members_stop_early_each_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final_weights: list[dict[str, Tensor]] = []
    original_fit = Ensemble.fit

    def record_members(self: Ensemble) -> None:
        original_fit(self)
        final_weights.extend({k: p.clone() for k, p in m.task.model.named_parameters()} for m in self.members)

    monkeypatch.setattr(Ensemble, "fit", record_members)
    train_settings = {
        "max_steps": 60,
        "eval_every": 1,
        "patience": 4,
        "lr": 0.05,
        "schedule": "constant",
        "log_every": 1,
    }
    overrides = build_settings("classify", tmp_path, train=train_settings)
    result = train_seeds("classify", 6, out=tmp_path / "seeds", **overrides)
    end_events = [read_events(folder, "end")[0] for folder in result.folders]
    assert len({end["step"] for end in end_events}) > 2, "a test of members that stop at different times"
    for seed in range(6):
        alone = train("classify", out=tmp_path / f"alone-{seed}", seed=seed, **overrides)
        end = read_events(alone.path, "end")[0]
        assert_same_event(end_events[seed], end, 1e-6)
        actual, expected = load_tensors(result.folders[seed]), load_tensors(alone.path)
        for name in actual:
            torch.testing.assert_close(actual[name], expected[name], rtol=1e-6, atol=1e-6, msg=name)
        assert all(weight.equal(actual[f"model.{name}"]) for name, weight in final_weights[seed].items()), (
            "done is done"
        )


# -- stopping and going on


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original_method = Ensemble._run_between_steps

    def stop_at_step(self: Ensemble, members: list[EnsembleMember]) -> None:
        original_method(self, members)
        if members[0].progress.step == steps:
            self.stop()

    monkeypatch.setattr(Ensemble, "_run_between_steps", stop_at_step)


@pytest.mark.parametrize("steps", [2, 6])
def test_a_population_goes_on_as_if_it_had_never_stopped(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = build_settings("generate", tmp_path, model={"dropout": 0.2})
    uninterrupted = train_seeds("generate", 3, out=tmp_path / "straight", **overrides)
    with monkeypatch.context() as patch:
        stop_after(steps, patch)
        with pytest.raises(RunInterruptedError, match=rf"step {steps}, .*broken --seeds 3 --resume --device cpu"):
            train_seeds("generate", 3, out=tmp_path / "broken", **overrides)
    resumed = train_seeds("generate", 3, out=tmp_path / "broken", resume=True, **overrides)
    for first, second in zip(uninterrupted.folders, resumed.folders, strict=True):
        actual, expected = load_tensors(first), load_tensors(second)
        assert all(actual[name].equal(expected[name]) for name in expected)
        assert read_events(first, "train") == read_events(second, "train")
        assert [event["reason"] for event in read_events(second, "end")] == ["max_steps"]
    assert uninterrupted.values == resumed.values


@pytest.mark.usefixtures("exact")
def test_a_member_goes_on_alone_and_members_left_behind_catch_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = build_settings("classify", tmp_path)
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(RunInterruptedError):
            train_seeds("classify", 4, out=tmp_path / "seeds", **overrides)
    with monkeypatch.context() as patch:
        validate = Trainer._validate
        patch.setattr(Trainer, "_validate", lambda self: (validate(self), self.stop()))
        with pytest.raises(RunInterruptedError, match="step 3"):
            train("classify", out=tmp_path / "seeds" / "seed-2", resume=True, device="cpu", quiet=True)
    train("classify", out=tmp_path / "seeds" / "seed-3", resume=True, device="cpu", quiet=True)
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(RunInterruptedError, match=r"step 3, .*seeds --seeds 4 --resume"):  # also who is done
            train_seeds("classify", 4, out=tmp_path / "seeds", resume=True, **overrides)
    result = train_seeds("classify", 4, out=tmp_path / "seeds", resume=True, **overrides)
    for seed in (0, 3):
        alone = train("classify", out=tmp_path / f"alone-{seed}", seed=seed, **overrides)
        assert_same_run(result.folders[seed], alone.path, tolerance=1e-9)
    uninterrupted = train("classify", out=tmp_path / "alone-2", seed=2, **overrides)
    actual, expected = load_tensors(result.folders[2]), load_tensors(uninterrupted.path)
    for name in actual:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("detected_at", ["at a look", "when saving"])
def test_one_that_diverges_does_not_take_the_others_with_it(
    detected_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = build_settings("classify", tmp_path)
    if detected_at == "when saving":
        overrides["train"] |= {"log_every": 100, "eval_every": 100, "checkpoint_every": 2}
        monkeypatch.setattr(ensemble, "MAX_CHECKPOINT_SHARE", math.inf)  # as often as is asked for
    original_fit = Ensemble.fit

    def fit_with_bad_weights(self: Ensemble) -> None:
        with torch.no_grad():
            next(self.members[1].task.model.parameters()).fill_(math.inf)
        original_fit(self)

    monkeypatch.setattr(Ensemble, "fit", fit_with_bad_weights)
    with pytest.raises(
        DivergedError, match=r"seed-1 of 3 diverged \(the others continued\): the loss is not finite"
    ):
        train_seeds("classify", 3, out=tmp_path / "seeds", **overrides)
    assert [RunFolder(tmp_path / "seeds" / f"seed-{n}").is_complete() for n in range(3)] == [True, False, True]


def test_when_all_diverge_no_other_goes_on(tmp_path: Path) -> None:
    overrides = build_settings("classify", tmp_path)
    overrides["train"] |= {"lr": 1e30}
    with pytest.raises(DivergedError, match="seed-0, seed-1 of 2 diverged: the loss is not finite"):
        train_seeds("classify", 2, out=tmp_path / "seeds", **overrides)


@pytest.mark.usefixtures("exact")
def test_where_memory_is_short_fewer_are_trained_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original_map, sizes = StackedModels._map_models, []

    def fail_if_large(self: StackedModels, *arguments: Any, **kwargs: Any) -> Tensor:
        sizes.append(self.n_models)
        if self.n_models > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original_map(self, *arguments, **kwargs)

    monkeypatch.setattr(StackedModels, "_map_models", fail_if_large)
    overrides = build_settings("generate", tmp_path)
    result = train_seeds("generate", 5, out=tmp_path / "seeds", **overrides)
    assert {5, 2, 1} == set(sizes)
    for seed in (0, 4):
        alone = train("generate", out=tmp_path / f"alone-{seed}", seed=seed, **overrides)
        assert_same_run(result.folders[seed], alone.path, tolerance=1e-9)
    monkeypatch.setattr(
        StackedModels, "_map_models", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("out"))
    )
    with pytest.raises(ConfigError, match="cpu has too little memory for 1 models; use fewer --seeds"):
        train_seeds("generate", 2, out=tmp_path / "none", **overrides)


# -- variants, and the parts by themselves


def build_member(prepared: PreparedTask, config: Config, folder: Path) -> EnsembleMember:
    torch.manual_seed(config.seed)
    task = TASKS[config.task].load(config, folder)
    run_folder = RunFolder(folder / f"run-{config.seed}-{config.train.lr}")
    run_folder.path.mkdir(parents=True, exist_ok=True)
    return initialise_trainer(
        replace(prepared, task=task), run_folder, resume=False, trainer_class=EnsembleMember, quiet=True
    )


def prepare_task(task: TaskName, folder: Path, **kwargs: Any) -> PreparedTask:
    overrides = {"task": task, "data.train": write_data(task, folder), "data.max_len": 12, "tokenizer.kind": "word"}
    overrides |= {f"model.{name}": value for name, value in MODEL.items()}
    overrides |= {f"train.{name}": value for name, value in TRAIN_SETTINGS.items()}
    prepared_task = TASKS[task].prepare(build_config(overrides | {"train.batch_size": 4} | kwargs), folder)
    prepared_task.task.save(folder)
    return prepared_task


@pytest.mark.usefixtures("exact")
def test_members_may_differ_in_rate_decay_and_schedule(tmp_path: Path) -> None:
    prepared_task = prepare_task("generate", tmp_path)
    variants = [
        {"train.lr": 0.01},
        {"train.lr": 0.003, "train.weight_decay": 0.3},
        {"train.lr": 0.02, "train.schedule": "constant", "train.clip_norm": 0.2},
    ]
    configs = [build_config(variant | {"seed": n}, prepared_task.task.config) for n, variant in enumerate(variants)]
    assert len({repr(stack_key(config)) for config in configs}) == 1
    members = [build_member(prepared_task, config, tmp_path) for config in configs]
    device_dataset = prepared_task.train.to_device(torch.device("cpu"), prepared_task.task.config.train)
    Ensemble(members, device_dataset).fit()
    for ensemble_member, variant in zip(members, variants, strict=True):
        seed = ensemble_member.task.config.seed
        single_run = train(
            "generate", out=tmp_path / f"alone-{seed}", seed=seed,
            config=prepared_task.task.config, device="cpu", quiet=True, **variant,
        )  # fmt: skip
        assert_same_run(ensemble_member.folder.path, single_run.path, tolerance=1e-9)


def test_models_of_different_shape_do_not_share_a_stack(tmp_path: Path) -> None:
    prepared_task = prepare_task("generate", tmp_path)
    configs = [build_config({"seed": n, "model.dropout": n / 10}, prepared_task.task.config) for n in range(2)]
    members = [build_member(prepared_task, config, tmp_path) for config in configs]
    with pytest.raises(AssertionError, match="same settings"):
        Ensemble(members, prepared_task.train.to_device(torch.device("cpu"), prepared_task.task.config.train))


def test_dropout_differs_between_members_and_what_is_remembered_is_not_theirs(tmp_path: Path) -> None:
    prepared_task = prepare_task("generate", tmp_path, **{"model.dropout": 0.5, "model.window": 3})
    config = prepared_task.task.config
    train_steps = [
        TrainStep(build_member(prepared_task, config, tmp_path / "").task, prepared_task.train) for _ in range(2)
    ]
    stacked_models = StackedModels(train_steps, prepared_task.train.to_device(torch.device("cpu"), config.train))
    plan = [stacked_models.device_dataset.plan(prepared_task.train.sampler(config.train, 0).next_batch())]
    stacked_models.step([plan, plan], [0.0, 0.0], [0, 0])
    stacked_models.sync_losses()
    losses = [float(train_step.losses[0]) for train_step in train_steps]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.3)
    masks = [
        mask
        for attention_mask in stacked_models.task.model.layer_masks
        for mask in mask_cache(attention_mask).tensors()
        if mask is not None
    ]
    assert masks
    assert not any(torch._C._functorch.is_batchedtensor(mask) for mask in masks)
    assert all(
        torch.isfinite(train_step.task.model(torch.zeros(1, 5, dtype=torch.long))).all()
        for train_step in train_steps
    )


def test_bf16_is_trained_together_too(tmp_path: Path) -> None:
    values = []
    for precision in ("fp32", "bf16"):
        overrides = build_settings("generate", tmp_path, train={"precision": precision})
        values.append(train_seeds("generate", 2, out=tmp_path / precision, **overrides).values)
    assert values[0] != values[1]
    assert values[0] == pytest.approx(values[1], rel=0.05)


def train_config(optimizer: str, momentum: float, lr: float, decay: float) -> TrainConfig:
    return TrainConfig(optimizer=optimizer, momentum=momentum, lr=lr, weight_decay=decay)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "momentum"), [("adam", 0.9), ("adamw", 0.9), ("sgd", 0.9), ("sgd", 0.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_move_as_torchs_optimizers_move_models(kind: str, momentum: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tolerance = 1e-12 if dtype is torch.float64 else 2e-6
    configs = [train_config(kind, momentum, 0.1, 0.1), train_config(kind, momentum, 0.01, 0.0)]
    models = [nn.Linear(5, 3).to(dtype) for _ in configs]
    optimizers = [
        build_optimizer(model, member_config) for model, member_config in zip(models, configs, strict=True)
    ]
    weights = torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models])
    batched_optimizer = build_batched_optimizer(configs, weights, n_decaying=15)
    state = {name: torch.zeros_like(weights) for name in batched_optimizer.state_names}
    for step in range(1, 8):
        grads = torch.randn_like(weights)
        for model, optimizer, grad in zip(models, optimizers, grads, strict=True):
            model.weight.grad, model.bias.grad = grad[:15].view(3, 5).clone(), grad[15:].clone()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            optimizer.step()
        clip_grad_norms(grads, torch.full((2, 1), 3.0, dtype=dtype))
        lrs = torch.tensor([[0.1], [0.01]], dtype=dtype)
        batched_optimizer.update(weights, grads, lrs, state, torch.full((2, 1), float(step)).to(dtype))
        expected = torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models])
        torch.testing.assert_close(weights, expected, rtol=tolerance, atol=tolerance)


# -- when not to


def test_one_seed_a_large_model_or_much_waste_is_not_stacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_task = prepare_task("classify", tmp_path, **{"train.batch_tokens": 80, "train.batch_size": 0})
    seeds = range(4)
    assert load_if_stackable(prepared_task.task, prepared_task.train, seeds) is not None
    assert load_if_stackable(prepared_task.task, prepared_task.train, [0]) is None
    for limit in (StackLimit(1e6, 10.0), StackLimit(math.inf, 1.0)):
        monkeypatch.setitem(ensemble.STACK_LIMITS, "cpu", limit)
        assert load_if_stackable(prepared_task.task, prepared_task.train, seeds) is None
    monkeypatch.delitem(ensemble.STACK_LIMITS, "cpu")
    assert load_if_stackable(prepared_task.task, prepared_task.train, seeds) is None


# -- one line for all


def emit_validation(aggregate: AggregateProgress, runs: Sequence[Any], step: int, values: Sequence[float]) -> None:
    for run_progress, value in zip(runs, values, strict=True):
        run_progress.on_event({"event": "valid", "step": step, "loss": value, "accuracy": value, "seconds": 1.0})


def test_a_validation_of_all_is_one_line_with_mean_and_spread() -> None:
    out = io.StringIO()
    aggregate = AggregateProgress(ProgressDisplay(20, "accuracy", out))
    runs = [aggregate.add_run() for _ in range(3)]
    emit_validation(aggregate, runs[:2], 10, [0.5, 0.7])
    assert not out.getvalue()
    emit_validation(aggregate, runs[2:], 11, [0.9])
    assert out.getvalue() == "step 11/20  3 seeds  valid loss 0.7000  accuracy 70.00 ± 49.68 %\n"
    emit_validation(aggregate, runs[:2], 20, [0.5, 0.5])
    runs[2].on_event(
        {"event": "end", "step": 15, "reason": "patience", "seconds": 2.0, "best": 0.9, "best_step": 11}
    )
    assert "step 20/20  2 seeds  valid loss 0.5000  accuracy 50.00 ± 0.00 %\n" in out.getvalue()
    for run_progress in runs[:2]:
        run_progress.on_event(
            {"event": "end", "step": 20, "reason": "max_steps", "seconds": 3.0, "best": 1, "best_step": 1}
        )
    assert out.getvalue().endswith("done after 20 steps, 3.0 s\n")


def test_nobody_waits_to_hear_from_a_member_that_diverged() -> None:
    out = io.StringIO()
    aggregate = AggregateProgress(ProgressDisplay(20, "accuracy", out))
    runs = [aggregate.add_run() for _ in range(3)]
    emit_validation(aggregate, runs[:2], 10, [0.5, 0.7])
    runs[2].on_event({"event": "diverged", "step": 10, "text": "the loss is not finite", "seconds": 1.0})
    assert out.getvalue() == "step 10/20  2 seeds  valid loss 0.6000  accuracy 60.00 ± 127.06 %\n"
    for run_progress in runs[:2]:
        run_progress.on_event({"event": "diverged", "step": 12, "text": "the loss is not finite", "seconds": 2.0})
