"""Variants of a reference system that combine the runs of another variant, or are distilled from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reproduce.options import ReproduceOptions
from reproduce.runner import reproduce
from reproduce.systems import parse_system

from triform.config.settings import Settings
from triform.errors import ConfigError
from triform.experiments.engine import Evaluation, VariantSpec, run_variants
from triform.launch import RunOptions
from triform.run import Run, load

DECLARATION: Mapping[str, Any] = {
    "title": "Reviews",
    "task": "classify",
    "dataset": "imdb",
    "files": {"data.train": "train.jsonl", "data.valid": "valid.jsonl"},
    "tests": {"test": "test.jsonl"},
    "attention_example": "we will work",
    "columns": [{"set": "test", "metric": "accuracy", "title": "test accuracy", "unit": "percent"}],
    "variants": {
        "single": {
            "group": "best",
            "seeds": 4,
            "model": {"d_model": 8, "n_layers": 1, "n_heads": 1, "dropout": 0.0},
            "train": {"max_steps": 2, "batch_size": 8},
        },
        "together": {"group": "best", "seeds": 2, "ensemble_of": "single", "ensemble_size": 2},
        "student": {"group": "best", "seeds": 1, "distill_from": "together"},
    },
}


def test_an_ensemble_and_a_student_have_the_settings_of_the_variant_that_they_name() -> None:
    single, ensemble, student = parse_system(DECLARATION, "reviews").variants
    assert single.settings == ensemble.settings == student.settings
    unknown = {**DECLARATION["variants"], "other": {"group": "best", "seeds": 1, "ensemble_of": "singel"}}
    with pytest.raises(ConfigError, match="'singel' is not the name of an earlier variant"):
        parse_system({**DECLARATION, "variants": unknown}, "reviews")


@pytest.mark.parametrize("fields", [{"ensemble_of": "single"}, {"ensemble_of": "together", "ensemble_size": 2}])
def test_an_ensemble_of_less_than_two_models_is_refused(fields: dict[str, Any]) -> None:
    variants = {**DECLARATION["variants"], "other": {"group": "best", "seeds": 1, **fields}}
    with pytest.raises(ConfigError, match=r"variants\.other: an ensemble needs an ensemble_size of 2 or more"):
        parse_system({**DECLARATION, "variants": variants}, "reviews")


def test_each_ensemble_has_its_own_runs(data: Path, tmp_path: Path) -> None:
    files = data / "imdb"
    settings = {
        "task": "classify",
        "data.train": str(files / "train.jsonl.gz"),
        "data.valid": str(files / "valid.jsonl.gz"),
        "model.d_model": 8,
        "model.n_layers": 1,
        "model.n_heads": 1,
        "train.max_steps": 2,
    }
    single = VariantSpec(name="single", settings=settings, seeds=range(4), folder=tmp_path / "single")
    ensemble = replace(single, name="together", seeds=range(2), folder=tmp_path / "together")
    ensemble = replace(ensemble, ensemble_of=single, ensemble_size=2)
    test_file, calls = str(files / "test.jsonl.gz"), []

    def evaluate(run: Run, name: str, file: str) -> dict[str, Any]:
        calls.append([member.name for member in run.members])
        return {"scores": dict(run.evaluate(file))}

    evaluation = Evaluation(eval_sets={"test": test_file}, evaluate=evaluate)
    options = RunOptions(device="cpu", quiet=True)
    (result,) = run_variants([ensemble], evaluation, options)
    assert calls == [["seed-0", "seed-1"], ["seed-2", "seed-3"]]
    for run, names in zip(result.runs, calls, strict=True):
        expected = load([tmp_path / "single" / name for name in names], device="cpu").evaluate(test_file)
        assert run.evaluations["test"]["scores"] == dict(expected)
    list(run_variants([ensemble], evaluation, options))
    assert len(calls) == 2, "nothing is evaluated twice"


def test_ensembles_and_students_get_rows_in_the_result(data: Path, tmp_path: Path) -> None:
    system = replace(parse_system(DECLARATION, "imdb-encoder"), name="imdb-encoder")
    options = ReproduceOptions(
        data=str(data),
        out=tmp_path / "runs",
        results=tmp_path / "results",
        variant="student",
        device="cpu",
        smoke=True,
    )
    student = reproduce(system, options)["variants"][0]
    assert student["name"] == "student"
    assert "train.distill_from" not in student["settings"]
    result = reproduce(system, replace(options, variant="together"))
    ensemble = next(entry for entry in result["variants"] if entry["name"] == "together")
    assert ensemble["map"] is None
    assert ensemble["parameters"] == 2 * student["parameters"]
    assert len(ensemble["runs"]) == 1
    folders = [path.parent for path in (tmp_path / "runs").rglob("config.toml") if path.parent.name == "seed-0"]
    teachers = [load(folder, device="cpu").config.train.distill_from for folder in folders]
    assert sorted(map(bool, teachers)) == [False, True]
    assert max(teachers).count("seed-") == 2


def count_runs(folder: Path) -> int:
    return len(list(folder.rglob("seed-*/config.toml")))


def test_one_seed_is_one_run_and_makes_no_ensemble(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = replace(parse_system(DECLARATION, "imdb-encoder"), name="imdb-encoder")
    options = ReproduceOptions(
        data=str(data), out=tmp_path / "runs", results=tmp_path / "results", variant="best", device="cpu", seeds=1
    )
    result = reproduce(system, options)
    assert [entry["name"] for entry in result["variants"]] == ["single"]
    assert count_runs(tmp_path / "runs") == 1
    messages = capsys.readouterr().err
    for name in ("together", "student"):
        assert f"imdb-encoder, {name}: skipped, because one seed makes no ensemble" in messages
    for name in ("together", "student"):
        with pytest.raises(ConfigError, match=f"--seeds 1: {name} needs an ensemble, which needs at least 2 seeds"):
            reproduce(system, replace(options, variant=name))


@pytest.mark.parametrize(("seeds", "n_members", "n_ensembles"), [(2, 2, 1), (4, 3, 1)])
def test_ensembles_combine_the_runs_of_the_seeds_and_no_others(
    seeds: int, n_members: int, n_ensembles: int, data: Path, tmp_path: Path
) -> None:
    variants = {**DECLARATION["variants"], "together": DECLARATION["variants"]["together"] | {"ensemble_size": 3}}
    system = replace(parse_system({**DECLARATION, "variants": variants}, "imdb-encoder"), name="imdb-encoder")
    options = ReproduceOptions(
        data=str(data), out=tmp_path / "runs", results=tmp_path / "results", device="cpu", seeds=seeds
    )
    reproduce(system, replace(options, variant="single"))
    result = reproduce(system, replace(options, variant="together"))
    single, ensemble = result["variants"]
    assert ensemble["parameters"] == n_members * single["parameters"]
    assert len(ensemble["runs"]) == n_ensembles
    assert ensemble["about"].endswith("here of 2 (--seeds 2)") == (seeds == 2)
    assert count_runs(tmp_path / "runs") == seeds


def test_a_student_whose_teacher_diverged_fails_and_the_others_are_trained(data: Path, tmp_path: Path) -> None:
    single, ensemble, student = parse_system(DECLARATION, "imdb-encoder").variants
    unstable: Settings = {"train.optimizer": "sgd", "train.lr": 1e30, "train.clip_norm": 0.0}
    settings = single.settings | unstable
    other = replace(single, name="other")
    variants = tuple(replace(variant, settings=settings) for variant in (single, ensemble, student))
    system = replace(parse_system(DECLARATION, "imdb-encoder"), variants=(*variants, other))
    options = ReproduceOptions(
        data=str(data), out=tmp_path / "runs", results=tmp_path / "results", device="cpu", smoke=True
    )
    for _ in range(2):  # the second call trains nothing again
        result = reproduce(system, options)
        assert [entry["name"] for entry in result["variants"]] == ["other"]
        assert "teacher: the loss is not finite" in result["failures"]["student"]
