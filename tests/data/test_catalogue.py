"""Known sets: got from a server of the test's own, never from the network; damage is named."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from triform.data import catalogue
from triform.data.cache import sets_folder
from triform.data.catalogue import KnownFile, KnownSet, checked, folder_of, get, known_set
from triform.errors import ConfigError, DataError

PLAIN, ZIPPED = b"one\ntwo\n", b"un\ndeux\n"


class Silent(SimpleHTTPRequestHandler):
    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing on the terminal."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.en").write_bytes(PLAIN)
    (tmp_path / "web" / "a.fr.gz").write_bytes(gzip.compress(ZIPPED))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tmp_path / "web")))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def a_file(name: str, content: bytes, url: str = "") -> KnownFile:
    return KnownFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest(), url=url)


def a_set(address: str) -> KnownSet:
    files = (a_file("a.en", PLAIN, f"{address}/a.en"), a_file("a.fr", ZIPPED, f"{address}/a.fr.gz"))
    return KnownSet(name="pairs", about="", licence="", files=files)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_set_is_downloaded_unzipped_and_checked(address: str, tmp_path: Path) -> None:
    said: list[str] = []
    found = get(a_set(address), tmp_path / "sets", said.append)
    assert found["a.en"].read_bytes() == PLAIN
    assert found["a.fr"].read_bytes() == ZIPPED
    assert names(tmp_path / "sets" / "pairs") == ["a.en", "a.fr"]
    assert said == [f"pairs/a.en from {address}/a.en", f"pairs/a.fr from {address}/a.fr.gz"]


def test_a_file_address_does_as_well(address: str, tmp_path: Path) -> None:
    known = a_set((tmp_path / "web").as_uri())
    assert get(known, tmp_path / "sets", print)["a.fr"].read_bytes() == ZIPPED


def test_what_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    place = tmp_path / "pairs"
    place.mkdir()
    (place / "a.en").write_bytes(PLAIN)
    (place / "a.fr.gz").write_bytes(gzip.compress(ZIPPED, mtime=1))
    said: list[str] = []
    found = get(a_set("http://nowhere.invalid"), tmp_path, said.append)
    assert found == {"a.en": place / "a.en", "a.fr": place / "a.fr.gz"}
    assert not said


def test_what_was_altered_on_the_way_is_not_kept(address: str, tmp_path: Path) -> None:
    (tmp_path / "web" / "a.en").write_bytes(b"three\n")
    with pytest.raises(DataError, match=r"a\.en, as downloaded,: is not the a\.en that is known"):
        get(a_set(address), tmp_path / "sets", lambda line: None)
    assert not (tmp_path / "sets").exists()


def test_a_broken_archive_is_not_kept(address: str, tmp_path: Path) -> None:
    (tmp_path / "web" / "a.fr.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"a\.fr: cannot be downloaded from .*Not a gzipped file"):
        get(a_set(address), tmp_path / "sets", lambda line: None)
    assert names(tmp_path / "sets" / "pairs") == ["a.en"]


def test_offline_one_error_names_the_file_and_where_to_place_it(tmp_path: Path) -> None:
    known = a_set((tmp_path / "no web").as_uri())
    with pytest.raises(DataError) as caught:
        get(known, tmp_path / "sets", lambda line: None)
    assert str(caught.value).startswith(f"{tmp_path / 'sets' / 'pairs' / 'a.en'}: cannot be downloaded from file:")
    assert str(caught.value).endswith(f"place it there, then: triform data check pairs --data {tmp_path / 'sets'}")


def test_what_no_address_offers_is_explained(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"imdb/train\.jsonl: is missing; place it there .* made by hand .* 20240613"
    ):
        get(catalogue.IMDB, tmp_path, lambda line: None)


def test_a_missing_file_is_named_with_the_command_that_gets_it(tmp_path: Path) -> None:
    expected = rf"ted_en_fr/train\.en: is missing; get it with: triform data get ted_en_fr --data {tmp_path}"
    with pytest.raises(DataError, match=expected):
        checked(catalogue.TED_EN_FR, tmp_path)


def test_an_altered_file_is_named_with_both_checksums(tmp_path: Path) -> None:
    place = tmp_path / "pairs"
    place.mkdir()
    (place / "a.en").write_bytes(PLAIN)
    (place / "a.fr").write_bytes(b"changed\n")
    want, found = (hashlib.sha256(content).hexdigest() for content in (ZIPPED, b"changed\n"))
    with pytest.raises(DataError, match=f"a.fr: .* should be {want} and is {found}"):
        checked(a_set(""), tmp_path)


def test_the_unseen_speeches_are_made_from_the_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = b"0\tsaid before\n1\tsaid too\n", b"0\tsaid before\n2\tnever said\n1\tnew"
    unseen = b"2\tnever said\n1\tnew\n"
    files = (
        *(a_file("train_CLS.tsv", train, "x:"), a_file("test_CLS.tsv", test, "x:")),
        a_file(catalogue.UNSEEN, unseen),
    )
    known = KnownSet(name="speeches", about="", licence="", files=files)
    monkeypatch.setattr(catalogue, "SPEECHES", known)
    place = tmp_path / "speeches"
    place.mkdir()
    (place / "train_CLS.tsv.gz").write_bytes(gzip.compress(train))
    (place / "test_CLS.tsv").write_bytes(test)
    assert get(known, tmp_path, lambda line: None)[catalogue.UNSEEN].read_bytes() == unseen


def test_every_known_file_has_a_checksum_and_those_with_an_address_are_on_github() -> None:
    for known in catalogue.SETS.values():
        assert known.files
        assert all(len(file.sha256) == 64 and file.size for file in known.files)
        assert all(file.url.startswith(catalogue.RAW) for file in known.files if file.url)
        assert known.by_hand or all(file.url for file in known.files)


def test_sets_lie_in_the_users_cache_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path))
    assert folder_of(catalogue.IMDB) == sets_folder() / "imdb" == tmp_path / "sets" / "imdb"
    monkeypatch.delenv("TRIFORM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr("sys.platform", "linux")
    assert sets_folder() == Path("/somewhere/triform/sets")
    assert folder_of(catalogue.IMDB, "/here") == Path("/here/imdb")


def test_an_unknown_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown set 'mnist'; known are speeches, tinyshakespeare"):
        known_set("mnist")
