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
from triform.data.catalogue import (
    DatasetFile,
    DatasetSpec,
    dataset_folder,
    download_dataset,
    get_dataset,
    verify_dataset,
)
from triform.errors import ConfigError, DataError
from triform.io.cache import datasets_folder

PLAIN_CONTENT, ZIPPED_CONTENT = b"one\ntwo\n", b"un\ndeux\n"


class SilentHandler(SimpleHTTPRequestHandler):
    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing on the terminal."""


@pytest.fixture
def server_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.en").write_bytes(PLAIN_CONTENT)
    (tmp_path / "web" / "a.fr.gz").write_bytes(gzip.compress(ZIPPED_CONTENT))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=str(tmp_path / "web")))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def build_file(name: str, content: bytes, url: str = "") -> DatasetFile:
    return DatasetFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest(), url=url)


def build_dataset(server_url: str) -> DatasetSpec:
    files = (
        build_file("a.en", PLAIN_CONTENT, f"{server_url}/a.en"),
        build_file("a.fr", ZIPPED_CONTENT, f"{server_url}/a.fr.gz"),
    )
    return DatasetSpec(name="pairs", description="", licence="", files=files)


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_set_is_downloaded_unzipped_and_checked(server_url: str, tmp_path: Path) -> None:
    messages: list[str] = []
    paths = download_dataset(build_dataset(server_url), tmp_path / "sets", messages.append)
    assert paths["a.en"].read_bytes() == PLAIN_CONTENT
    assert paths["a.fr"].read_bytes() == ZIPPED_CONTENT
    assert list_names(tmp_path / "sets" / "pairs") == ["a.en", "a.fr"]
    assert messages == [
        f"downloading pairs/a.en from {server_url}/a.en",
        f"downloading pairs/a.fr from {server_url}/a.fr.gz",
    ]


def test_a_file_address_does_as_well(server_url: str, tmp_path: Path) -> None:
    dataset = build_dataset((tmp_path / "web").as_uri())
    assert download_dataset(dataset, tmp_path / "sets", print)["a.fr"].read_bytes() == ZIPPED_CONTENT


def test_what_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    set_folder = tmp_path / "pairs"
    set_folder.mkdir()
    (set_folder / "a.en").write_bytes(PLAIN_CONTENT)
    (set_folder / "a.fr.gz").write_bytes(gzip.compress(ZIPPED_CONTENT, mtime=1))
    messages: list[str] = []
    paths = download_dataset(build_dataset("http://nowhere.invalid"), tmp_path, messages.append)
    assert paths == {"a.en": set_folder / "a.en", "a.fr": set_folder / "a.fr.gz"}
    assert not messages


def test_what_was_altered_on_the_way_is_not_kept(server_url: str, tmp_path: Path) -> None:
    (tmp_path / "web" / "a.en").write_bytes(b"three\n")
    with pytest.raises(DataError, match=r"a\.en \(downloaded\): this is not the expected a\.en"):
        download_dataset(build_dataset(server_url), tmp_path / "sets", lambda line: None)
    assert not (tmp_path / "sets").exists()


def test_a_broken_archive_is_not_kept(server_url: str, tmp_path: Path) -> None:
    (tmp_path / "web" / "a.fr.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"a\.fr: download from .* failed .*Not a gzipped file"):
        download_dataset(build_dataset(server_url), tmp_path / "sets", lambda line: None)
    assert list_names(tmp_path / "sets" / "pairs") == ["a.en"]


def test_offline_one_error_names_the_file_and_where_to_place_it(tmp_path: Path) -> None:
    dataset = build_dataset((tmp_path / "no web").as_uri())
    with pytest.raises(DataError) as caught:
        download_dataset(dataset, tmp_path / "sets", lambda line: None)
    assert str(caught.value).startswith(f"{tmp_path / 'sets' / 'pairs' / 'a.en'}: download from file:")
    assert str(caught.value).endswith(f"then run `triform data check pairs --data {tmp_path / 'sets'}`")


def test_what_no_address_offers_is_explained(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"imdb/train\.jsonl: the file is missing; copy it there .* not published.* 20240613"
    ):
        download_dataset(catalogue.IMDB, tmp_path, lambda line: None)


def test_a_missing_file_is_named_with_the_command_that_gets_it(tmp_path: Path) -> None:
    command = f"triform data get ted_en_fr --data {tmp_path}"
    expected = rf"ted_en_fr/train\.en: the file is missing; download it with `{command}`"
    with pytest.raises(DataError, match=expected):
        verify_dataset(catalogue.TED_EN_FR, tmp_path)


def test_an_altered_file_is_named_with_both_checksums(tmp_path: Path) -> None:
    set_folder = tmp_path / "pairs"
    set_folder.mkdir()
    (set_folder / "a.en").write_bytes(PLAIN_CONTENT)
    (set_folder / "a.fr").write_bytes(b"changed\n")
    expected, actual = (hashlib.sha256(content).hexdigest() for content in (ZIPPED_CONTENT, b"changed\n"))
    with pytest.raises(DataError, match=f"a.fr: .* its sha256 is {actual}, expected {expected}"):
        verify_dataset(build_dataset(""), tmp_path)


def test_the_unseen_speeches_are_made_from_the_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = b"0\tsaid before\n1\tsaid too\n", b"0\tsaid before\n2\tnever said\n1\tnew"
    unseen = b"2\tnever said\n1\tnew\n"
    files = (
        *(build_file("train_CLS.tsv", train, "x:"), build_file("test_CLS.tsv", test, "x:")),
        build_file(catalogue.UNSEEN_FILE, unseen),
    )
    dataset = DatasetSpec(name="speeches", description="", licence="", files=files)
    monkeypatch.setattr(catalogue, "SPEECHES", dataset)
    set_folder = tmp_path / "speeches"
    set_folder.mkdir()
    (set_folder / "train_CLS.tsv.gz").write_bytes(gzip.compress(train))
    (set_folder / "test_CLS.tsv").write_bytes(test)
    assert download_dataset(dataset, tmp_path, lambda line: None)[catalogue.UNSEEN_FILE].read_bytes() == unseen


def test_every_known_file_has_a_checksum_and_those_with_an_address_are_on_github() -> None:
    for dataset in catalogue.DATASETS.values():
        assert dataset.files
        assert all(len(file.sha256) == 64 and file.size for file in dataset.files)
        assert all(file.url.startswith(catalogue.GITHUB_RAW_URL) for file in dataset.files if file.url)
        assert dataset.manual_instructions or all(file.url for file in dataset.files)


def test_sets_lie_in_the_users_cache_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path))
    assert dataset_folder(catalogue.IMDB) == datasets_folder() / "imdb" == tmp_path / "sets" / "imdb"
    monkeypatch.delenv("TRIFORM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr("sys.platform", "linux")
    assert datasets_folder() == Path("/somewhere/triform/sets")
    assert dataset_folder(catalogue.IMDB, "/here") == Path("/here/imdb")


def test_an_unknown_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown dataset 'mnist'; choose from speeches, tinyshakespeare"):
        get_dataset("mnist")
