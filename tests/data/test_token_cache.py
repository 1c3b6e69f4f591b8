"""The token cache: made once, whole or not at all, mended when damaged, never in the way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from triform.data import files
from triform.data import token_cache as cache_module
from triform.data.files import content_sha256, count_characters
from triform.data.token_cache import MANIFEST_FILE, TokenCache, prune
from triform.errors import CheckpointError, DataError
from triform.io.cache import cache_folder


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, for which every file is large."""
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "MIN_CACHED_BYTES", 1)
    monkeypatch.setattr(files, "MIN_CACHED_BYTES", 1)
    return tmp_path / "cache"


class CountingBuilder:
    """Counts how often something was made."""

    def __init__(self, content: bytes = b"tokens" * 100) -> None:
        self.content, self.n_calls = content, 0

    def __call__(self, folder: Path) -> None:
        self.n_calls += 1
        (folder / "train.bin").write_bytes(self.content)
        (folder / "train.idx").write_bytes(b"index")


def write_text_file(path: Path, text: str = "some text") -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def build_cache(tmp_path: Path, *names: str) -> TokenCache:
    return TokenCache(names or [write_text_file(tmp_path / "a.txt")], tmp_path / "run" / "tokens", [])


def list_entries(cache_root: Path) -> list[Path]:
    return sorted(cache_root.iterdir())


def test_the_same_work_on_the_same_content_is_done_once(tmp_path: Path, cache_root: Path) -> None:
    builder = CountingBuilder()
    entry = build_cache(tmp_path).get_or_build(["x", 1], builder)
    assert (entry / "train.bin").read_bytes() == builder.content
    assert entry.parent == cache_root
    other_name = write_text_file(tmp_path / "b.txt")
    assert build_cache(tmp_path, other_name).get_or_build(["x", 1], builder) == entry
    assert builder.n_calls == 1
    assert not (tmp_path / "run").exists()


def test_an_entry_that_can_only_be_read_serves_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    builder = CountingBuilder()
    entry = build_cache(tmp_path).get_or_build("x", builder)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert build_cache(tmp_path).get_or_build("x", builder) == entry
    assert builder.n_calls == 1


def test_whatever_decides_the_content_decides_the_entry(tmp_path: Path, cache_root: Path) -> None:
    builder = CountingBuilder()
    csv_file, other_file = write_text_file(tmp_path / "a.csv"), write_text_file(tmp_path / "c.txt", "other text")
    for names, key in [
        (("a.txt",), 1),
        (("a.txt",), 2),
        ((csv_file,), 1),
        ((other_file,), 1),
        ((csv_file, other_file), 1),
    ]:
        paths = [write_text_file(tmp_path / "a.txt") if name == "a.txt" else name for name in names]
        build_cache(tmp_path, *paths).get_or_build(key, builder)
    assert builder.n_calls == len(list_entries(cache_root)) == 5


def test_a_newer_version_makes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = CountingBuilder()
    build_cache(tmp_path).get_or_build(1, builder)
    monkeypatch.setattr("triform.__version__", "99.0")
    build_cache(tmp_path).get_or_build(1, builder)
    assert builder.n_calls == 2


def truncate_tokens(entry: Path) -> None:
    (entry / "train.bin").write_bytes(b"tokens")


def flip_one_bit(entry: Path) -> None:
    raw = bytearray((entry / "train.bin").read_bytes())
    raw[77] ^= 4
    (entry / "train.bin").write_bytes(raw)


def remove_index(entry: Path) -> None:
    (entry / "train.idx").unlink()


def truncate_manifest(entry: Path) -> None:
    (entry / MANIFEST_FILE).write_text("{", encoding="utf-8")


def write_wrong_manifest(entry: Path) -> None:
    (entry / MANIFEST_FILE).write_text(json.dumps({"files": ["train.bin"]}), encoding="utf-8")


def remove_manifest(entry: Path) -> None:
    (entry / MANIFEST_FILE).unlink()


@pytest.mark.parametrize(
    "corrupt_entry",
    [truncate_tokens, flip_one_bit, remove_index, truncate_manifest, write_wrong_manifest, remove_manifest],
)
def test_a_damaged_entry_is_built_again_with_a_line_that_says_so(tmp_path: Path, corrupt_entry: object) -> None:
    builder, first_cache = CountingBuilder(), build_cache(tmp_path)
    entry = first_cache.get_or_build(1, builder)
    corrupt_entry(entry)
    second_cache = build_cache(tmp_path)
    assert second_cache.get_or_build(1, builder) == entry
    assert (entry / "train.bin").read_bytes() == builder.content
    assert builder.n_calls == 2
    (line,) = second_cache.notices
    assert line.startswith(f"the token cache {entry} is damaged (")
    assert line.endswith(") and is built again")
    assert not first_cache.notices
    third_cache = build_cache(tmp_path)
    third_cache.get_or_build(1, builder)
    assert (builder.n_calls, third_cache.notices) == (2, [])


def test_a_failure_while_making_leaves_nothing_behind(tmp_path: Path, cache_root: Path) -> None:
    def failing_build(folder: Path) -> None:
        CountingBuilder()(folder)
        raise DataError("line 7 is wrong")

    with pytest.raises(DataError, match="line 7"):
        build_cache(tmp_path).get_or_build(1, failing_build)
    assert list_entries(cache_root) == []


