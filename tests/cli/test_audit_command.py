"""`triform audit` as a user meets it, and what `train` says of leaks by itself."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import triform as package
from triform.cli.audit import _resolve_positional
from triform.data.audit import find_leaked
from triform.data.readers import read_rows

Command = Any  # `triform(...)` and `train(...)` of conftest: they give an Answer
Files = Any


def write_file(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def leaking_files(tmp_path: Path) -> tuple[Path, Path]:
    """A training file of 6 rows with a conflict, and a test file of 4 rows, 3 of them in it."""
    train = "text,label\na fine day,good\na grey day,bad\nwhat a day,good\nwhat a day,bad\n"
    train += "a long day,bad\nso it is,good\n"
    test = "text,label\nA fine  day,good\na grey day,bad\na long day,good\nnobody knows,good\n"
    return write_file(tmp_path / "train.csv", train), write_file(tmp_path / "test.csv", test)


def test_a_leak_is_counted_explained_and_shown(triform: Command, leaking_files: tuple[Path, Path]) -> None:
    result = triform("audit", "--train", leaking_files[0], "--test", leaking_files[1])
    assert result.code == 0
    assert not result.err
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert "train 6 1 1 0 0 2" in lines
    assert "test in train 4 3 2 0 1" in lines
    assert (
        "test: 3 of 4 rows (75.0 %) are also in train, 2 of them with the same label; "
        "memorising train gives an accuracy of 50.00 %" in (result.out)
    )
    assert "also report the metrics of the 1 unseen rows (--run RUN computes them)" in result.out
    assert "test line 2 = train line 2: A fine day" in result.out
    assert "'good' at line 4, 'bad' at line 5: what a day" in result.out
    assert "labels of train: good 50.0 %, bad 50.0 %" in result.out


def test_strict_makes_a_leak_or_a_conflict_a_failed_check(
    triform: Command, tmp_path: Path, leaking_files: tuple[Path, Path]
) -> None:
    assert triform("audit", "--train", leaking_files[0], "--test", leaking_files[1], "--strict").code == 1
    assert triform("audit", "--train", leaking_files[0], "--strict").code == 1  # its conflict
    clean = write_file(tmp_path / "clean.csv", "text,label\none,x\ntwo,y\n")
    other = write_file(tmp_path / "other.csv", "text,label\nthree,x\nfour,y\n")
    assert triform("audit", "--train", clean, "--test", other, "--strict").code == 0
    assert triform("audit", "--train", clean, "--test", clean, "--strict").code == 1


def test_json_has_the_lines_to_take_out(triform: Command, leaking_files: tuple[Path, Path]) -> None:
    report = triform("audit", "--train", leaking_files[0], "--valid", leaking_files[1], "--json").json
    assert (report["task"], report["leaks"], report["conflicts"]) == ("classify", 3, 3)
    assert report["shared"][0]["seen_lines"] == [2, 3, 4]
    assert report["labels"]["train"] == {"good": 3, "bad": 3}
    assert json.dumps(report)


def test_one_set_alone_is_looked_at_and_said_to_be_alone(
    triform: Command, leaking_files: tuple[Path, Path]
) -> None:
    result = triform("audit", "--train", leaking_files[0], "--max-len", "2")
    assert result.code == 0
    assert "only one set was given" in result.out
    assert "over 2 words" in result.out
    assert "overlap" not in result.out


def test_the_task_is_told_by_the_file(triform: Command, tmp_path: Path, files: Files) -> None:
    def task(*arguments: object) -> str:
        return str(triform("audit", *arguments, "--json").json["task"])

    assert task("--train", files.csv) == "classify"
    assert task("--train", files.txt) == "generate"
    assert task("--train", f"{files.source},{files.target}") == "translate"
    assert task("--train", files.csv, "--task", "generate") == "generate"
    assert task("--train", "builtin:numbers") == "translate"


def test_builtin_sets_do_not_leak(triform: Command) -> None:
    for name in ("reviews", "numbers"):
        sets = ("--valid", f"builtin:{name}/valid", "--test", f"builtin:{name}/test")
        assert triform("audit", "--train", f"builtin:{name}", *sets, "--json").json["leaks"] == 0


def test_translations_are_told_by_source_target_and_pair(triform: Command, tmp_path: Path, files: Files) -> None:
    test = write_file(tmp_path / "t.tsv", "one and one\tun et un\none and two\tune et deux\nten\tdix\n")
    result = triform("audit", "--train", f"{files.source},{files.target}", "--test", test)
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert "test source in train 3 2 2 0 1" in lines
    assert "test pair in train 3 1 1 - 2" in lines
    assert "test: 2 of 3 sources (66.7 %) are also in train" in result.out


def test_a_run_is_scored_on_seen_and_unseen_rows_apart(
    triform: Command, tmp_path: Path, classifier: Path, files: Files
) -> None:
    new = "nothing like it was ever said,good\nand neither was this one,bad\n"
    test = write_file(
        tmp_path / "test.csv", "text,label\n" + "".join(files.csv.read_text().splitlines(True)[1:6]) + new
    )
    result = triform("audit", "--run", classifier, "--train", files.csv, "--test", test)
    assert "metrics of" in result.out
    metrics = triform("audit", "--run", classifier, "--train", files.csv, "--test", test, "--json").json["scores"]
    assert [metrics[f"test: {name}"]["rows"] for name in ("all", "seen", "unseen")] == [7, 5, 2]
    right = {
        name: metrics[f"test: {name}"]["accuracy"] * metrics[f"test: {name}"]["rows"] for name in ("seen", "unseen")
    }
    assert sum(right.values()) == pytest.approx(7 * metrics["test: all"]["accuracy"])
    # the same, told by hand
    run = package.load(classifier, device="cpu")
    rows = list(read_rows(str(test), run.config.data))
    flags = find_leaked(
        [row.text for row in read_rows(str(files.csv), run.config.data)], [row.text for row in rows]
    )
    hits = [
        guess.output == row.label
        for guess, row in zip(run.predict([row_index.text for row_index in rows]), rows, strict=True)
    ]
    assert right["seen"] == pytest.approx(sum(hit for hit, known in zip(hits, flags, strict=True) if known))


def test_without_a_training_file_the_runs_own_rows_are_meant(
    triform: Command, classifier: Path, writer: Path, translator: Path
) -> None:
    for run, names in ((classifier, {"text"}), (writer, {"text"}), (translator, {"source", "target", "pair"})):
        report = triform("audit", "--run", run, "--json").json
        rows = {set_report["name"]: set_report["rows"] for set_report in report["sets"]}
        assert rows["train"] + rows["valid"] == 40  # the held-out rows are those of the same file
        assert rows["valid"] in (4, 5)
        assert {set_report["side"] for set_report in report["sets"]} == names
        assert "valid: all" in report["scores"]


def test_long_rows_are_counted_in_the_tokens_of_the_run(
    triform: Command, writer: Path, classifier: Path, files: Files
) -> None:
    def count_long_rows(run: Path, data: Path, max_len: int) -> int:
        arguments = ("--run", run, "--train", data, "--max-len", max_len, "--json")
        return int(triform("audit", *arguments).json["sets"][0]["overlong"])

    assert count_long_rows(writer, files.txt, 20) == 40  # characters
    assert count_long_rows(writer, files.txt, 60) == 0
    assert count_long_rows(classifier, files.csv, 2) == 40
    assert "over 16 tokens" not in triform("audit", "--run", writer).out  # windows of a stream are never too long


def test_scores_of_parts_of_a_running_text(triform: Command, tmp_path: Path, writer: Path, files: Files) -> None:
    test = write_file(tmp_path / "test.txt", files.txt.read_text()[:200].rpartition("\n")[0] + "\n7 birds flew.\n")
    metrics = triform("audit", "--run", writer, "--train", files.txt, "--test", test, "--json").json["scores"]
    assert metrics["test: seen"]["tokens"] + metrics["test: unseen"]["tokens"] == metrics["test: all"]["tokens"] - 1


def test_what_cannot_be_scored_apart_is_a_note(triform: Command, tmp_path: Path, translator: Path) -> None:
    test = write_file(tmp_path / "t.tsv", "one and one\tun et un\nnever heard\t\n")
    train = write_file(tmp_path / "train.tsv", "one and one\tun et un\n")
    result = triform("audit", "--run", translator, "--train", train, "--test", test)
    assert result.code == 0
    assert "note: test: unseen" in result.err


def test_a_run_or_a_file_is_given_by_position(triform: Command, classifier: Path, files: Files) -> None:
    by_name = ("audit", "--train", files.csv, "--json"), ("audit", "--run", classifier, "--json")
    by_position = ("audit", files.csv, "--json"), ("audit", classifier, "--json")
    for one, other in zip(by_name, by_position, strict=True):
        assert triform(*one).json == triform(*other).json
    both = triform("audit", classifier, "--train", files.csv, "--json").json
    assert both == triform("audit", "--run", classifier, "--train", files.csv, "--json").json
    assert _resolve_positional("builtin:reviews", "", None) == ("builtin:reviews", None)


def test_what_is_given_by_position_is_not_given_again(triform: Command, classifier: Path, files: Files) -> None:
    twice = "mean the same thing; use only one of them"
    assert twice in triform("audit", files.csv, "--train", files.csv).refusal
    assert twice in triform("audit", classifier, "--run", classifier).refusal
    assert triform("audit", "nowhere").refusal == "nowhere: no such file or run folder"
    assert "write --test b.csv" in triform("audit", files.csv, "b.csv").refusal


# -- bad input


def test_what_is_missing_is_asked_for(triform: Command, tmp_path: Path, files: Files) -> None:
    expected = "there is nothing to audit; give a training file or a run folder"
    assert triform("audit").refusal == expected
    assert triform("audit", "--test", files.csv).refusal == expected
    none = tmp_path / "none.csv"
    assert triform("audit", "--train", none).refusal == f"{none}: no such file"
    assert triform("audit", "--train", files.csv, "--test", none).refusal == f"{none}: no such file"
    assert "no such run folder" in triform("audit", "--run", none, "--test", files.csv).refusal


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "is empty"),
        ("latin.csv", b"text,label\na,b\ncaf\xe9,b\n", "line 3: the text is not UTF-8"),
        ("one.csv", b"text\nonly\na text\n", "expected a text and a label column, found only one column"),
        ("broken.jsonl", b'{"text"\n', "line 1: the line is not JSON"),
        ("bare.csv", b"text,label\na,\n", "line 2: the label is empty"),
        ("a.csv.gz", b"text,label\n", "the gzip file is damaged or incomplete"),
        ("blank.txt.gz", gzip.compress(b"\n\n", mtime=0), "the file has only blank lines"),
        ("odd.pdf", b"x", "unknown file format '.pdf'"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    triform: Command, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = write_file(tmp_path / name, content)
    refusal = triform("audit", "--train", path).refusal
    assert refusal.startswith(str(path))
    assert message in refusal


def test_columns_and_settings_that_are_not_there(
    triform: Command, tmp_path: Path, files: Files, classifier: Path
) -> None:
    arguments = ("audit", "--train", files.csv)
    assert "no column 'colour'" in triform(*arguments, "--set", "data.label_column=colour").refusal
    assert "audit uses only data.* settings" in triform(*arguments, "--set", "model.d_model=3").refusal
    assert "audit uses only data.* settings" in triform(*arguments, "--set", "decode.beam_size=3").refusal
    assert "--max-len -1: must be at least 1" in triform(*arguments, "--max-len", "-1").refusal
    assert "a .txt file has no labels" in triform("audit", "--train", files.txt, "--task", "classify").refusal
    assert "task=poetry is not valid" in triform(*arguments, "--task", "poetry").refusal
    assert "is for classify, not translate" in triform("audit", "--run", classifier, "--task", "translate").refusal


def test_names_of_test_sets_must_differ(triform: Command, tmp_path: Path, files: Files) -> None:
    arguments = ("audit", "--train", files.csv, "--test")
    assert "two files have the name 'rows.csv'" in triform(*arguments, files.csv, "--test", files.csv).refusal
    assert "the name 'valid' is taken" in triform(*arguments, f"valid={files.csv}").refusal
    report = triform(*arguments, f"a={files.csv}", "--test", f"b={files.csv}", "--json").json
    assert {set_report["name"] for set_report in report["sets"]} == {"train", "a", "b"}


def test_a_run_whose_data_has_gone_says_which_file(triform: Command, tmp_path: Path, classifier: Path) -> None:
    copy = Path(shutil.copytree(classifier, tmp_path / "copy"))
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("rows.csv", "gone.csv"))
    assert "gone.csv: no such file" in triform("audit", "--run", copy, "--no-verify").refusal


# -- what `train` says by itself


def read_notices(run: Path) -> list[str]:
    events = map(json.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    return [event["text"] for event in events if event["event"] == "notice" and "memorisation" in event["text"]]


def test_training_says_when_the_validation_file_leaks(
    train: Command, tmp_path: Path, leaking_files: tuple[Path, Path]
) -> None:
    data, valid = leaking_files
    result = train("classify", "--data", data, "--valid", valid, "--out", tmp_path / "run")
    assert result.code == 0
    messages = (
        f"{valid}: 3 of 4 rows (75.0 %) also occur in the training data; a metric on them measures memorisation: "
        f"run `triform audit --train {data} --valid {valid}`"
    )
    assert read_notices(tmp_path / "run") == [messages]
    assert messages in result.err


def test_training_says_when_held_out_rows_are_repeats(train: Command, tmp_path: Path) -> None:
    data = write_file(tmp_path / "rows.csv", "text,label\n" + "a fine day,good\na grey day,bad\n" * 20)
    assert train("classify", "--data", data, "--out", tmp_path / "run").code == 0
    (messages,) = read_notices(tmp_path / "run")
    assert messages.startswith(
        f"{data}: 4 of 4 rows (100.0 %) held out for validation also occur in the training rows; "
    )
    assert messages.endswith(f"a metric on them measures memorisation: run `triform audit --train {data}`")


def test_sets_that_share_nothing_are_not_remarked_on(train: Command, tmp_path: Path) -> None:
    for name, texts in (("a.csv", range(30)), ("b.csv", range(30, 40))):
        write_file(tmp_path / name, "text,label\n" + "".join(f"day number {n},{n % 2}\n" for n in texts))
    run = ("--valid", tmp_path / "b.csv", "--out", tmp_path / "run")
    assert train("classify", "--data", tmp_path / "a.csv", *run).code == 0
    assert read_notices(tmp_path / "run") == []


def test_translations_leak_by_their_sources(train: Command, tmp_path: Path, files: Files) -> None:
    valid = (
        write_file(tmp_path / "v.en", "ONE and one\nsix\n"),
        write_file(tmp_path / "v.fr", "autre chose\nsix\n"),
    )
    data = ("--source", files.source, "--target", files.target)
    assert train("translate", *data, "--valid", f"{valid[0]},{valid[1]}", "--out", tmp_path / "run").code == 0
    (messages,) = read_notices(tmp_path / "run")
    assert f"{valid[0]},{valid[1]}: 1 of 2 rows (50.0 %)" in messages
    assert f"triform audit --train {files.source},{files.target} --valid {valid[0]},{valid[1]}" in messages


def test_documents_leak_and_running_text_only_as_a_whole(train: Command, tmp_path: Path, files: Files) -> None:
    small = ("--set", "data.max_len=8", "--set", "tokenizer.kind=char")
    documents = write_file(tmp_path / "d.csv", "text\n" + "".join(f"story {n % 9} of many\n" for n in range(20)))
    assert train("generate", "--data", documents, *small, "--out", tmp_path / "one").code == 0
    assert "2 of 2 rows (100.0 %) held out" in read_notices(tmp_path / "one")[0]
    lines = write_file(tmp_path / "lines.txt", files.txt.read_text()[:300])
    assert train("generate", "--data", files.txt, "--valid", lines, *small, "--out", tmp_path / "two").code == 0
    assert read_notices(tmp_path / "two") == []
    same = write_file(tmp_path / "same.txt", files.txt.read_text())
    assert train("generate", "--data", files.txt, "--valid", same, *small, "--out", tmp_path / "three").code == 0
    assert "is the training text; a metric on it" in read_notices(tmp_path / "three")[0]


def test_evaluate_says_when_a_file_is_the_training_data_by_its_content(
    triform: Command, train: Command, tmp_path: Path
) -> None:
    rows = [f"day {n} was {'fine' if n % 2 else 'grey'},{'good' if n % 2 else 'bad'}\n" for n in range(40)]
    data = write_file(tmp_path / "rows.csv", "text,label\n" + "".join(rows))
    assert train("classify", "--data", data, "--out", tmp_path / "run").code == 0
    copy, part = (
        write_file(tmp_path / name, "text,label\n" + "".join(rows[:n]))
        for name, n in (("a.csv", 40), ("b.csv", 30))
    )
    data.unlink()  # the run remembers the content, not the place
    result = triform("evaluate", tmp_path / "run", "--data", copy)
    assert result.code == 0
    assert result.err.startswith(f"warning: {copy} has the same content as the training data; ")
    assert triform("evaluate", tmp_path / "run", "--data", part).err == ""
