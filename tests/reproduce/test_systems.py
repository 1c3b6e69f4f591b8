"""Every reference system, declared consistently and run from data to outcome on data shaped like its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from triform.config import Sizes
from triform.data.catalogue import SETS
from triform.errors import ConfigError, DataError, DivergedError, InterruptedRun
from triform.models.decoder import Decoder
from triform.presets import REPORTED_SIZES
from triform.reproduce import runner
from triform.reproduce.outcome import Outcome, blank, read, write
from triform.reproduce.runner import Asked, reproduce
from triform.reproduce.system import System
from triform.reproduce.systems import SYSTEMS, system_of
from triform.reproduce.tables import section, values
from triform.settings import build

EVERY = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
LM = SYSTEMS["speeches-lm"]


@EVERY
def test_what_a_system_names_is_there(system: System) -> None:
    known = {file.name for file in SETS[system.known].files}
    files = [
        *system.files.values(),
        *(name for names in system.tests.values() for name in names.split(",") if name),
    ]
    assert set(files) <= known
    variants, columns = {each.name for each in system.variants}, {each.key for each in system.columns}
    compared = any(each.reported for each in system.variants)
    assert {each.setting for each in system.variants} == ({"as-reported", "best"} if compared else {"best"})
    for variant in system.variants:
        assert build({"task": system.task, **variant.settings})
        assert variant.reported.keys() <= columns
        assert set(variant.vocabulary) <= known
    assert {target.variant for target in system.targets} <= variants
    assert {target.column for target in system.targets} <= columns
    for pairing in system.pairings:
        assert {pairing.first, pairing.second} <= variants
        assert set(pairing.columns) <= columns


@EVERY
def test_a_system_is_never_tuned_or_stopped_by_its_test_set(system: System) -> None:
    judged = [
        name for test, names in system.tests.items() if test not in ("train", "valid") for name in names.split(",")
    ]
    assert not set(judged) & set(system.files.values())


def parameters(name: str, variant: str, sizes: Sizes) -> int:
    found = next(each for each in SYSTEMS[name].variants if each.name == variant)
    config = build({"task": "generate", **found.settings})
    model = Decoder(config.model, replace(sizes, max_len=config.data.max_len))
    return sum(each.numel() for each in model.parameters())


def test_language_models_keep_to_the_sizes_that_were_allowed() -> None:
    sizes = REPORTED_SIZES["speeches-lm"]
    assert parameters("speeches-lm", "as-reported", sizes) == 863_243
    assert parameters("speeches-lm", "best", sizes) <= 863_243
    assert parameters("shakespeare-char", "best", Sizes(vocab_size=69, max_len=256)) <= 11_000_000
    best = next(each for each in LM.variants if each.name == "best")
    assert best.settings["train.max_steps"] == 500


def quickly(system: System, data: Path, folder: Path, **more: object) -> Outcome:
    asked = Asked(data=str(data), out=folder / "runs", results=folder / "results", device="cpu", quick=True)
    return reproduce(system, replace(asked, **more))  # type: ignore[arg-type]


@EVERY
def test_a_system_runs_from_data_to_outcome(system: System, data: Path, tmp_path: Path) -> None:
    outcome = quickly(system, data, tmp_path, seeds=1)
    assert read(tmp_path / "results" / "quick", system.name) == json.loads(json.dumps(outcome))
    assert [each["name"] for each in outcome["variants"]] == [each.name for each in system.variants]
    for found in outcome["variants"]:
        for column in system.columns:
            assert len(values(found, column.key)) == 1, f"{found['name']} has no {column.key}"
        assert found["parameters"] > 0
        assert found["curves"]["train"]
        assert found["made"]["command"] == f"triform reproduce {system.name} --seeds 1 --quick"
        assert not [name for name in found["settings"] if str(tmp_path) in str(found["settings"][name])]
    assert outcome["data"].keys() == {file.name for file in SETS[system.known].files}
    expected = {"classify": {"majority", "tfidf"}, "generate": {"ngram"}, "translate": {"copy", "wordwise"}}
    assert outcome["baselines"].keys() | outcome["unfit"].keys() == expected[system.task]
    page = section(system, outcome)
    assert all(f"| **{variant.name}** |" in page for variant in system.variants)


def test_what_begins_with_a_model_that_is_not_there_is_left_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data / "imdb", tmp_path / "sets" / "imdb")
    outcome = quickly(SYSTEMS["imdb-encoder"], tmp_path / "sets", tmp_path, seeds=1, setting="best")
    assert [each["name"] for each in outcome["variants"]] == ["best"]
    assert f"fine-tuned: left out, since it begins with {tmp_path / 'sets' / 'minilm'}: not there" in (
        capsys.readouterr().err
    )


def test_a_quick_run_replaces_no_result(data: Path, tmp_path: Path) -> None:
    write(tmp_path / "results", blank("speeches-lm", quick=False))
    before = (tmp_path / "results" / "speeches-lm.json").read_bytes()
    quickly(LM, data, tmp_path, setting="as-reported", seeds=1)
    assert (tmp_path / "results" / "speeches-lm.json").read_bytes() == before


def test_rows_that_leak_are_told_and_scored_apart(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = quickly(SYSTEMS["speeches-classifier"], data, tmp_path, setting="as-reported", seeds=1)
    assert outcome["leaks"] == {"test": {"rows": 12, "seen": 8}}
    assert "8 of the 12 texts of test are also in the training file" in capsys.readouterr().err
    scores = outcome["variants"][0]["runs"][0]["scores"]
    assert (scores["test, seen"]["rows"], scores["test, unseen"]["rows"]) == (8, 4)
    right = [scores[name]["accuracy"] * scores[name]["rows"] for name in ("test", "test, seen", "test, unseen")]
    assert right[0] == pytest.approx(right[1] + right[2])


def test_the_vocabulary_of_the_speeches_comes_from_both_training_files(data: Path, tmp_path: Path) -> None:
    outcome = quickly(LM, data, tmp_path, setting="as-reported", seeds=1)
    folder = next((tmp_path / "runs" / "speeches-lm-quick").glob("as-reported-*/seed-0"))
    pieces = json.loads((folder / "tokenizer.json").read_text())["tokenizer"]["model"]["vocab"]
    texts = [(data / "speeches" / name).read_text() for name in ("train_CLS.tsv", "train_LM.txt")]
    words = {word for text in texts for word in text.replace(".", " . ").replace("\t", " ").split()} - set("012")
    assert words | {"<pad>", "<unk>", "<bos>", "<eos>"} == pieces.keys()
    assert outcome["variants"][0]["vocabulary"] == len(words) + 4


def test_what_was_trained_is_not_trained_again_and_settings_join_one_outcome(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quickly(LM, data, tmp_path, setting="as-reported", seeds=2)
    assert [each["name"] for each in first["variants"]] == ["as-reported"]
    models = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert len(models) == 2
    both = quickly(LM, data, tmp_path, seeds=2)
    assert [each["name"] for each in both["variants"]] == ["as-reported", "best"]
    assert both["variants"][0]["runs"] == first["variants"][0]["runs"]
    assert all(path.stat().st_mtime_ns == before for path, before in models.items())


def test_an_interrupted_system_says_how_to_go_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object, **settings: object) -> None:
        raise InterruptedRun("stopped at step 2; go on with: triform train generate")

    monkeypatch.setattr(runner, "train_seeds", stopped)
    expected = rf"go on with: triform reproduce speeches-lm --seeds 2 --quick --data {data} --out {tmp_path}/runs"
    with pytest.raises(InterruptedRun, match=expected):
        quickly(LM, data, tmp_path, seeds=2)


def test_ctrl_c_while_scoring_says_how_to_go_on_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "score", stopped)
    with pytest.raises(InterruptedRun, match="what was saved is kept; go on with: triform reproduce speeches-lm"):
        quickly(LM, data, tmp_path)


def test_a_variant_that_diverges_is_told_and_the_others_go_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = runner.train_seeds

    def diverging(task: str, seeds: int, **settings: object) -> object:
        if settings["train.lr"] == 1e-3:
            raise DivergedError("seed-0 of 1 diverged")
        return train(task, seeds, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "train_seeds", diverging)
    outcome = quickly(LM, data, tmp_path, seeds=1)
    assert [each["name"] for each in outcome["variants"]] == ["best"]
    assert "| **as-reported** | failed: seed-0 of 1 diverged |" in section(LM, outcome)
    monkeypatch.undo()


def test_altered_data_is_refused_before_anything_is_trained(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sets"
    shutil.copytree(data, copy)
    (copy / "speeches" / "train_LM.txt").write_text("something else\n")
    with pytest.raises(DataError, match=r"train_LM\.txt: is not the train_LM\.txt that is known"):
        quickly(LM, copy, tmp_path)
    (copy / "speeches" / "train_LM.txt").unlink()
    with pytest.raises(DataError, match=r"train_LM\.txt: is missing"):
        quickly(LM, copy, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="--setting worst is not known; choose from as-reported, best, both"):
        Asked(setting="worst")
    with pytest.raises(ConfigError, match=r"unknown system 'speeches-ml'; did you mean 'speeches-lm'\?"):
        system_of("speeches-ml")
