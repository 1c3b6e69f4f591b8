"""Large training files: their tokens come from the cache, the same as without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_cases import NAMES, prepared, write_data

from triform.config import TaskName
from triform.data import cache as cache_module
from triform.data.store import TokenStore
from triform.tasks import TASKS, Prepared, learned
from triform.text import BpeTokenizer, CharTokenizer, WordTokenizer

EVERY_TASK = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "SMALL", 1)
    return tmp_path / "cache"


def in_folder(name: TaskName, folder: Path, **asked: Any) -> Prepared:
    folder.mkdir(exist_ok=True)
    (folder / "run").mkdir(exist_ok=True)
    return prepared(name, folder, **asked)


def arrays(made: Prepared) -> list[np.ndarray]:
    """Everything that both sets hold."""
    found: list[np.ndarray] = []
    for data in (made.train, made.valid):
        for held in vars(data).values():
            found += [held.tokens, held.lengths] if isinstance(held, TokenStore) else []
            found += [held] if isinstance(held, np.ndarray | int) else []
    return found


def assert_same(first: Prepared, second: Prepared) -> None:
    for one, other in zip(arrays(first), arrays(second), strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.task.config == second.task.config


@EVERY_TASK
def test_a_second_run_on_the_same_file_learns_and_encodes_nothing_of_it_again(
    name: TaskName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_data(name, tmp_path)
    first = in_folder(name, tmp_path / "one", train=file)
    monkeypatch.setattr(learned, "train_tokenizer", lambda *a, **k: pytest.fail("learned again"))
    if name != "translate":  # whose held-out pairs are judged as texts, and so are read
        for kind in (BpeTokenizer, CharTokenizer, WordTokenizer):
            monkeypatch.setattr(kind, "encode_rows", lambda *a: pytest.fail("encoded again"))
    second = in_folder(name, tmp_path / "two", train=file)
    assert_same(first, second)
    assert first.notices == second.notices
    assert not (tmp_path / "one" / "run" / "tokens").exists()


@EVERY_TASK
@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_the_cache_changes_no_token(
    name: TaskName, kind: str, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_data(name, tmp_path)
    kept = in_folder(name, tmp_path / "one", train=file, **{"tokenizer.kind": kind})
    shutil.rmtree(base)
    monkeypatch.setattr(cache_module, "SMALL", 1 << 30)
    assert_same(kept, in_folder(name, tmp_path / "two", train=file, **{"tokenizer.kind": kind}))
    assert not base.exists()


@EVERY_TASK
def test_other_settings_get_other_tokens(name: TaskName, tmp_path: Path) -> None:
    file = write_data(name, tmp_path)
    for asked in ({}, {"data.valid_fraction": 0.3}, {"tokenizer.lowercase": True}, {"tokenizer.kind": "char"}):
        made = in_folder(name, tmp_path / "one", train=file, **asked)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_module, "SMALL", 1 << 30)
            assert_same(made, in_folder(name, tmp_path / "two", train=file, **asked))


@EVERY_TASK
def test_a_damaged_cache_is_built_again_and_the_user_is_told(name: TaskName, tmp_path: Path, base: Path) -> None:
    file = write_data(name, tmp_path)
    first = in_folder(name, tmp_path / "one", train=file)
    expected = [array.copy() for array in map(np.asarray, arrays(first))]
    for tokens in base.glob("*/*.bin"):
        tokens.unlink()
        tokens.write_bytes(b"\1\0" * 40)
    second = in_folder(name, tmp_path / "two", train=file)
    for one, other in zip(expected, arrays(second), strict=True):
        np.testing.assert_array_equal(one, other)
    line = "this token cache is damaged"
    assert [notice for notice in second.notices if line in notice]
    assert not [notice for notice in first.notices if line in notice]


@EVERY_TASK
def test_a_resumed_run_finds_the_same_tokens_even_when_the_cache_is_gone(
    name: TaskName, tmp_path: Path, base: Path
) -> None:
    first = in_folder(name, tmp_path / "one", train=write_data(name, tmp_path))
    first.task.save(tmp_path / "one" / "run")
    for _ in range(2):
        again = TASKS[name].prepare(first.task.config, tmp_path / "one" / "run", resume=True)
        assert_same(first, again)
        shutil.rmtree(base)


def test_a_vocabulary_learned_from_a_part_of_the_text_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "SAMPLE", 1000)
    for folder in ("one", "two"):
        made = in_folder("generate", tmp_path / folder, **{"tokenizer.kind": "bpe"})
        assert any("the vocabulary was learned from" in notice for notice in made.notices)
