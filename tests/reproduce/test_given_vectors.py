"""The word vectors of a study: learned once from the training file, or taken from beside the sets if made so."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from triform.errors import DataError
from triform.reproduce import material as module
from triform.reproduce.material import Material
from triform.reproduce.systems import SYSTEMS, systems_of
from triform.vectors import WordVectors

STUDY = SYSTEMS["word-vectors-speeches"]


def gathered(data: Path, folder: Path, *, quick: bool = False) -> Material:
    return Material.gather(STUDY, str(data), folder, quick=quick)


def test_vectors_are_learned_from_the_training_file_alone_and_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = WordVectors.load(gathered(data, tmp_path / "own").vectors())
    assert [Path(name).name for name in found.about["texts"]] == ["train_CLS.tsv"]
    assert found.width == STUDY.vectors["size"]
    monkeypatch.setattr(module, "learn", None)  # it would fail
    assert gathered(data, tmp_path / "own").vectors() == tmp_path / "own" / "vectors.safetensors"


def test_vectors_beside_the_sets_need_no_gensim_and_must_be_the_right_ones(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = tmp_path / "sets"
    shutil.copytree(data / "speeches", sets / "speeches")
    made = gathered(data, tmp_path / "own").vectors()
    monkeypatch.setattr(module, "learn", None)
    beside = sets / "vectors" / "word-vectors-speeches.safetensors"
    beside.parent.mkdir()
    shutil.copy(made, beside)
    assert gathered(sets, tmp_path / "other").vectors() == beside
    vectors = WordVectors.load(made)
    for change in ({"texts": {"test_CLS.tsv": "0123456789abcdef"}}, {"epochs": 39}, {"lowercase": True}):
        WordVectors(vectors.words, vectors.matrix, vectors.about | change).save(beside)
        with pytest.raises(DataError, match="is not made as this study asks") as refused:
            gathered(sets, tmp_path / "other").vectors()
    command = shlex.split(str(refused.value).partition("make it again: ")[2])
    assert command[:3] == ["triform", "vectors", "train"]
    assert " ".join(command[6:]) == "--size 128 --min-count 1 --epochs 40"
    assert gathered(sets, tmp_path / "quick", quick=True).vectors() == beside, "a quick run only tries the way"


def test_a_name_that_several_begin_with_stands_for_all_of_them() -> None:
    assert [system.name for system in systems_of("word-vectors")] == ["word-vectors-speeches", "word-vectors-imdb"]
    assert systems_of("speeches-lm") == [SYSTEMS["speeches-lm"]]
