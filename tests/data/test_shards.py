"""Token shards: the same for any number of processes, resumable, verified, and bad input named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import fsspec
import numpy as np
import pytest

from triform.config import DataConfig, TokenizerConfig
from triform.data import shard_reader, shard_writer
from triform.data.readers import fingerprint, read_chunks
from triform.data.shard_reader import ShardReader
from triform.data.shard_writer import TokenizeJob, write_shards
from triform.data.shards import find_damage, is_shard_location, read_manifest
from triform.errors import CheckpointError, ConfigError, DataError, TriformError
from triform.io.locks import folder_lock
from triform.text import Tokenizer, train_tokenizer

DOCUMENTS = [f"document {number} says " + "word " * (number % 17) for number in range(120)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=270), DOCUMENTS)


@pytest.fixture
def job(tmp_path: Path, tokenizer: Tokenizer) -> TokenizeJob:
    rows, text = tmp_path / "rows.jsonl", tmp_path / "text.txt"
    rows.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS), encoding="utf-8")
    text.write_text("\n".join(DOCUMENTS), encoding="utf-8")
    return TokenizeJob(files=[str(text), str(rows)], tokenizer=tokenizer, shard_tokens=500, workers=1)


def read_tokens(folder: Path | str) -> list[int]:
    reader = ShardReader(str(folder))
    return [token for index in range(len(reader.manifest.shards)) for token in reader.open(index).tokens.tolist()]


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_shards_hold_the_documents_with_an_end_token_after_each(job: TokenizeJob, tmp_path: Path) -> None:
    manifest = write_shards(job, tmp_path / "out")
    eos = job.tokenizer.special_tokens.eos
    text = [*job.tokenizer.encode("\n".join(DOCUMENTS)), eos]
    assert read_tokens(tmp_path / "out") == [
        *text,
        *chain.from_iterable([*job.tokenizer.encode(document), eos] for document in DOCUMENTS),
    ]
    assert [shard.tokens for shard in manifest.shards[:-1]] == [500] * (len(manifest.shards) - 1)
    assert manifest.n_documents == len(DOCUMENTS) + 1
    assert manifest.text_bytes == len("\n".join(DOCUMENTS)) + sum(map(len, DOCUMENTS))
    assert read_manifest(str(tmp_path / "out")) == manifest
    stored = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert stored["tokens"] == len(read_tokens(tmp_path / "out"))


def test_shards_of_a_single_text_are_the_tokens_that_training_reads(job: TokenizeJob, tmp_path: Path) -> None:
    write_shards(replace(job, files=job.files[:1]), tmp_path / "out")
    chunks = read_chunks(job.files[0], DataConfig())
    assert read_tokens(tmp_path / "out") == [
        token for chunk in chunks for token in job.tokenizer.encode(chunk.text)
    ]


def test_any_number_of_workers_writes_the_same_files(
    job: TokenizeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triform.data.encoded_text.MAX_CHUNK_CHARACTERS", 300)
    for workers in (1, 3):
        write_shards(replace(job, workers=workers), tmp_path / f"{workers}")
    assert read_files(tmp_path / "1") == read_files(tmp_path / "3")


def test_the_number_of_shards_can_be_given(job: TokenizeJob, tmp_path: Path) -> None:
    manifest = write_shards(replace(job, shard_tokens=0, n_shards=7), tmp_path / "out")
    assert len(manifest.shards) == 7
    assert len({shard.tokens for shard in manifest.shards[:-1]}) == 1
    with pytest.raises(ConfigError, match=r"--shards=9999999, but the text has only \d+ tokens"):
        write_shards(replace(job, shard_tokens=0, n_shards=9_999_999), tmp_path / "none")


@pytest.mark.parametrize("n_done", [0, 1, 4])
def test_an_interrupted_job_continues_with_the_same_command(
    n_done: int, job: TokenizeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(job, tmp_path / "whole")
    write_store = shard_writer.write_store
    written: list[str] = []

    def write_or_stop(path: Path, *arguments: object) -> None:
        if len(written) == n_done:
            raise KeyboardInterrupt
        written.append(path.name)
        write_store(path, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "write_store", write_or_stop)
        with pytest.raises(KeyboardInterrupt):
            write_shards(job, tmp_path / "out")
    with pytest.raises(DataError, match="not complete; run their `triform data tokenize` command again"):
        read_manifest(str(tmp_path / "out"))
    times = {name: (tmp_path / "out" / f"{name}.bin").stat().st_mtime_ns for name in written}
    write_shards(job, tmp_path / "out")
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert times == {name: (tmp_path / "out" / f"{name}.bin").stat().st_mtime_ns for name in written}


def test_a_damaged_shard_is_named_and_made_again_alone(job: TokenizeJob, tmp_path: Path) -> None:
    folder, lines = tmp_path / "out", list[str]()
    manifest = write_shards(job, folder)
    intact = read_files(folder)
    damaged = bytearray(intact["shard-00002.bin"])
    damaged[7] ^= 1
    (folder / "shard-00002.bin").write_bytes(damaged)
    (folder / "shard-00003.idx").unlink()
    assert [shard.name for shard in manifest.shards if find_damage(folder, shard)] == ["shard-00002", "shard-00003"]
    reader = ShardReader(str(folder))
    assert reader.open(1).n_tokens == 500
    with pytest.raises(DataError, match=r"shard-00002\.bin is damaged.*repeat the `triform data tokenize` command"):
        reader.open(2)
    write_shards(job, folder, lines.append)
    assert len(lines) == 2
    assert "shard-00002 is damaged or missing and is made again" in lines[0]
    assert read_files(folder) == intact


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"shard_tokens": 400}, "another --shard-tokens"),
        ({"shard_tokens": 0, "n_shards": 3}, "another --shards"),
        ({"text_column": "text"}, "another --text-column"),
        ({"files": ["builtin:stories"]}, "other files"),
    ],
)
def test_another_job_in_the_same_folder_is_refused(
    change: dict[str, object], difference: str, job: TokenizeJob, tmp_path: Path
) -> None:
    write_shards(job, tmp_path / "out")
    with pytest.raises(ConfigError, match=f"made with {difference}.*choose another --out"):
        write_shards(replace(job, **change), tmp_path / "out")  # type: ignore[arg-type]


def test_another_tokenizer_or_a_foreign_folder_is_refused(job: TokenizeJob, tmp_path: Path) -> None:
    write_shards(job, tmp_path / "out")
    other = train_tokenizer(TokenizerConfig(kind="char"), DOCUMENTS)
    with pytest.raises(ConfigError, match="made with another tokenizer"):
        write_shards(replace(job, tokenizer=other), tmp_path / "out")
    with pytest.raises(CheckpointError, match="exists and has no token shards; choose another --out"):
        write_shards(job, tmp_path)


def test_two_processes_do_not_write_to_one_folder(job: TokenizeJob, tmp_path: Path) -> None:
    with folder_lock(tmp_path / "out", "tokenizing"), pytest.raises(CheckpointError, match="is in use by process"):
        write_shards(job, tmp_path / "out")


def test_a_full_disk_is_one_line_and_the_job_continues(
    job: TokenizeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "write_store", fail)
        with pytest.raises(CheckpointError, match="cannot be written: No space left on device; free some space"):
            write_shards(job, tmp_path / "out")
    assert write_shards(job, tmp_path / "out").n_tokens


def test_files_without_text_are_named(job: TokenizeJob, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match=r"empty\.txt: the file is empty"):
        write_shards(replace(job, files=[str(tmp_path / "empty.txt")]), tmp_path / "out1")
    with pytest.raises(DataError, match=r"latin\.txt, line 1: the text is not UTF-8"):
        write_shards(replace(job, files=[job.files[0], str(tmp_path / "latin.txt")]), tmp_path / "out2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no manifest\.json, so these are not token shards; write them with `triform data tokenize"),
        ('{"format": 2}', r"manifest\.json: the format of the token shards is 2, and this Triform reads format 1"),
        ("{}", "the format of the token shards is null"),
        ("[]", "the manifest is damaged"),
        ("{", "the manifest is damaged .*; copy it again, or delete the folder and repeat `triform data tokenize`"),
        ('{"format": 1}', "the manifest is damaged"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_manifest(str(tmp_path))


def test_a_job_without_a_shard_does_not_block_its_folder(job: TokenizeJob, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("", encoding="utf-8")
    new_job = replace(job, files=[str(tmp_path / "new.txt")])
    with pytest.raises(DataError, match="the file is empty"):
        write_shards(new_job, tmp_path / "out")
    (tmp_path / "new.txt").write_text("\n".join(DOCUMENTS), encoding="utf-8")
    assert write_shards(new_job, tmp_path / "out").shards


def test_no_name_is_not_the_current_folder() -> None:
    assert is_shard_location(".")
    assert not is_shard_location("")  # a task without data uses its built-in set


def test_a_shard_cannot_lead_out_of_its_folder(job: TokenizeJob, tmp_path: Path) -> None:
    write_shards(job, tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    path.write_text(path.read_text(encoding="utf-8").replace("shard-00001", "../shard-00001"), encoding="utf-8")
    with pytest.raises(DataError, match="name of a path"):
        read_manifest(str(tmp_path / "out"))


@pytest.fixture
def address(job: TokenizeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of shards that the cache cannot hold all."""
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shard_reader, "MAX_OPEN_SHARDS", 3)
    write_shards(job, tmp_path / "out")
    memory = fsspec.filesystem("memory")
    for name, content in read_files(tmp_path / "out").items():
        memory.pipe_file(f"/shards/{name}", content)
    yield "memory://shards"
    memory.rm("/shards", recursive=True)


