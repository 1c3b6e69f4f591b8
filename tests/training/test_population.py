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
from triform.errors import ConfigError, DivergedError, InterruptedRun
from triform.launch import Options, ready, train
from triform.seeds import train_seeds
from triform.settings import build
from triform.tasks import TASKS, Prepared
from triform.training import population
from triform.training.chorus import Chorus
from triform.training.display import ProgressLine
from triform.training.folder import RunFolder
from triform.training.learner import Learner
from triform.training.optim import make_optimizer
from triform.training.population import Limit, Member, Population, alike, together
from triform.training.rowwise import clip, make_rowwise
from triform.training.stack import Stack
from triform.training.trainer import Trainer

WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "jetty"]
MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.0}
PACE = {"max_steps": 9, "eval_every": 3, "checkpoint_every": 3, "log_every": 2, "lr": 0.01, "warmup_steps": 2}
TASK_NAMES: tuple[TaskName, ...] = ("classify", "generate", "translate")


def write_data(task: TaskName, folder: Path) -> str:
    """Texts of unequal length, so that batches are padded."""
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 15, size=90)]
    path = folder / ("text.txt" if task == "generate" else f"{task}.tsv")
    if task == "generate":
        path.write_text("\n".join(texts), encoding="utf-8")
        return str(path)
    others = [str(len(t) % 3) if task == "classify" else " ".join(t.split()[::-1]) for t in texts]
    rows = [f"{one}\t{other}\n" for one, other in zip(texts, others, strict=True)]
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
def _always_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(population.LIMITS, "cpu", Limit(math.inf, math.inf))


def settings(task: TaskName, folder: Path, **more: Any) -> dict[str, Any]:
    how: dict[str, Any] = {"data": write_data(task, folder), "device": "cpu", "quiet": True}
    how |= {"model": MODEL | more.pop("model", {}), "train": PACE | more.pop("train", {})}
    batch = "batch_size" if task == "generate" else "batch_tokens"
    how["train"] = {batch: 4 if task == "generate" else 80} | how["train"]
    return how | {"data.max_len": 12, "tokenizer.kind": "word"} | more


def tensors(folder: Path) -> dict[str, Tensor]:
    """All that the last checkpoint holds, and the best weights."""
    latest = RunFolder(folder).latest_checkpoint()
    assert latest is not None
    found = load_file(latest / "tensors.safetensors") | load_file(folder / "model.safetensors")
    return {name: tensor for name, tensor in found.items() if not name.startswith("rng")}


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("seconds", "tokens_per_s", "step_ms", "peak_memory", "real_share")
    found = [json.loads(line) for line in lines]
    return [{k: v for k, v in event.items() if k not in timed} for event in found if event["event"] == kind]


def same_event(one: dict[str, Any], other: dict[str, Any], most: float) -> None:
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert one[name] == (value if isinstance(value, str) else pytest.approx(value, rel=most)), name


def same_run(member: Path, alone: Path, *, most: float) -> None:
    ours, theirs = tensors(member), tensors(alone)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].shape == theirs[name].shape
        torch.testing.assert_close(ours[name], theirs[name], rtol=most, atol=most, msg=name)
    for kind in ("train", "valid", "best", "end"):
        got, wanted = events(member, kind), events(alone, kind)
        assert len(got) == len(wanted) > 0
        for one, other in zip(got, wanted, strict=True):
            same_event(one, other, 1e3 * most)
    state = [RunFolder(path).read_state(RunFolder(path).latest_checkpoint() or path) for path in (member, alone)]
    assert state[0]["sampler"] == state[1]["sampler"]
    assert state[0]["schedule"] == pytest.approx(state[1]["schedule"])


KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"train": {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.5}},
    "adam": {"train": {"optimizer": "adam", "weight_decay": 0.1, "schedule": "plateau", "plateau_patience": 0}},
    "momentum": {"train": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "accumulate": 2}},
    "sgd": {"train": {"optimizer": "sgd", "momentum": 0.0, "clip_norm": 0.0, "label_smoothing": 0.1}},
    "window": {"model": {"window": 3, "n_kv_heads": 1, "positions": "t5"}},
    "formula": {"model": {"score": "additive", "tie_embeddings": True, "norm_position": "post"}},
}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASK_NAMES)
def test_each_member_equals_the_same_seed_trained_alone(task: TaskName, kind: str, tmp_path: Path) -> None:
    asked = settings(task, tmp_path, **KINDS[kind])
    made = train_seeds(task, 3, out=tmp_path / "seeds", seed=4, **asked)
    assert [folder.name for folder in made.folders] == ["seed-4", "seed-5", "seed-6"]
    alone = train(task, out=tmp_path / "alone", seed=5, **asked)
    same_run(made.folders[1], alone.path, most=1e-9)
    config, other = (RunFolder(path).read_config() for path in (made.folders[1], alone.path))
    assert config == other


def test_in_float32_a_member_differs_by_rounding_only(tmp_path: Path) -> None:
    asked = settings("classify", tmp_path, train={"optimizer": "sgd"})  # Adam makes much of the smallest gradient
    made = train_seeds("classify", 2, out=tmp_path / "seeds", seed=7, **asked)
    alone = train("classify", out=tmp_path / "alone", seed=8, **asked)
    ours, theirs = load_file(made.folders[1] / "model.safetensors"), load_file(alone.path / "model.safetensors")
    for name in ours:
        assert float((ours[name] - theirs[name]).norm() / theirs[name].norm()) < 1e-4, name


def test_initial_weights_are_those_of_the_seed_alone_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings("translate", tmp_path)
    first: list[dict[str, Tensor]] = []

    def watching(self: Population) -> None:
        first.extend({k: p.clone() for k, p in m.task.model.named_parameters()} for m in self.members)
        raise KeyboardInterrupt

    monkeypatch.setattr(Population, "fit", watching)
    with pytest.raises(InterruptedRun):
        train_seeds("translate", 3, out=tmp_path / "seeds", seed=1, **asked)
    monkeypatch.setattr(Trainer, "fit", lambda self: (_ for _ in ()).throw(Alone(self)))
    for seed in (1, 2, 3):
        with pytest.raises(Alone) as caught:
            train("translate", out=tmp_path / f"alone-{seed}", seed=seed, **asked)
        for name, parameter in caught.value.trainer.task.model.named_parameters():
            assert parameter.equal(first[seed - 1][name])


class Alone(Exception):
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer


def test_what_does_not_pay_together_is_trained_one_by_one_to_the_same_bits_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(population.LIMITS, "cpu", Limit(0, 0))
    asked = settings("classify", tmp_path, model={"dropout": 0.2})
    made = train_seeds("classify", 3, out=tmp_path / "seeds", **asked)
    for seed in (0, 2):
        alone = train("classify", out=tmp_path / f"alone-{seed}", seed=seed, **asked)
        ours, theirs = tensors(made.folders[seed]), tensors(alone.path)
        assert all(ours[name].equal(theirs[name]) for name in theirs)


@pytest.mark.usefixtures("exact")
def test_members_stop_early_each_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[dict[str, Tensor]] = []
    fit = Population.fit

    def watched(self: Population) -> None:
        fit(self)
        left.extend({k: p.clone() for k, p in m.task.model.named_parameters()} for m in self.members)

    monkeypatch.setattr(Population, "fit", watched)
    pace = {"max_steps": 60, "eval_every": 1, "patience": 4, "lr": 0.05, "schedule": "constant", "log_every": 1}
    asked = settings("classify", tmp_path, train=pace)
    made = train_seeds("classify", 6, out=tmp_path / "seeds", **asked)
    ends = [events(folder, "end")[0] for folder in made.folders]
    assert len({end["step"] for end in ends}) > 2, "a test of members that stop at different times"
    for seed in range(6):
        alone = train("classify", out=tmp_path / f"alone-{seed}", seed=seed, **asked)
        end = events(alone.path, "end")[0]
        same_event(ends[seed], end, 1e-6)
        ours, theirs = tensors(made.folders[seed]), tensors(alone.path)
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-6, msg=name)
        assert all(weight.equal(ours[f"model.{name}"]) for name, weight in left[seed].items()), "done is done"


# -- stopping and going on


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    between = Population._between

    def stopping(self: Population, members: list[Member]) -> None:
        between(self, members)
        if members[0].progress.step == steps:
            self.stop()

    monkeypatch.setattr(Population, "_between", stopping)


