"""A prediction says what the model could not read of its input, and never hides that it has no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from task_cases import NAMES, WORDS, prepare_task, write_data

import triform
from triform.config import TaskName
from triform.run import Run
from triform.tasks import Task
from triform.tasks.explanation import build_explanation_input

EMPTY, UNKNOWN = "the text is empty", "no word of the text is in the vocabulary"
every_task = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    folder = tmp_path_factory.mktemp("notes")
    for name in NAMES:
        (folder / name).mkdir()
    return {name: prepare_task(name, folder / name).task for name in NAMES}


def predicted_notes(task: Task, text: str) -> tuple[str, ...]:
    return task.predictor.predict([text])[0].notes


@pytest.mark.parametrize("name", ["classify", "translate"])
def test_an_empty_text_an_unknown_one_and_a_long_one_are_noted(name: TaskName, tasks: dict[str, Task]) -> None:
    task = tasks[name]
    assert predicted_notes(task, "amber birch zebra") == ()
    assert predicted_notes(task, "") == predicted_notes(task, " \t\n") == (EMPTY,)
    assert predicted_notes(task, "zebra yak") == (UNKNOWN,)
    prediction = task.predictor.predict([" ".join(WORDS * 2)])[0]
    assert (prediction.cut, prediction.notes) == (True, ("only the first 14 of 20 tokens of the text were read",))
    assert not task.predictor.predict([" ".join(WORDS)])[0].cut
    assert predicted_notes(task, "zebra " * 15) == (UNKNOWN, "only the first 14 of 15 tokens of the text were read")


def test_a_generator_notes_an_empty_prompt_and_reads_the_end_of_a_long_one(tasks: dict[str, Task]) -> None:
    task = tasks["generate"]
    assert predicted_notes(task, "amber birch") == ()
    assert predicted_notes(task, "") == ("the prompt is empty, so the model starts a new text",)
    prediction = task.predictor.predict([" ".join(WORDS * 2)])[0]
    assert (prediction.cut, prediction.notes) == (True, ("only the last 14 of 20 tokens of the prompt were read",))


def test_unknown_words_are_noted_with_the_nearest_known_ones(tasks: dict[str, Task]) -> None:
    nearest = "nearest known: 'amber' or 'ember' for 'ambre', 'fjord' for 'Fjrod'"
    for name in ("classify", "translate"):
        assert predicted_notes(tasks[name], "ambre Fjrod yak") == (f"{UNKNOWN}; {nearest}",)
    prediction = tasks["generate"].predictor.predict(["birch ambre Fjrod yak", "birch"])
    assert prediction[0].notes == (f"not in the vocabulary, so read as <unk>: 'ambre', 'Fjrod', 'yak'; {nearest}",)
    assert prediction[1].notes == ()


def test_an_unknown_character_of_a_prompt_is_refused_with_the_nearest_ones(tmp_path: Path) -> None:
    task = prepare_task("generate", tmp_path, **{"tokenizer.kind": "char"}).task
    with pytest.raises(triform.DataError, match="'É', '☃'; nearest known: 'e' for 'É'; remove it, or train with"):
        task.predictor.predict(["É☃"])


def test_a_recurrent_generator_reads_a_prompt_of_any_length(tmp_path: Path) -> None:
    task = prepare_task("generate", tmp_path, **{"model.kind": "gru", "model.n_heads": 0}).task
    assert not task.predictor.predict([" ".join(WORDS * 2)])[0].notes


@pytest.mark.parametrize("name", ["classify", "translate"])
def test_explain_notes_what_predict_notes(name: TaskName, tasks: dict[str, Task]) -> None:
    for text in ("zebra yak", "amber " * 15):
        assert set(predicted_notes(tasks[name], text)) <= set(build_explanation_input(tasks[name], text).notes)


@every_task
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_output_that_is_not_finite_is_an_error_that_names_the_run(
    name: TaskName, value: float, tmp_path: Path
) -> None:
    run = Run(path=tmp_path / "run", task=prepare_task(name, tmp_path).task)
    with torch.no_grad():
        next(run.task.model.parameters()).fill_(value)
    data: Any = write_data(name, tmp_path)
    calls = [lambda: run.predict(["amber"]), lambda: run.evaluate(data), lambda: run.explain("amber birch")]
    if name != "classify":
        calls += [lambda: run.predict(["amber"], beam_size=2), lambda: run.predict(["amber"], strategy="greedy")]
    for call in calls:
        with pytest.raises(triform.CheckpointError, match=r"run: the model's output is not finite"):
            call()
