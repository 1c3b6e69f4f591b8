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

from triform.config import TokenizerConfig
from triform.data.loader import Bucketed
from triform.errors import ConfigError
from triform.launch import train
from triform.nn.vocabulary import IGNORE, agreeing_loss, cross_entropy
from triform.settings import build
from triform.tasks import TASKS
from triform.text import BpeTokenizer, train_tokenizer
from triform.text.varied import VERSIONS, VariedBpe, versions
from triform.training.learner import Learner
from triform.training.population import single
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}
TEXT = "the lower the better, the newest are the widest\n" * 30


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.tsv"
    path.write_text(
        "".join(f"{'lower and newer ' * (n % 3)}than {n}\t{'big' if n % 3 else 'small'}\n" for n in range(90))
    )
    return str(path)


def bpe() -> BpeTokenizer:
    made = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=280), [TEXT], name="text", n_characters=len(TEXT))
    assert isinstance(made, BpeTokenizer)
    return made


def learned(data: str, out: Path, **more: Any) -> Path:
    steps = {"max_steps": 12, "eval_every": 4, "checkpoint_every": 4, "log_every": 2, "batch_size": 8}
    asked = {"train": steps | more.pop("train", {}), "model": MODEL} | more
    return train("classify", data=data, out=out, device="cpu", quiet=True, seed=2, **asked).path


# ------------------------------------------------------------------------------------------ average


def test_the_average_is_that_of_all_weights_there_were(rows: str, tmp_path: Path) -> None:
    decay, seen = 0.8, []
    settings = {
        "task": "classify",
        "data.train": rows,
        "train.average": decay,
        "train.max_steps": 9,
        "train.log_every": 9,
    }
    settings |= {f"model.{name}": value for name, value in MODEL.items()} | {"train.batch_size": 8}
    made = TASKS["classify"].prepare(build(settings), tmp_path / "run")
    learner = Learner(made.task, made.train)
    sampler = made.train.sampler(made.task.config.train, 0)
    for _ in range(9):
        learner.step([sampler.next()], 1e-2)
        seen.append([p.detach().clone() for p in made.task.model.parameters()])
    shares = np.array([decay ** (8 - step) for step in range(9)])
    shares /= shares.sum()
    before = [p.detach().clone() for p in made.task.model.parameters()]
    with learner.averaged(9):
        for place, p in enumerate(made.task.model.parameters()):
            wanted = sum(share * weights[place] for share, weights in zip(shares, seen, strict=True))
            torch.testing.assert_close(p.detach(), wanted)
    assert all(p.equal(old) for p, old in zip(made.task.model.parameters(), before, strict=True))


def test_what_is_kept_is_the_average_and_what_goes_on_is_not(rows: str, tmp_path: Path) -> None:
    plain, kept = learned(rows, tmp_path / "plain"), learned(rows, tmp_path / "kept", train={"average": 0.9})

    def losses(path: Path) -> list[float]:
        lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [event["loss"] for event in map(json.loads, lines) if event["event"] == "train"]

    assert losses(plain) == losses(kept), "an average changes nothing of how a run learns"
    one, other = (load_file(path / "model.safetensors") for path in (plain, kept))
    assert any(not one[name].equal(other[name]) for name in one)


def test_a_run_that_is_averaged_goes_on_as_if_it_had_never_stopped(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"train": {"average": 0.9}}
    whole = learned(rows, tmp_path / "whole", **settings)
    plain = Trainer.after_step

    def stopping(self: Trainer) -> None:
        plain(self)
        if self.progress.step == 7:
            self.stop()

    monkeypatch.setattr(Trainer, "after_step", stopping)
    with pytest.raises(Exception, match="stopped at step 7"):
        learned(rows, tmp_path / "broken", **settings)
    monkeypatch.setattr(Trainer, "after_step", plain)
    broken = learned(rows, tmp_path / "broken", resume=True, **settings)
    one, other = (load_file(path / "model.safetensors") for path in (whole, broken))
    assert all(one[name].equal(other[name]) for name in one)


def test_what_a_stack_does_not_do_is_trained_one_by_one() -> None:
    assert single(build({"train.average": 0.9}).train)
    assert single(build({"train.consistency": 1.0}).train)
    assert not single(build({}).train)


# ------------------------------------------------------------------------------------------ consistency


