"""What the tab Train asks before a job starts: uploads and their inspection, presets and settings, an estimate."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from triform.config.reference import setting_groups
from triform.serving import ServerOptions, create_app, inspection, uploads

REVIEWS = "review,stars,id\n" + "".join(
    f"{'good' if n % 3 else 'bad'} film number {n},{'5' if n % 3 else '1'},{n}\n" for n in range(30)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def client(folder: Path) -> TestClient:
    options = ServerOptions(folder=folder, page=True, device="cpu", max_upload=100_000)
    return TestClient(create_app(options), base_url="http://127.0.0.1:8000")


def upload(client: TestClient, name: str, content: str | bytes) -> dict[str, Any]:
    answer = client.post("/api/uploads", params={"name": name}, content=content)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def roles(inspection: dict[str, Any]) -> dict[str, str]:
    return {column["name"]: column["role"] for column in inspection["columns"]}


def test_an_uploaded_table_is_inspected(client: TestClient) -> None:
    answer = upload(client, "reviews.csv", REVIEWS + "good film number 1,1,99\n")
    assert (answer["name"], answer["task"], answer["error"]) == ("reviews.csv", "classify", "")
    assert answer["bytes"] == len(REVIEWS) + 24
    inspection = answer["inspection"]
    assert roles(inspection) == {"review": "text", "stars": "label", "id": ""}
    assert inspection["n_rows"] == 31
    assert inspection["labels"] == [{"label": "5", "count": 20}, {"label": "1", "count": 11}]
    assert inspection["rows"][0] == ["bad film number 0", "1", "0"]
    assert len(inspection["rows"]) == 5
    assert "2 rows have a text that also occurs with another label" in inspection["findings"]
    assert "'5' at line 3, '1' at line 32: good film number 1" in inspection["findings"]


@pytest.mark.parametrize(
    ("name", "content", "task", "columns"),
    [
        ("story.txt", "Once upon a time.\n\nThe end.\n", "generate", "text: text"),
        ("pairs.tsv", "en\tfr\nhello\tbonjour\n", "translate", "en: source, fr: target"),
        ("train.en", "hello\nyes\n", "generate", "text: text"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "a", "label": 1}\n', mtime=0),
            "classify",
            "text: text, label: label",
        ),
        ("b.json", '{"id": 1, "src": "a", "tgt": "b"}', "translate", "id: , src: source, tgt: target"),
        ("c.tsv", "good\tyes\nbad\tno\nfine\tyes\n", "classify", "column 1: text, column 2: label"),
    ],
)
def test_the_task_and_the_columns_are_guessed(
    client: TestClient, name: str, content: str | bytes, task: str, columns: str
) -> None:
    answer = upload(client, name, content)
    assert (answer["task"], answer["error"]) == (task, "")
    assert ", ".join(f"{name}: {role}" for name, role in roles(answer["inspection"]).items()) == columns


def test_another_task_and_other_columns_are_inspected(client: TestClient) -> None:
    upload_id = upload(client, "reviews.csv", REVIEWS)["id"]
    body = {"task": "classify", "data": f"upload:{upload_id}", "settings": {"data.text_column": "id"}}
    assert roles(client.post("/api/inspect", json=body).json()) == {"review": "", "stars": "label", "id": "text"}
    body = {"task": "generate", "data": f"upload:{upload_id}"}
    inspection = client.post("/api/inspect", json=body).json()
    assert roles(inspection)["review"] == "text"
    assert inspection["labels"] == []
    body = {"task": "classify", "data": f"upload:{upload_id}", "settings": {"data.text_column": "revue"}}
    answer = client.post("/api/inspect", json=body)
    error = "reviews.csv: no column 'revue'; set data.text_column to one of 'review', 'stars', 'id'"
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    body = {"task": "translate", "data": "builtin:numbers"}
    inspection = client.post("/api/inspect", json=body).json()
    assert roles(inspection) == {"source": "source", "target": "target"}


def test_two_aligned_files_are_inspected(client: TestClient) -> None:
    source, target, short = (
        "upload:" + upload(client, f"a.{name}", "".join(f"{name} {n}\n" for n in range(length)))["id"]
        for name, length in (("en", 5), ("fr", 5), ("de", 4))
    )
    inspection = client.post("/api/inspect", json={"task": "translate", "source": source, "target": target}).json()
    assert inspection["n_rows"] == 5
    assert inspection["rows"][4] == ["en 4", "fr 4"]
    answer = client.post("/api/inspect", json={"task": "translate", "source": source, "target": short})
    assert answer.json()["error"] == "a.en has 5 lines but a.de has 4; the files must match line by line"


def test_a_file_that_cannot_be_read_says_why_with_the_name_of_the_client(client: TestClient) -> None:
    answer = upload(client, "broken.csv", "text,label\na,b\nc,d,e\n")
    assert answer["error"] == "broken.csv, line 3: expected 2 columns, found 3; quote texts that contain commas"
    assert answer["inspection"] is None
    assert upload(client, "rows.jsonl", "[1]\n")["error"].startswith("rows.jsonl, line 1: the line is not a JSON")
    assert upload(client, "x.csv.gz", "no gzip")["error"].startswith("x.csv.gz: the gzip file is damaged")


def test_names_of_clients_never_become_paths(client: TestClient, folder: Path) -> None:
    for name, label in (
        ("../../outside.csv", "outside.csv"),
        ("C:\\data\\rows.csv", "rows.csv"),
        ("/etc/passwd.csv", "passwd.csv"),
        ("a\x00b\n.csv", "ab.csv"),
    ):
        answer = upload(client, name, REVIEWS)
        assert answer["name"] == label
        stored = sorted(path.name for path in (folder / ".studio" / "uploads" / answer["id"]).iterdir())
        assert stored == ["data.csv", "upload.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["runs"]
    assert client.get("/api/runs").json()["runs"] == []


def test_files_that_are_too_large_empty_or_no_text_are_refused_and_removed(
    client: TestClient, folder: Path
) -> None:
    answer = client.post("/api/uploads?name=big.txt", content=b"x" * 100_001)
    assert answer.status_code == 413

    def chunks() -> Any:
        for _ in range(11):
            yield b"x" * 10_000

    answer = client.post("/api/uploads?name=big.txt", content=chunks())
    assert (answer.status_code, "100,000 bytes" in answer.json()["error"]) == (413, True)
    answer = client.post("/api/uploads?name=rows.csv", content=b"")
    assert (answer.status_code, answer.json()["error"]) == (400, "rows.csv: the file is empty")
    answer = client.post("/api/uploads?name=book.xlsx", content=b"PK\x03\x04\xff\xfe")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("book.xlsx: not a text file; supported formats are .txt, .csv")
    assert not list((folder / ".studio" / "uploads").iterdir())


def test_a_file_that_the_disk_cannot_hold_is_refused_and_removed(
    client: TestClient, folder: Path, full_disk: Any
) -> None:
    with full_disk(50_000):
        answer = client.post("/api/uploads?name=big.txt", content=b"words\n" * 15_000)
    assert (answer.status_code, answer.json()["error"].startswith("the disk of the server is full")) == (507, True)
    assert not list((folder / ".studio" / "uploads").iterdir())
    assert upload(client, "big.txt", "words\n" * 15_000)["bytes"] == 90_000


def test_a_folder_that_cannot_be_written_is_named(client: TestClient, folder: Path) -> None:
    folder.mkdir()
    (folder / ".studio").write_text("a file in place of the folder")
    answer = client.post("/api/uploads?name=rows.csv", content=REVIEWS)
    assert answer.status_code == 503
    assert str(folder / ".studio") in answer.json()["error"]


def test_uploads_without_a_run_are_deleted_after_a_day(client: TestClient, folder: Path) -> None:
    store = uploads.UploadStore(folder / ".studio" / "uploads")
    used, unused, new = (upload(client, "a.txt", "a b c")["id"] for _ in range(3))
    store.mark_used(used)
    for upload_id in (used, unused):
        old = time.time() - uploads.MAX_AGE_SECONDS - 60
        os.utime(store.folder / upload_id, (old, old))
    latest = upload(client, "b.txt", "a b c")["id"]
    assert {path.name for path in store.folder.iterdir()} == {used, new, latest}


def test_the_oldest_uploads_without_a_run_make_room_for_new_ones(client: TestClient, folder: Path) -> None:
    ids = [upload(client, f"{number}.txt", "word " * 19_000)["id"] for number in range(7)]  # of 95 kB
    latest = upload(client, "b.txt", "a b c")["id"]
    assert {path.name for path in (folder / ".studio" / "uploads").iterdir()} == {*ids[-4:], latest}


def test_of_a_file_that_takes_long_to_read_the_beginning_is_counted(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(inspection, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(inspection, "MAX_READING_SECONDS", 6_000)  # times the clock was read
    answer = upload(client, "rows.tsv", "a text\tyes\n" * 9_000)["inspection"]
    assert not answer["is_complete"]
    assert 0 < answer["n_rows"] == answer["n_audited"] == answer["labels"][0]["count"] < 9_000
    answer = upload(client, "blank.txt", "\n" * 9_000 + "text")
    assert (answer["inspection"], answer["task"]) == (None, "generate")
    assert "takes too long" in answer["error"]
    assert upload(client, "rows.csv", REVIEWS)["inspection"]["is_complete"]


def test_the_form_has_the_documented_settings_and_presets(client: TestClient) -> None:
    form = client.get("/api/training").json()
    assert form["tasks"]["translate"] == "builtin:numbers"
    assert {"tiny", "small", "base", "bert-base"} < {preset["name"] for preset in form["presets"]}
    assert [preset["tasks"] for preset in form["presets"] if preset["name"] == "gpt2-small"] == [["generate"]]
    documented = {setting.name: setting for group in setting_groups() for setting in group.settings}
    for setting in form["settings"]:
        assert setting["meaning"] == documented[setting["name"]].doc.meaning
        assert setting["default"] == documented[setting["name"]].short_default


def test_the_costs_of_a_run_are_estimated(client: TestClient, folder: Path) -> None:
    upload_id = upload(client, "reviews.csv", REVIEWS)["id"]
    settings = {"model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "train.max_steps": 50}
    body = {"task": "classify", "data": f"upload:{upload_id}", "settings": settings}
    result = client.post("/api/estimate", json=body).json()
    assert (result["steps"], result["device"]) == (50, "cpu")
    assert result["train_examples"] + result["valid_examples"] == 30
    assert result["seconds"] > 0
    assert result["memory_bytes"] > 16 * result["parameters"] / 2
    assert any("reviews.csv" in notice["text"] for notice in result["notices"])
    assert str(folder) not in json.dumps(result)
    answer = client.post("/api/estimate", json=body | {"settings": {"data.label_column": "mood"}})
    assert answer.json()["error"].startswith("reviews.csv: no column 'mood'")
    assert client.post("/api/estimate", json=body | {"preset": "tinny"}).status_code == 400
    assert not (folder / ".studio" / "jobs").exists()


def test_a_read_only_server_takes_no_files(folder: Path) -> None:
    options = ServerOptions(folder=folder, page=True, device="cpu", read_only=True)
    client = TestClient(create_app(options), base_url="http://127.0.0.1:8000")
    for path in ("/api/uploads?name=a.txt", "/api/estimate"):
        answer = client.post(path, json={"task": "classify", "data": "builtin:reviews"})
        assert (answer.status_code, answer.json()["error"]) == (
            403,
            "this server is read-only, so it does not train",
        )
    assert client.get("/api/training").json()["can_train"] is False
    assert not folder.exists()
