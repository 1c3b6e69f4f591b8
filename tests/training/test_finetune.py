"""What learns and how fast: frozen layers, rates by depth, adapters; and what a checkpoint keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from triform.config import Config, ModelConfig, Sizes, TrainConfig
from triform.errors import ConfigError, InterruptedRun
from triform.launch import train
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.vocabulary import in_parts
from triform.run import Run
from triform.settings import build
from triform.tasks import TASKS
from triform.training.compiled import compiled
from triform.training.folder import RunFolder
from triform.training.layers import depths, limit_learning
from triform.training.learner import Learner
from triform.training.optim import parameter_groups
from triform.training.population import single
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.1}
PACE = {"max_steps": 8, "eval_every": 3, "checkpoint_every": 100, "log_every": 3, "batch_size": 8, "lr": 0.01}
SHAPE = ModelConfig(d_model=16, d_ff=32, n_layers=2, n_heads=2)
SIZES = Sizes(vocab_size=23, max_len=12, n_labels=3)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    lines = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(90)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def run(rows: str, out: Path, pace: dict[str, Any], **more: Any) -> Run:
    model = {} if "base" in pace else {"model": MODEL}
    return train("classify", data=rows, out=out, device="cpu", quiet=True, train=PACE | pace, **model, **more)


@pytest.fixture(scope="module")
def base(rows: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(rows, tmp_path_factory.mktemp("base") / "run", {}).path


def checkpoint(path: Path) -> dict[str, Tensor]:
    latest = RunFolder(path).latest_checkpoint()
    assert latest is not None
    return load_file(latest / "tensors.safetensors")


# -- depth


def test_depth_is_counted_from_the_input_to_the_head() -> None:
    found = depths(Classifier(SHAPE, SIZES))
    wanted = {
        "encoder.embedding.tokens.weight": 0,
        "encoder.embedding.positions.table.weight": 0,
        "encoder.blocks.0.attention.query.weight": 1,
        "encoder.blocks.1.think.norm.bias": 2,
        "encoder.norm.weight": 2,
        "head.bias": 3,
    }
    assert {name: found[name] for name in wanted} == wanted


def test_a_decoder_lies_above_its_encoder_and_a_tied_head_with_the_embedding() -> None:
    found = depths(Seq2Seq(SHAPE, SIZES))
    assert found["encoder.embedding.tokens.weight"] == found["embedding.positions.table.weight"] == 0
    assert found["encoder.blocks.1.attention.out.weight"] == found["encoder.norm.weight"] == 2
    assert found["blocks.0.cross.query.weight"] == 3
    assert found["blocks.1.cross.query.weight"] == found["norm.weight"] == 4
    assert found["head.bias"] == 5
    assert "head.weight" not in found


# -- freezing


@pytest.mark.parametrize("lowest", [0, 1, 2])
def test_frozen_layers_stay_as_they_are_and_have_no_state(
    lowest: int, rows: str, base: Path, tmp_path: Path
) -> None:
    made = run(rows, tmp_path / "run", {"base": str(base), "freeze": lowest})
    before, after = load_file(base / "model.safetensors"), checkpoint(made.path)
    depth = depths(made.task.model)
    for name, deep in depth.items():
        assert before[name].equal(after[f"model.{name}"]) == (deep <= lowest), name
    moments = [name for name in after if name.endswith(".exp_avg")]
    assert len(moments) == sum(deep > lowest for deep in depth.values())


def test_freezing_more_than_there_is_or_all_of_it_is_refused() -> None:
    config = build({"task": "generate", "train.freeze": 3}, Config())
    with pytest.raises(ConfigError, match=r"train\.freeze=3: this model has 2 layers"):
        limit_learning(Decoder(SHAPE, SIZES), config)
    whole = build({"task": "generate", "train.freeze": 2}, Config())
    headless = ModelConfig(d_model=16, d_ff=32, n_layers=2, n_heads=2, head_bias=False)
    with pytest.raises(ConfigError, match="leaves nothing to learn"):
        limit_learning(Decoder(headless, SIZES), whole)


def test_a_frozen_head_has_no_gradient_where_scores_are_made_in_parts() -> None:
    head = torch.nn.Linear(8, 100).requires_grad_(requires_grad=False)
    states, targets = torch.randn(70, 8, requires_grad=True), torch.randint(0, 100, (70,))
    in_parts(states[None], head, targets[None], 0.0, most=6400).backward()  # type: ignore[no-untyped-call]
    found = states.grad
    states.grad = None
    torch.nn.functional.cross_entropy(head(states), targets, reduction="sum").backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, states.grad)
    assert head.weight.grad is head.bias.grad is None


# -- rates by depth


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_each_layer_below_the_head_moves_at_a_share_of_the_rate_above(
    as_tensor: bool, rows: str, tmp_path: Path
) -> None:
    settings = {"task": "classify", "data.train": rows, **{f"model.{name}": value for name, value in MODEL.items()}}
    plain = {"train.optimizer": "sgd", "train.momentum": 0.0, "train.weight_decay": 0.0, "train.clip_norm": 0.0}
    config = build(
        settings | plain | {"train.log_every": 5, "train.layer_decay": 0.5, "model.dropout": 0.0}, Config()
    )
    prepared = TASKS["classify"].prepare(config, tmp_path)
    model = prepared.task.model
    learner = Learner(prepared.task, prepared.train)
    batch = prepared.train.batch(next(iter([prepared.train.sampler(config.train, 0).next()])))
    prepared.task.loss(batch).backward()  # type: ignore[no-untyped-call]
    slopes = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.zero_grad()
    learner.learn([batch], 1, torch.tensor(0.1) if as_tensor else 0.1)
    depth = depths(model)
    for name, parameter in model.named_parameters():
        moved = before[name] - 0.1 * 0.5 ** (3 - depth[name]) * slopes[name]
        torch.testing.assert_close(parameter.detach(), moved, msg=name)


def test_groups_differ_in_depth_and_decay_and_hold_everything_once() -> None:
    model = Classifier(SHAPE, SIZES)
    groups: list[dict[str, Any]] = parameter_groups(model, 0.1, 0.8)
    assert [(group["scale"], group["weight_decay"]) for group in groups] == [
        (pytest.approx(0.8**down), decay) for down in range(4) for decay in ((0.1, 0.0) if down < 3 else (0.1,))
    ]
    held = [parameter for group in groups for parameter in group["params"]]
    assert {id(parameter) for parameter in held} == {id(parameter) for parameter in model.parameters()}
    assert len(held) == len(list(model.parameters()))


@pytest.mark.parametrize(
    "asked",
    [{"freeze": 0}, {"layer_decay": 0.9}, {"lora_rank": 2, "base": "x"}],
    ids=lambda asked: next(iter(asked)),
)
def test_a_stack_does_none_of_it_and_leaves_it_to_single_runs(asked: dict[str, Any]) -> None:
    assert single(TrainConfig(**asked))
    assert not single(TrainConfig(base="x"))


# -- adapters


LORA = {"lora_rank": 2, "lora_dropout": 0.1}


def test_only_adapters_and_the_label_head_learn_and_have_state(rows: str, base: Path, tmp_path: Path) -> None:
    made = run(rows, tmp_path / "run", {"base": str(base), **LORA})
    before, after = load_file(base / "model.safetensors"), checkpoint(made.path)
    adapters = [name for name in after if ".lora_" in name]
    assert len(adapters) == 2 * 5 * MODEL["n_layers"]
    for name, tensor in before.items():
        owner, _, last = name.rpartition(".")
        kept = after.get(f"model.{name}", after.get(f"model.{owner}.base.{last}"))
        assert kept is not None
        assert tensor.equal(kept) == (not name.startswith("head.")), name
    moments = [name for name in after if name.endswith(".exp_avg")]
    assert len(moments) == len(adapters) + 2
    assert made.config.train.lora_alpha == 4.0


@pytest.mark.parametrize("asked", [LORA, {"freeze": 1, "layer_decay": 0.8}, {**LORA, "average": 0.9}])
@pytest.mark.parametrize("steps", [2, 5])
def test_stopped_and_resumed_a_fine_tuned_run_ends_with_the_same_bits(
    asked: dict[str, Any], steps: int, rows: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = {"base": str(base), **asked}
    straight = run(rows, tmp_path / "straight", pace)
    step = Trainer.step

    def stopping(self: Trainer) -> None:
        step(self)
        if self.progress.step == steps:
            self.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stopping)
        with pytest.raises(InterruptedRun):
            run(rows, tmp_path / "broken", pace)
    broken = run(rows, tmp_path / "broken", pace, resume=True)
    files = ["model.safetensors", *(["adapter.safetensors"] if "lora_rank" in asked else [])]
    pairs = [(load_file(straight.path / name), load_file(broken.path / name)) for name in files]
    for left, right in (*pairs, (checkpoint(straight.path), checkpoint(broken.path))):
        assert left.keys() == right.keys()
        assert all(tensor.equal(right[name]) for name, tensor in left.items())


def test_compiled_blocks_leave_adapted_projections_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "triform.training.compiled._block", lambda: lambda block, *rest: type(block).forward(block, *rest)
    )
    model = Decoder(SHAPE, SIZES).eval()
    tokens = torch.arange(10)[None]
    limit_learning(model, build({"task": "generate", "train.base": "x", "train.lora_rank": 2}, Config()))
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter)
    wanted = model(tokens)
    with compiled(model):
        torch.testing.assert_close(model(tokens), wanted)
    torch.testing.assert_close(model(tokens), wanted)
