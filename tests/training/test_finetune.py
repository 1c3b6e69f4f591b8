"""What learns and how fast: frozen layers, rates by depth, adapters; and what a checkpoint keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from same_runs import StoppedAfter
from torch import Tensor

from triform.config import Config, DataSizes, ModelConfig
from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.launch import train
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.kernels.chunked_loss import chunked_cross_entropy
from triform.run import Run
from triform.tasks import TASKS
from triform.training.compilation import compiled_blocks
from triform.training.freezing import freeze_parameters, layer_depths
from triform.training.optim import build_parameter_groups
from triform.training.run_folder import RunFolder
from triform.training.train_step import TrainStep

MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.1}
TRAIN_SETTINGS = {
    "max_steps": 8,
    "eval_every": 3,
    "checkpoint_every": 100,
    "log_every": 3,
    "batch_size": 8,
    "lr": 0.01,
}
MODEL_CONFIG = ModelConfig(d_model=16, d_ff=32, n_layers=2, n_heads=2)
SIZES = DataSizes(vocab_size=23, max_len=12, n_labels=3)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    lines = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(90)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def train_run(rows: str, out: Path, train_settings: dict[str, Any], **kwargs: Any) -> Run:
    model = {} if "init_from" in train_settings else {"model": MODEL}
    return train(
        "classify",
        data=rows,
        out=out,
        device="cpu",
        quiet=True,
        train=TRAIN_SETTINGS | train_settings,
        **model,
        **kwargs,
    )


@pytest.fixture(scope="module")
def base(rows: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(rows, tmp_path_factory.mktemp("base") / "run", {}).path


def load_latest_checkpoint(path: Path) -> dict[str, Tensor]:
    newest = RunFolder(path).latest_checkpoint()
    assert newest is not None
    return load_file(newest / "tensors.safetensors")


# -- depth


def test_depth_is_counted_from_the_input_to_the_head() -> None:
    depth_by_name = layer_depths(Classifier(MODEL_CONFIG, SIZES))
    expected = {
        "encoder.embedding.token_embedding.weight": 0,
        "encoder.embedding.position_embedding.table.weight": 0,
        "encoder.blocks.0.attn.q_proj.weight": 1,
        "encoder.blocks.1.ffn_norm.bias": 2,
        "encoder.final_norm.weight": 2,
        "classification_head.bias": 3,
    }
    assert {name: depth_by_name[name] for name in expected} == expected


def test_a_decoder_lies_above_its_encoder_and_a_tied_head_with_the_embedding() -> None:
    depth_by_name = layer_depths(Seq2Seq(MODEL_CONFIG, SIZES))
    assert (
        depth_by_name["encoder.embedding.token_embedding.weight"]
        == depth_by_name["embedding.position_embedding.table.weight"]
        == 0
    )
    assert depth_by_name["encoder.blocks.1.attn.out_proj.weight"] == depth_by_name["encoder.final_norm.weight"] == 2
    assert depth_by_name["blocks.0.cross_attn.q_proj.weight"] == 3
    assert depth_by_name["blocks.1.cross_attn.q_proj.weight"] == depth_by_name["final_norm.weight"] == 4
    assert depth_by_name["lm_head.bias"] == 5
    assert "lm_head.weight" not in depth_by_name


# -- freezing


@pytest.mark.parametrize("n_frozen", [0, 1, 2])
def test_frozen_layers_stay_as_they_are_and_have_no_state(
    n_frozen: int, rows: str, base: Path, tmp_path: Path
) -> None:
    result = train_run(rows, tmp_path / "run", {"init_from": str(base), "freeze_layers": n_frozen})
    before, after = load_file(base / "model.safetensors"), load_latest_checkpoint(result.path)
    depth = layer_depths(result.task.model)
    for name, layer_depth in depth.items():
        assert before[name].equal(after[f"model.{name}"]) == (layer_depth <= n_frozen), name
    moments = [name for name in after if name.endswith(".exp_avg")]
    assert len(moments) == sum(layer_depth > n_frozen for layer_depth in depth.values())


def test_freezing_more_than_there_is_or_all_of_it_is_refused() -> None:
    config = build_config({"task": "generate", "train.freeze_layers": 3}, Config())
    with pytest.raises(ConfigError, match=r"train\.freeze_layers=3 is too large: this model has 2 layers"):
        freeze_parameters(Decoder(MODEL_CONFIG, SIZES), config)
    all_frozen = build_config({"task": "generate", "train.freeze_layers": 2}, Config())
    without_head_bias = ModelConfig(d_model=16, d_ff=32, n_layers=2, n_heads=2, head_bias=False)
    with pytest.raises(ConfigError, match="leaves nothing to train"):
        freeze_parameters(Decoder(without_head_bias, SIZES), all_frozen)


def test_a_frozen_head_has_no_gradient_where_scores_are_made_in_parts() -> None:
    head = torch.nn.Linear(8, 100).requires_grad_(requires_grad=False)
    states, targets = torch.randn(70, 8, requires_grad=True), torch.randint(0, 100, (70,))
    chunked_cross_entropy(states[None], head, targets[None], 0.0, max_logits=6400).backward()  # type: ignore[no-untyped-call]
    chunked_grad = states.grad
    states.grad = None
    torch.nn.functional.cross_entropy(head(states), targets, reduction="sum").backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(chunked_grad, states.grad)
    assert head.weight.grad is head.bias.grad is None


# -- rates by depth


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_each_layer_below_the_head_moves_at_a_share_of_the_rate_above(
    as_tensor: bool, rows: str, tmp_path: Path
) -> None:
    settings = {"task": "classify", "data.train": rows, **{f"model.{name}": value for name, value in MODEL.items()}}
    plain_sgd = {"train.optimizer": "sgd", "train.momentum": 0.0, "train.weight_decay": 0.0, "train.clip_norm": 0.0}
    config = build_config(
        settings | plain_sgd | {"train.log_every": 5, "train.layer_decay": 0.5, "model.dropout": 0.0}, Config()
    )
    prepared = TASKS["classify"].prepare(config, tmp_path)
    model = prepared.task.model
    train_step = TrainStep(prepared.task, prepared.train)
    batch = prepared.train.batch(next(iter([prepared.train.sampler(config.train, 0).next_batch()])))
    prepared.task.loss(batch).backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.zero_grad()
    train_step.optimize([batch], 1, torch.tensor(0.1) if as_tensor else 0.1)
    depth = layer_depths(model)
    for name, parameter in model.named_parameters():
        expected = before[name] - 0.1 * 0.5 ** (3 - depth[name]) * gradients[name]
        torch.testing.assert_close(parameter.detach(), expected, msg=name)


def test_groups_differ_in_depth_and_decay_and_hold_everything_once() -> None:
    model = Classifier(MODEL_CONFIG, SIZES)
    groups: list[dict[str, Any]] = build_parameter_groups(model, 0.1, 0.8)
    assert [(group["lr_scale"], group["weight_decay"]) for group in groups] == [
        (pytest.approx(0.8**depth), decay) for depth in range(4) for decay in ((0.1, 0.0) if depth < 3 else (0.1,))
    ]
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert {id(parameter) for parameter in grouped} == {id(parameter) for parameter in model.parameters()}
    assert len(grouped) == len(list(model.parameters()))


# -- adapters


LORA = {"lora_rank": 2, "lora_dropout": 0.1}


def test_only_adapters_and_the_label_head_learn_and_have_state(rows: str, base: Path, tmp_path: Path) -> None:
    result = train_run(rows, tmp_path / "run", {"init_from": str(base), **LORA})
    before, after = load_file(base / "model.safetensors"), load_latest_checkpoint(result.path)
    adapters = [name for name in after if ".lora_" in name]
    assert len(adapters) == 2 * 5 * MODEL["n_layers"]
    for name, tensor in before.items():
        module_name, _, parameter_name = name.rpartition(".")
        saved = after.get(f"model.{name}", after.get(f"model.{module_name}.base.{parameter_name}"))
        assert saved is not None
        assert tensor.equal(saved) == (not name.startswith("classification_head.")), name
    moments = [name for name in after if name.endswith(".exp_avg")]
    assert len(moments) == len(adapters) + 2
    assert result.config.train.lora_alpha == 4.0


@pytest.mark.parametrize("settings", [LORA, {"freeze_layers": 1, "layer_decay": 0.8}, {**LORA, "ema_decay": 0.9}])
@pytest.mark.parametrize("steps", [2, 5])
def test_stopped_and_resumed_a_fine_tuned_run_ends_with_the_same_bits(
    settings: dict[str, Any],
    steps: int,
    rows: str,
    base: Path,
    tmp_path: Path,
    stopped_after: StoppedAfter,
) -> None:
    train_settings = {"init_from": str(base), **settings}
    uninterrupted = train_run(rows, tmp_path / "straight", train_settings)
    with stopped_after(steps):
        train_run(rows, tmp_path / "broken", train_settings)
    resumed = train_run(rows, tmp_path / "broken", train_settings, resume=True)
    files = ["model.safetensors", *(["adapter.safetensors"] if "lora_rank" in settings else [])]
    pairs = [(load_file(uninterrupted.path / name), load_file(resumed.path / name)) for name in files]
    for left, right in (*pairs, (load_latest_checkpoint(uninterrupted.path), load_latest_checkpoint(resumed.path))):
        assert left.keys() == right.keys()
        assert all(tensor.equal(right[name]) for name, tensor in left.items())


def test_compiled_blocks_leave_adapted_projections_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "triform.training.compilation._compiled_block_forward",
        lambda: lambda block, *rest: type(block).forward(block, *rest),
    )
    model = Decoder(MODEL_CONFIG, SIZES).eval()
    tokens = torch.arange(10)[None]
    freeze_parameters(
        model, build_config({"task": "generate", "train.init_from": "x", "train.lora_rank": 2}, Config())
    )
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter)
    expected = model(tokens)
    with compiled_blocks(model):
        torch.testing.assert_close(model(tokens), expected)
    torch.testing.assert_close(model(tokens), expected)
