"""Comparing runs over the API: the figures and verdicts are those of `triform compare`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from triform.evaluation.statistics import summarise
from triform.experiments.pairing import VariantPair, compare_pairs, pair_over_seeds
from triform.io.locks import folder_lock
from triform.reporting.mean_curves import mean_with_band
from triform.reporting.run_history import read_history
from triform.serving import ServerOptions, create_app


def make_client(folder: Path) -> TestClient:
    return TestClient(create_app(ServerOptions(folder=folder, page=True)), base_url="http://127.0.0.1")


def compare(client: TestClient, *run_ids: str, study: str = "") -> Any:
    answer = client.get("/api/compare", params={"study": study} if study else {"run": list(run_ids)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def all_runs(folder: Path) -> list[str]:
    return [run["id"] for run in make_client(folder).get("/api/runs").json()["runs"]]


def test_a_finished_study_has_the_figures_and_verdicts_that_were_stored(study_folder: Path) -> None:
    client = make_client(study_folder)
    assert client.get("/api/runs").json()["studies"] == ["width"]
    answer = compare(client, study="width")
    stored = json.loads((study_folder / "width" / "study.json").read_text(encoding="utf-8"))
    assert answer["metric"] == stored["metric"]
    assert [(row["name"], row["n"], row["mean"]) for row in answer["variants"]] == [
        (entry["variant"], entry["n"], entry["mean"]) for entry in stored["variants"]
    ]
    assert [(row["verdict"], row["p"], row["corrected_p"]) for row in answer["pairs"]] == [
        (entry["verdict"], entry["p"], entry["corrected_p"]) for entry in stored["pairs"]
    ]
    assert (answer["notes"], answer["method"]) == (stored["notes"], stored["method"])
    assert answer["variants"][0]["runs"] == [f"width/narrow/seed-{seed}" for seed in range(3)]
    assert [series["name"] for series in answer["curves"][0]["series"]] == ["narrow", "broad"]
    settings = {row["name"]: row["values"] for row in answer["settings"]}
    assert settings == {"model.d_model": ["8", "24"], "model.d_ff": ["32", "96"]}


def test_runs_are_compared_over_their_seeds_with_the_statistics_of_studies(study_folder: Path) -> None:
    answer = compare(make_client(study_folder), *all_runs(study_folder))
    values: dict[str, dict[int, float]] = {}
    for variant in ("broad", "narrow"):
        histories = {seed: read_history(study_folder / "width" / variant / f"seed-{seed}") for seed in range(3)}
        values[variant] = {seed: history.best()[1] for seed, history in histories.items()}  # type: ignore[index]
        [row] = [row for row in answer["variants"] if row["name"] == f"width/{variant}"]
        stats = summarise(list(values[variant].values()))
        assert (row["n"], row["mean"], row["deviation"]) == (3, stats.mean, stats.deviation)
    difference = pair_over_seeds(values["broad"], values["narrow"])
    assert difference is not None
    [pair] = answer["pairs"]
    [verdict] = compare_pairs([VariantPair("width/broad", "width/narrow", "accuracy", difference)])
    assert (pair["verdict"], pair["difference"], pair["p"]) == (verdict.text, difference.mean, difference.p)


def test_a_curve_is_the_mean_over_seeds_with_its_band(study_folder: Path) -> None:
    answer = compare(make_client(study_folder), *all_runs(study_folder))
    [chart] = [chart for chart in answer["curves"] if chart["title"] == "Validation loss"]
    [series] = [series for series in chart["series"] if series["name"] == "width/broad"]
    runs = [
        read_history(study_folder / "width" / "broad" / f"seed-{seed}").curve("valid", "loss") for seed in range(3)
    ]
    mean, band = mean_with_band(runs)
    assert [tuple(point) for point in series["points"]] == mean
    assert [tuple(point) for point in series["band"]] == band


def test_an_unfinished_study_is_compared_by_its_runs(study_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(study_folder, tmp_path / "studies"))
    for content in (None, "{", '{"metric": 3}', "[]"):
        if content is None:
            (folder / "width" / "study.json").unlink()
        else:
            (folder / "width" / "study.json").write_text(content, encoding="utf-8")
        answer = compare(make_client(folder), study="width")
        assert {row["name"] for row in answer["variants"]} == {"narrow", "broad"}
        assert {answer["pairs"][0]["first"], answer["pairs"][0]["second"]} == {"narrow", "broad"}
        assert any("not finished" in note for note in answer["notes"])


def test_runs_that_differ_only_in_their_seeds_are_one_variant(runs_folder: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        shutil.copytree(runs_folder / "seeds" / f"seed-{seed}", tmp_path / f"try{seed}")
    shutil.copytree(runs_folder / "seeds" / "seed-2", tmp_path / "copy")
    answer = compare(make_client(tmp_path), "try1", "try2", "copy")
    assert [(row["name"], row["runs"]) for row in answer["variants"]] == [
        ("try1, try2", ["try1", "try2"]),
        ("copy", ["copy"]),
    ]


def test_what_is_not_the_same_measure_is_not_compared_and_the_note_says_why(runs_folder: Path) -> None:
    answer = compare(make_client(runs_folder), "reviews", "verses", "seeds/seed-1")
    assert answer["pairs"] == []
    notes = "\n".join(answer["notes"])
    assert "the runs have different metrics; those with perplexity are not in the table" in notes
    assert "reviews and verses are not compared: they have different tasks" in notes
    assert "reviews and seeds are not compared: they have no seed in common" in notes


def test_a_run_that_trains_is_compared_by_its_best_metric_so_far(runs_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs_folder / "reviews", tmp_path / "reviews"))
    with folder_lock(folder, "training"):
        answer = compare(make_client(tmp_path), "reviews")
    assert answer["notes"] == ["reviews is still training, so its metric is the best so far"]


def test_a_damaged_run_is_left_out_with_its_reason(runs_folder: Path, tmp_path: Path) -> None:
    for name in ("reviews", "verses"):
        shutil.copytree(runs_folder / name, tmp_path / name)
    (tmp_path / "verses" / "config.toml").write_text("format = 2\n", encoding="utf-8")
    answer = compare(make_client(tmp_path), "reviews", "verses")
    assert [row["name"] for row in answer["variants"]] == ["reviews"]
    assert answer["notes"][0].startswith("verses is left out: ")


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("", 400, "choose at least one run, or a study"),
        ("run=missing", 404, "there is no run 'missing'"),
        ("run=../reviews", 404, "there is no run"),
        ("study=reviews", 404, "there is no study 'reviews'"),
        ("study=../..", 404, "there is no study"),
        ("study=x&run=reviews", 400, "either runs or a study"),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(
    runs_folder: Path, query: str, status: int, message: str
) -> None:
    answer = make_client(runs_folder).get(f"/api/compare?{query}")
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_too_many_runs_are_refused(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triform.serving.comparison.MAX_COMPARED_RUNS", 2)
    answer = make_client(runs_folder).get("/api/compare?run=reviews&run=verses&run=french")
    assert answer.json()["error"] == "at most 2 runs can be compared, not 3"