def test_small_files_stay_in_the_runs_own_folder(
    tmp_path: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MIN_CACHED_BYTES", 1000)
    cache = build_cache(tmp_path)
    assert cache.get_or_build(1, CountingBuilder()) == tmp_path / "run" / "tokens"
    assert cache.get_or_compute(1, lambda: (1, "a")) == (1, "a")
    assert not cache_root.exists()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, cache_root: Path) -> None:
    cache_root.write_text("a file in the way", encoding="utf-8")
    builder, cache = CountingBuilder(), build_cache(tmp_path)
    assert cache.get_or_build(1, builder) == tmp_path / "run" / "tokens"
    assert (tmp_path / "run" / "tokens" / "train.bin").exists()
    cache.get_or_build(2, builder)
    assert len(cache.notices) == 1  # said once
    assert f"the token cache {cache_root} cannot be written" in cache.notices[0]


def test_a_run_folder_that_cannot_be_written_either_is_told(tmp_path: Path, cache_root: Path) -> None:
    for blocked in (cache_root, tmp_path / "run"):
        blocked.write_text("a file in the way", encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be written"):
        build_cache(tmp_path).get_or_build(1, CountingBuilder())


def test_a_full_disk_under_the_cache_is_done_without(tmp_path: Path, cache_root: Path) -> None:
    def build(folder: Path) -> None:
        if folder.parent == cache_root:
            raise CheckpointError("tokens cannot be written: no space left on device")
        CountingBuilder()(folder)

    assert build_cache(tmp_path).get_or_build(1, build) == tmp_path / "run" / "tokens"
    assert list_entries(cache_root) == []


def test_a_user_without_a_home_needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache_module, "cache_folder", raise_no_home)
    assert build_cache(tmp_path).get_or_build(1, CountingBuilder()) == tmp_path / "run" / "tokens"


def test_of_two_that_make_the_same_the_first_is_kept(tmp_path: Path, cache_root: Path) -> None:
    def slow_build(folder: Path) -> None:
        CountingBuilder(b"mine")(folder)
        build_cache(tmp_path).get_or_build(1, CountingBuilder(b"theirs"))  # another process, meanwhile

    entry = build_cache(tmp_path).get_or_build(1, slow_build)
    assert (entry / "train.bin").read_bytes() == b"theirs"
    assert list_entries(cache_root) == [entry]


def test_facts_are_found_once_and_come_back_as_they_were(tmp_path: Path) -> None:
    calls = []

    def compute() -> list[object]:
        calls.append(1)
        return [["à", "b"], 12]

    for _ in range(2):
        assert build_cache(tmp_path).get_or_compute("survey", compute) == [["à", "b"], 12]
    assert len(calls) == 1


def test_the_entries_longest_unused_go_when_there_is_too_much(
    tmp_path: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MAX_CACHE_BYTES", 2300)
    cache = build_cache(tmp_path)
    for age, key in [(50, "old"), (40, "used again"), (30, "newer")]:
        entry = cache.get_or_build(key, CountingBuilder())
        os.utime(entry / MANIFEST_FILE, (time.time() - age,) * 2)
    cache.get_or_build("used again", CountingBuilder())
    recent = {cache.get_or_build(key, CountingBuilder()) for key in ("newer", "used again")}
    newest = cache.get_or_build("newest", CountingBuilder())
    assert set(list_entries(cache_root)) == recent | {newest}
    huge = cache.get_or_build("huge", CountingBuilder(b"x" * 5000))
    assert list_entries(cache_root) == [huge]  # what was just asked for stays, however large


def test_only_what_the_cache_made_is_ever_removed(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_CACHE_BYTES", 0)
    abandoned, in_progress = cache_root / f"{'a' * 32}.xyz.part", cache_root / f"{'b' * 32}.xyz.part"
    for folder in (cache_root / "thesis", cache_root / "film.part", abandoned, in_progress):
        folder.mkdir(parents=True)
        (folder / "file").write_text("content", encoding="utf-8")
        os.utime(folder, (1, 1) if folder != in_progress else None)
    (cache_root / "letter.part").write_text("dear", encoding="utf-8")
    prune(cache_root, keep=cache_root)
    assert [entry.name for entry in list_entries(cache_root)] == [
        in_progress.name,
        "film.part",
        "letter.part",
        "thesis",
    ]


def test_the_cache_lies_where_the_user_or_the_system_says(
    monkeypatch: pytest.MonkeyPatch, cache_root: Path
) -> None:
    assert cache_folder() == cache_root
    monkeypatch.delenv("TRIFORM_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/triform/tokens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/triform/tokens"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library/Caches/triform/tokens"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_folder() == Path("/local/triform/tokens")


def test_a_large_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_text_file(tmp_path / "é.txt", "déjà vu")
    first_digest = content_sha256(name)
    assert count_characters(name) == 7
    with monkeypatch.context() as patch:
        patch.setattr(files, "open_bytes", lambda path: pytest.fail("read again"))
        assert content_sha256(name) == first_digest
        assert count_characters(name) == 7
    write_text_file(tmp_path / "é.txt", "déjà vu, encore")
    assert content_sha256(name) != first_digest
    assert count_characters(name) == 15
