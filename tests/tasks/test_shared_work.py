"""Several processes share evaluation and prediction; threads take their place here."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from task_cases import NAMES, sentences

from triform.config import TaskName
from triform.config.merging import override_decode
from triform.errors import ConfigError
from triform.tasks import PreparedTask, evaluation, language_model_data, prediction
from triform.tasks.batch import BucketedDataset
from triform.world import World

PreparedTasks = Mapping[str, PreparedTask]
EVERY_TASK = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def run_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """`run_ranks(3, function)` calls `function(world)` in three threads, which exchange values as processes do."""

    def run(size: int, function: Callable[[World], Any]) -> list[Any]:
        barrier, values, rank_of = threading.Barrier(size, timeout=60), {}, threading.local()

        def gather_values(value: Any) -> list[Any]:
            values[rank_of.rank] = json.dumps(value)
            barrier.wait()
            gathered = [json.loads(values[rank]) for rank in range(size)]
            barrier.wait()
            return gathered

        def run_rank(rank: int) -> Any:
            rank_of.rank = rank
            return function(World(rank, size, rank))

        for module in (evaluation, prediction):
            monkeypatch.setattr(module, "gather_values", gather_values)
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(run_rank, range(size)))

    return run


@EVERY_TASK
@pytest.mark.parametrize("quick", [True, False])
def test_metrics_do_not_depend_on_the_number_of_processes(
    prepared_tasks: PreparedTasks, name: TaskName, quick: bool, run_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_tasks[name]
    monkeypatch.setattr(BucketedDataset, "EVAL_TOKENS", 32)
    monkeypatch.setattr(language_model_data, "EVAL_TOKENS", 32)
    evaluator, data = prepared.task.evaluator, prepared.valid
    alone = evaluator.evaluate(data, quick=quick)
    for metrics in run_ranks(3, lambda world: evaluator.evaluate(data, quick=quick, world=world)):
        assert metrics == pytest.approx(alone, rel=1e-12)


@EVERY_TASK
def test_a_process_computes_only_its_share_of_the_batches(
    prepared_tasks: PreparedTasks, name: TaskName, run_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data, calls = prepared_tasks[name].task, prepared_tasks[name].valid, []
    monkeypatch.setattr(BucketedDataset, "EVAL_TOKENS", 32)
    monkeypatch.setattr(language_model_data, "EVAL_TOKENS", 32)
    module = task.model.encoder if name == "classify" else task.model.lm_head
    hook = module.register_forward_hook(lambda *_: calls.append(1))
    try:
        task.evaluator.sum_metrics(data)
        n_batches = len(calls)
        run_ranks(2, lambda world: task.evaluator.sum_metrics(data, world=world))
    finally:
        hook.remove()
    assert n_batches > 2
    assert len(calls) == 2 * n_batches  # all batches once more, and none twice


def test_a_process_without_a_batch_takes_part(prepared_tasks: PreparedTasks, run_ranks: Any) -> None:
    prepared = prepared_tasks["classify"]
    alone = prepared.task.evaluator.evaluate(prepared.valid)
    for metrics in run_ranks(4, lambda world: prepared.task.evaluator.evaluate(prepared.valid, world=world)):
        assert metrics == pytest.approx(alone, rel=1e-12)


@EVERY_TASK
@pytest.mark.parametrize("size", [2, 5])
def test_predictions_are_in_the_order_of_the_texts_and_samples_are_the_same(
    prepared_tasks: PreparedTasks, name: TaskName, size: int, run_ranks: Any
) -> None:
    predictor, texts = prepared_tasks[name].task.predictor, sentences()[:4]
    decode = override_decode(prepared_tasks[name].task.config.decode, strategy="sample", temperature=1.5)
    alone = predictor.predict(texts, decode=decode, seed=3)
    for predictions in run_ranks(
        size, lambda world: predictor.predict_in_parallel(texts, world, decode=decode, seed=3)
    ):
        for shared, expected in zip(predictions, alone, strict=True):
            assert (shared.input, shared.output, shared.notes) == (expected.input, expected.output, expected.notes)
            assert shared.probabilities == (expected.probabilities and pytest.approx(expected.probabilities))


def test_alternatives_survive_the_exchange(prepared_tasks: PreparedTasks, run_ranks: Any) -> None:
    predictor, texts = prepared_tasks["generate"].task.predictor, sentences()[:3]
    alone = predictor.predict(texts, top=2)
    for predictions in run_ranks(2, lambda world: predictor.predict_in_parallel(texts, world, top=2)):
        for shared, expected in zip(predictions, alone, strict=True):
            assert [row.text for row in shared.alternatives] == [row.text for row in expected.alternatives]
            assert isinstance(shared.alternatives, tuple)


@pytest.mark.parametrize("name", ["generate", "translate"])
def test_texts_predicted_in_parts_give_the_same_samples(prepared_tasks: PreparedTasks, name: TaskName) -> None:
    predictor, texts = prepared_tasks[name].task.predictor, sentences()[:4]
    decode = override_decode(prepared_tasks[name].task.config.decode, strategy="sample", temperature=1.5)
    expected = [prediction.output for prediction in predictor.predict(texts, decode=decode)]
    second_part = predictor.predict(texts[2:], decode=decode, rows=range(2, 4))
    assert [prediction.output for prediction in second_part] == expected[2:]


def test_rows_that_do_not_match_the_texts_are_refused(prepared_tasks: PreparedTasks) -> None:
    predictor = prepared_tasks["generate"].task.predictor
    with pytest.raises(ConfigError, match="a number for each of the 2 texts, found 1"):
        predictor.predict_in_parallel(["a", "b"], World(), rows=[4])