def test_readings_that_agree_cost_nothing_more_and_others_their_divergence() -> None:
    torch.manual_seed(0)
    one, two = torch.randn(2, 6, 5, dtype=torch.float64)
    targets = torch.tensor([0, 4, 2, IGNORE, 1, 3])
    same = agreeing_loss(one, one, targets, 0.1, 5.0)
    torch.testing.assert_close(same, cross_entropy(one, targets, 0.1))
    p, q = one.log_softmax(-1), two.log_softmax(-1)
    there = targets != IGNORE
    both = [F.kl_div(a[there], b[there], log_target=True, reduction="sum") for a, b in ((p, q), (q, p))]
    wanted = (cross_entropy(one, targets, 0.1) + cross_entropy(two, targets, 0.1)) / 2 + 5.0 * sum(both) / 4
    torch.testing.assert_close(agreeing_loss(one, two, targets, 0.1, 5.0), wanted)


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_every_task_learns_from_two_readings(task: Any, tmp_path: Path) -> None:
    steps = {"max_steps": 3, "consistency": 2.0}
    made = train(task, out=tmp_path / "run", device="cpu", quiet=True, train=steps, model=MODEL)
    assert math.isfinite(made.evaluate()["loss"])


# ------------------------------------------------------------------------------------------ dropout of merges


def test_no_dropout_splits_as_always_and_some_splits_finer() -> None:
    plain = bpe()
    assert versions(plain, 0.0)[3].encode(TEXT) == plain.encode(TEXT)
    varied = versions(plain, 0.3)
    made = [each.encode(TEXT) for each in varied]
    assert len(made) == VERSIONS
    assert all(len(tokens) > len(plain.encode(TEXT)) for tokens in made)
    assert len({tuple(tokens) for tokens in made}) > 1
    assert all(plain.decode(tokens) == TEXT for tokens in made)


def test_a_version_splits_a_word_the_same_way_wherever_it_is_asked() -> None:
    one, again = (versions(bpe(), 0.3)[4] for _ in range(2))
    sent = pickle.loads(pickle.dumps(one))
    assert one.encode(TEXT) == again.encode(TEXT) == sent.encode(TEXT)


def test_the_share_of_merges_left_out_is_what_was_asked() -> None:
    """Of two bytes that make one piece, a share stays apart."""
    plain = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=261), ["ab " * 99], name="", n_characters=297)
    assert isinstance(plain, BpeTokenizer)
    assert len(plain.encode("ab")) == 1
    many = (VariedBpe(plain._core, 0.25, version) for version in range(2_000))
    apart = [len(version.encode("ab")) == 2 for version in many]
    assert 0.22 < sum(apart) / len(apart) < 0.28


def test_epochs_take_the_versions_in_turn_and_each_example_once() -> None:
    sampler = Bucketed(np.arange(1, 31), batch_size=4, seed=1, versions=3)
    for epoch in range(4):
        drawn = np.concatenate([sampler.next() for _ in range(sampler.steps_per_epoch)])
        assert sorted(drawn) == list(range(10 * (epoch % 3), 10 * (epoch % 3) + 10))


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_training_text_is_split_in_many_ways_and_other_text_in_one(task: Any, rows: str, tmp_path: Path) -> None:
    settings = {"task": task, "data.train": rows, "tokenizer.kind": "bpe", "data.header": "no"}
    one = TASKS[task].prepare(build(settings), tmp_path / "one")
    many = TASKS[task].prepare(build(settings | {"tokenizer.dropout": 0.2}), tmp_path / "many")
    assert len(one.train) == len(many.train)
    assert many.train.versions == VERSIONS
    assert len(many.train.lengths) == VERSIONS * len(one.train)
    assert many.valid is not None
    assert one.valid is not None
    assert many.valid.lengths.tolist() == one.valid.lengths.tolist()
    assert many.task.config.model == one.task.config.model
    first, again = (many.train.batch(np.array([row, row + len(one.train)])) for row in (5, 7))
    assert first.weight
    assert again.weight


def test_dropout_of_merges_is_for_bpe_and_rows() -> None:
    for asked in ({"task": "generate"}, {"tokenizer.kind": "word"}):
        with pytest.raises(ConfigError, match="leaves out merges of bpe"):
            build({"tokenizer.dropout": 0.1} | asked)
    with pytest.raises(ConfigError, match="readings that dropout makes differ"):
        build({"train.consistency": 1.0, "model.dropout": 0.0})
