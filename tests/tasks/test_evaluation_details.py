"""Details of an evaluation agree with its metrics, with predictions one by one, and with sums by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from triform.config import Config
from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.evaluation.label_details import LabelDetails
from triform.evaluation.loss_details import LossDetails
from triform.evaluation.sentence_details import SentenceDetails
from triform.run import Run
from triform.tasks import language_model_data
from triform.tasks.generate import Generate
from triform.text import train_tokenizer

if TYPE_CHECKING:
    from conftest import PreparedTasks

MAX_LEN = 8
TRAINING_TEXT = "abcd" * 20 + "efgh" * 3 + "i"


def test_details_of_a_classifier(prepared_tasks: PreparedTasks) -> None:
    task, data = prepared_tasks["classify"].task, prepared_tasks["classify"].valid
    assert data is not None
    rows = list(task.data.iter_examples())
    predictions = task.predictor.predict([row.text for row in rows])
    metrics = task.evaluator.evaluate_with_details(data, read_examples=lambda: rows, n_examples=1000)
    details = metrics.details
    assert isinstance(details, LabelDetails)
    assert metrics == task.evaluator.evaluate(data)
    assert details.macro["f1"] == pytest.approx(metrics["f1"])
    wrong = {row.line: (row, p) for row, p in zip(rows, predictions, strict=True) if row.label != p.output}
    assert wrong
    assert {mistake.line for mistake in details.mistakes} == set(wrong)
    for mistake in details.mistakes:
        row, prediction = wrong[mistake.line]
        assert (mistake.text, mistake.expected, mistake.predicted) == (row.text, row.label, prediction.output)
        assert mistake.probability == pytest.approx(prediction.probabilities[prediction.output], abs=1e-6)  # type: ignore[index]
        assert mistake.expected_probability == pytest.approx(prediction.probabilities[row.label], abs=1e-6)  # type: ignore[index]
    # A part of the data keeps the lines of its rows.
    part: Any = data
    few = task.evaluator.evaluate_with_details(part.sample(3), read_examples=lambda: rows, n_examples=9).details
    assert isinstance(few, LabelDetails)
    assert few.rows == 3
    assert {(m.line, m.text) for m in few.mistakes} <= {(line, row.text) for line, (row, _) in wrong.items()}


def test_details_of_a_translator(prepared_tasks: PreparedTasks) -> None:
    task, data = prepared_tasks["translate"].task, prepared_tasks["translate"].valid
    assert data is not None
    metrics = task.evaluator.evaluate_with_details(data, read_examples=list, n_examples=2)
    assert metrics == task.evaluator.evaluate(data)
    assert isinstance(metrics.details, SentenceDetails)
    assert len(metrics.details.worst) == min(2, metrics["pairs"])
    for sentence in metrics.details.worst:
        assert task.predictor.predict([sentence.source])[0].output == sentence.output


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A language model with a small training text."""
    (tmp_path / "train.txt").write_text(TRAINING_TEXT)
    settings = {
        "task": "generate", "tokenizer.kind": "char", "data.max_len": MAX_LEN,
        "data.train": str(tmp_path / "train.txt"), "data.valid": str(tmp_path / "train.txt"),
        "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 32,
    }  # fmt: skip
    config = build_config(settings, Config())
    torch.manual_seed(0)
    task = Generate(config, train_tokenizer(config.tokenizer, ["abcdefghij"]))
    task.model.double().eval()
    return Run(path=tmp_path, task=task)


@pytest.mark.parametrize("stride", [0, 3])
def test_losses_by_context_and_frequency_are_those_of_each_token(run: Run, tmp_path: Path, stride: int) -> None:
    text = "abcdefghij" * 3
    (tmp_path / "test.txt").write_text(text)
    metrics = run.evaluate(tmp_path / "test.txt", stride=stride, details=True)
    details = metrics.details
    assert isinstance(details, LossDetails)
    assert metrics == run.evaluate(tmp_path / "test.txt", stride=stride)
    frequencies = Counter(TRAINING_TEXT)
    tokens = torch.tensor(run.task.tokenizer.encode(text))
    by_context: dict[str, list[float]] = {}
    by_frequency: dict[str, list[float]] = {}
    for index in range(1, len(tokens)):
        start = 0
        while start + MAX_LEN < index:
            start += stride or MAX_LEN
        with torch.inference_mode():
            logits = run.task.model(tokens[None, start:index])[0, -1]
        loss = -float(logits.log_softmax(-1)[tokens[index]])
        n_context, n_seen = index - start, frequencies[text[index]]
        by_context.setdefault(next(e for e in ("1", "2", "4", "8") if n_context <= int(e)), []).append(loss)
        by_frequency.setdefault("0" if not n_seen else str(len(str(n_seen))), []).append(loss)
    assert [(str(b.high), b.tokens) for b in details.by_context] == [
        (k, len(v)) for k, v in sorted(by_context.items())
    ]
    assert [b.loss for b in details.by_context] == pytest.approx(
        [np.mean(v) for _, v in sorted(by_context.items())]
    )
    assert [b.low for b in details.by_frequency] == [0, 1, 10]
    assert [b.loss for b in details.by_frequency] == pytest.approx([np.mean(by_frequency[k]) for k in "012"])
    assert (details.counted_tokens, details.counts_are_complete) == (len(TRAINING_TEXT), True)
    for buckets in (details.by_context, details.by_frequency):
        mean = sum(b.tokens * b.loss for b in buckets) / sum(b.tokens for b in buckets)
        assert mean == pytest.approx(metrics["loss"], rel=1e-6)


def test_large_training_data_is_counted_in_part_and_missing_data_is_a_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_model_data, "MAX_COUNTED_TOKENS", 7)
    details = run.evaluate(tmp_path / "train.txt", details=True).details
    assert isinstance(details, LossDetails)
    assert (details.counted_tokens, details.counts_are_complete) == (7, False)
    (tmp_path / "train.txt").rename(tmp_path / "moved.txt")
    details = run.evaluate(tmp_path / "moved.txt", details=True).details
    assert isinstance(details, LossDetails)
    assert not details.by_frequency
    assert "train.txt" in details.frequency_note


def test_parts_of_a_text_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model_data, "MAX_COUNTED_TOKENS", 5)
    exact = language_model_data.count_tokens([np.array([0, 1, 1]), np.array([2, 2])], 4)
    assert (exact.counts.tolist(), exact.is_complete) == ([1, 2, 2, 0], True)
    longer = language_model_data.count_tokens([np.array([0, 1, 1]), np.array([2, 2, 3]), np.array([3])], 4)
    assert (longer.counts.tolist(), longer.is_complete) == ([1, 2, 2, 0], False)


@pytest.mark.parametrize("details", [-1, 1.5, "yes", None])
def test_a_value_that_is_no_number_of_examples(run: Run, tmp_path: Path, details: Any) -> None:
    with pytest.raises(ConfigError, match="details must be True, False or a number"):
        run.evaluate(tmp_path / "train.txt", details=details)