def test_shards_at_an_address_are_copied_to_a_bounded_cache(address: str, tmp_path: Path) -> None:
    assert read_tokens(address) == read_tokens(tmp_path / "out")
    assert fingerprint(address) == fingerprint(str(tmp_path / "out"))
    assert len(list((tmp_path / "cache").rglob("*.bin"))) == 3
    reader = ShardReader(address)
    reader.prefetch([0, 1])
    np.testing.assert_array_equal(reader.open(1).tokens, ShardReader(str(tmp_path / "out")).open(1).tokens)


def test_a_damaged_copy_is_made_again_and_a_damaged_original_is_named(address: str, tmp_path: Path) -> None:
    ShardReader(address).open(0)
    (copy,) = (tmp_path / "cache").rglob("shard-00000.bin")
    copy.write_bytes(bytes(1000))
    assert ShardReader(address).open(0).tokens.any()
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/shards/shard-00001.bin", b"damaged")
    memory.rm("/shards/shard-00002.idx")
    with pytest.raises(DataError, match=r"memory://shards: shard-00001\.bin is damaged"):
        ShardReader(address).open(1)
    with pytest.raises(DataError, match="memory://shards: shard-00002 is missing"):
        ShardReader(address).open(2)
    memory.pipe_file("/shards/tokenizer.json", b"{}")
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        _ = ShardReader(address).tokenizer
    with pytest.raises(TriformError, match=r"memory://nothing: no manifest\.json"):
        ShardReader("memory://nothing")
