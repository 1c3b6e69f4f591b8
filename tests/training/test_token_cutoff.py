"""Cut tokens: their vectors are zero, and SimCut compares what a model predicts with and without them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from same_runs import StoppedAfter, assert_same_bits

from triform.config import ModelConfig, TaskName
from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.launch import train
from triform.nn.embedding import InputEmbedding
from triform.nn.loss import IGNORE_INDEX, cross_entropy
from triform.tasks import TASKS, losses
from triform.tasks.losses import cut_tokens, draw_cut_tokens, simcut_loss

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.tsv"
    path.write_text(
        "".join(f"{'lower and newer ' * (n % 3)}than {n}\t{'big' if n % 3 else 'small'}\n" for n in range(90))
    )
    return str(path)


def train_run(data: str, out: Path, **kwargs: Any) -> Path:
    steps = {"max_steps": 12, "eval_every": 4, "checkpoint_every": 4, "log_every": 2, "batch_size": 8}
    settings = {"train": steps | kwargs.pop("train", {}), "model": MODEL} | kwargs
    return train("classify", data=data, out=out, device="cpu", quiet=True, seed=2, **settings).path


def test_simcut_is_the_loss_of_the_whole_text_and_the_divergence_of_the_cut_one_from_it() -> None:
    torch.manual_seed(0)
    full, cut = (torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    targets = torch.tensor([0, 4, 2, IGNORE_INDEX, 1, 3])
    loss = simcut_loss(full, cut, targets, 0.1, 3.0)
    is_scored = targets != IGNORE_INDEX
    divergence = F.kl_div(cut.log_softmax(-1)[is_scored], full.softmax(-1)[is_scored], reduction="sum")
    expected = cross_entropy(full, targets, 0.1) + 3.0 * divergence
    torch.testing.assert_close(loss, expected)
    for actual_grad, expected_grad in zip(
        torch.autograd.grad(loss, [full, cut]), torch.autograd.grad(expected, [full, cut]), strict=True
    ):
        torch.testing.assert_close(actual_grad, expected_grad)
        assert actual_grad[is_scored].abs().min() > 0, "gradients reach both passes"
    by_hand = 3.0 * (cut.softmax(-1) - full.softmax(-1))  # the derivative by the logits of the cut text
    torch.testing.assert_close(actual_grad[is_scored], by_hand[is_scored])
    same = simcut_loss(full, full, targets, 0.1, 3.0)
    torch.testing.assert_close(same, cross_entropy(full, targets, 0.1))


def prepare_with_cut_tokens(task: TaskName, rows: str, folder: Path, **train: Any) -> Any:
    settings = {"task": task, "data.train": rows, "tokenizer.kind": "word"}
    settings |= {"data.max_len": 12} if task == "generate" else {"data.header": "no"}
    settings |= {f"model.{name}": value for name, value in (MODEL | {"dropout": 0.0}).items()}
    settings |= {f"train.{name}": value for name, value in ({"batch_size": 8} | train).items()}
    return TASKS[task].prepare(build_config(settings), folder)


@pytest.mark.parametrize("task_name", ["classify", "generate", "translate"])
def test_cut_tokens_are_tokens_whose_vectors_are_zero(task_name: TaskName, rows: str, tmp_path: Path) -> None:
    """The losses with cut tokens are those of the same models with embeddings that return zeros there."""
    prepared = prepare_with_cut_tokens(task_name, rows, tmp_path / "run", token_cutoff=0.4, simcut=2.0)
    task, batch = prepared.task, prepared.train.batch(np.arange(8))
    seen: list[torch.Tensor] = []  # which tokens were cut, in the order of the embeddings
    embeddings = [module for module in task.model.modules() if isinstance(module, InputEmbedding)]
    assert len(embeddings) == (2 if task_name == "translate" else 1), "for translate, both sides are cut"

    def run(*, zeroed: bool) -> torch.Tensor:
        masks = iter(seen)
        with pytest.MonkeyPatch.context() as patch:
            for embedding in embeddings if zeroed else ():
                forward = embedding.forward
                patch.setattr(
                    embedding, "forward", lambda *args, forward=forward: forward(*args) * ~next(masks)[..., None]
                )
            if task_name == "classify":
                return task.model(batch.tokens, batch.keep)
            if task_name == "generate":
                return task.model(batch.tokens)
            return task.model(batch.source, batch.decoder_input, batch.source_keep)

    def record(shape: torch.Size, share: float, device: torch.device) -> torch.Tensor:
        seen.append(draw_cut_tokens(shape, share, device))
        return seen[-1]

    targets = batch.labels if task_name == "classify" else batch.targets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "draw_cut_tokens", record)
        loss = task.loss(batch)
        assert len(seen) == len(embeddings), "the first pass sees all tokens"
        assert all(mask.any() and not mask.all() for mask in seen)
        torch.testing.assert_close(loss, simcut_loss(run(zeroed=False), run(zeroed=True), targets, 0.0, 2.0))
        seen.clear()
        plain = task.with_config(build_config({"train.simcut": 0.0}, task.config))
        torch.testing.assert_close(plain.loss(batch), cross_entropy(run(zeroed=True), targets, 0.0))
    assert not any(embedding._forward_hooks for embedding in embeddings)


@pytest.mark.parametrize("task_name", ["classify", "generate", "translate"])
def test_without_dropout_r_drop_is_the_loss_of_one_pass(task_name: TaskName, rows: str, tmp_path: Path) -> None:
    prepared = prepare_with_cut_tokens(task_name, rows, tmp_path / "run")
    plain, batch = prepared.task, prepared.train.batch(np.arange(8))
    task = plain.with_config(build_config({"train.r_drop": 5.0, "model.dropout": 0.1}, plain.config))
    for actual, expected in zip(
        torch.autograd.grad(task.loss(batch), list(task.model.parameters()), allow_unused=True),
        torch.autograd.grad(plain.loss(batch), list(task.model.parameters()), allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(task.loss(batch), plain.loss(batch))


def test_the_share_of_cut_tokens_is_what_was_asked() -> None:
    torch.manual_seed(0)
    embedding = InputEmbedding(ModelConfig(d_model=4, n_heads=1, dropout=0.0), vocab_size=9, max_len=400)
    tokens, positions = torch.ones(20, 400, dtype=torch.long), torch.arange(400)
    full = embedding(tokens, positions)
    with cut_tokens(embedding, 0.15):
        cut = embedding(tokens, positions)
    is_cut = (cut == 0).all(dim=-1)
    assert 0.13 < is_cut.float().mean().item() < 0.17
    assert cut[~is_cut].equal(full[~is_cut]), "the others keep their size"
    assert embedding(tokens, positions).equal(full)


@pytest.mark.parametrize("train_settings", [{"token_cutoff": 0.2}, {"token_cutoff": 0.2, "simcut": 3.0}])
def test_a_run_with_cut_tokens_goes_on_as_if_it_had_never_stopped(
    train_settings: dict[str, float], rows: str, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    uninterrupted = train_run(rows, tmp_path / "full", train=train_settings)
    with stopped_after(7):
        train_run(rows, tmp_path / "broken", train=train_settings)
    assert_same_bits(uninterrupted, train_run(rows, tmp_path / "broken", resume=True, train=train_settings))


@pytest.mark.parametrize("kind", ["transformer", "lstm"])
@pytest.mark.parametrize("more", [{}, {"simcut": 1.0}, {"r_drop": 1.0}])
def test_translators_of_each_kind_learn_with_cut_tokens(more: dict[str, float], kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "train": {"max_steps": 2, "token_cutoff": 0.2} | more,
        "model": MODEL | {"kind": kind},
    }
    if kind == "lstm":
        settings["model"].pop("n_heads")
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"one {n} two {n % 7}\tun {n} deux {n % 7}\n" for n in range(60)), encoding="utf-8")
    result = train("translate", data=data, out=tmp_path / "run", device="cpu", quiet=True, **settings)
    assert math.isfinite(result.evaluate()["loss"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"train.simcut": 3.0}, r"train\.simcut=3\.0 needs tokens to cut; set train\.token_cutoff"),
        *(
            (
                {"train.simcut": 3.0, "train.token_cutoff": 0.1, f"train.{name}": value},
                f"combined with train.{name}",
            )
            for name, value in (("r_drop", 1.0), ("distill_from", "a run"))
        ),
    ],
)
def test_what_cannot_be_done_with_cut_tokens_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        build_config(settings)
    assert "\n" not in str(caught.value)
