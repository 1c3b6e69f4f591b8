"""`predict --output FOLDER/`: parts that are continued, shared, verified and equal to a single file."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triform.cli import prediction_folder
from triform.cli.prediction_folder import FolderJob
from triform.io.part_folder import MANIFEST_FILE, PartFolder
from triform.io.run_layout import MODEL_FILE
from triform.run import Run, load
from triform.world import World

Command = Any  # `triform(...)` of conftest: it gives a CommandResult
N_ROWS = 23


def write_rows(path: Path, n_rows: int = N_ROWS) -> Path:
    """Objects with texts of unequal length, some of them empty, and a key that only a late row has."""
    nouns = ("soup", "bread", "room", "view", "music")
    texts = [f"the {nouns[index % 5]} was lovely on day {index % 7}"[: 5 * (index % 9)] for index in range(n_rows)]
    rows: list[dict[str, object]] = [{"id": index, "text": text} for index, text in enumerate(texts)]
    rows[-1]["predicted_label"] = "mine"
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read_manifest(folder: Path) -> Any:
    return json.loads((folder / MANIFEST_FILE).read_text())


def join_parts(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("part-*.jsonl")))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl.gz")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "new" / "out"


@pytest.fixture
def finished(triform: Command, classifier: Path, rows: Path, out: Path) -> tuple[object, ...]:
    """A finished folder; the arguments that continue it."""
    arguments = ("predict", classifier, "--input", rows, "--output", f"{out}/", "--part-rows", 5)
    assert triform(*arguments).code == 0
    return arguments


# -- the result


def test_the_parts_are_the_single_file_and_the_manifest_describes_them(
    triform: Command, classifier: Path, rows: Path, out: Path, tmp_path: Path
) -> None:
    options = ("predict", classifier, "--input", rows, "--part-rows", 5)
    result = triform(*options, "--output", f"{out}/")
    assert result.out == f"23 predictions written to {out} in 5 parts\n"
    assert "5 of 5 parts finished" in result.err
    assert "3 of 23 rows have the key notes" in result.err
    triform(*options, "--output", tmp_path / "one.jsonl")
    assert join_parts(out) == (tmp_path / "one.jsonl").read_bytes()
    assert "predicted_label_2" in json.loads(join_parts(out).splitlines()[0])  # although only the last row has it
    assert sorted(path.name for path in out.iterdir()) == [
        *(MANIFEST_FILE, *(f"part-{part:06}.jsonl" for part in range(5))),
    ]
    assert [part["rows"] for part in read_manifest(out)["parts"].values()] == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("name", ["rows.csv", "lines.txt"])
def test_every_task_and_kind_of_file_gives_the_same_as_a_single_file(
    triform: Command, classifier: Path, writer: Path, translator: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    header = "id,text\n" if name.endswith(".csv") else ""
    for run, texts, options in (
        (classifier, ["the soup", "", "lovely view and music"], ("--top", 2)),
        (writer, ["3 birds", "and", "in the tree"], ("--temperature", 2, "--seed", 4, "--max-new-tokens", 6)),
        (translator, ["one and two", "five", "two and four"], ("--beam-size", 2, "--top", 2)),
    ):
        lines = [f"{index},{text}" if header else text for index, text in enumerate(texts)]
        path.write_text(header + "".join(f"{line}\n" for line in lines))
        column = ("--text-column", "text") if header else ()
        arguments = ("predict", run, "--input", path, "--part-rows", 2, *column, *options)
        folder, single = tmp_path / f"{run.name}-parts", tmp_path / f"{run.name}.jsonl"
        folder.mkdir()
        assert triform(*arguments, "--output", folder).code == 0
        assert triform(*arguments, "--output", single).code == 0
        assert join_parts(folder) == single.read_bytes()
        single_call = triform("predict", run, "--input", path, *column, *options, "--json").json
        key = {classifier: "label", writer: "continuation", translator: "translation"}[run]
        written = [json.loads(line)[f"predicted_{key}"] for line in single.read_bytes().splitlines()]
        assert written == [prediction["output"] for prediction in single_call]


def test_json_is_a_summary_and_quiet_prints_no_progress(triform: Command, finished: Any, out: Path) -> None:
    shutil.rmtree(out)
    result = triform(*finished, "--json", "--quiet")
    summary = result.json
    assert summary.pop("seconds") >= 0
    assert summary == {
        "output": str(out),
        "rows": N_ROWS,
        "rows_with_notes": 3,
        "parts": 5,
        "part_rows": 5,
        "predicted_parts": 5,
    }
    assert "parts finished" not in result.err


# -- continuing


def test_only_unfinished_parts_are_predicted_again(triform: Command, finished: Any, out: Path) -> None:
    expected = join_parts(out)
    manifest = read_manifest(out)
    del manifest["parts"]["part-000003.jsonl"]  # the process was killed before it could record the part
    (out / MANIFEST_FILE).write_text(json.dumps(manifest))
    leftover = out / ".part-000003"
    leftover.mkdir()
    (leftover / "part-000003.jsonl").write_text("{")
    before = {path.name: path.stat().st_ino for path in out.glob("part-*")}
    assert triform(*finished, "--json").json["predicted_parts"] == 1
    assert join_parts(out) == expected
    after = {path.name: path.stat().st_ino for path in out.glob("part-*")}
    assert [name for name in after if after[name] != before[name]] == ["part-000003.jsonl"]
    assert not leftover.exists()


# A command that is killed when it has written its fourth part and has not recorded it.
KILLED_COMMAND = """
import os, signal
from triform.cli.main import main
from triform.cli.prediction_folder import FolderJob
write_part = FolderJob._write_part
def write_then_die(job, start, *arguments):
    n_notes = write_part(job, start, *arguments)
    if start == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    return n_notes
