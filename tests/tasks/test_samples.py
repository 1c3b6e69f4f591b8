"""The samples of a report show texts as the user wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from task_cases import prepare_task

import triform
from triform.tasks import classify

TEXTS = [f"The Houses of   No. {n}, said «Zoë»!" for n in range(60)]


def write_rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    lines = ({"text": text, "label": "even" if n % 2 else "odd"} for n, text in enumerate(TEXTS))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("max_rows", [50_000, 3])
def test_a_classifier_shows_held_out_rows_with_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    monkeypatch.setattr(classify, "MAX_SAMPLED_ROWS", max_rows)
    prepared_task = prepare_task("classify", tmp_path, write_rows(tmp_path), **{"tokenizer.min_count": 3})
    samples = prepared_task.task.predictor.sample_predictions(prepared_task.valid)
    assert len(samples) == min(max_rows, len(prepared_task.valid))
    held_out = {row.text: row.label for row in prepared_task.task.data.iter_examples()}
    assert all(held_out[sample["input"]] == sample["expected"] for sample in samples)
    assert {sample["input"] for sample in samples} <= set(TEXTS)


@pytest.mark.parametrize(("kind", "lowercase"), [("word", False), ("char", True)])
def test_a_generator_shows_prompts_as_they_were_written(tmp_path: Path, kind: str, lowercase: bool) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Said He, and She.\n" * 60, encoding="utf-8")
    prepared_task = prepare_task(
        "generate", tmp_path, path, **{"tokenizer.kind": kind, "tokenizer.lowercase": lowercase}
    )
    inputs = [sample["input"] for sample in prepared_task.task.predictor.sample_predictions(prepared_task.valid)]
    assert inputs[0] == ""
    assert "Said He, and She." in inputs[1:]


def test_a_data_file_that_is_gone_leaves_a_report_without_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_rows(tmp_path)
    predictor_class = classify.ClassificationPredictor
    original_method = predictor_class.sample_predictions

    def removed_before(
        predictor: classify.ClassificationPredictor, valid: classify.ClassificationDataset
    ) -> list[dict[str, str]]:
        data.unlink()
        return original_method(predictor, valid)

    monkeypatch.setattr(predictor_class, "sample_predictions", removed_before)
    tiny = {"d_model": 16, "n_heads": 2, "n_layers": 1}
    run = triform.train(
        "classify", data=data, model=tiny, train={"max_steps": 2}, out=tmp_path / "run", device="cpu", quiet=True
    )
    assert (run.path / "report.html").exists()
    assert '"event": "sample"' not in (run.path / "metrics.jsonl").read_text(encoding="utf-8")
