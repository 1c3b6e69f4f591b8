"""Large training files: their tokens come from the cache, the same as without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_cases import NAMES, prepare_task, write_data

from triform.config import TaskName
from triform.data import token_cache as cache_module
from triform.data.token_store import TokenStore
from triform.tasks import TASKS, PreparedTask, learned_tokenizers
from triform.text import BpeTokenizer, CharTokenizer, WordTokenizer

EVERY_TASK = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "MIN_CACHED_BYTES", 1)
    return tmp_path / "cache"


def prepare_in_folder(name: TaskName, folder: Path, **overrides: Any) -> PreparedTask:
    folder.mkdir(exist_ok=True)
    (folder / "run").mkdir(exist_ok=True)
    return prepare_task(name, folder, **overrides)


def stored_arrays(prepared_task: PreparedTask) -> list[np.ndarray]:
    """Everything that both sets hold."""
    arrays: list[np.ndarray] = []
    for data in (prepared_task.train, prepared_task.valid):
        for value in vars(data).values():
            arrays += [value.tokens, value.lengths] if isinstance(value, TokenStore) else []
            arrays += [value] if isinstance(value, np.ndarray | int) else []
    return arrays


def assert_same_data(first: PreparedTask, second: PreparedTask) -> None:
    for left, right in zip(stored_arrays(first), stored_arrays(second), strict=True):
        np.testing.assert_array_equal(left, right)
    assert first.task.config == second.task.config


@EVERY_TASK
def test_a_second_run_on_the_same_file_learns_and_encodes_nothing_of_it_again(
    name: TaskName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_data(name, tmp_path)
    first = prepare_in_folder(name, tmp_path / "one", train=file)
    monkeypatch.setattr(learned_tokenizers, "train_tokenizer", lambda *a, **k: pytest.fail("learned again"))
    if name != "translate":  # whose held-out pairs are judged as texts, and so are read
        for kind in (BpeTokenizer, CharTokenizer, WordTokenizer):
            monkeypatch.setattr(kind, "encode_rows", lambda *a: pytest.fail("encoded again"))
    second = prepare_in_folder(name, tmp_path / "two", train=file)
    assert_same_data(first, second)
    assert first.notices == second.notices
    assert not (tmp_path / "one" / "run" / "tokens").exists()


@EVERY_TASK
@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_the_cache_changes_no_token(
    name: TaskName, kind: str, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_data(name, tmp_path)
    cached = prepare_in_folder(name, tmp_path / "one", train=file, **{"tokenizer.kind": kind})
    shutil.rmtree(base)
    monkeypatch.setattr(cache_module, "MIN_CACHED_BYTES", 1 << 30)
    assert_same_data(cached, prepare_in_folder(name, tmp_path / "two", train=file, **{"tokenizer.kind": kind}))
    assert not base.exists()


@EVERY_TASK
def test_other_settings_get_other_tokens(name: TaskName, tmp_path: Path) -> None:
    file = write_data(name, tmp_path)
    for overrides in ({}, {"data.valid_fraction": 0.3}, {"tokenizer.lowercase": True}, {"tokenizer.kind": "char"}):
        prepared_task = prepare_in_folder(name, tmp_path / "one", train=file, **overrides)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_module, "MIN_CACHED_BYTES", 1 << 30)
            assert_same_data(prepared_task, prepare_in_folder(name, tmp_path / "two", train=file, **overrides))


@EVERY_TASK
def test_a_damaged_cache_is_built_again_and_the_user_is_told(name: TaskName, tmp_path: Path, base: Path) -> None:
    file = write_data(name, tmp_path)
    first = prepare_in_folder(name, tmp_path / "one", train=file)
    expected = [array.copy() for array in map(np.asarray, stored_arrays(first))]
    for tokens in base.glob("*/*.bin"):
        tokens.unlink()
        tokens.write_bytes(b"\1\0" * 40)
    second = prepare_in_folder(name, tmp_path / "two", train=file)
    for left, right in zip(expected, stored_arrays(second), strict=True):
        np.testing.assert_array_equal(left, right)
    line = "the token cache"
    assert [notice for notice in second.notices if line in notice]
    assert not [notice for notice in first.notices if line in notice]


@EVERY_TASK
def test_a_resumed_run_finds_the_same_tokens_even_when_the_cache_is_gone(
    name: TaskName, tmp_path: Path, base: Path
) -> None:
    first = prepare_in_folder(name, tmp_path / "one", train=write_data(name, tmp_path))
    first.task.save(tmp_path / "one" / "run")
    for _ in range(2):
        resumed = TASKS[name].prepare(first.task.config, tmp_path / "one" / "run", resume=True)
        assert_same_data(first, resumed)
        shutil.rmtree(base)


def test_a_vocabulary_learned_from_a_part_of_the_text_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_tokenizers, "MAX_TRAIN_CHARS", 1000)
    for folder in ("one", "two"):
        prepared_task = prepare_in_folder("generate", tmp_path / folder, **{"tokenizer.kind": "bpe"})
        assert any("the tokenizer was trained on" in notice for notice in prepared_task.notices)