FolderJob._write_part = write_then_die
main()
"""


def test_a_killed_job_continues_with_the_same_command(
    triform: Command, classifier: Path, out: Path, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 100)
    options = ("predict", classifier, "--input", rows, "--part-rows", 10, "--device", "cpu")
    arguments = [str(argument) for argument in (*options, "--output", f"{out}/")]
    command = [sys.executable, "-c", KILLED_COMMAND, *arguments]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    finished_parts = {path.name: path.stat().st_ino for path in out.glob("part-*")}
    assert len(finished_parts) == len(read_manifest(out)["parts"]) == 3
    assert [path.name for path in out.iterdir() if path.name.startswith(".")]  # the part that was not finished
    assert triform(*arguments, "--json").json["predicted_parts"] == 7
    assert finished_parts.items() <= {path.name: path.stat().st_ino for path in out.glob("part-*")}.items()
    triform(*options, "--output", tmp_path / "one.jsonl")
    assert join_parts(out) == (tmp_path / "one.jsonl").read_bytes()
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]


def test_ctrl_c_says_how_to_continue(
    triform: Command, finished: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(out)
    write_part = FolderJob._write_part

    def interrupt(job: FolderJob, start: int, *arguments: Any) -> int:
        if start == 10:
            raise KeyboardInterrupt
        return write_part(job, start, *arguments)

    monkeypatch.setattr(FolderJob, "_write_part", interrupt)
    result = triform(*finished)
    assert result.code == 130
    assert "triform: interrupted: 2 of 5 parts are finished; the same command continues" in result.err
    monkeypatch.undo()
    assert triform(*finished, "--json").json["predicted_parts"] == 3


# -- several processes


def make_job(classifier: Path, rows: Path, out: Path, **fields: Any) -> FolderJob:
    run = load(classifier, device="cpu")
    settings = {"top": 0, "keep": None, "seed": None}
    return FolderJob(
        run=run,
        input=str(rows),
        table_config=run.config.data,
        output=out,
        part_rows=2,
        settings=settings,
        show=False,
        **fields,
    )


def test_processes_that_share_a_folder_predict_no_part_twice(classifier: Path, rows: Path, out: Path) -> None:
    job = make_job(classifier, rows, out)
    with ThreadPoolExecutor(4) as pool:  # the locks of two threads exclude each other as those of processes do
        summaries = list(
            pool.map(lambda _: prediction_folder.predict_to_folder(replace(job), repair=False), range(4))
        )
    assert sum(summary["predicted_parts"] for summary in summaries) == 12  # type: ignore[misc]
    assert {summary["parts"] for summary in summaries} == {12}
    assert [json.loads(line)["id"] for line in join_parts(out).splitlines()] == list(range(N_ROWS))


def test_the_part_of_a_process_that_fails_is_taken_by_another(
    classifier: Path, rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(classifier, rows, out).prepare()
    with job.folder.claim(3) as claimed:
        assert claimed is not None
        claimed.write_text("not finished")
        with job.folder.claim(3) as second:
            assert second is None
        slept: list[float] = []

        def wait(seconds: float) -> None:
            slept.append(seconds)
            raise KeyboardInterrupt

        monkeypatch.setattr(prediction_folder.time, "sleep", wait)
        with pytest.raises(Exception, match="11 of 12 parts are finished"):
            job.work()
        assert slept  # it waited for part 3, and predicted all others
    assert job.work() == 1
    assert len(read_manifest(out)["parts"]) == 12


def test_without_locks_the_ranks_of_torchrun_take_turns(
    triform: Command, classifier: Path, rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(classifier, rows, out).prepare()
    sharing = replace(job, stride=2, first=1)
    sharing._predict_parts(job.unfinished_parts(), prediction_folder.PartProgress(sharing))
    assert list(read_manifest(out)["parts"]) == [f"part-{part:06}.jsonl" for part in range(1, 12, 2)]

    def no_locks(handle: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("triform.io.locks._try_lock", no_locks)
    second = replace(job, run=replace(job.run, world=World(1, 3, 1))).prepare()
    assert (second.stride, second.first) == (3, 1)
    assert (job.prepare().stride, job.prepare().first) == (1, 0)


# -- refused


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--top", 1), "top was 0 for these predictions, and is 1 now"),
        (("--part-rows", 6), "--part-rows was 5 for these predictions, and is 6 now"),
        (("--keep", "last"), "keep was None for these predictions, and is 'last' now"),
        (("--text-column", "id"), "text column was \"texts under the key 'text'\" for these predictions"),
        (("--precision", "bf16"), "precision was 'fp32' for these predictions, and is 'bf16' now"),
    ],
)
def test_other_settings_are_refused_by_name(
    triform: Command, finished: Any, out: Path, options: tuple[object, ...], problem: str
) -> None:
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert problem in triform(*finished, *options).last_line
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_other_decoding_settings_are_refused_by_name(triform: Command, writer: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("3 birds\n")
    arguments = ("predict", writer, "--input", prompts, "--output", tmp_path / "out/", "--max-new-tokens", 2)
    (tmp_path / "out").mkdir()
    assert triform(*arguments).code == 0
    assert "decode.temperature was 0.8 for" in triform(*arguments, "--temperature", 0.5).last_line
    assert "seed was 0 for these predictions, and is 3 now" in triform(*arguments, "--seed", 3).last_line


def test_another_run_and_another_input_are_refused_and_a_copy_is_not(
    triform: Command, classifier: Path, finished: Any, rows: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(classifier, copy)
    moved = [copy if argument == classifier else argument for argument in finished]
    assert triform(*moved, "--json").json["predicted_parts"] == 0
    weights = copy / MODEL_FILE
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    assert f"{MODEL_FILE} of the run has changed" in triform(*moved, "--no-verify").last_line
    os.utime(rows)
    assert triform(*finished, "--json").json["predicted_parts"] == 0
    write_rows(rows, N_ROWS + 1)
    assert f"the content of {rows} has changed since" in triform(*finished).last_line


def test_a_damaged_part_is_named_and_predicted_again_on_request(triform: Command, finished: Any, out: Path) -> None:
    expected = join_parts(out)
    part = out / "part-000001.jsonl"
    part.write_text("{}\n")
    (out / "part-000004.jsonl").unlink()
    assert f"{part} and 1 more: missing, or does not match the checksum" in triform(*finished).last_line
    result = triform(*finished, "--repair", "--json")
    assert "again: part-000001.jsonl, part-000004.jsonl" in result.err
    assert result.json["predicted_parts"] == 2
    assert join_parts(out) == expected
    assert "--repair needs an output folder" in triform(*finished[:4], "--repair").refusal


def test_a_bad_row_is_named_before_anything_is_written(
    triform: Command, classifier: Path, writer: Path, out: Path, tmp_path: Path
) -> None:
    bad, empty, prompts = tmp_path / "bad.jsonl", tmp_path / "empty.jsonl", tmp_path / "prompts.txt"
    bad.write_text('{"text": "a"}\n' * 3 + '{"text": "a"\n' + '{"text": "a"}\n')
    empty.write_text("")
    prompts.write_text("3 birds\n3 Ωs\n")
    options = ("--output", f"{out}/", "--part-rows", 1)
    for run, path, problem in (
        (classifier, bad, f"{bad}, line 4: the line is not JSON"),
        (classifier, empty, f"{empty}: the file is empty"),
        (writer, prompts, f"{prompts}, line 2: the prompt contains text that is not in the vocabulary"),
        (classifier, tmp_path / "gone.jsonl", "no such file"),
    ):
        assert problem in triform("predict", run, "--input", path, *options).last_line
        assert not out.exists()


def test_wrong_options_leave_no_folder(
    triform: Command, classifier: Path, translator: Path, rows: Path, out: Path, tmp_path: Path
) -> None:
    arguments = ("predict", classifier, "--input", rows, "--output", f"{out}/")
    assert "seed" in triform(*arguments, "--seed", -1).refusal
    assert "a folder needs --input FILE" in triform(*arguments, "a text").refusal
    assert "a folder needs --input FILE" in triform("predict", classifier, "--input", "-", *arguments[4:]).refusal
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n")
    too_many = ("--input", lines, "--output", f"{out}/", "--top", 9, "--beam-size", 2)
    assert "top=9 is more than the 2 hypotheses" in triform("predict", translator, *too_many).refusal
    assert triform(*arguments, "--part-rows", 0).code == 2
    assert not out.exists()


def test_a_folder_or_file_of_something_else_is_refused(
    triform: Command, classifier: Path, rows: Path, finished: Any, out: Path, tmp_path: Path
) -> None:
    arguments = ("predict", classifier, "--input", rows, "--output")
    assert "contains 'checkpoints' and no manifest.json of predictions" in triform(*arguments, classifier).last_line
    (tmp_path / "file").write_text("")
    assert "this is a file; choose another name" in triform(*arguments, f"{tmp_path / 'file'}/").refusal
    assert "cannot be written: Not a directory" in triform(*arguments, f"{tmp_path / 'file' / 'out'}/").last_line
    for content, problem in (
        ("[]", "is not a manifest of predictions"),
        ('{"format": 9}', "was written by a newer Triform"),
        ('{"format": 1, "job": {}}', "is damaged"),
        ("{", "is not JSON, or is damaged"),
    ):
        (out / MANIFEST_FILE).write_text(content)
        assert problem in triform(*finished).last_line


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_line(
    triform: Command, classifier: Path, rows: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o500)
    try:
        result = triform("predict", classifier, "--input", rows, "--output", f"{tmp_path / 'out'}/")
        assert "cannot be written: Permission denied" in result.last_line
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_one_line_and_keeps_the_finished_parts(
    triform: Command, finished: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = join_parts(out)
    shutil.rmtree(out)
    open_output = prediction_folder.open_output

    def open_until_full(path: Path) -> Any:
        if path.name == "part-000002.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_output(path)

    monkeypatch.setattr(prediction_folder, "open_output", open_until_full)
    problem = triform(*finished).last_line
    assert problem.startswith(f"{out / 'part-000002.jsonl'} cannot be written: No space left on device; free some")
    assert len(read_manifest(out)["parts"]) == 2
    monkeypatch.undo()
    assert triform(*finished).code == 0
    assert join_parts(out) == expected


def test_an_input_that_changes_meanwhile_is_refused_and_its_part_is_not_kept(
    triform: Command, finished: Any, rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(out)
    predict = Run.predict

    def change_input(run: Run, texts: Any, **settings: Any) -> Any:
        if texts:
            write_rows(rows, N_ROWS + 1)
        return predict(run, texts, **settings)

    monkeypatch.setattr(Run, "predict", change_input)
    assert "the file changed while it was being read" in triform(*finished).last_line
    assert not read_manifest(out)["parts"]
    assert not list(out.glob("part-*"))


def test_a_part_that_another_process_finishes_meanwhile_is_not_claimed(tmp_path: Path) -> None:
    folder = PartFolder(tmp_path)
    folder.write_manifest({"job": {}, "input": {}, "parts": {"part-000001.jsonl": {}}})
    with folder.claim(1) as claimed:
        assert claimed is None
    with folder.claim(2) as claimed:
        assert claimed == tmp_path / ".part-000002" / "part-000002.jsonl"
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_FILE]
