"""The routes of runs: the list, one run, its predictions, its removal, and damaged runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from triform.errors import DivergedError
from triform.io.locks import folder_lock
from triform.launch import train
from triform.reporting.run_history import read_history
from triform.run import load
from triform.serving import ServerOptions, create_app

LOCAL = "http://127.0.0.1"


def make_client(folder: Path | None = None, **options: Any) -> TestClient:
    server_options = ServerOptions(folder=folder, page=True, device="cpu", **options)
    return TestClient(create_app(server_options), base_url=LOCAL)


@pytest.fixture(scope="module")
def client(runs_folder: Path) -> Iterator[TestClient]:
    with make_client(runs_folder) as client:
        yield client


@pytest.fixture
def copies(runs_folder: Path, tmp_path: Path) -> Path:
    """A folder with copies of two runs, which a test may change."""
    for name in ("reviews", "verses"):
        shutil.copytree(runs_folder / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


def list_runs(client: TestClient) -> dict[str, Any]:
    return {run["id"]: run for run in client.get("/api/runs").json()["runs"]}


def append_events(folder: Path, *events: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def drop_events(folder: Path, *kinds: str) -> None:
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if json.loads(line)["event"] not in kinds))


def test_the_list_shows_what_the_files_of_each_run_say(client: TestClient, runs_folder: Path) -> None:
    answer = client.get("/api/runs").json()
    assert (answer["folder"], answer["read_only"], answer["studies"]) == (str(runs_folder), False, [])
    runs = {run["id"]: run for run in answer["runs"]}
    assert list(runs) == ["french", "reviews", "seeds/seed-1", "seeds/seed-2", "verses"]
    for run_id, run in runs.items():
        history = read_history(runs_folder / run_id)
        best = history.best()
        assert best is not None
        assert (run["task"], run["state"], run["step"], run["max_steps"]) == (history.task, "finished", 12, 12)
        assert (run["metric"]["name"], run["metric"]["value"]) == (history.metric, best[1])
        assert (run["started"], run["parameters"]) == (history.start["time"], history.start["parameters"])
        assert history.end is not None
        assert run["seconds"] == history.end["seconds"]
    assert (runs["seeds/seed-2"]["group"], runs["seeds/seed-2"]["seed"], runs["reviews"]["group"]) == (
        "seeds",
        2,
        "",
    )
    assert (runs["reviews"]["data"], runs["reviews"]["kind"]) == ("rows.tsv", "transformer")


def test_a_run_with_a_lock_is_training_and_one_without_an_end_is_stopped(copies: Path) -> None:
    client = make_client(copies)
    drop_events(copies / "reviews", "end", "sample")
    assert list_runs(client)["reviews"]["state"] == "stopped"
    with folder_lock(copies / "reviews", "training"):
        assert list_runs(client)["reviews"]["state"] == "training"
        assert client.get("/api/runs/reviews").json()["can_delete"] is False
    assert list_runs(client)["reviews"]["state"] == "stopped"
    append_events(copies / "reviews", {"event": "end", "step": 12, "reason": "interrupted"})
    assert list_runs(client)["reviews"]["state"] == "stopped"


def test_a_run_that_diverged_has_failed_with_its_reason(copies: Path) -> None:
    drop_events(copies / "reviews", "end", "sample")
    append_events(copies / "reviews", {"event": "diverged", "step": 12, "text": "the loss is not finite"})
    run = list_runs(make_client(copies))["reviews"]
    assert (run["state"], run["error"]) == ("failed", "the loss is not finite")


def test_training_that_diverges_leaves_a_failed_run_with_its_reason(data_folder: Path, tmp_path: Path) -> None:
    settings = {"data": data_folder / "rows.tsv", "model": {"d_model": 16, "n_layers": 1, "n_heads": 2}}
    options = {"out": tmp_path / "runs" / "wild", "device": "cpu", "quiet": True}
    with pytest.raises(DivergedError) as failure:
        train("classify", train={"max_steps": 30, "lr": 1e30, "clip_norm": 0.0}, **settings, **options)
    run = list_runs(make_client(tmp_path / "runs"))["wild"]
    assert (run["state"], run["error"]) == ("failed", str(failure.value))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.toml").write_text("task = ", encoding="utf-8"), "damaged"),
        (lambda folder: (folder / "config.toml").write_text("format = 99\n", encoding="utf-8"), "run format 99"),
        (lambda folder: (folder / "config.toml").write_bytes(b"\xff\xfe"), "damaged"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
    ],
)
def test_a_damaged_run_is_listed_with_what_is_wrong_and_can_be_opened(
    copies: Path, damage: Any, message: str
) -> None:
    damage(copies / "reviews")
    client = make_client(copies)
    runs = list_runs(client)
    assert runs["verses"]["state"] == "finished"
    assert runs["reviews"]["state"] == "damaged"
    assert message in runs["reviews"]["error"]
    assert client.get("/api/runs/reviews").status_code == 200


def test_damaged_metrics_do_not_hide_a_run(copies: Path) -> None:
    (copies / "reviews" / "metrics.jsonl").write_bytes(b"\xff\xfe{\n[]\n" + b"[" * 5000 + b"\n" + b'{"event": 7}\n')
    client = make_client(copies)
    run = list_runs(client)["reviews"]
    assert (run["state"], run["step"], run["metric"]) == ("finished", None, None)
    assert client.get("/api/runs/reviews").json()["notices"] == []
    assert client.get("/api/runs/reviews/metrics").json()["events"] == []


def test_what_is_not_unicode_in_a_folder_hides_no_run(copies: Path) -> None:
    (copies / "reviews" / "sources.json").write_text('{"train.lr": "\\ud800"}', encoding="ascii")
    client = make_client(copies)
    settings = client.get("/api/runs/reviews").json()["settings"]
    assert {setting["source"] for setting in settings if setting["name"] == "train.lr"} == {"saved in the run"}
    try:
        shutil.copytree(os.fsencode(copies / "verses"), os.fsencode(copies / "verses") + b"-\xff")
    except OSError:
        pytest.skip("this file system refuses names that are not UTF-8")
    assert list(list_runs(client)) == ["reviews", "verses", "verses-\N{REPLACEMENT CHARACTER}"]
    assert len(client.get("/v1/models").json()["data"]) == 3


def test_the_list_follows_changes_of_a_run(copies: Path) -> None:
    client = make_client(copies)
    assert list_runs(client)["reviews"]["step"] == 12
    append_events(copies / "reviews", {"event": "train", "step": 14, "loss": 1.0})
    assert list_runs(client)["reviews"]["step"] == 14
    shutil.rmtree(copies / "verses")
    assert list(list_runs(client)) == ["reviews"]


def test_a_run_has_its_settings_with_sources_its_notices_samples_and_files(
    client: TestClient, runs_folder: Path
) -> None:
    answer = client.get("/api/runs/seeds/seed-2").json()
    assert answer["run"]["id"] == "seeds/seed-2"
    settings = {setting["name"]: setting for setting in answer["settings"]}
    assert (settings["train.lr"]["value"], settings["train.lr"]["source"]) == ("0.01", "option")
    assert (settings["train.momentum"]["source"], settings["train.momentum"]["is_default"]) == ("default", True)
    history = read_history(runs_folder / "seeds" / "seed-2")
    assert [notice["text"] for notice in answer["notices"]] == [e["text"] for e in history.events["notice"]]
    assert [sample["output"] for sample in answer["samples"]] == [e["output"] for e in history.events["sample"]]
    sizes = {file["path"]: file["bytes"] for file in answer["files"]}
    assert sizes["config.toml"] == (runs_folder / "seeds" / "seed-2" / "config.toml").stat().st_size
    assert answer["can_delete"] is True


def test_test_metrics_are_shown_as_the_report_writes_them(copies: Path) -> None:
    append_events(
        copies / "reviews", {"event": "test", "name": "held out", "scores": {"accuracy": 0.875, "rows": 8}}
    )
    [result] = make_client(copies).get("/api/runs/reviews").json()["tests"]
    assert result["name"] == "held out"
    assert [metric["text"] for metric in result["metrics"]] == ["87.50 %", "8"]


def test_a_run_with_long_samples_is_finished(copies: Path) -> None:
    with (copies / "reviews" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for event in ("sample", "details"):
            file.write(json.dumps({"event": event, "step": 1, "input": "long " * 20_000}) + "\n")
    assert list_runs(make_client(copies))["reviews"]["state"] == "finished"


def test_the_confusion_matrix_counts_the_predictions_on_validation_rows(
    client: TestClient, runs_folder: Path
) -> None:
    answer = client.get("/api/runs/reviews/predictions").json()
    run = load(runs_folder / "reviews", device="cpu")
    rows = list(run.task.data.iter_examples())
    predictions = [prediction.output for prediction in run.predict([row.text for row in rows])]
    details = answer["details"]
    labels = details["labels"]
    assert (answer["n_rows"], labels) == (len(rows), ["long", "short"])
    for i, expected in enumerate(labels):
        for j, output in enumerate(labels):
            pairs = zip(rows, predictions, strict=True)
            n_rows = sum(row.label == expected and text == output for row, text in pairs)
            assert details["confusion"][i][j] == n_rows
    correct = sum(details["confusion"][i][i] for i in range(len(labels)))
    assert correct / len(rows) == pytest.approx(list_runs(client)["reviews"]["metric"]["value"])


@pytest.mark.parametrize(("name", "has_expected"), [("french", True), ("verses", False)])
def test_translations_and_texts_are_made_with_the_best_weights(
    client: TestClient, runs_folder: Path, name: str, has_expected: bool
) -> None:
    answer = client.get(f"/api/runs/{name}/predictions").json()
    assert answer["samples"]
    assert answer["tables"]
    assert all((sample["expected"] is not None) == has_expected for sample in answer["samples"])
    run = load(runs_folder / name, device="cpu")
    inputs = [sample["input"] for sample in answer["samples"]]
    assert [sample["output"] for sample in answer["samples"]] == [p.output for p in run.predict(inputs)]


def test_predictions_of_a_run_whose_data_is_gone_say_so(copies: Path) -> None:
    config = copies / "reviews" / "config.toml"
    (copies / "reviews" / "digests.json").unlink()
    lines = config.read_text(encoding="utf-8").splitlines()
    lines = ['train = "/nowhere/rows.tsv"' if line.startswith("train = ") else line for line in lines]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    answer = make_client(copies).get("/api/runs/reviews/predictions")
    assert answer.status_code == 400
    assert "/nowhere/rows.tsv" in answer.json()["error"]


@pytest.mark.parametrize("name", ["missing", "..", "../reviews", "seeds", "reviews/checkpoints", "%00", "a" * 5000])
@pytest.mark.parametrize("suffix", ["", "/metrics", "/predictions"])
def test_an_unknown_run_is_an_error_that_names_the_list(client: TestClient, name: str, suffix: str) -> None:
    answer = client.get(f"/api/runs/{name.replace('..', '%2e%2e')}{suffix}")
    assert answer.status_code == 404
    assert "GET /api/runs" in answer.json()["error"] or "no route" in answer.json()["error"]


def test_links_out_of_the_folder_are_neither_listed_nor_opened_nor_deleted(
    copies: Path, runs_folder: Path, tmp_path: Path
) -> None:
    (copies / "outside").symlink_to(runs_folder / "french")
    client = make_client(copies)
    assert "outside" not in list_runs(client)
    assert client.get("/api/runs/outside").status_code == 404
    assert client.delete("/api/runs/outside").status_code == 404
    assert (runs_folder / "french" / "config.toml").exists()


def test_runs_that_are_named_are_listed_under_their_names_and_are_not_deleted(runs_folder: Path) -> None:
    client = make_client(runs={"mine": runs_folder / "reviews"})
    assert list(list_runs(client)) == ["mine"]
    assert client.get("/api/runs/mine").json()["can_delete"] is False
    assert client.delete("/api/runs/mine").status_code == 403
    assert (runs_folder / "reviews" / "config.toml").exists()


# -- delete


def test_deleting_a_run_removes_its_files_and_reports_those_of_others(copies: Path) -> None:
    client = make_client(copies)
    (copies / "verses" / "notes.txt").write_text("mine", encoding="utf-8")
    assert client.delete("/api/runs/reviews").json() == {"deleted": "reviews", "remaining": []}
    assert not (copies / "reviews").exists()
    assert client.delete("/api/runs/verses").json()["remaining"] == ["notes.txt"]
    assert [path.name for path in (copies / "verses").iterdir()] == ["notes.txt"]
    assert list_runs(client) == {}
    assert client.delete("/api/runs/reviews").status_code == 404


def test_a_training_run_is_not_deleted(copies: Path) -> None:
    client = make_client(copies)
    with folder_lock(copies / "reviews", "training"):
        answer = client.delete("/api/runs/reviews")
    assert answer.status_code == 409
    assert "stop it before you delete it" in answer.json()["error"]
    assert (copies / "reviews" / "model.safetensors").exists()


def test_a_read_only_server_deletes_nothing(copies: Path) -> None:
    client = make_client(copies, read_only=True)
    assert client.get("/api/runs/reviews").json()["can_delete"] is False
    answer = client.delete("/api/runs/reviews")
    assert answer.status_code == 403
    assert "read-only" in answer.json()["error"]
    assert (copies / "reviews" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["metrics", "predictions"])
def test_a_run_folder_may_have_the_name_of_a_route(copies: Path, name: str) -> None:
    run_id = f"width/{name}"
    shutil.copytree(copies / "reviews", copies / run_id)
    client = make_client(copies)
    assert client.get(f"/api/runs/{run_id}").json()["run"]["id"] == run_id
    assert client.get(f"/api/runs/{run_id}/metrics").json()["run"]["id"] == run_id
    assert client.get("/api/runs/reviews/metrics").json()["run"]["id"] == "reviews"


def test_a_list_that_is_not_complete_says_so(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(copies)
    assert client.get("/api/runs").json()["is_complete"]
    monkeypatch.setattr("triform.serving.models.MAX_SEARCHED_FOLDERS", 2)
    answer = client.get("/api/runs").json()
    assert not answer["is_complete"]
    assert len(answer["runs"]) == 1


def test_an_empty_or_missing_folder_has_no_runs(tmp_path: Path) -> None:
    assert list_runs(make_client(tmp_path)) == {}
    assert list_runs(make_client(tmp_path / "missing")) == {}


def test_runs_that_have_not_changed_are_not_read_again(tmp_path: Path, runs_folder: Path) -> None:
    for index in range(30):
        folder = tmp_path / f"run-{index}"
        folder.mkdir()
        for name in ("config.toml", "metrics.jsonl", "model.safetensors"):
            shutil.copyfile(runs_folder / "reviews" / name, folder / name)
    client = make_client(tmp_path)
    first = list_runs(client)
    assert len(first) == 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triform.serving.run_list.summarise_run", None)
        assert list_runs(client) == first
