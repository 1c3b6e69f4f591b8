"""Seals: a changed file is named, and a kill between any two writes leaves a folder that verifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from triform.errors import CheckpointError
from triform.io import digests
from triform.io.digests import DIGESTS_FILE, read_digests, replace_files, seal, verify
from triform.io.files import part_path


class Killed(BaseException):
    """In place of a SIGKILL: nothing is tidied up that a kill would leave."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("a = 1\n")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"old")
    (tmp_path / "metrics.jsonl").write_text("not sealed, for it grows")
    seal(tmp_path)
    return tmp_path


def put(folder: Path, name: str, content: bytes) -> None:
    part = part_path(folder / name)
    part.write_bytes(content)
    replace_files({part: folder / name})


def test_what_is_as_it_was_saved_verifies(folder: Path) -> None:
    assert verify(folder)
    (folder / "metrics.jsonl").write_text("longer")
    put(folder, "model.safetensors", b"new")
    assert verify(folder)
    assert read_digests(folder) == digests._digests_of(folder, digests.RUN_FILES)


@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "model.safetensors", "tokenizer.source.json"])
def test_a_file_that_changed_or_was_added_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"other")
    with pytest.raises(CheckpointError) as refusal:
        verify(folder)
    line = str(refusal.value)
    assert line.startswith(f"{folder / name}: is damaged")
    assert "--no-verify (in Python verify=False)" in line
    assert ("if you edited it on purpose" in line) == (name == "config.toml")


def test_a_folder_without_digests_is_an_older_one_and_gets_them_with_the_next_write(folder: Path) -> None:
    (folder / DIGESTS_FILE).unlink()
    assert not verify(folder)
    put(folder, "model.safetensors", b"new")
    assert verify(folder)
    assert set(read_digests(folder) or ()) == {"config.toml", "tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "x"}', '{"format": 1}', '{"format": 1, "sha256": []}', "[" * 9_000, "\xff",
     '{"format": 1, "sha256": {"config.toml": "x"}}'],
)  # fmt: skip
def test_malformed_digests_are_one_line(folder: Path, text: str) -> None:
    (folder / DIGESTS_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"digests\.json: is damaged"):
        verify(folder)


def test_digests_of_a_newer_version_ask_for_an_upgrade(folder: Path) -> None:
    (folder / DIGESTS_FILE).write_text(json.dumps({"format": 2, "blake3": {}}))
    with pytest.raises(CheckpointError, match="made by a newer Triform"):
        verify(folder)


def killing(after: int) -> Callable[[Path, Path], Path]:
    """`Path.replace` that ends the process before the rename numbered so."""
    calls = iter(range(after + 1))
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if next(calls) == after:
            raise Killed
        return real(self, target)

    return replace


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("known", [True, False])
def test_killed_between_any_two_renames_the_folder_verifies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, after: int, known: bool
) -> None:
    if not known:
        (folder / "model.safetensors").unlink()
        seal(folder)
    parts = {part_path(folder / name): folder / name for name in ("model.safetensors", "config.toml")}
    for part in parts:
        part.write_bytes(b"new")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killing(after))
        with pytest.raises(Killed):
            replace_files(parts)
    assert verify(folder)
    put(folder, "model.safetensors", b"newest")
    assert verify(folder)
    assert len((read_digests(folder) or {})["model.safetensors"]) == 1


def test_a_reader_that_meets_a_training_process_looks_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = digests.file_digest, []

    def replaced_meanwhile(path: Path) -> str:
        calls.append(path)
        if len(calls) == 1:
            monkeypatch.setattr(digests, "file_digest", real)
            put(folder, "model.safetensors", b"new")
            monkeypatch.setattr(digests, "file_digest", replaced_meanwhile)
        return real(path)

    monkeypatch.setattr(digests, "file_digest", replaced_meanwhile)
    assert verify(folder)
