"""Ensembles of each task: metrics and predictions are those of the mean probabilities, computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from task_cases import NAMES, prepare_task, sentences

from triform.config import TaskName
from triform.errors import ConfigError
from triform.nn.loss import IGNORE_INDEX
from triform.run import Run, load
from triform.tasks import Task
from triform.tasks.ensemble import combine_tasks

PreparedTasks = Any  # of conftest: `prepared_tasks["classify"]`


def members_of(task: Task, count: int = 3) -> list[Task]:
    """Tasks that differ in their weights, which are large enough that the models disagree."""
    members = []
    for seed in range(count):
        member = copy(task)
        torch.manual_seed(seed)
        member.model = member.build_model().eval().requires_grad_(False)
        for parameter in member.model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.5)
        members.append(member)
    return members


def combine(tasks: Sequence[Task]) -> Task:
    return combine_tasks(tasks, [f"run-{index}" for index in range(len(tasks))])


def mean_probabilities(members: Sequence[Task], *inputs: Any) -> np.ndarray:
    rows = [np.exp(member.model(*inputs).numpy()) for member in members]
    return np.mean([row / row.sum(axis=-1, keepdims=True) for row in rows], axis=0)


@torch.no_grad()
def test_a_classifier_gives_mean_probabilities_and_its_metrics_follow(prepared_tasks: PreparedTasks) -> None:
    prepared = prepared_tasks["classify"]
    members, data = members_of(prepared.task), prepared.train
    ensemble = combine(members)
    texts = sentences()[:20]
    predictions = ensemble.predictor.predict(texts)
    for text, prediction in zip(texts, predictions, strict=True):
        tokens = torch.tensor([prepared.task.tokenizer.encode(text)[:14]])
        expected = mean_probabilities(members, tokens)[0]
        assert list((prediction.probabilities or {}).values()) == pytest.approx(expected.tolist(), abs=1e-7)
    losses, hits = [], []
    for index in range(len(data)):
        batch = data.batch(np.array([index]))
        probabilities = mean_probabilities(members, batch.tokens)[0]
        losses.append(-np.log(probabilities[int(batch.labels[0])]))
        hits.append(probabilities.argmax() == int(batch.labels[0]))
    metrics = ensemble.evaluator.evaluate(data)
    assert metrics["loss"] == pytest.approx(np.mean(losses), abs=1e-7)
    assert metrics["accuracy"] == pytest.approx(np.mean(hits))
    assert metrics["loss"] < np.mean([member.evaluator.evaluate(data)["loss"] for member in members])  # Jensen


@pytest.mark.parametrize("name", ["generate", "translate"])
@torch.no_grad()
def test_loss_and_token_accuracy_are_those_of_mean_probabilities(
    name: TaskName, prepared_tasks: PreparedTasks
) -> None:
    prepared = prepared_tasks[name]
    members = members_of(prepared.task)
    total, hits, count = 0.0, 0, 0
    assert prepared.valid is not None
    for batch in prepared.valid.batches():
        pair_inputs = ("source", "decoder_input", "source_keep")
        inputs = [getattr(batch, field) for field in (("tokens",) if name == "generate" else pair_inputs)]
        probabilities = mean_probabilities(members, *inputs).reshape(-1, prepared.task.target_tokenizer.vocab_size)
        targets = batch.targets.flatten().numpy()
        counted = targets != IGNORE_INDEX
        total -= np.log(probabilities[counted, targets[counted]]).sum()
        hits += int((probabilities.argmax(axis=-1) == targets)[counted].sum())
        count += int(counted.sum())
    metrics = combine(members).evaluator.evaluate(prepared.valid)
    assert metrics["loss"] == pytest.approx(total / count, abs=1e-7)
    assert metrics["token_accuracy"] == pytest.approx(hits / count)
    if name == "generate":
        assert metrics["perplexity"] == pytest.approx(np.exp(total / count))


@pytest.mark.parametrize("name", NAMES)
def test_an_ensemble_of_one_answers_as_its_member_does(name: TaskName, prepared_tasks: PreparedTasks) -> None:
    prepared, texts = prepared_tasks[name], sentences()[:8]
    [member] = members_of(prepared.task, 1)
    ensemble = combine([member])
    assert ensemble.evaluator.evaluate(prepared.valid) == member.evaluator.evaluate(prepared.valid)
    decode = replace(member.config.decode, strategy="beam" if name == "translate" else "sample")
    options: dict[str, Any] = {"top": 2, "decode": decode}
    assert ensemble.predictor.predict(texts, **options) == member.predictor.predict(texts, **options)


def test_an_ensemble_reads_what_all_members_can_read(prepared_tasks: PreparedTasks) -> None:
    first, second = members_of(prepared_tasks["classify"].task, 2)
    shorter = second.with_config(replace(second.config, data=replace(second.config.data, max_len=5)))
    ensemble = combine([first, shorter])
    assert ensemble.config.data.max_len == 5
    assert first.config.data.max_len == 14
    assert ensemble.predictor.predict([" ".join(["amber"] * 9)])[0].cut


def test_members_that_answer_about_other_things_are_refused(
    prepared_tasks: PreparedTasks, tmp_path_factory: pytest.TempPathFactory
) -> None:
    classify, generate = prepared_tasks["classify"].task, prepared_tasks["generate"].task
    with pytest.raises(ConfigError, match=r"^run-0 and run-1 .*their tasks are classify and generate$"):
        combine([classify, generate])
    config = classify.config
    labelled = classify.with_config(replace(config, data=replace(config.data, labels=("x", "y", "z"))))
    with pytest.raises(ConfigError, match=r"run-0 and run-2 .*their labels are 2, 10, blue and x, y, z$"):
        combine([classify, classify, labelled])
    other = prepare_task("classify", tmp_path_factory.mktemp("chars"), **{"tokenizer.kind": "char"}).task
    with pytest.raises(ConfigError, match=r"their vocabularies of 14 and \d+ tokens differ"):
        combine([classify, other])
    gru = prepare_task("generate", tmp_path_factory.mktemp("gru"), **{"model.kind": "gru", "model.n_heads": 0}).task
    with pytest.raises(ConfigError, match=r"model\.kind is transformer and gru"):
        combine([generate, gru])


def test_what_needs_a_single_model_is_refused(prepared_tasks: PreparedTasks, tmp_path_factory: Any) -> None:
    ensemble = combine(members_of(prepared_tasks["classify"].task, 2))
    folder = tmp_path_factory.mktemp("refused")
    run = Run(path=folder, task=ensemble, members=(folder, folder))
    for call in (
        lambda: run.explain("amber birch"),
        lambda: run.export("hf", folder / "exported"),
        lambda: ensemble.predictor.pooled_states(["amber"]),  # type: ignore[attr-defined]
    ):
        with pytest.raises(ConfigError, match=r"^this is an ensemble of 2 models, .*`triform distill`$"):
            call()
    assert "members=2" in repr(run)
    assert "members=2" in run._repr_html_()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_student_learns_the_mean_probabilities(name: TaskName, prepared_tasks: PreparedTasks) -> None:
    task = prepared_tasks[name].task
    train = replace(task.config.train, distill_weight=1.0, distill_temperature=1.0)
    student, members = task.with_config(replace(task.config, train=train)), members_of(task)
    student.teacher = combine(members).model
    batch = prepared_tasks[name].train.batch(np.arange(3))
    fields = {"classify": ("tokens", "keep"), "generate": ("tokens",)}
    inputs = [getattr(batch, field) for field in fields.get(name, ("source", "decoder_input", "source_keep"))]
    teacher, learned = mean_probabilities(members, *inputs), mean_probabilities([student], *inputs)
    divergences = (teacher * np.log(teacher / learned)).sum(axis=-1)
    counted = (batch.labels if name == "classify" else batch.targets).numpy() != IGNORE_INDEX
    assert float(student.loss(batch)) == pytest.approx(divergences[counted].sum(), rel=1e-6)
    assert float(task.loss(batch)) != pytest.approx(float(student.loss(batch)))


def test_an_ensemble_of_no_runs_is_refused() -> None:
    with pytest.raises(ConfigError, match="an ensemble needs at least one run folder"):
        load([])
