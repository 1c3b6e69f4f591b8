"""The runs of a server: found below a folder, loaded when used, reloaded when changed, refused when damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from triform.errors import CheckpointError
from triform.serving import ServerOptions, models
from triform.serving.endpoints import ApiError
from triform.serving.models import ModelRegistry, find_runs, resolve_below


@pytest.fixture
def folder(runs_folder: Path, tmp_path: Path) -> Path:
    """A copy of the runs that a test may change."""
    return shutil.copytree(runs_folder, tmp_path / "runs")


def get(registry: ModelRegistry, *arguments: str, **options: str) -> models.ServedModel:
    async def call() -> models.ServedModel:
        return await registry.get(*arguments, **options)  # type: ignore[arg-type]

    return anyio.run(call)


def test_runs_are_named_by_their_path_below_the_folder(folder: Path) -> None:
    (folder / "notes").mkdir()
    registry = ModelRegistry(ServerOptions(folder=folder))
    assert registry.names() == ["french", "reviews", "seeds/seed-1", "seeds/seed-2", "verses"]
    assert registry.names("classify") == ["reviews", "seeds/seed-1", "seeds/seed-2"]
    (folder / "reviews" / "model.safetensors").unlink()  # as before the first validation
    assert "reviews" not in registry.names()
    assert "reviews" in find_runs(folder)[0]


def test_a_search_reads_a_bounded_number_of_folders_from_the_top(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = folder / "a" / "b" / "c"
    shutil.copytree(folder / "reviews", deep)
    names, is_complete = find_runs(folder)
    assert is_complete
    assert names == sorted(names)
    assert "a/b/c" in names
    monkeypatch.setattr(models, "MAX_SEARCHED_FOLDERS", 8)
    names, is_complete = find_runs(folder)
    assert not is_complete
    assert {"french", "reviews", "verses"} <= set(names)
    assert "a/b/c" not in names


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../runs/reviews", "/etc", "reviews/../verses", "nowhere", "a\0b", "x" * 5000]
)
def test_a_name_that_is_no_run_below_the_folder_is_unknown(folder: Path, name: str) -> None:
    assert resolve_below(folder, name) is None
    with pytest.raises(ApiError) as caught:
        ModelRegistry(ServerOptions(folder=folder)).path(name)
    assert caught.value.status == 404


def test_links_that_leave_the_folder_are_refused(folder: Path, runs_folder: Path) -> None:
    (folder / "outside").symlink_to(runs_folder / "reviews")
    (folder / "inside").symlink_to(folder / "reviews")
    (folder / "loop").symlink_to(folder / "loop")
    assert resolve_below(folder, "outside") is None
    assert resolve_below(folder, "loop") is None
    assert resolve_below(folder, "inside") is not None
    assert not {"outside", "loop"} & set(find_runs(folder)[0])


def test_the_only_model_of_a_task_needs_no_name(folder: Path) -> None:
    registry = ModelRegistry(ServerOptions(folder=folder, device="cpu"))
    assert get(registry, task="generate").name == "verses"
    with pytest.raises(
        ApiError, match="there are several models for classify; choose one with model: reviews, seeds/"
    ):
        get(registry, task="classify")
    assert get(registry, "reviews", task="classify").run.config.task == "classify"


def test_a_model_for_another_task_names_the_route_to_use(folder: Path) -> None:
    registry = ModelRegistry(ServerOptions(runs={"only": folder / "reviews"}, device="cpu"))
    expected = "model 'only' is for classify, and this route is for generate; use POST /predict or /embed"
    for name in ("only", ""):
        with pytest.raises(ApiError, match=expected):
            get(registry, name, task="generate")
    with pytest.raises(ApiError, match="there is no model 'other'"):
        get(registry, "other")
    with pytest.raises(ApiError, match="there is no model for translate"):
        get(ModelRegistry(ServerOptions()), task="translate")


def test_a_model_is_loaded_once_and_again_when_its_file_changes(folder: Path) -> None:
    registry = ModelRegistry(ServerOptions(folder=folder, device="cpu"))
    first = get(registry, "reviews")
    assert get(registry, "reviews") is first
    file = folder / "reviews" / "model.safetensors"
    os.utime(file, ns=(1, 1))
    second = get(registry, "reviews")
    assert second is not first
    assert registry.loaded == [second]


def test_the_least_recently_used_models_of_a_folder_are_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MAX_LOADED_MODELS", 2)
    registry = ModelRegistry(ServerOptions(folder=folder, runs={"kept": folder / "verses"}, device="cpu"))
    for name in ("kept", "reviews", "french", "reviews", "verses"):
        get(registry, name)
    assert {model.name for model in registry.loaded} == {"kept", "reviews", "verses"}
    registry.close(drain=0.0)
    assert registry.loaded == []


def test_a_damaged_or_deleted_run_is_reported_and_served_again_after_repair(folder: Path) -> None:
    registry = ModelRegistry(ServerOptions(folder=folder, device="cpu"))
    model_file = folder / "reviews" / "model.safetensors"
    content = model_file.read_bytes()
    get(registry, "reviews")
    model_file.write_bytes(content[:-8])
    with pytest.raises(CheckpointError, match="model"):
        get(registry, "reviews")
    model_file.write_bytes(content)
    assert get(registry, "reviews").name == "reviews"
    model_file.unlink()
    with pytest.raises(CheckpointError, match="has no trained model yet"):
        get(registry, "reviews")
    shutil.rmtree(folder / "reviews")
    with pytest.raises(ApiError, match="there is no model 'reviews'"):
        get(registry, "reviews")


def test_a_folder_of_seeds_is_served_as_an_ensemble_and_reloaded_when_a_member_changes(folder: Path) -> None:
    registry = ModelRegistry(ServerOptions(runs={"both": folder / "seeds"}))
    assert registry.names("classify") == ["both"]
    served = get(registry, task="classify")
    assert served.run.members == (folder / "seeds" / "seed-1", folder / "seeds" / "seed-2")
    assert get(registry, "both") is served
    model_file = folder / "seeds" / "seed-2" / "model.safetensors"
    os.utime(model_file, ns=(1, 1))
    assert get(registry, "both") is not served
    registry.close(drain=5)


def test_an_ensemble_answers_with_mean_probabilities_and_has_no_vectors(runs_folder: Path, connect: Any) -> None:
    runs = {"both": runs_folder / "seeds", **{f"seed-{n}": runs_folder / "seeds" / f"seed-{n}" for n in (1, 2)}}
    client = connect(ServerOptions(runs=runs))

    def classify(name: str) -> dict[str, float]:
        answer = client.post("/predict", json={"inputs": "amber birch", "model": name})
        assert answer.status_code == 200, answer.text
        return {item["label"]: item["score"] for item in answer.json()}

    first, second = classify("seed-1"), classify("seed-2")
    assert classify("both") == pytest.approx(
        {label: (first[label] + second[label]) / 2 for label in first}, abs=1e-6
    )
    answer = client.post("/embed", json={"inputs": "amber birch", "model": "both"})
    assert answer.status_code == 400
    assert "a vector of a text needs a single one" in answer.text
    assert client.get("/v1/models/both").json()["created"] > 0
