"""One suite that every task is put through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_cases import N_ROWS, NAMES, WORDS, prepared, sentences, write_data

from triform.config import Config, TaskName
from triform.decode import search
from triform.nn.vocabulary import IGNORE
from triform.settings import build, flatten
from triform.tasks import TASKS, Prediction, Prepared, Task, windows
from triform.tasks.defaults import settle_steps
from triform.tasks.task import ByLength, held_out
from triform.text import BOS, EOS
from triform.training.folder import load_weights, weights_of

Shelf = Mapping[str, Prepared]
every_task = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def restored(shelf: Shelf) -> Iterator[None]:
    """Configs changed by a test are put back."""
    kept = {name: shelf[name].task.config for name in NAMES}
    yield
    for name, config in kept.items():
        shelf[name].task.config = config


def ask(task: Task, **settings: Any) -> None:
    task.config = build({name.replace("__", "."): value for name, value in settings.items()}, task.config)


def gradients(task: Task, batches: list[np.ndarray], made: Prepared) -> tuple[float, list[torch.Tensor]]:
    task.model.zero_grad()
    total = 0.0
    for rows in batches:
        loss = task.loss(made.train.batch(rows))
        loss.backward()
        total += loss.item()
    return total, [parameter.grad.clone() for parameter in task.model.parameters()]


# -- what every task promises


@every_task
def test_preparing_gives_a_task_with_data_to_learn_and_to_judge(name: TaskName, shelf: Shelf) -> None:
    made = shelf[name]
    assert type(made.task) is TASKS[name]
    assert made.task.name == name == made.task.config.task
    assert len(made.train) > len(made.valid) > 0
    assert all(isinstance(notice, str) for notice in made.notices)
    assert made.task.metric in made.task.evaluate(made.valid, quick=True)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@every_task
def test_how_a_batch_is_cut_does_not_matter(name: TaskName, smoothing: float, shelf: Shelf) -> None:
    made, rows = shelf[name], np.array([5, 0, 33, 71, 18, 90, 2, 44])
    ask(made.task, train__label_smoothing=smoothing)
    whole, slopes = gradients(made.task, [rows], made)
    for places in ([4], [1, 3], list(range(1, 8))):
        parts = np.split(rows, places)
        loss, found = gradients(made.task, parts, made)
        assert loss == pytest.approx(whole, rel=1e-12)
        torch.testing.assert_close(found, slopes, rtol=1e-9, atol=1e-12)
        cut = [made.train.batch(part) for part in parts]
        assert sum(batch.weight for batch in cut) == made.train.batch(rows).weight
        assert sum(batch.n_tokens for batch in cut) == made.train.batch(rows).n_tokens


def one_at_a_time(made: Prepared) -> tuple[float, int]:
    """Nats and predictions of the held-out data, every example by itself and nothing padded."""
    task, data, nats, n = made.task, made.valid, 0.0, 0
    if task.name == "generate":
        stream = torch.tensor(data.store.tokens.astype(np.int64))
        for start in range(0, len(stream) - 1, data.max_len):
            window = stream[start : start + data.max_len + 1]
            logs = task.model(window[None, :-1])[0].log_softmax(-1)
            nats -= sum(logs[place, token].item() for place, token in enumerate(window[1:].tolist()))
            n += len(window) - 1
        return nats, n
    for row in range(len(data)):
        if task.name == "classify":
            tokens = torch.tensor(data.store[row][: data.max_len].astype(np.int64))
            nats -= task.model(tokens[None])[0].log_softmax(-1)[data.labels[row]].item()
            n += 1
        else:
            source = torch.tensor(data.source[row][: data.max_len].astype(np.int64))
            expected = [*data.target[row].tolist(), EOS][: data.max_len]  # a target that is cut does not end
            logs = task.model(source[None], torch.tensor([[BOS, *expected[:-1]]]))[0].log_softmax(-1)
            nats -= sum(logs[place, token].item() for place, token in enumerate(expected))
            n += len(expected)
    return nats, n


@every_task
def test_the_loss_of_an_evaluation_is_that_of_single_examples(name: TaskName, shelf: Shelf) -> None:
    with torch.no_grad():
        nats, n = one_at_a_time(shelf[name])
    scores = shelf[name].task.evaluate(shelf[name].valid)
    assert scores["loss"] == pytest.approx(nats / n, rel=1e-10)
    assert n == sum(batch.weight for batch in shelf[name].valid.batches())


@every_task
def test_a_weight_counts_the_predictions(name: TaskName, shelf: Shelf) -> None:
    for batch in [*shelf[name].valid.batches(), shelf[name].train.batch(np.arange(7))]:
        targets = {"classify": "labels", "generate": "targets", "translate": "expected"}[name]
        assert batch.weight == (getattr(batch, targets) != IGNORE).sum()


@every_task
def test_the_size_of_a_batch_changes_no_score_and_no_prediction(
    name: TaskName, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, texts = shelf[name].task, sentences()[:12]
    scores, made = task.evaluate(shelf[name].valid), task.predict(texts)
    monkeypatch.setattr(ByLength, "EVAL_TOKENS", 20)
    monkeypatch.setattr(windows, "EVAL_TOKENS", 20)
    monkeypatch.setattr(search, "AT_ONCE", 3)
    assert task.evaluate(shelf[name].valid) == pytest.approx(scores, rel=1e-10)
    assert_alike(task.predict(texts), made)


def assert_alike(one: list[Prediction], other: list[Prediction]) -> None:
    assert [(each.input, each.output) for each in one] == [(each.input, each.output) for each in other]
    for left, right in zip(one, other, strict=True):
        if left.probabilities is not None:
            assert left.probabilities == pytest.approx(right.probabilities, rel=1e-5)


@pytest.mark.parametrize("strategy", ["greedy", "beam"])
@every_task
def test_there_is_one_prediction_a_text_in_the_order_given(name: TaskName, strategy: str, shelf: Shelf) -> None:
    task = shelf[name].task
    decode = replace(task.config.decode, strategy=strategy)
    texts = ["dune ember", "", " ".join(WORDS * 60), "amber", "birch cedar dune ember fjord", "", "amber"]
    made = task.predict(texts, decode=decode)
    assert [each.input for each in made] == texts
    assert made[1] == made[5]
    for text, each in zip(texts, made, strict=True):
        assert_alike(task.predict([text], decode=decode), [each])
    assert task.predict([]) == []


@pytest.mark.parametrize("name", ["generate", "translate"])
def test_a_sample_depends_on_the_seed_and_its_place_and_not_on_what_follows(name: TaskName, shelf: Shelf) -> None:
    task, texts = shelf[name].task, sentences()[:9]
    decode = replace(task.config.decode, strategy="sample", temperature=2.0)
    made = task.predict(texts, decode=decode)
    assert task.predict(texts, decode=decode) == made
    assert task.predict(texts[:4], decode=decode) == made[:4]
    assert task.predict(texts, decode=decode, seed=4) != made


@every_task
def test_a_saved_task_predicts_the_same_when_it_is_loaded(name: TaskName, shelf: Shelf, tmp_path: Path) -> None:
    task = shelf[name].task
    task.save(tmp_path)
    loaded = TASKS[name].load(task.config, tmp_path)
    load_weights(loaded.model, weights_of(task.model), tmp_path)
    loaded.model.eval()
    assert loaded.predict(sentences()[:8]) == task.predict(sentences()[:8])


@every_task
def test_better_means_a_better_metric_and_at_a_tie_a_lower_loss(name: TaskName, shelf: Shelf) -> None:
    task = shelf[name].task
    low, high = ({task.metric: value, "loss": 1.0} for value in (3.0, 4.0))
    good, bad = (high, low) if task.higher_is_better else (low, high)
    assert task.better(bad, None)
    assert task.better(good, bad)
    assert not task.better(bad, good)
    assert not task.better(good, dict(good))
    assert task.better(good | {"loss": 0.5}, good)
    assert not task.better(good | {"loss": 1.5}, good)
    assert task.better(good | {"loss": 9.0}, bad)


def test_a_bleu_near_zero_is_noise_and_the_loss_decides(shelf: Shelf) -> None:
    task = shelf["translate"].task
    lucky, learned = {"bleu": 0.4, "loss": 5.0}, {"bleu": 0.1, "loss": 4.0}
    assert task.better(learned, lucky)
    assert not task.better(lucky, learned)
    means_something = {"bleu": 1.2, "loss": 6.0}
    assert task.better(means_something, learned)
    assert not task.better(learned, means_something)


# -- data held out


@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.1, 0.25, 0.5, 0.4])
def test_about_the_asked_fraction_is_held_out_at_random(fraction: float) -> None:
    first = list(islice(held_out(fraction), 5000))
    assert first == list(islice(held_out(fraction), 5000))
    assert np.mean(first) == pytest.approx(fraction, abs=0.02)
    if fraction == 0.1:
        assert len({tuple(first[place : place + 10]) for place in range(0, 5000, 10)}) == 10  # any place in a block


def texts_of(made: Prepared, part: str) -> list[str]:
    data = getattr(made, part)
    store, tokenizer = (
        (data.store, made.task.tokenizer) if made.task.name == "classify" else (data.source, made.task.source)
    )
    return [tokenizer.decode(store[row].tolist()) for row in range(len(store))]


@pytest.mark.parametrize("name", ["classify", "translate"])
def test_what_is_held_out_is_not_trained_on_and_is_the_same_for_every_seed(name: TaskName, tmp_path: Path) -> None:
    parts = []
    for seed in (0, 1):
        made = prepared(name, tmp_path, **{"seed": seed, "data.valid_fraction": 0.2, "data.max_len": 20})
        train, valid = texts_of(made, "train"), texts_of(made, "valid")
        assert len(valid) == N_ROWS // 5
        assert not set(train) & set(valid)
        assert sorted([*train, *valid]) == sorted(sentences())
        parts.append((train, valid))
    assert parts[0] == parts[1]


@every_task
def test_a_validation_file_leaves_all_of_the_training_file_to_train_on(name: TaskName, tmp_path: Path) -> None:
    path = write_data(name, tmp_path)
    made = prepared(name, tmp_path, path, **{"data.valid": str(path)})
    assert len(made.train) == len(made.valid)
    assert prepared(name, tmp_path, path, **{"data.valid_fraction": 0.0}).valid is None


# -- settings left open


OPEN = ("data.max_len", "tokenizer.vocab_size", "model.d_model", "model.d_ff", "model.n_layers", "model.n_heads")
PACE = ("train.lr", "train.eval_every", "train.checkpoint_every", "train.log_every")


@every_task
def test_no_setting_is_left_open(name: TaskName, tmp_path: Path) -> None:
    bare = build({"task": name, "data.train": str(write_data(name, tmp_path))}, Config())
    config = settle_steps(TASKS[name].prepare(bare, tmp_path / "run").task.config, 200)
    found = flatten(config)
    assert all(found[each] for each in (*OPEN, *PACE))
    assert bool(found["train.batch_size"]) != bool(found["train.batch_tokens"])
    assert bool(found["train.max_steps"]) != bool(found["train.epochs"])
    assert found["train.warmup_steps"] >= 0
    assert found["tokenizer.kind"] in ("char", "word", "bpe")
    assert build(found) == config


@every_task
def test_what_the_user_set_stays(name: TaskName, tmp_path: Path) -> None:
    asked = {
        "data.max_len": 9,
        "tokenizer.kind": "word",
        "tokenizer.vocab_size": 10,
        "model.d_model": 18,
        "model.d_ff": 7,
        "model.n_layers": 1,
        "model.n_heads": 3,
        "model.dropout": 0.0,
        "train.lr": 0.123,
        "train.warmup_steps": 0,
        "train.max_steps": 17,
        "train.batch_tokens": 77,
        "train.eval_every": 4,
        "train.checkpoint_every": 6,
        "train.log_every": 2,
        "train.patience": 2,
    }
    made = prepared(name, tmp_path, **asked)
    found = flatten(settle_steps(made.task.config, 17))
    assert {each: found[each] for each in asked} == asked