@pytest.mark.parametrize("steps", [2, 6])
def test_a_population_goes_on_as_if_it_had_never_stopped(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings("generate", tmp_path, model={"dropout": 0.2})
    straight = train_seeds("generate", 3, out=tmp_path / "straight", **asked)
    with monkeypatch.context() as patch:
        stop_after(steps, patch)
        with pytest.raises(InterruptedRun, match=rf"step {steps}, .*broken --seeds 3 --resume --device cpu"):
            train_seeds("generate", 3, out=tmp_path / "broken", **asked)
    broken = train_seeds("generate", 3, out=tmp_path / "broken", resume=True, **asked)
    for one, other in zip(straight.folders, broken.folders, strict=True):
        ours, theirs = tensors(one), tensors(other)
        assert all(ours[name].equal(theirs[name]) for name in theirs)
        assert events(one, "train") == events(other, "train")
        assert [event["reason"] for event in events(other, "end")] == ["max_steps"]
    assert straight.values == broken.values


@pytest.mark.usefixtures("exact")
def test_a_member_goes_on_alone_and_members_left_behind_catch_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings("classify", tmp_path)
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(InterruptedRun):
            train_seeds("classify", 4, out=tmp_path / "seeds", **asked)
    with monkeypatch.context() as patch:
        validate = Trainer._validate
        patch.setattr(Trainer, "_validate", lambda self: (validate(self), self.stop()))
        with pytest.raises(InterruptedRun, match="step 3"):
            train("classify", out=tmp_path / "seeds" / "seed-2", resume=True, device="cpu", quiet=True)
    train("classify", out=tmp_path / "seeds" / "seed-3", resume=True, device="cpu", quiet=True)
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(InterruptedRun, match=r"step 3, .*seeds --seeds 4 --resume"):  # also who is done
            train_seeds("classify", 4, out=tmp_path / "seeds", resume=True, **asked)
    made = train_seeds("classify", 4, out=tmp_path / "seeds", resume=True, **asked)
    for seed in (0, 3):
        alone = train("classify", out=tmp_path / f"alone-{seed}", seed=seed, **asked)
        same_run(made.folders[seed], alone.path, most=1e-9)
    straight = train("classify", out=tmp_path / "alone-2", seed=2, **asked)
    ours, theirs = tensors(made.folders[2]), tensors(straight.path)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("found", ["at a look", "when saving"])
def test_one_that_diverges_does_not_take_the_others_with_it(
    found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings("classify", tmp_path)
    if found == "when saving":
        asked["train"] |= {"log_every": 100, "eval_every": 100, "checkpoint_every": 2}
        monkeypatch.setattr(population, "SAVING", math.inf)  # as often as is asked for
    fit = Population.fit

    def spoiled(self: Population) -> None:
        with torch.no_grad():
            next(self.members[1].task.model.parameters()).fill_(math.inf)
        fit(self)

    monkeypatch.setattr(Population, "fit", spoiled)
    with pytest.raises(DivergedError, match="seed-1 of 3 diverged, the others went on: the loss is not finite"):
        train_seeds("classify", 3, out=tmp_path / "seeds", **asked)
    assert [RunFolder(tmp_path / "seeds" / f"seed-{n}").complete() for n in range(3)] == [True, False, True]


def test_when_all_diverge_no_other_goes_on(tmp_path: Path) -> None:
    asked = settings("classify", tmp_path)
    asked["train"] |= {"lr": 1e30}
    with pytest.raises(DivergedError, match="seed-0, seed-1 of 2 diverged: the loss is not finite"):
        train_seeds("classify", 2, out=tmp_path / "seeds", **asked)


@pytest.mark.usefixtures("exact")
def test_where_memory_is_short_fewer_are_trained_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each, sizes = Stack._each, []

    def short(self: Stack, *arguments: Any, **named: Any) -> Tensor:
        sizes.append(self.n)
        if self.n > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return each(self, *arguments, **named)

    monkeypatch.setattr(Stack, "_each", short)
    asked = settings("generate", tmp_path)
    made = train_seeds("generate", 5, out=tmp_path / "seeds", **asked)
    assert {5, 2, 1} == set(sizes)
    for seed in (0, 4):
        alone = train("generate", out=tmp_path / f"alone-{seed}", seed=seed, **asked)
        same_run(made.folders[seed], alone.path, most=1e-9)
    monkeypatch.setattr(Stack, "_each", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("out")))
    with pytest.raises(ConfigError, match="cpu has too little memory for 1 models; give fewer --seeds"):
        train_seeds("generate", 2, out=tmp_path / "none", **asked)


# -- variants, and the parts by themselves


def member(prepared: Prepared, config: Config, folder: Path) -> Member:
    torch.manual_seed(config.seed)
    task = TASKS[config.task].load(config, folder)
    run = RunFolder(folder / f"run-{config.seed}-{config.train.lr}")
    run.path.mkdir(parents=True, exist_ok=True)
    options = Options(device="cpu", quiet=True)
    return ready(replace(prepared, task=task), run, options, resume=False, kind=Member)


def prepare(task: TaskName, folder: Path, **more: Any) -> Prepared:
    asked = {"task": task, "data.train": write_data(task, folder), "data.max_len": 12, "tokenizer.kind": "word"}
    asked |= {f"model.{name}": value for name, value in MODEL.items()}
    asked |= {f"train.{name}": value for name, value in PACE.items()}
    made = TASKS[task].prepare(build(asked | {"train.batch_size": 4} | more), folder)
    made.task.save(folder)
    return made


@pytest.mark.usefixtures("exact")
def test_members_may_differ_in_rate_decay_and_schedule(tmp_path: Path) -> None:
    made = prepare("generate", tmp_path)
    variants = [
        {"train.lr": 0.01},
        {"train.lr": 0.003, "train.weight_decay": 0.3},
        {"train.lr": 0.02, "train.schedule": "constant", "train.clip_norm": 0.2},
    ]
    configs = [build(variant | {"seed": n}, made.task.config) for n, variant in enumerate(variants)]
    assert len({repr(alike(config)) for config in configs}) == 1
    members = [member(made, config, tmp_path) for config in configs]
    resident = made.train.on(torch.device("cpu"), made.task.config.train)
    Population(members, resident).fit()
    for trained, variant in zip(members, variants, strict=True):
        lone = train(
            "generate", out=tmp_path / f"alone-{trained.task.config.seed}", seed=trained.task.config.seed,
            config=made.task.config, device="cpu", quiet=True, **variant,
        )  # fmt: skip
        same_run(trained.folder.path, lone.path, most=1e-9)


def test_models_of_different_shape_do_not_share_a_stack(tmp_path: Path) -> None:
    made = prepare("generate", tmp_path)
    configs = [build({"seed": n, "model.dropout": n / 10}, made.task.config) for n in range(2)]
    members = [member(made, config, tmp_path) for config in configs]
    with pytest.raises(AssertionError, match="alike"):
        Population(members, made.train.on(torch.device("cpu"), made.task.config.train))


def test_dropout_differs_between_members_and_what_is_remembered_is_not_theirs(tmp_path: Path) -> None:
    made = prepare("generate", tmp_path, **{"model.dropout": 0.5, "model.window": 3})
    config = made.task.config
    learners = [Learner(member(made, config, tmp_path / "").task, made.train) for _ in range(2)]
    stack = Stack(learners, made.train.on(torch.device("cpu"), config.train))
    plan = [stack.resident.plan(made.train.sampler(config.train, 0).next())]
    stack.step([plan, plan], [0.0, 0.0], [0, 0])
    stack.look()
    losses = [float(learner.losses[0]) for learner in learners]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.3)
    masks = [mask for rule in stack.task.model.reaches for mask in rule.remembered() if mask is not None]
    assert masks
    assert not any(torch._C._functorch.is_batchedtensor(mask) for mask in masks)
    assert all(
        torch.isfinite(learner.task.model(torch.zeros(1, 5, dtype=torch.long))).all() for learner in learners
    )


