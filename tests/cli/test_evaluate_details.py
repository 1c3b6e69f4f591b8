"""`evaluate --details`: tables in the terminal, everything in JSON, and options that do not fit are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triform.cli.detail_display import print_details, shorten_text
from triform.evaluation.details import DetailTable, build_tables, compact_details, details_from_dict
from triform.run import load

if TYPE_CHECKING:
    from conftest import Command, DataFiles


def test_a_classifier_shows_its_labels_matrix_and_mistakes(
    triform: Command, classifier: Path, files: DataFiles
) -> None:
    options = ("evaluate", classifier, "--data", files.csv, "--details", "--device", "cpu")
    printed, everything = triform(*options, "--examples", 3), triform(*options, "--json").json
    details = everything["details"]["rows.csv"]
    assert sum(map(sum, details["confusion"])) == details["rows"] == 40
    correct = sum(details["confusion"][i][i] for i in range(2))
    assert correct / 40 == pytest.approx(everything["sets"]["rows.csv"]["accuracy"])
    assert len(details["mistakes"]) == min(10, details["n_mistakes"])
    assert details["n_mistakes"] == 40 - correct > 0
    for heading in ("Metrics of each label", "Confusion matrix", "Most confident mistakes"):
        assert f"\n{heading}\n" in printed.out
    lines = printed.out.splitlines()
    start = lines.index("Most confident mistakes") + 2
    for line, mistake in zip(lines[start : start + 3], details["mistakes"], strict=False):
        assert line.endswith(f"{mistake['line']}  {mistake['text']}")
    assert lines[start + min(3, details["n_mistakes"])] == f"{details['n_mistakes']} of 40 predictions are wrong."


def test_the_other_tasks_and_ranges_of_lengths(
    triform: Command, writer: Path, translator: Path, files: DataFiles
) -> None:
    pairs = ("--source", files.source, "--target", files.target)
    printed = triform(
        "evaluate", translator, *pairs, "--details", "--examples", 2, "--set", "decode.max_new_tokens=4"
    )
    assert printed.out.count("  source       ") == printed.out.count("  translation  ") == 2
    parts = triform(
        "evaluate", writer, "--data", files.txt, "--details", "--lengths", "8,16", "--json", "--device", "cpu"
    ).json
    assert (
        parts["details"].keys()
        == parts["sets"].keys()
        == {
            "story.txt, 1 to 8 tokens",
            "story.txt, 9 to 16 tokens",
        }
    )
    for name, details in parts["details"].items():
        assert details["loss"] == pytest.approx(parts["sets"][name]["loss"], rel=1e-6)
        assert details["tokens"] == parts["sets"][name]["tokens"]
    assert [bucket["low"] for bucket in details["by_context"]] == [9]
    printed = triform("evaluate", writer, "--data", files.txt, "--details")
    assert "Loss by tokens of context" in printed.out
    assert "Counted in the " in printed.out


def test_a_finished_run_records_the_details_of_its_validation_data(classifier: Path, writer: Path) -> None:
    for run in (classifier, writer):
        (event,) = [
            line
            for line in map(json.loads, (run / "metrics.jsonl").read_bytes().splitlines())
            if line["event"] == "details"
        ]
        loaded_run = load(run, device="cpu")
        details = loaded_run.task.evaluator.report_details(loaded_run.task.data.load_validation_dataset([]))
        assert details_from_dict(loaded_run.config.task, event["details"]) == compact_details(details)
        page = (run / "report.html").read_text()
        assert "Where the model is wrong" in page
        for table in build_tables(details):
            assert f"<h3>{table.title}</h3>" in page
            assert all(f">{cell}<" in page for row in table.rows for cell in row if cell.isalnum())


def test_options_that_do_not_fit_are_refused(triform: Command, writer: Path, files: DataFiles) -> None:
    options = ("evaluate", writer, "--data", files.txt)
    assert triform(*options, "--examples", 3).refusal == "--examples needs --details"
    assert "no examples" in triform(*options, "--details", "--examples", 3).refusal
    assert "at least 0" in triform(*options, "--details", "--examples", -1).refusal


def test_long_texts_and_labels_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    labels = [f"{index}{'x' * 100}" for index in range(9)]
    matrix = DetailTable(
        name="confusion", title="Matrix", columns=["Expected", *labels], kinds=["label", *["number"] * 9],
        rows=[[label, *"012345678"] for label in labels],
    )  # fmt: skip
    text = DetailTable(
        name="mistakes", title="Mistakes", columns=["Text"], kinds=["text"], rows=[["one\n\ntwo " + "y" * 5000]]
    )
    print_details([matrix, text])
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) < 260
    assert out[2].split() == ["expected", *"123456789"]
    assert out[3].startswith("1 0xxx")
    assert out[-1].startswith("one two yyy")
    assert out[-1].endswith("…")
    assert json.loads(json.dumps(shorten_text("a\tb"))) == "a b"
