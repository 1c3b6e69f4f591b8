"""Seals: a changed file is named, and a kill between any two writes leaves a folder that verifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from triform.errors import CheckpointError
from triform.io import digests
from triform.io.digests import read_digests, record_digests, replace_files, verify_digests
from triform.io.files import temporary_path
from triform.io.run_layout import DIGESTS_FILE


class Killed(BaseException):
    """In place of a SIGKILL: nothing is tidied up that a kill would leave."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("a = 1\n")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"old")
    (tmp_path / "metrics.jsonl").write_text("not sealed, for it grows")
    record_digests(tmp_path)
    return tmp_path


def replace_file(folder: Path, name: str, content: bytes) -> None:
    temporary = temporary_path(folder / name)
    temporary.write_bytes(content)
    replace_files({temporary: folder / name})


def test_what_is_as_it_was_saved_verifies(folder: Path) -> None:
    assert verify_digests(folder)
    (folder / "metrics.jsonl").write_text("longer")
    replace_file(folder, "model.safetensors", b"new")
    assert verify_digests(folder)
    assert read_digests(folder) == digests.compute_digests(folder, digests.RUN_FILES)


@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "model.safetensors", "tokenizer.source.json"])
def test_a_file_that_changed_or_was_added_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"other")
    with pytest.raises(CheckpointError) as caught:
        verify_digests(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / name} does not match digests.json: it is damaged")
    assert "--no-verify (in Python verify=False)" in message
    assert ("if you edited it on purpose" in message) == (name == "config.toml")


def test_a_folder_without_digests_is_an_older_one_and_gets_them_with_the_next_write(folder: Path) -> None:
    (folder / DIGESTS_FILE).unlink()
    assert not verify_digests(folder)
    replace_file(folder, "model.safetensors", b"new")
    assert verify_digests(folder)
    assert set(read_digests(folder) or ()) == {"config.toml", "tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "x"}', '{"format": 1}', '{"format": 1, "sha256": []}', "[" * 9_000, "\xff",
     '{"format": 1, "sha256": {"config.toml": "x"}}'],
)  # fmt: skip
def test_malformed_digests_are_one_line(folder: Path, text: str) -> None:
    (folder / DIGESTS_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"digests\.json is damaged"):
        verify_digests(folder)


def test_digests_of_a_newer_version_ask_for_an_upgrade(folder: Path) -> None:
    (folder / DIGESTS_FILE).write_text(json.dumps({"format": 2, "blake3": {}}))
    with pytest.raises(CheckpointError, match="written by a newer Triform"):
        verify_digests(folder)


def kill_before_rename(rename_number: int) -> Callable[[Path, Path], Path]:
    """`Path.replace` that ends the process before the rename numbered so."""
    calls = iter(range(rename_number + 1))
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if next(calls) == rename_number:
            raise Killed
        return original(self, target)

    return replace


@pytest.mark.parametrize("rename_number", range(4))
@pytest.mark.parametrize("already_recorded", [True, False])
def test_killed_between_any_two_renames_the_folder_verifies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rename_number: int, already_recorded: bool
) -> None:
    if not already_recorded:
        (folder / "model.safetensors").unlink()
        record_digests(folder)
    renames = {temporary_path(folder / name): folder / name for name in ("model.safetensors", "config.toml")}
    for temporary in renames:
        temporary.write_bytes(b"new")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill_before_rename(rename_number))
        with pytest.raises(Killed):
            replace_files(renames)
    assert verify_digests(folder)
    replace_file(folder, "model.safetensors", b"newest")
    assert verify_digests(folder)
    assert len((read_digests(folder) or {})["model.safetensors"]) == 1


def test_a_reader_that_meets_a_training_process_looks_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = digests.file_digest, []

    def replace_during_read(path: Path) -> str:
        calls.append(path)
        if len(calls) == 1:
            monkeypatch.setattr(digests, "file_digest", original)
            replace_file(folder, "model.safetensors", b"new")
            monkeypatch.setattr(digests, "file_digest", replace_during_read)
        return original(path)

    monkeypatch.setattr(digests, "file_digest", replace_during_read)
    assert verify_digests(folder)
