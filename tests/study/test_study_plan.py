"""A study is read whole and checked before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from triform.config import TaskName
from triform.errors import ConfigError, DataError
from triform.study.plan import METRICS, read_study
from triform.tasks import TASKS

Tree = dict[str, Any]


def refused(tree: Tree) -> str:
    with pytest.raises((ConfigError, DataError)) as caught:
        read_study(tree)
    return str(caught.value)


def test_the_file_of_the_manual_is_understood(place: Path) -> None:
    (place / "studies").mkdir()
    file = place / "studies" / "window.toml"
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
    asked = {variant.name: variant.asked for variant in study.variants}
    assert list(asked) == ["full", "window8", "narrow", "own"]
    assert [each.get("model.window", -1) for each in asked.values()] == [-1, 8, -1, 8]
    assert [each["model.d_ff"] for each in asked.values()] == [100, 100, 50, 100]
    for each in asked.values():
        assert Path(str(each["data.train"])).samefile(place / "text.txt")  # found from the study's folder
    assert Path(study.tests["other"]).samefile(place / "other.txt")
    assert read_study(file, seeds=3).seeds == (0, 1, 2)


def test_aligned_files_are_found_from_the_studys_folder_too(place: Path, tree: Tree) -> None:
    tree |= {"task": "translate", "tests": {"same": "a.en,a.fr"}}
    tree["common"]["data.train"] = "a.en,a.fr"
    study = read_study(tree)
    assert study.metric == "bleu"
    assert study.tests["same"] == f"{place / 'a.en'},{place / 'a.fr'}"
    assert study.variants[0].asked["data.target"] == str(place / "a.fr")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sedes": 3}, "unknown key 'sedes' in a study; did you mean 'seeds'?"),
        ({"task": None}, "no task is named; choose from classify, generate, translate"),
        ({"task": "clasify"}, "task='clasify' is not known; choose from classify, generate, translate"),
        ({"metric": "acuracy"}, "classify has no such score; did you mean 'accuracy'?"),
        ({"metric": "bleu"}, "metric='bleu': classify has no such score; known are accuracy, f1, loss"),
        ({"seeds": 0}, "seeds=0: give how many models to train of each variant, from 1 to 500"),
        ({"seeds": True}, "seeds=True: give how many"),
        ({"seed": -1}, "seed=-1: the first seed must be a whole number from 0 to"),
        ({"name": "../up"}, "name='../up': it becomes a folder"),
        ({"variants": {"one": {}}}, "has one variant, one; a comparison needs two"),
        ({"variants": {}}, "has no variants; a comparison needs two"),
        ({"variants": [1]}, "variants must be a table"),
        ({"variants": {"a/b": {}, "c": {}}}, "variants='a/b': it becomes a folder"),
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
        ({"tests": {"validation": "more.tsv"}}, "a study has a set of this name already"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(place: Path, tree: Tree, change: Tree, said: str) -> None:
    assert said in refused(tree | change)
    assert not (place / "runs").exists()


def test_perplexities_of_different_vocabularies_are_not_compared(place: Path, tree: Tree) -> None:
    tree["task"] = "generate"
    tree["common"] |= {"data.train": "text.txt"}
    tree["variants"] = {"words": {}, "characters": {"tokenizer.kind": "char"}}
    said = refused(tree)
    assert "words and characters differ in their vocabulary" in said
    assert 'compare by metric = "bits_per_byte"' in said
    assert "words: words leave out the spaces" in refused(tree | {"metric": "bits_per_byte"})
    tree["variants"]["words"] = {"tokenizer.kind": "bpe"}
    assert read_study(tree | {"metric": "bits_per_byte"}).metric == "bits_per_byte"


def test_merges_left_out_in_training_make_no_other_vocabulary(place: Path, tree: Tree) -> None:
    tree |= {"task": "translate", "metric": "loss"}
    tree["common"] |= {"data.train": "a.en,a.fr", "tokenizer.kind": "bpe"}
    tree["variants"] = {"plain": {}, "varied": {"tokenizer.dropout": 0.1}}
    assert read_study(tree).metric == "loss"


def test_with_test_files_alone_variants_may_learn_from_different_files(place: Path, tree: Tree) -> None:
    tree["common"]["data.valid_fraction"] = 0.0
    tree["variants"]["narrow"] = {"data.train": "more.tsv"}
    assert "not judged on the same rows" in refused(tree)  # it would be their training loss
    assert read_study(tree | {"tests": {"test": "more.tsv"}}).tests


@pytest.mark.parametrize("task", list(METRICS))
def test_the_first_metric_is_the_tasks_own(task: str) -> None:
    assert METRICS[cast(TaskName, task)][0] == TASKS[cast(TaskName, task)].metric


def test_the_study_of_the_manual_is_one(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    file = tmp_path / "positions.toml"
    file.write_text(manual.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    study = read_study(file)
    assert [variant.asked.get("model.positions", "learned") for variant in study.variants] == [
        "learned",
        "rotary",
        "none",
    ]
    assert study.tests == {"test": "builtin:topics/test"}
