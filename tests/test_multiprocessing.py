"""A run can be sent to another process, and answers there as it does here."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

import pytest

import triform
from triform import Run
from warm_processes import process_context

ROWS = "good film\tyes\nbad film\tno\n" * 20
TEXT = "one two three four " * 60
PAIRS = "one two\tun deux\nthree four\ttrois quatre\n" * 20
TASKS = {"classify": ("rows.tsv", ROWS), "generate": ("text.txt", TEXT), "translate": ("pairs.tsv", PAIRS)}
INPUTS = {"classify": "good film", "generate": "one two", "translate": "one two"}
TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.0}
TRAIN = {"max_steps": 60, "lr": 0.01}  # enough for clear predictions
Answers = list[tuple[str, list[float]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A Transformer and a recurrent model of each task, fine-tuned ones with LoRA, a linear part, an ensemble."""
    folder = tmp_path_factory.mktemp("runs")

    def train(name: str, task: str, **settings: object) -> Run:
        (folder / TASKS[task][0]).write_text(TASKS[task][1])
        data = {"data": folder / TASKS[task][0], "out": folder / name, "device": "cpu", "quiet": True}
        return triform.train(task, **data, **{"model": TINY, "train": TRAIN} | settings)  # type: ignore[arg-type]

    trained = [train(task, task) for task in TASKS]
    trained += [
        train(f"{task}-lstm", task, model={"kind": "lstm", "d_model": 16, "n_layers": 1, "dropout": 0.0})
        for task in TASKS
    ]
    trained += [
        train(f"{task}-lora", task, init_from=folder / task, model={}, train={"max_steps": 2, "lora_rank": 2})
        for task in TASKS
    ]
    trained.append(train("linear", "classify", model=TINY | {"term_buckets": 4096, "pooling": "last"}))
    trained.append(triform.load([folder / "classify", folder / "linear"], device="cpu"))
    return trained


def answer(runs: list[Run]) -> Answers:
    answers = []
    for run in runs:
        options = {} if run.config.task == "classify" else {"max_new_tokens": 6}
        (prediction,) = run.predict(INPUTS[run.config.task], **options)
        answers.append((prediction.output, list((prediction.probabilities or {}).values())))
    return answers


def write_answers(runs: list[Run], path: Path) -> None:
    path.write_text(json.dumps(answer(runs)))


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_run_answers_alike_in_another_process(runs: list[Run], tmp_path: Path, start_method: str) -> None:
    expected = answer(runs)  # what a run keeps from its first answers is sent too
    context: ForkServerContext | SpawnContext = (
        process_context() if start_method == "forkserver" else multiprocessing.get_context("spawn")
    )
    process = context.Process(target=write_answers, args=(runs, tmp_path / "answers.json"))
    process.start()
    process.join()
    assert process.exitcode == 0
    outputs = json.loads((tmp_path / "answers.json").read_text())
    assert [output for output, _ in outputs] == [output for output, _ in expected]
    for (_, probabilities), (_, expected_probabilities) in zip(outputs, expected, strict=True):
        assert probabilities == pytest.approx(expected_probabilities, abs=1e-5)
