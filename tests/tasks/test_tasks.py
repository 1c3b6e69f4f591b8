"""One suite that every task is put through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from task_cases import N_ROWS, NAMES, WORDS, prepare_task, sentences, write_data

from triform.config import Config, TaskName
from triform.config.settings import build_config, flatten_config
from triform.generation import scheduler
from triform.nn.loss import IGNORE_INDEX
from triform.tasks import TASKS, Prediction, PreparedTask, Task, language_model_data
from triform.tasks.batch import BucketedDataset
from triform.tasks.defaults import resolve_step_defaults
from triform.tasks.splits import validation_mask
from triform.text import BOS, EOS
from triform.training.tensors import load_weights, named_weights

PreparedTasks = Mapping[str, PreparedTask]
every_task = pytest.mark.parametrize("name", NAMES)


def gradients(
    task: Task, batches: list[np.ndarray], prepared_task: PreparedTask
) -> tuple[float, list[torch.Tensor]]:
    task.model.zero_grad()
    total = 0.0
    for rows in batches:
        loss = task.loss(prepared_task.train.batch(rows))
        loss.backward()
        total += loss.item()
    return total, [parameter.grad.clone() for parameter in task.model.parameters()]


# -- what every task promises


@every_task
def test_the_settings_of_a_task_are_final(name: TaskName, prepared_tasks: PreparedTasks) -> None:
    task = prepared_tasks[name].task
    config = build_config({"train.lr": 0.123}, task.config)
    with pytest.raises(AttributeError):
        task.config = config  # type: ignore[misc]
    changed = task.with_config(config)
    assert (changed.config, changed.model) == (config, task.model)
    assert task.config != config


@every_task
def test_preparing_gives_a_task_with_data_to_learn_and_to_judge(
    name: TaskName, prepared_tasks: PreparedTasks
) -> None:
    prepared_task = prepared_tasks[name]
    assert type(prepared_task.task) is TASKS[name]
    assert prepared_task.task.name == name == prepared_task.task.config.task
    assert len(prepared_task.train) > len(prepared_task.valid) > 0
    assert all(isinstance(notice, str) for notice in prepared_task.notices)
    assert prepared_task.task.metric in prepared_task.task.evaluator.evaluate(prepared_task.valid, quick=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@every_task
def test_how_a_batch_is_cut_does_not_matter(
    name: TaskName, smoothing: float, prepared_tasks: PreparedTasks
) -> None:
    prepared_task, rows = prepared_tasks[name], np.array([5, 0, 33, 71, 18, 90, 2, 44])
    config = build_config({"train.label_smoothing": smoothing}, prepared_task.task.config)
    prepared_task = prepared_task.with_config(config)
    full_loss, full_gradients = gradients(prepared_task.task, [rows], prepared_task)
    for split_points in ([4], [1, 3], list(range(1, 8))):
        parts = np.split(rows, split_points)
        loss, part_gradients = gradients(prepared_task.task, parts, prepared_task)
        assert loss == pytest.approx(full_loss, rel=1e-12)
        torch.testing.assert_close(part_gradients, full_gradients, rtol=1e-9, atol=1e-12)
        batches = [prepared_task.train.batch(part) for part in parts]
        assert sum(batch.n_predictions for batch in batches) == prepared_task.train.batch(rows).n_predictions
        assert sum(batch.n_tokens for batch in batches) == prepared_task.train.batch(rows).n_tokens


def loss_one_at_a_time(prepared_task: PreparedTask) -> tuple[float, int]:
    """Nats and predictions of the held-out data, every example by itself and nothing padded."""
    task, data, total_loss, n_predictions = prepared_task.task, prepared_task.valid, 0.0, 0
    if task.name == "generate":
        tokens_in_order = torch.tensor(data.store.tokens.astype(np.int64))
        for start in range(0, len(tokens_in_order) - 1, data.max_len):
            window = tokens_in_order[start : start + data.max_len + 1]
            log_probs = task.model(window[None, :-1])[0].log_softmax(-1)
            total_loss -= sum(log_probs[index, token].item() for index, token in enumerate(window[1:].tolist()))
            n_predictions += len(window) - 1
        return total_loss, n_predictions
    for row in range(len(data)):
        if task.name == "classify":
            tokens = torch.tensor(data.store[row][: data.max_len].astype(np.int64))
            total_loss -= task.model(tokens[None])[0].log_softmax(-1)[data.labels[row]].item()
            n_predictions += 1
        else:
            source = torch.tensor(data.source[row][: data.max_len].astype(np.int64))
            expected = [*data.target[row].tolist(), EOS][: data.max_len]  # a target that is cut does not end
            log_probs = task.model(source[None], torch.tensor([[BOS, *expected[:-1]]]))[0].log_softmax(-1)
            total_loss -= sum(log_probs[index, token].item() for index, token in enumerate(expected))
            n_predictions += len(expected)
    return total_loss, n_predictions


@every_task
def test_the_loss_of_an_evaluation_is_that_of_single_examples(
    name: TaskName, prepared_tasks: PreparedTasks
) -> None:
    with torch.no_grad():
        total_loss, n_predictions = loss_one_at_a_time(prepared_tasks[name])
    metrics = prepared_tasks[name].task.evaluator.evaluate(prepared_tasks[name].valid)
    assert metrics["loss"] == pytest.approx(total_loss / n_predictions, rel=1e-10)
    assert n_predictions == sum(batch.n_predictions for batch in prepared_tasks[name].valid.batches())


@every_task
def test_a_weight_counts_the_predictions(name: TaskName, prepared_tasks: PreparedTasks) -> None:
    for batch in [*prepared_tasks[name].valid.batches(), prepared_tasks[name].train.batch(np.arange(7))]:
        targets = {"classify": "labels", "generate": "targets", "translate": "targets"}[name]
        assert batch.n_predictions == (getattr(batch, targets) != IGNORE_INDEX).sum()


@every_task
def test_the_size_of_a_batch_changes_no_metric_and_no_prediction(
    name: TaskName, prepared_tasks: PreparedTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, texts = prepared_tasks[name].task, sentences()[:12]
    metrics, predictions = task.evaluator.evaluate(prepared_tasks[name].valid), task.predictor.predict(texts)
    monkeypatch.setattr(BucketedDataset, "EVAL_TOKENS", 20)
    monkeypatch.setattr(language_model_data, "EVAL_TOKENS", 20)
    monkeypatch.setattr(scheduler, "MAX_EAGER_HYPOTHESES", 3)
    assert task.evaluator.evaluate(prepared_tasks[name].valid) == pytest.approx(metrics, rel=1e-10)
    assert_same_predictions(task.predictor.predict(texts), predictions)


def assert_same_predictions(actual: list[Prediction], expected: list[Prediction]) -> None:
    assert [(prediction.input, prediction.output) for prediction in actual] == [
        (prediction.input, prediction.output) for prediction in expected
    ]
    for left, right in zip(actual, expected, strict=True):
        if left.probabilities is not None:
            assert left.probabilities == pytest.approx(right.probabilities, rel=1e-5)


@pytest.mark.parametrize("strategy", ["greedy", "beam"])
@every_task
def test_there_is_one_prediction_a_text_in_the_order_given(
    name: TaskName, strategy: str, prepared_tasks: PreparedTasks
) -> None:
    task = prepared_tasks[name].task
    decode = replace(task.config.decode, strategy=strategy)
    texts = ["dune ember", "", " ".join(WORDS * 60), "amber", "birch cedar dune ember fjord", "", "amber"]
    predictions = task.predictor.predict(texts, decode=decode)
    assert [prediction.input for prediction in predictions] == texts
    assert predictions[1] == predictions[5]
    for text, prediction in zip(texts, predictions, strict=True):
        assert_same_predictions(task.predictor.predict([text], decode=decode), [prediction])
    assert task.predictor.predict([]) == []


@pytest.mark.parametrize("name", ["generate", "translate"])
def test_a_sample_depends_on_the_seed_and_its_place_and_not_on_what_follows(
    name: TaskName, prepared_tasks: PreparedTasks
) -> None:
    task, texts = prepared_tasks[name].task, sentences()[:9]
    decode = replace(task.config.decode, strategy="sample", temperature=2.0)
    predictions = task.predictor.predict(texts, decode=decode)
    assert task.predictor.predict(texts, decode=decode) == predictions
    assert task.predictor.predict(texts[:4], decode=decode) == predictions[:4]
    assert task.predictor.predict(texts, decode=decode, seed=4) != predictions


@every_task
def test_a_saved_task_predicts_the_same_when_it_is_loaded(
    name: TaskName, prepared_tasks: PreparedTasks, tmp_path: Path
) -> None:
    task = prepared_tasks[name].task
    task.save(tmp_path)
    loaded = TASKS[name].load(task.config, tmp_path)
    load_weights(loaded.model, named_weights(task.model), tmp_path)
    loaded.model.eval()
    assert loaded.predictor.predict(sentences()[:8]) == task.predictor.predict(sentences()[:8])


@every_task
def test_better_means_a_better_metric_and_at_a_tie_a_lower_loss(
    name: TaskName, prepared_tasks: PreparedTasks
) -> None:
    task = prepared_tasks[name].task
    low, high = ({task.metric: value, "loss": 1.0} for value in (3.0, 4.0))
    good, bad = (high, low) if task.higher_is_better else (low, high)
    assert task.evaluator.is_better(bad, None)
    assert task.evaluator.is_better(good, bad)
    assert not task.evaluator.is_better(bad, good)
    assert not task.evaluator.is_better(good, dict(good))
    assert task.evaluator.is_better(good | {"loss": 0.5}, good)
    assert not task.evaluator.is_better(good | {"loss": 1.5}, good)
    assert task.evaluator.is_better(good | {"loss": 9.0}, bad)


def test_a_bleu_near_zero_is_noise_and_the_loss_decides(prepared_tasks: PreparedTasks) -> None:
    task = prepared_tasks["translate"].task
    lucky, learned = {"bleu": 0.4, "loss": 5.0}, {"bleu": 0.1, "loss": 4.0}
    assert task.evaluator.is_better(learned, lucky)
    assert not task.evaluator.is_better(lucky, learned)
    means_something = {"bleu": 1.2, "loss": 6.0}
    assert task.evaluator.is_better(means_something, learned)
    assert not task.evaluator.is_better(learned, means_something)


# -- data held out


@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.1, 0.25, 0.5, 0.4])
def test_about_the_asked_fraction_is_held_out_at_random(fraction: float) -> None:
    first = list(islice(validation_mask(fraction), 5000))
    assert first == list(islice(validation_mask(fraction), 5000))
    assert np.mean(first) == pytest.approx(fraction, abs=0.02)
    if fraction == 0.1:
        assert len({tuple(first[index : index + 10]) for index in range(0, 5000, 10)}) == 10  # any place in a block


def decoded_texts(prepared_task: PreparedTask, split: str) -> list[str]:
    data = getattr(prepared_task, split)
    store, tokenizer = (
        (data.store, prepared_task.task.tokenizer)
        if prepared_task.task.name == "classify"
        else (data.source, prepared_task.task.source_tokenizer)
    )
    return [tokenizer.decode(store[row].tolist()) for row in range(len(store))]


@pytest.mark.parametrize("name", ["classify", "translate"])
def test_what_is_held_out_is_not_trained_on_and_is_the_same_for_every_seed(name: TaskName, tmp_path: Path) -> None:
    parts = []
    for seed in (0, 1):
        prepared_task = prepare_task(
            name, tmp_path, **{"seed": seed, "data.valid_fraction": 0.2, "data.max_len": 20}
        )
        train, valid = decoded_texts(prepared_task, "train"), decoded_texts(prepared_task, "valid")
        assert len(valid) == N_ROWS // 5
        assert not set(train) & set(valid)
        assert sorted([*train, *valid]) == sorted(sentences())
        parts.append((train, valid))
    assert parts[0] == parts[1]


@every_task
def test_a_validation_file_leaves_all_of_the_training_file_to_train_on(name: TaskName, tmp_path: Path) -> None:
    path = write_data(name, tmp_path)
    prepared_task = prepare_task(name, tmp_path, path, **{"data.valid": str(path)})
    assert len(prepared_task.train) == len(prepared_task.valid)
    assert prepare_task(name, tmp_path, path, **{"data.valid_fraction": 0.0}).valid is None


# -- settings left open


DATA_AND_MODEL_SETTINGS = (
    "data.max_len",
    "tokenizer.vocab_size",
    "model.d_model",
    "model.d_ff",
    "model.n_layers",
    "model.n_heads",
)
TRAIN_SETTINGS = ("train.lr", "train.eval_every", "train.checkpoint_every", "train.log_every")


@every_task
def test_no_setting_is_left_open(name: TaskName, tmp_path: Path) -> None:
    initial_config = build_config({"task": name, "data.train": str(write_data(name, tmp_path))}, Config())
    config = resolve_step_defaults(TASKS[name].prepare(initial_config, tmp_path / "run").task.config, 200)
    settings = flatten_config(config)
    assert all(settings[setting] for setting in (*DATA_AND_MODEL_SETTINGS, *TRAIN_SETTINGS))
    assert bool(settings["train.batch_size"]) != bool(settings["train.batch_tokens"])
    assert bool(settings["train.max_steps"]) != bool(settings["train.epochs"])
    assert settings["train.warmup_steps"] >= 0
    assert settings["tokenizer.kind"] in ("char", "word", "bpe")
    assert build_config(settings) == config


@every_task
def test_what_the_user_set_stays(name: TaskName, tmp_path: Path) -> None:
    overrides = {
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
    prepared_task = prepare_task(name, tmp_path, **overrides)
    settings = flatten_config(resolve_step_defaults(prepared_task.task.config, 17))
    assert {setting: settings[setting] for setting in overrides} == overrides
