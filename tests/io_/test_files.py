"""Files and folders appear under their names only when they are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from triform.errors import CheckpointError
from triform.io.digests import atomic_recorded_files, verify_digests
from triform.io.files import atomic_file, atomic_files, atomic_folder, read_json


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_keep_their_old_content_until_all_new_ones_are_complete(tmp_path: Path) -> None:
    paths = tmp_path / "a.txt", tmp_path / "b.txt"
    paths[0].write_text("old")
    with atomic_files(*paths) as temporaries:
        for temporary in temporaries:
            temporary.write_text("new")
        assert paths[0].read_text() == "old"
        assert not paths[1].exists()
    assert [path.read_text() for path in paths] == ["new", "new"]
    assert names_in(tmp_path) == ["a.txt", "b.txt"]


def fail_while_writing(path: Path, *, folder: bool) -> None:
    with atomic_folder(path) if folder else atomic_file(path) as temporary:
        (temporary / "file" if folder else temporary).write_text("incomplete")
        raise KeyError


@pytest.mark.parametrize("folder", [False, True])
def test_an_error_leaves_nothing_behind(folder: bool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyError):
        fail_while_writing(tmp_path / ("folder" if folder else "a.txt"), folder=folder)
    assert names_in(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def write_while_another_finishes(path: Path) -> None:
    with atomic_folder(path) as slow:
        (slow / "file").write_text("slow")
        with atomic_folder(path) as fast:
            (fast / "file").write_text("fast")


def test_of_two_folders_of_one_name_the_first_complete_one_stays(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="entry"):
        write_while_another_finishes(tmp_path / "entry")
    assert (tmp_path / "entry" / "file").read_text() == "fast"
    assert names_in(tmp_path) == ["entry"]


def test_recorded_files_match_their_digests(tmp_path: Path) -> None:
    with atomic_recorded_files(tmp_path / "config.toml") as (temporary,):
        temporary.write_text("seed = 1\n")
    assert verify_digests(tmp_path)
    (tmp_path / "config.toml").write_text("seed = 2\n")
    with pytest.raises(CheckpointError, match=r"config\.toml"):
        verify_digests(tmp_path)


def test_a_json_object_with_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1, "y": {"z": 1, "z": 2}}')
    with pytest.raises(CheckpointError, match=r"a\.json: duplicate key 'z'$"):
        read_json(tmp_path / "a.json")
