"""The word vectors of a system: learned once from the training file, or taken from the folder of datasets."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from reproduce.data import ExperimentData
from reproduce.embeddings import ensure_word_vectors
from reproduce.systems import get_system, match_systems

from reproduce import embeddings
from triform.errors import DataError
from triform.vectors import WordVectors

SYSTEM = get_system("word-vectors-speeches")


def prepare_data(data: Path, folder: Path, *, smoke: bool = False) -> ExperimentData:
    return ExperimentData.prepare(SYSTEM, str(data), folder, smoke=smoke)


def test_vectors_are_learned_from_the_training_file_alone_and_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = WordVectors.load(ensure_word_vectors(prepare_data(data, tmp_path / "own")))
    assert [Path(name).name for name in vectors.metadata["texts"]] == ["train_CLS.tsv"]
    assert vectors.width == SYSTEM.word_vector_settings["size"]
    monkeypatch.setattr(embeddings, "train_word2vec", None)  # it would fail
    assert ensure_word_vectors(prepare_data(data, tmp_path / "own")) == tmp_path / "own" / "vectors.safetensors"


def test_vectors_beside_the_sets_need_no_gensim_and_must_be_the_right_ones(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = tmp_path / "sets"
    shutil.copytree(data / "speeches", sets / "speeches")
    learned = ensure_word_vectors(prepare_data(data, tmp_path / "own"))
    monkeypatch.setattr(embeddings, "train_word2vec", None)
    shared_path = sets / "vectors" / "word-vectors-speeches.safetensors"
    shared_path.parent.mkdir()
    shutil.copy(learned, shared_path)
    assert ensure_word_vectors(prepare_data(sets, tmp_path / "other")) == shared_path
    vectors = WordVectors.load(learned)
    for change in ({"texts": {"test_CLS.tsv": "0123456789abcdef"}}, {"epochs": 39}, {"lowercase": True}):
        WordVectors(vectors.words, vectors.matrix, vectors.metadata | change).save(shared_path)
        with pytest.raises(DataError, match="trained with other settings") as caught:
            ensure_word_vectors(prepare_data(sets, tmp_path / "other"))
    command = shlex.split(str(caught.value).partition("train the vectors again with: ")[2])
    assert command[:3] == ["triform", "vectors", "train"]
    assert " ".join(command[6:]) == "--size 128 --min-count 1 --epochs 40"
    assert ensure_word_vectors(prepare_data(sets, tmp_path / "smoke", smoke=True)) == shared_path, (
        "a smoke run accepts any vectors"
    )


def test_a_name_that_several_begin_with_stands_for_all_of_them() -> None:
    assert [system.name for system in match_systems("word-vectors")] == [
        "word-vectors-speeches",
        "word-vectors-imdb",
    ]
    assert match_systems("speeches-lm") == [get_system("speeches-lm")]
