"""The token cache: made once, whole or not at all, mended when damaged, never in the way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from triform.data import cache as cache_module
from triform.data import files
from triform.data.cache import SEAL, TokenCache, cache_folder, prune
from triform.data.files import count_characters, digest
from triform.errors import CheckpointError, DataError


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, for which every file is large."""
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "SMALL", 1)
    monkeypatch.setattr(files, "SMALL", 1)
    return tmp_path / "cache"


class Maker:
    """Counts how often something was made."""

    def __init__(self, content: bytes = b"tokens" * 100) -> None:
        self.content, self.times = content, 0

    def __call__(self, folder: Path) -> None:
        self.times += 1
        (folder / "train.bin").write_bytes(self.content)
        (folder / "train.idx").write_bytes(b"index")


def text_file(path: Path, text: str = "some text") -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def cache_for(tmp_path: Path, *names: str) -> TokenCache:
    return TokenCache(names or [text_file(tmp_path / "a.txt")], tmp_path / "run" / "tokens", [])


def entries(base: Path) -> list[Path]:
    return sorted(base.iterdir())


def test_the_same_work_on_the_same_content_is_done_once(tmp_path: Path, base: Path) -> None:
    maker = Maker()
    place = cache_for(tmp_path).folder(["x", 1], maker)
    assert (place / "train.bin").read_bytes() == maker.content
    assert place.parent == base
    other_name = text_file(tmp_path / "b.txt")
    assert cache_for(tmp_path, other_name).folder(["x", 1], maker) == place
    assert maker.times == 1
    assert not (tmp_path / "run").exists()


def test_an_entry_that_can_only_be_read_serves_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    maker = Maker()
    place = cache_for(tmp_path).folder("x", maker)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "access", lambda path, how: False)
    assert cache_for(tmp_path).folder("x", maker) == place
    assert maker.times == 1


def test_whatever_decides_the_content_decides_the_entry(tmp_path: Path, base: Path) -> None:
    maker = Maker()
    csv, other = text_file(tmp_path / "a.csv"), text_file(tmp_path / "c.txt", "other text")
    for names, what in [(("a.txt",), 1), (("a.txt",), 2), ((csv,), 1), ((other,), 1), ((csv, other), 1)]:
        made = [text_file(tmp_path / "a.txt") if name == "a.txt" else name for name in names]
        cache_for(tmp_path, *made).folder(what, maker)
    assert maker.times == len(entries(base)) == 5


def test_a_newer_version_makes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker()
    cache_for(tmp_path).folder(1, maker)
    monkeypatch.setattr("triform.__version__", "99.0")
    cache_for(tmp_path).folder(1, maker)
    assert maker.times == 2


def damage_by_cutting(place: Path) -> None:
    (place / "train.bin").write_bytes(b"tokens")


def damage_one_bit(place: Path) -> None:
    raw = bytearray((place / "train.bin").read_bytes())
    raw[77] ^= 4
    (place / "train.bin").write_bytes(raw)


def damage_by_losing(place: Path) -> None:
    (place / "train.idx").unlink()


def damage_the_seal(place: Path) -> None:
    (place / SEAL).write_text("{", encoding="utf-8")


def damage_with_nonsense(place: Path) -> None:
    (place / SEAL).write_text(json.dumps({"files": ["train.bin"]}), encoding="utf-8")


def lose_the_seal(place: Path) -> None:
    (place / SEAL).unlink()


@pytest.mark.parametrize(
    "harm",
    [damage_by_cutting, damage_one_bit, damage_by_losing, damage_the_seal, damage_with_nonsense, lose_the_seal],
)
def test_a_damaged_entry_is_built_again_with_a_line_that_says_so(tmp_path: Path, harm: object) -> None:
    maker, first = Maker(), cache_for(tmp_path)
    place = first.folder(1, maker)
    harm(place)
    again = cache_for(tmp_path)
    assert again.folder(1, maker) == place
    assert (place / "train.bin").read_bytes() == maker.content
    assert maker.times == 2
    (line,) = again.notices
    assert line.startswith(f"{place}: this token cache is damaged (")
    assert line.endswith("); it is built again")
    assert not first.notices
    quiet = cache_for(tmp_path)
    quiet.folder(1, maker)
    assert (maker.times, quiet.notices) == (2, [])


def test_a_failure_while_making_leaves_nothing_behind(tmp_path: Path, base: Path) -> None:
    def failing(folder: Path) -> None:
        Maker()(folder)
        raise DataError("line 7 is wrong")

    with pytest.raises(DataError, match="line 7"):
        cache_for(tmp_path).folder(1, failing)
    assert entries(base) == []