def test_bf16_is_trained_together_too(tmp_path: Path) -> None:
    values = []
    for precision in ("fp32", "bf16"):
        asked = settings("generate", tmp_path, train={"precision": precision})
        values.append(train_seeds("generate", 2, out=tmp_path / precision, **asked).values)
    assert values[0] != values[1]
    assert values[0] == pytest.approx(values[1], rel=0.05)


def config(optimizer: str, momentum: float, rate: float, decay: float) -> TrainConfig:
    return TrainConfig(optimizer=optimizer, momentum=momentum, lr=rate, weight_decay=decay)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "momentum"), [("adam", 0.9), ("adamw", 0.9), ("sgd", 0.9), ("sgd", 0.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_move_as_torchs_optimizers_move_models(kind: str, momentum: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    most = 1e-12 if dtype is torch.float64 else 2e-6
    configs = [config(kind, momentum, 0.1, 0.1), config(kind, momentum, 0.01, 0.0)]
    models = [nn.Linear(5, 3).to(dtype) for _ in configs]
    optimizers = [make_optimizer(model, each) for model, each in zip(models, configs, strict=True)]
    weights = torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models])
    rows = make_rowwise(configs, weights, n_decaying=15)
    kept = {name: torch.zeros_like(weights) for name in rows.keeps}
    for step in range(1, 8):
        grads = torch.randn_like(weights)
        for model, optimizer, grad in zip(models, optimizers, grads, strict=True):
            model.weight.grad, model.bias.grad = grad[:15].view(3, 5).clone(), grad[15:].clone()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            optimizer.step()
        clip(grads, torch.full((2, 1), 3.0, dtype=dtype))
        rates = torch.tensor([[0.1], [0.01]], dtype=dtype)
        rows.move(weights, grads, rates, kept, torch.full((2, 1), float(step)).to(dtype))
        theirs = torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models])
        torch.testing.assert_close(weights, theirs, rtol=most, atol=most)


