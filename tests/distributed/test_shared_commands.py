"""`evaluate` and `predict` under torchrun give the results of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launching import run_script_in_ranks

import triform
from triform.evaluation.details import details_to_dict

SCRIPT = Path(__file__).parent / "run_commands.py"
TINY: dict[str, Any] = {
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 2},
    "train": {"max_steps": 2},
    "device": "cpu",
    "quiet": True,
}
WORDS = ["amber", "birch", "cedar", "dune", "ember"]


def write_data(folder: Path) -> dict[str, Path]:
    texts = [" ".join(WORDS[: 1 + index % 5] * (1 + index % 3)) for index in range(60)]
    rows = {
        "classify": [{"text": text, "label": str(len(text) % 2)} for text in texts],
        "generate": [{"text": text} for text in texts],
        "translate": [{"source": text, "target": text.upper()} for text in texts],
    }
    for task, records in rows.items():
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {task: folder / f"{task}.jsonl" for task in rows}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each task, and what two processes have printed and written."""
    folder = tmp_path_factory.mktemp("shared")
    commands: list[list[str]] = []
    for task, data in write_data(folder).items():
        run = folder / task
        triform.train(task, out=run, data={"train": str(data), "max_len": 16}, **TINY)  # type: ignore[arg-type]
        options = ["--device", "cpu"] + (["--max-new-tokens", "5"] if task != "classify" else [])
        predict = ["predict", str(run), "--input", str(data), *options]
        commands += [
            ["evaluate", str(run), "--data", str(data), "--details", "--json", "--device", "cpu"],
            [*predict, "--output", str(folder / f"{task}-one.jsonl")],
            [*predict, "--output", f"{folder / task}-parts/", "--part-rows", "7"],
        ]
    (folder / "commands.json").write_text(json.dumps(commands))
    run_script_in_ranks(2, SCRIPT, folder)
    return folder


def find_evaluations(text: str) -> list[dict[str, Any]]:
    decoder, evaluations = json.JSONDecoder(), []
    start = text.find("{\n")
    while start >= 0:
        value, end = decoder.raw_decode(text, start)
        evaluations.append(value)
        start = text.find("{\n", end)
    return evaluations


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Nested lists and dicts as one dict."""
    if not isinstance(value, dict | list):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: leaf for index, item in items for key, leaf in flatten(item, f"{name}.{index}").items()}


def test_only_the_first_process_prints_and_the_metrics_are_those_of_one_process(results: Path) -> None:
    assert (results / "1.txt").read_text() == ""
    evaluations = find_evaluations((results / "0.txt").read_text())
    assert [evaluation["task"] for evaluation in evaluations] == ["classify", "generate", "translate"]
    for evaluation in evaluations:
        task = evaluation["task"]
        expected = triform.load(results / task, device="cpu").evaluate(results / f"{task}.jsonl", details=True)
        assert evaluation["sets"][f"{task}.jsonl"] == pytest.approx(expected, rel=1e-6)
        assert expected.details is not None
        details, shared = (
            flatten(details_to_dict(expected.details)),
            flatten(evaluation["details"][f"{task}.jsonl"]),
        )
        numbers = {name: value for name, value in details.items() if isinstance(value, float)}
        assert {name: shared[name] for name in numbers} == pytest.approx(numbers, rel=1e-5)
        assert shared | numbers == details


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_predictions_are_those_of_one_process_in_the_order_of_the_input(results: Path, task: str) -> None:
    rows = [json.loads(line) for line in (results / f"{task}.jsonl").read_text().splitlines()]
    texts = [row["source" if task == "translate" else "text"] for row in rows]
    options = {} if task == "classify" else {"max_new_tokens": 5}
    expected = triform.load(results / task, device="cpu").predict(texts, **options)
    key = {"classify": "label", "generate": "continuation", "translate": "translation"}[task]
    parts = b"".join(path.read_bytes() for path in sorted((results / f"{task}-parts").glob("part-*")))
    for content in ((results / f"{task}-one.jsonl").read_bytes(), parts):
        written = [json.loads(line) for line in content.splitlines()]
        assert [row[f"predicted_{key}"] for row in written] == [prediction.output for prediction in expected]
        assert [{name: row[name] for name in rows[0]} for row in written] == rows
        if task == "classify":
            for row, prediction in zip(written, expected, strict=True):
                assert row["probabilities"] == pytest.approx(prediction.probabilities, abs=1e-6)
