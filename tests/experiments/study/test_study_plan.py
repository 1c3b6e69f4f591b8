"""A study is read whole and checked before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from triform.config import TaskName
from triform.errors import ConfigError, DataError
from triform.experiments.study.plan import TASK_METRICS, read_study
from triform.tasks import TASKS

StudySpec = dict[str, Any]


def error_message(spec: StudySpec) -> str:
    with pytest.raises((ConfigError, DataError)) as caught:
        read_study(spec)
    return str(caught.value)


def test_the_file_of_the_manual_is_understood(workdir: Path) -> None:
    (workdir / "studies").mkdir()
    file = workdir / "studies" / "window.toml"
    file.write_text(
        'task = "generate"\npreset = "speeches-lm"\nseeds = 20\n[common]\n"data.train" = "../text.txt"\n'
        '[variants.full]\n[variants.window8]\n"model.window" = 8\n[variants.narrow.model]\nd_ff = 50\n'
        '[variants.own]\npreset = "speeches-window"\n[tests]\nother = "../other.txt"\n',
        encoding="utf-8",
    )
    study = read_study(file)
    assert (study.name, study.task, study.metric, study.seeds) == (
        "window",
        "generate",
        "perplexity",
        tuple(range(20)),
    )
    settings_by_variant = {variant.name: variant.settings for variant in study.variants}
    assert list(settings_by_variant) == ["full", "window8", "narrow", "own"]
    assert [settings.get("model.window", -1) for settings in settings_by_variant.values()] == [-1, 8, -1, 8]
    assert [settings["model.d_ff"] for settings in settings_by_variant.values()] == [100, 100, 50, 100]
    for settings in settings_by_variant.values():
        assert Path(str(settings["data.train"])).samefile(workdir / "text.txt")  # found from the study's folder
    assert Path(study.test_files["other"]).samefile(workdir / "other.txt")
    assert read_study(file, seeds=3).seeds == (0, 1, 2)


def test_aligned_files_are_found_from_the_studys_folder_too(workdir: Path, spec: StudySpec) -> None:
    spec |= {"task": "translate", "tests": {"same": "a.en,a.fr"}}
    spec["common"]["data.train"] = "a.en,a.fr"
    study = read_study(spec)
    assert study.metric == "bleu"
    assert study.test_files["same"] == f"{workdir / 'a.en'},{workdir / 'a.fr'}"
    assert study.variants[0].settings["data.target"] == str(workdir / "a.fr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sedes": 3}, "unknown key 'sedes' in a study; did you mean 'seeds'?"),
        ({"task": None}, "task is missing; choose from classify, generate, translate"),
        ({"task": "clasify"}, "task='clasify' is not known; choose from classify, generate, translate"),
        ({"metric": "acuracy"}, "classify has no metric 'acuracy'; did you mean 'accuracy'?"),
        ({"metric": "bleu"}, "classify has no metric 'bleu'; known are accuracy, f1, loss"),
        ({"seeds": 0}, "seeds=0 must be the number of runs per variant, from 1 to 500"),
        ({"seeds": True}, "seeds=True must be the number"),
        ({"seed": -1}, "seed=-1: the first seed must be a whole number from 0 to"),
        ({"name": "../up"}, "name='../up' is used as a folder name"),
        ({"variants": {"one": {}}}, "found one variant, one; a study needs at least two"),
        ({"variants": {}}, "found no variants; a study needs at least two"),
        ({"variants": [1]}, "variants must be a table"),
        ({"variants": {"a/b": {}, "c": {}}}, "variants='a/b' is used as a folder name"),
        ({"variants": {"a": {}, "b": {"task": "generate"}}}, "variants.b: task is the same for all variants"),
        ({"variants": {"a": {}, "b": {"metric": "f1"}}}, "variants.b: metric is the same for all variants"),
        (
            {"variants": {"a": {}, "b": {"preset": "speeches-lm"}}},
            "variants.b: preset 'speeches-lm' is for generate",
        ),
        (
            {"variants": {"a": {}, "b": {"model.windw": 2}}},
            "variants.b: unknown setting 'model.windw'; did you mean",
        ),
        ({"variants": {"a": {}, "b": {"model.n_heads": 3}}}, "variants.b: model.d_model=8 is not divisible"),
        ({"variants": {"a": {}, "b": {"data.valid": "more.tsv"}}}, "a and b are not judged on the same rows"),
        ({"variants": {"a": {}, "b": {"data.train": "gone.tsv"}}}, "gone.tsv: no such file"),
        ({"tests": {"late": "gone.tsv"}}, "gone.tsv: no such file"),
        ({"tests": {"late": 3}}, "tests.late=3 must name a file"),
        ({"tests": {"validation": "more.tsv"}}, "this name is reserved for a set that every study has"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    workdir: Path, spec: StudySpec, change: StudySpec, message: str
) -> None:
    assert message in error_message(spec | change)
    assert not (workdir / "runs").exists()


def test_perplexities_of_different_vocabularies_are_not_compared(workdir: Path, spec: StudySpec) -> None:
    spec["task"] = "generate"
    spec["common"] |= {"data.train": "text.txt"}
    spec["variants"] = {"words": {}, "characters": {"tokenizer.kind": "char"}}
    message = error_message(spec)
    assert "words and characters differ in their vocabulary" in message
    assert 'compare by metric = "bits_per_byte"' in message
    assert "words: words leave out the spaces" in error_message(spec | {"metric": "bits_per_byte"})
    spec["variants"]["words"] = {"tokenizer.kind": "wordpiece"}
    assert "words: words leave out the spaces" in error_message(spec | {"metric": "bits_per_byte"})
    spec["variants"]["words"] = {"tokenizer.kind": "bpe"}
    assert read_study(spec | {"metric": "bits_per_byte"}).metric == "bits_per_byte"


def test_merges_left_out_in_training_make_no_other_vocabulary(workdir: Path, spec: StudySpec) -> None:
    spec |= {"task": "translate", "metric": "loss"}
    spec["common"] |= {"data.train": "a.en,a.fr", "tokenizer.kind": "bpe"}
    spec["variants"] = {"plain": {}, "varied": {"tokenizer.bpe_dropout": 0.1}}
    assert read_study(spec).metric == "loss"


def test_with_test_files_alone_variants_may_learn_from_different_files(workdir: Path, spec: StudySpec) -> None:
    spec["common"]["data.valid_fraction"] = 0.0
    spec["variants"]["narrow"] = {"data.train": "more.tsv"}
    assert "not judged on the same rows" in error_message(spec)  # it would be their training loss
    assert read_study(spec | {"tests": {"test": "more.tsv"}}).test_files


@pytest.mark.parametrize("task", list(TASK_METRICS))
def test_the_first_metric_is_the_tasks_own(task: str) -> None:
    assert TASK_METRICS[cast(TaskName, task)][0] == TASKS[cast(TaskName, task)].metric


def test_the_study_of_the_manual_is_one(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "compare.md").read_text(encoding="utf-8")
    file = tmp_path / "positions.toml"
    file.write_text(manual.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    study = read_study(file)
    assert [variant.settings.get("model.positions", "learned") for variant in study.variants] == [
        "learned",
        "rotary",
        "none",
    ]
    assert study.test_files == {"test": "builtin:stories/test"}