def test_small_files_stay_in_the_runs_own_folder(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SMALL", 1000)
    cache = cache_for(tmp_path)
    assert cache.folder(1, Maker()) == tmp_path / "run" / "tokens"
    assert cache.recall(1, lambda: (1, "a")) == (1, "a")
    assert not base.exists()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, base: Path) -> None:
    base.write_text("a file in the way", encoding="utf-8")
    maker, cache = Maker(), cache_for(tmp_path)
    assert cache.folder(1, maker) == tmp_path / "run" / "tokens"
    assert (tmp_path / "run" / "tokens" / "train.bin").exists()
    cache.folder(2, maker)
    assert len(cache.notices) == 1  # said once
    assert f"the token cache {base} cannot be written" in cache.notices[0]


def test_a_run_folder_that_cannot_be_written_either_is_told(tmp_path: Path, base: Path) -> None:
    for blocked in (base, tmp_path / "run"):
        blocked.write_text("a file in the way", encoding="utf-8")
    with pytest.raises(CheckpointError, match="tokens cannot be written"):
        cache_for(tmp_path).folder(1, Maker())


def test_a_full_disk_under_the_cache_is_done_without(tmp_path: Path, base: Path) -> None:
    def make(folder: Path) -> None:
        if folder.parent == base:
            raise CheckpointError("tokens cannot be written: no space left on device")
        Maker()(folder)

    assert cache_for(tmp_path).folder(1, make) == tmp_path / "run" / "tokens"
    assert entries(base) == []


def test_a_user_without_a_home_needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache_module, "cache_folder", homeless)
    assert cache_for(tmp_path).folder(1, Maker()) == tmp_path / "run" / "tokens"


def test_of_two_that_make_the_same_the_first_is_kept(tmp_path: Path, base: Path) -> None:
    def slow(folder: Path) -> None:
        Maker(b"mine")(folder)
        cache_for(tmp_path).folder(1, Maker(b"theirs"))  # another process, meanwhile

    place = cache_for(tmp_path).folder(1, slow)
    assert (place / "train.bin").read_bytes() == b"theirs"
    assert entries(base) == [place]


def test_facts_are_found_once_and_come_back_as_they_were(tmp_path: Path) -> None:
    found = []

    def find() -> list[object]:
        found.append(1)
        return [["à", "b"], 12]

    for _ in range(2):
        assert cache_for(tmp_path).recall("survey", find) == [["à", "b"], 12]
    assert len(found) == 1


def test_the_entries_longest_unused_go_when_there_is_too_much(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "LIMIT", 2300)
    cache = cache_for(tmp_path)
    for age, what in [(50, "old"), (40, "used again"), (30, "newer")]:
        place = cache.folder(what, Maker())
        os.utime(place / SEAL, (time.time() - age,) * 2)
    cache.folder("used again", Maker())
    kept = {cache.folder(what, Maker()) for what in ("newer", "used again")}
    newest = cache.folder("newest", Maker())
    assert set(entries(base)) == kept | {newest}
    huge = cache.folder("huge", Maker(b"x" * 5000))
    assert entries(base) == [huge]  # what was just asked for stays, however large


def test_only_what_the_cache_made_is_ever_removed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "LIMIT", 0)
    abandoned, at_work = base / f"{'a' * 32}.xyz.part", base / f"{'b' * 32}.xyz.part"
    for folder in (base / "thesis", base / "film.part", abandoned, at_work):
        folder.mkdir(parents=True)
        (folder / "file").write_text("content", encoding="utf-8")
        os.utime(folder, (1, 1) if folder != at_work else None)
    (base / "letter.part").write_text("dear", encoding="utf-8")
    prune(base, keep=base)
    assert [entry.name for entry in entries(base)] == [at_work.name, "film.part", "letter.part", "thesis"]


def test_the_cache_lies_where_the_user_or_the_system_says(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    assert cache_folder() == base
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
    name = text_file(tmp_path / "é.txt", "déjà vu")
    first = digest(name)
    assert count_characters(name) == 7
    with monkeypatch.context() as patch:
        patch.setattr(files, "opened", lambda path: pytest.fail("read again"))
        assert digest(name) == first
        assert count_characters(name) == 7
    text_file(tmp_path / "é.txt", "déjà vu, encore")
    assert digest(name) != first
    assert count_characters(name) == 15
