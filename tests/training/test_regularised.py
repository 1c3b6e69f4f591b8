"""Averaged weights, readings that must agree, words split at random: what each is, and that runs go on with it."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from same_runs import StoppedAfter
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from triform.config import TokenizerConfig
from triform.config.settings import build_config
from triform.data.samplers import BucketSampler
from triform.errors import ConfigError
from triform.launch import train
from triform.nn.loss import IGNORE_INDEX, cross_entropy
from triform.tasks import TASKS
from triform.tasks.losses import r_drop_loss
from triform.text import BpeTokenizer, train_tokenizer
from triform.text.bpe_dropout import N_VERSIONS, BpeDropoutTokenizer, build_dropout_versions
from triform.training.sharded_step import ShardedTrainStep
from triform.training.train_step import TrainStep

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}
TEXT = "the lower the better, the newest are the widest\n" * 30


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.tsv"
    path.write_text(
        "".join(f"{'lower and newer ' * (n % 3)}than {n}\t{'big' if n % 3 else 'small'}\n" for n in range(90))
    )
    return str(path)


def train_bpe() -> BpeTokenizer:
    tokenizer = train_tokenizer(
        TokenizerConfig(kind="bpe", vocab_size=280), [TEXT], name="text", n_characters=len(TEXT)
    )
    assert isinstance(tokenizer, BpeTokenizer)
    return tokenizer


def train_run(data: str, out: Path, **kwargs: Any) -> Path:
    steps = {"max_steps": 12, "eval_every": 4, "checkpoint_every": 4, "log_every": 2, "batch_size": 8}
    settings = {"train": steps | kwargs.pop("train", {}), "model": MODEL} | kwargs
    return train("classify", data=data, out=out, device="cpu", quiet=True, seed=2, **settings).path


# ------------------------------------------------------------------------------------------ average


def test_the_average_is_that_of_all_weights_there_were(rows: str, tmp_path: Path) -> None:
    decay, history = 0.8, []
    settings = {
        "task": "classify",
        "data.train": rows,
        "train.ema_decay": decay,
        "train.max_steps": 9,
        "train.log_every": 9,
    }
    settings |= {f"model.{name}": value for name, value in MODEL.items()} | {"train.batch_size": 8}
    prepared_task = TASKS["classify"].prepare(build_config(settings), tmp_path / "run")
    train_step = TrainStep(prepared_task.task, prepared_task.train)
    sampler = prepared_task.train.sampler(prepared_task.task.config.train, 0)
    for _ in range(9):
        train_step.step([sampler.next_batch()], 1e-2)
        history.append([p.detach().clone() for p in prepared_task.task.model.parameters()])
    weightings = np.array([decay ** (8 - step) for step in range(9)])
    weightings /= weightings.sum()
    before = [p.detach().clone() for p in prepared_task.task.model.parameters()]
    with train_step.use_ema_weights(9):
        for index, p in enumerate(prepared_task.task.model.parameters()):
            expected = sum(
                weighting * weights[index] for weighting, weights in zip(weightings, history, strict=True)
            )
            torch.testing.assert_close(p.detach(), expected)
    assert all(p.equal(old) for p, old in zip(prepared_task.task.model.parameters(), before, strict=True))


def test_a_validation_leaves_the_average_of_one_sharded_process_as_it_is(rows: str, tmp_path: Path) -> None:
    settings = {"task": "classify", "data.train": rows, "train.ema_decay": 0.8, "train.log_every": 1}
    settings |= {f"model.{name}": value for name, value in MODEL.items()}
    prepared_task = TASKS["classify"].prepare(build_config(settings), tmp_path / "run")
    distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        train_step = ShardedTrainStep(prepared_task.task, prepared_task.train, max_steps=1)
        for average in train_step.ema:
            average.fill_(0.5)
        for _ in range(2):
            with train_step.use_ema_weights(1):
                weights = [p.detach().clone() for p in prepared_task.task.model.parameters()]
            assert all(torch.allclose(weight, torch.tensor(2.5)) for weight in weights)
        assert all(bool((average == 0.5).all()) for average in train_step.ema)
    finally:
        distributed.destroy_process_group()


def test_what_is_kept_is_the_average_and_what_goes_on_is_not(rows: str, tmp_path: Path) -> None:
    plain, averaged = (
        train_run(rows, tmp_path / "plain"),
        train_run(rows, tmp_path / "kept", train={"ema_decay": 0.9}),
    )

    def losses(path: Path) -> list[float]:
        lines = (path / "metrics.jsonl").read_bytes().splitlines()
        return [event["loss"] for event in map(json.loads, lines) if event["event"] == "train"]

    assert losses(plain) == losses(averaged), "an average changes nothing of how a run learns"
    first, second = (load_file(path / "model.safetensors") for path in (plain, averaged))
    assert any(not first[name].equal(second[name]) for name in first)


def test_a_run_that_is_averaged_goes_on_as_if_it_had_never_stopped(
    rows: str, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    settings = {"train": {"ema_decay": 0.9}}
    uninterrupted = train_run(rows, tmp_path / "whole", **settings)
    with stopped_after(7):
        train_run(rows, tmp_path / "broken", **settings)
    resumed = train_run(rows, tmp_path / "broken", resume=True, **settings)
    first, second = (load_file(path / "model.safetensors") for path in (uninterrupted, resumed))
    assert all(first[name].equal(second[name]) for name in first)


# ------------------------------------------------------------------------------------------ consistency


def test_readings_that_agree_cost_nothing_more_and_others_their_divergence() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(2, 6, 5, dtype=torch.float64)
    targets = torch.tensor([0, 4, 2, IGNORE_INDEX, 1, 3])
    loss_of_equals = r_drop_loss(first, first, targets, 0.1, 5.0)
    torch.testing.assert_close(loss_of_equals, cross_entropy(first, targets, 0.1))
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    not_ignored = targets != IGNORE_INDEX
    divergences = [
        F.kl_div(a[not_ignored], b[not_ignored], log_target=True, reduction="sum") for a, b in ((p, q), (q, p))
    ]
    expected = (cross_entropy(first, targets, 0.1) + cross_entropy(second, targets, 0.1)) / 2 + 5.0 * sum(
        divergences
    ) / 4
    torch.testing.assert_close(r_drop_loss(first, second, targets, 0.1, 5.0), expected)


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_every_task_learns_from_two_readings(task: Any, tmp_path: Path) -> None:
    steps = {"max_steps": 3, "r_drop": 2.0}
    result = train(task, out=tmp_path / "run", device="cpu", quiet=True, train=steps, model=MODEL)
    assert math.isfinite(result.evaluate()["loss"])


# ------------------------------------------------------------------------------------------ dropout of merges


def test_no_dropout_splits_as_always_and_some_splits_finer() -> None:
    plain = train_bpe()
    assert build_dropout_versions(plain, 0.0)[3].encode(TEXT) == plain.encode(TEXT)
    varied = build_dropout_versions(plain, 0.3)
    encodings = [tokenizer.encode(TEXT) for tokenizer in varied]
    assert len(encodings) == N_VERSIONS
    assert all(len(tokens) > len(plain.encode(TEXT)) for tokens in encodings)
    assert len({tuple(tokens) for tokens in encodings}) > 1
    assert all(plain.decode(tokens) == TEXT for tokens in encodings)


def test_a_version_splits_a_word_the_same_way_wherever_it_is_asked() -> None:
    first, second = (build_dropout_versions(train_bpe(), 0.3)[4] for _ in range(2))
    unpickled = pickle.loads(pickle.dumps(first))
    assert first.encode(TEXT) == second.encode(TEXT) == unpickled.encode(TEXT)


def test_the_share_of_merges_left_out_is_what_was_asked() -> None:
    """Of two bytes that make one piece, a share stays apart."""
    plain = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=261), ["ab " * 99], name="", n_characters=297)
    assert isinstance(plain, BpeTokenizer)
    assert len(plain.encode("ab")) == 1
    variants = (BpeDropoutTokenizer(plain._backend, 0.25, version) for version in range(2_000))
    is_split = [len(version.encode("ab")) == 2 for version in variants]
    assert 0.22 < sum(is_split) / len(is_split) < 0.28


def test_epochs_take_the_versions_in_turn_and_each_example_once() -> None:
    sampler = BucketSampler(np.arange(1, 31), batch_size=4, seed=1, n_versions=3)
    for epoch in range(4):
        batch_indices = np.concatenate([sampler.next_batch() for _ in range(sampler.steps_per_epoch)])
        assert sorted(batch_indices) == list(range(10 * (epoch % 3), 10 * (epoch % 3) + 10))


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_training_text_is_split_in_many_ways_and_other_text_in_one(task: Any, rows: str, tmp_path: Path) -> None:
    settings = {"task": task, "data.train": rows, "tokenizer.kind": "bpe", "data.header": "no"}
    plain = TASKS[task].prepare(build_config(settings), tmp_path / "one")
    varied = TASKS[task].prepare(build_config(settings | {"tokenizer.bpe_dropout": 0.2}), tmp_path / "many")
    assert len(plain.train) == len(varied.train)
    assert varied.train.versions == N_VERSIONS
    assert len(varied.train.lengths) == N_VERSIONS * len(plain.train)
    assert varied.valid is not None
    assert plain.valid is not None
    assert varied.valid.lengths.tolist() == plain.valid.lengths.tolist()
    assert varied.task.config.model == plain.task.config.model
    first, second = (varied.train.batch(np.array([row, row + len(plain.train)])) for row in (5, 7))
    assert first.n_predictions
    assert second.n_predictions


def test_dropout_of_merges_is_for_bpe_and_rows() -> None:
    for settings in ({"task": "generate"}, {"tokenizer.kind": "word"}):
        with pytest.raises(ConfigError, match="applies only to classify and translate"):
            build_config({"tokenizer.bpe_dropout": 0.1} | settings)
    with pytest.raises(ConfigError, match="needs dropout"):
        build_config({"train.r_drop": 1.0, "model.dropout": 0.0})