# -- when not to


def test_one_seed_a_large_model_or_much_waste_is_not_stacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare("classify", tmp_path, **{"train.batch_tokens": 80, "train.batch_size": 0})
    seeds = range(4)
    assert together(made.task, made.train, seeds) is not None
    assert together(made.task, made.train, [0]) is None
    for limit in (Limit(1e6, 10.0), Limit(math.inf, 1.0)):
        monkeypatch.setitem(population.LIMITS, "cpu", limit)
        assert together(made.task, made.train, seeds) is None
    monkeypatch.delitem(population.LIMITS, "cpu")
    assert together(made.task, made.train, seeds) is None


# -- one line for all


def told(chorus: Chorus, voices: Sequence[Any], step: int, values: Sequence[float]) -> None:
    for voice, value in zip(voices, values, strict=True):
        voice.hear({"event": "valid", "step": step, "loss": value, "accuracy": value, "seconds": 1.0})


def test_a_validation_of_all_is_one_line_with_mean_and_spread() -> None:
    out = io.StringIO()
    chorus = Chorus(ProgressLine(20, "accuracy", out))
    voices = [chorus.voice() for _ in range(3)]
    told(chorus, voices[:2], 10, [0.5, 0.7])
    assert not out.getvalue()
    told(chorus, voices[2:], 11, [0.9])
    assert out.getvalue() == "step 11/20  3 seeds  valid loss 0.7000  accuracy 70.00 ± 49.68 %\n"
    told(chorus, voices[:2], 20, [0.5, 0.5])
    voices[2].hear({"event": "end", "step": 15, "reason": "patience", "seconds": 2.0, "best": 0.9, "best_step": 11})
    assert "step 20/20  2 seeds  valid loss 0.5000  accuracy 50.00 ± 0.00 %\n" in out.getvalue()
    for voice in voices[:2]:
        voice.hear({"event": "end", "step": 20, "reason": "max_steps", "seconds": 3.0, "best": 1, "best_step": 1})
    assert out.getvalue().endswith("done after 20 steps, 3 s\n")


def test_nobody_waits_to_hear_from_a_member_that_diverged() -> None:
    out = io.StringIO()
    chorus = Chorus(ProgressLine(20, "accuracy", out))
    voices = [chorus.voice() for _ in range(3)]
    told(chorus, voices[:2], 10, [0.5, 0.7])
    voices[2].hear({"event": "diverged", "step": 10, "text": "the loss is not finite", "seconds": 1.0})
    assert out.getvalue() == "step 10/20  2 seeds  valid loss 0.6000  accuracy 60.00 ± 127.06 %\n"
    for voice in voices[:2]:
        voice.hear({"event": "diverged", "step": 12, "text": "the loss is not finite", "seconds": 2.0})
