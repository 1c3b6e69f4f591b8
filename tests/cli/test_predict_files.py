"""`predict` on tables and `predict --output`: the right column is read, and every row is kept with its answer."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from triform.cli.predict import format_prediction, summarize_notes
from triform.data.tables import read_json_lines
from triform.tasks import Prediction

Command = Any  # `triform(...)` of conftest: it gives an Answer
TEXTS = ["the soup was lovely", 'the "room", cold\nwas awful', ""]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "p.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [["id", "text", "label"], *([index, text, "é\r\n,\r"] for index, text in enumerate(TEXTS))]
        )
    return path


def test_a_table_is_read_by_its_text_column_and_that_is_said(
    triform: Command, classifier: Path, table: Path
) -> None:
    direct = triform("predict", classifier, *TEXTS, "--json").json
    result = triform("predict", classifier, "--input", table, "--json")
    assert result.json == direct
    assert f"{table}: a header, texts in column 'text'" in result.err
    by_id_column = triform("predict", classifier, "--input", table, "--text-column", "id", "--json").json
    assert [prediction["input"] for prediction in by_id_column] == ["0", "1", "2"]
    by_setting = triform("predict", classifier, "--input", table, "--set", "data.text_column=id", "--json").json
    assert by_setting == by_id_column


def test_a_missing_column_is_refused_by_name(triform: Command, classifier: Path, table: Path) -> None:
    refusal = triform("predict", classifier, "--input", table, "--text-column", "gone").refusal
    assert "no column 'gone'" in refusal
    assert "'text'" in refusal


def test_rows_are_kept_and_answers_added(triform: Command, classifier: Path, table: Path, tmp_path: Path) -> None:
    answers = triform("predict", classifier, *TEXTS, "--json").json
    out = tmp_path / "new" / "preds.csv"
    result = triform("predict", classifier, "--input", table, "--output", out)
    assert result.out == f"3 predictions written to {out}\n"
    read = read_csv(out)
    assert list(read[0])[:6] == ["id", "text", "label", "predicted_label", "probability_bad", "probability_good"]
    for number, (row, expected) in enumerate(zip(read, answers, strict=True)):
        assert (row["id"], row["text"], row["label"]) == (str(number), TEXTS[number], "é\r\n,\r")
        assert row["predicted_label"] == expected["output"]
        for label, probability in expected["probabilities"].items():
            assert float(row[f"probability_{label}"]) == pytest.approx(probability, abs=1e-6)
    second_predictions = triform("predict", classifier, "--input", out, "--text-column", "text", "--json").json
    assert [prediction["input"] for prediction in second_predictions] == TEXTS
    assert [path.name for path in out.parent.iterdir()] == ["preds.csv"]


def test_objects_keep_their_values_and_get_an_object_of_probabilities(
    triform: Command, classifier: Path, tmp_path: Path
) -> None:
    rows = [{"text": text, "n": 1.5, "deep": [None, {"x": True}], "notes": "mine"} for text in TEXTS]
    source, out = tmp_path / "p.jsonl", tmp_path / "preds.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"text": "a", "odd": "\\ud800"}\n')
    answers = triform("predict", classifier, "--input", source, "--output", out, "--json").json
    written = [record for _, record in read_json_lines(str(out))]
    assert [{name: record[name] for name in rows[0]} for record in written[:3]] == rows
    assert written[3]["odd"] == "\ud800"
    assert [record["predicted_label"] for record in written] == [prediction["output"] for prediction in answers]
    assert [record["probabilities"] for record in written] == [
        prediction["probabilities"] for prediction in answers
    ]
    triform("predict", classifier, "--input", source, "--output", tmp_path / "as.csv")
    assert read_csv(tmp_path / "as.csv")[0]["deep"] == '[null, {"x": true}]'


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_lines_and_arguments_can_be_written_too(
    triform: Command, classifier: Path, tmp_path: Path, suffix: str
) -> None:
    lines, out = tmp_path / "p.txt", tmp_path / f"preds.{suffix}"
    lines.write_text('a "quoted" line\nanother\n')
    assert triform("predict", classifier, "typed", "--input", lines, "--output", out).code == 0
    predictions = triform("predict", classifier, "--input", out, "--text-column", "text", "--json").json
    assert [prediction["input"] for prediction in predictions] == ["typed", 'a "quoted" line', "another"]


def test_names_that_are_taken_are_numbered(triform: Command, classifier: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "p.csv", tmp_path / "preds.csv"
    source.write_text("text,predicted_label,same,same\na,old,1,2\n")
    assert triform("predict", classifier, "--input", source, "--output", out).code == 0
    row = read_csv(out)[0]
    assert (row["predicted_label"], row["same"], row["same_2"]) == ("old", "1", "2")
    assert row["predicted_label_2"] in ("bad", "good")


def test_translations_and_continuations_are_written_beside_their_rows(
    triform: Command, translator: Path, writer: Path, tmp_path: Path
) -> None:
    pairs, prompts = tmp_path / "pairs.tsv", tmp_path / "prompts.csv"
    pairs.write_text("fr\ten\nun et deux\tone and two\n")
    prompts.write_text("id,text\n1,3 birds\n")
    decode_options = ("--max-new-tokens", 3)
    out = tmp_path / "t.tsv"
    result = triform(
        "predict", translator, "--input", pairs, "--text-column", "en", "--output", out, *decode_options
    )
    assert result.code == 0, result.err
    assert out.read_text().splitlines()[0].split("\t")[:3] == ["fr", "en", "predicted_translation"]
    predictions = triform(
        "predict", translator, "--input", pairs, "--text-column", "en", "--json", *decode_options
    ).json
    assert predictions[0]["input"] == "one and two"
    out = tmp_path / "g.jsonl"
    assert triform("predict", writer, "--input", prompts, "--output", out, *decode_options, "--top-k", 1).code == 0
    written = json.loads(out.read_text())
    assert written["text"] + written["predicted_continuation"] == (
        triform("predict", writer, "3 birds", *decode_options, "--top-k", 1).out.removesuffix("\n")
    )
    refusal = triform("predict", writer, "--input", prompts, "--output", tmp_path / "g.tsv").last_line
    assert "generated text can have line breaks, which a .tsv cannot hold" in refusal


def test_an_output_that_cannot_be_is_refused_before_the_run_is_opened(
    triform: Command, table: Path, tmp_path: Path
) -> None:
    before = table.read_bytes()
    arguments = ("predict", tmp_path / "no-run", "--input", table, "--output")
    assert "the file name must end in .csv, .tsv or .jsonl" in triform(*arguments, tmp_path / "p.xlsx").refusal
    assert "this is the input file; choose another name" in triform(*arguments, table).refusal
    (tmp_path / "link.csv").symlink_to(table)
    assert "this is the input file; choose another name" in triform(*arguments, tmp_path / "link.csv").refusal
    (tmp_path / "folder.csv").mkdir()
    assert "this is a folder" in triform(*arguments, tmp_path / "folder.csv").refusal
    assert table.read_bytes() == before


def test_a_cell_that_a_tsv_cannot_hold_is_refused_and_leaves_no_file(
    triform: Command, classifier: Path, table: Path, tmp_path: Path
) -> None:
    result = triform("predict", classifier, "--input", table, "--output", tmp_path / "p.tsv")
    assert "has a tab or a line break, which a .tsv cannot hold" in result.last_line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv"]


def test_a_folder_that_cannot_be_written_is_one_line(triform: Command, classifier: Path, table: Path) -> None:
    result = triform("predict", classifier, "--input", table, "--output", table / "p.csv")
    assert "cannot write the file" in result.last_line


def test_of_many_labels_the_five_likeliest_are_shown() -> None:
    probabilities = {f"label{index}": (index + 1) / 1275 for index in range(50)}
    line = format_prediction(Prediction(input="a", output="label49", probabilities=probabilities))
    assert line.startswith("label49\tlabel49 3.9 %  label48 3.8 %")
    assert line.endswith("label45 3.6 %  and 45 more")
    five_probabilities = {f"label{index}": 0.2 for index in range(5)}
    assert (
        format_prediction(Prediction(input="a", output="label0", probabilities=five_probabilities)).count("%") == 5
    )
    assert "more" not in format_prediction(Prediction(input="a", output="label0", probabilities=five_probabilities))


def test_notes_are_counted_and_written_where_there_are_any(
    triform: Command, classifier: Path, tmp_path: Path
) -> None:
    table, out = tmp_path / "p.csv", tmp_path / "o.csv"
    table.write_text("text,id\nthe soup,1\n,2\nqq zz,3\n,4\n")
    result = triform("predict", classifier, "--input", table, "--output", out, "--json")
    assert "note: 2 of 4 texts: the text is empty\n" in result.err
    assert "note: 1 of 4 texts: no word of the text is in the vocabulary\n" in result.err
    assert ["notes" in prediction for prediction in result.json] == [False, True, True, True]
    assert [row["notes"] for row in read_csv(out)] == [
        *("", "the text is empty", "no word of the text is in the vocabulary", "the text is empty")
    ]
    assert triform("predict", classifier, "--input", table, "--output", tmp_path / "o.jsonl").code == 0
    written = [json.loads(line) for line in (tmp_path / "o.jsonl").read_bytes().splitlines()]
    assert [row.get("notes") for row in written][:2] == [None, ["the text is empty"]]
    assert triform("predict", classifier, "the soup", "--output", out).code == 0
    assert "notes" not in read_csv(out)[0]


def test_notes_that_differ_only_in_numbers_are_one_line() -> None:
    notes = [(), ("only the first 5 of 8 tokens were read",), ("only the first 5 of 9 tokens were read",)]
    predictions = [Prediction(input="a", output="b", notes=note_list) for note_list in notes]
    assert summarize_notes(predictions) == [
        "note: 2 of 3 texts: for example, only the first 5 of 8 tokens were read"
    ]
    assert summarize_notes(predictions[1:2]) == ["note: only the first 5 of 8 tokens were read"]


def test_top_prints_a_table_and_json_has_the_same_alternatives(
    triform: Command, classifier: Path, translator: Path, writer: Path
) -> None:
    result = triform("predict", writer, "3 birds", "--max-new-tokens", 1, "--top", 3)
    heading, *rows = result.out.splitlines()[-4:]
    assert heading.split() == ["next", "token", "probability"]
    prediction = triform("predict", writer, "3 birds", "--max-new-tokens", 1, "--top", 3, "--json").json[0]
    for rank, (row, alternative) in enumerate(zip(rows, prediction["alternatives"], strict=True), 1):
        assert row.lstrip().startswith(f"{rank}  {json.dumps(alternative['text'])}")
        assert row.endswith(f"{100 * alternative['probability']:.2f} %")
        assert set(alternative) == {"text", "probability"}
    labels = triform("predict", classifier, "lovely soup", "--top", 1, "--json").json[0]
    assert labels["alternatives"] == [
        {"text": labels["output"], "probability": max(labels["probabilities"].values())}
    ]
    translations = triform("predict", translator, "one and two", "--top", 2, "--json").json[0]
    assert translations["alternatives"][0]["text"] == translations["output"]
    assert [set(alternative) for alternative in translations["alternatives"]] == [{"text", "score"}] * 2
    refusal = triform("predict", translator, "one", "--top", 3, "--beam-size", 2).refusal
    assert refusal == "top=3 is more than the 2 hypotheses of beam search; set decode.beam_size to 3 or more"
    assert triform("predict", translator, "one", "--top", -1).code == 2


def test_alternatives_are_written_to_tables(
    triform: Command, translator: Path, writer: Path, tmp_path: Path
) -> None:
    expected = triform("predict", translator, "one", "two", "--top", 2, "--json").json
    triform("predict", translator, "one", "two", "--top", 2, "--output", tmp_path / "n.csv")
    for row, prediction in zip(read_csv(tmp_path / "n.csv"), expected, strict=True):
        assert list(row)[1:] == ["predicted_translation", "top_1", "top_1_score", "top_2", "top_2_score"]
        for rank, alternative in enumerate(prediction["alternatives"], 1):
            assert row[f"top_{rank}"] == alternative["text"]
            assert float(row[f"top_{rank}_score"]) == pytest.approx(alternative["score"], abs=1e-6)
    triform("predict", writer, "3 birds", "--max-new-tokens", 1, "--top", 2, "--output", tmp_path / "n.jsonl")
    record = json.loads((tmp_path / "n.jsonl").read_text())
    assert [set(alternative) for alternative in record["alternatives"]] == [{"text", "probability"}] * 2


def test_keep_is_an_option_and_the_note_says_what_was_read(triform: Command, writer: Path) -> None:
    text = "3 birds sat in the tree"
    for keep in ("first", "last"):
        result = triform("predict", writer, text, "--keep", keep, "--max-new-tokens", 1)
        assert result.err == f"note: only the {keep} 16 of 23 tokens of the prompt were read\n"
    assert triform("predict", writer, text, "--keep", "middle").refusal == "--keep middle: choose first or last"


def test_notes_that_differ_only_in_the_words_they_list_are_one_line() -> None:
    notes = [f"no word of the text is in the vocabulary; nearest known: '{word}' for 'x'" for word in ("a", "b")]
    predictions = [Prediction(input="a", output="b", notes=(note,)) for note in notes]
    assert summarize_notes(predictions) == [f"note: 2 of 2 texts: for example, {notes[0]}"]
