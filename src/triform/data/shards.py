"""The format of token shards: a folder of token stores of equal size, a tokenizer and a manifest with checksums.

FOLDER/manifest.json names the tokenizer, the source files and every shard. FOLDER/tokenizer.json is the tokenizer.
A shard `shard-00000` is a token store (`triform.data.token_store`): shard-00000.bin and shard-00000.idx. While
shards are being written, progress.json takes the place of the manifest.
"""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from triform.config.merging import is_url
from triform.data.files import BLOCK_SIZE, kind_from_name
from triform.data.folders import SHARDS_MANIFEST
from triform.data.remote import read_remote
from triform.errors import DataError
from triform.io.files import write_bytes
from triform.text import Tokenizer

SHARD_FORMAT = 1
MANIFEST_FILE, PROGRESS_FILE, TOKENIZER_FILE = SHARDS_MANIFEST, "progress.json", "tokenizer.json"
SHARD_SUFFIXES = ("bin", "idx")
DEFAULT_SHARD_TOKENS = 1 << 26  # 128 MiB with up to 65,536 different tokens
TOKENIZE_COMMAND = "triform data tokenize FILES --tokenizer TOKENIZER --out FOLDER"


class Position(NamedTuple):
    """A place in the source files: the number of the file, of its chunk of text, and of the token in the chunk."""

    file: int = 0
    chunk: int = 0
    token: int = 0


START = Position()


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file whose text is in the shards."""

    path: str
    bytes: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class TokenShard:
    """One shard: its size, the checksums of its files, and where its text starts in the source files.

    A text that is split between shards counts in the shard in which it ends.
    """

    name: str
    tokens: int
    documents: int
    text_bytes: int
    sha256: dict[str, str]  # of the files of `SHARD_SUFFIXES`
    start: Position = START


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """The content of manifest.json."""

    format: int = SHARD_FORMAT
    tokenizer_sha256: str
    tokenizer_kind: str
    vocab_size: int
    shard_tokens: int  # of every shard but the last one
    requested_shards: int = 0  # the number of shards that the user asked for; 0 if it was their size
    text_column: str = ""
    end: Position = START  # where a further shard would start
    sources: tuple[SourceFile, ...] = ()
    shards: tuple[TokenShard, ...] = ()

    @cached_property
    def n_tokens(self) -> int:
        """The number of tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def n_documents(self) -> int:
        """The number of documents of all shards."""
        return sum(shard.documents for shard in self.shards)

    @property
    def text_bytes(self) -> int:
        """The size of the text of all shards as UTF-8."""
        return sum(shard.text_bytes for shard in self.shards)

    def write(self, path: Path) -> None:
        """Write the manifest, or the progress of a job, atomically."""
        totals = {"tokens": self.n_tokens, "documents": self.n_documents, "text_bytes": self.text_bytes}
        content = asdict(self)
        shards = content.pop("shards")
        write_bytes(path, msgspec.json.format(msgspec.json.encode(content | totals | {"shards": shards}), indent=1))


def is_shard_location(path: str) -> bool:
    """Return whether a path can be token shards: a folder, or an address that does not name a known format."""
    return kind_from_name(path) is None if is_url(path) else bool(path) and Path(path).is_dir()


def has_manifest(path: str) -> bool:
    """Return whether a path is a folder of token shards, or an address that can be one."""
    return is_shard_location(path) if is_url(path) else (Path(path) / MANIFEST_FILE).is_file()


def read_shard_file(location: str, name: str) -> bytes:
    """Return the content of a small file of a folder or an address.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: The file cannot be read.
    """
    if is_url(location):
        return read_remote(f"{location.rstrip('/')}/{name}")
    try:
        return (Path(location) / name).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}", path=Path(location) / name) from None


def read_manifest(location: str) -> ShardManifest:
    """Return the manifest of token shards.

    Raises:
        DataError: It is missing, incomplete, damaged, or of another format.
    """
    try:
        return parse_manifest(read_shard_file(location, MANIFEST_FILE), f"{location}/{MANIFEST_FILE}")
    except FileNotFoundError:
        pass
    try:
        read_shard_file(location, PROGRESS_FILE)
    except FileNotFoundError:
        raise DataError(
            f"no {MANIFEST_FILE}, so these are not token shards; write them with `{TOKENIZE_COMMAND}`",
            path=location,
        ) from None
    raise DataError(
        "the token shards are not complete; run their `triform data tokenize` command again, which continues",
        path=location,
    )


def parse_manifest(content: bytes, path: str) -> ShardManifest:
    """Return the manifest in a JSON text. `path` is its name in error messages."""
    try:
        version = msgspec.json.decode(content, type=dict[str, msgspec.Raw]).get("format", msgspec.Raw(b"null"))
        if bytes(version) != b"%d" % SHARD_FORMAT:
            raise DataError(
                f"the format of the token shards is {bytes(version).decode()[:20]}, and this Triform reads format "
                f"{SHARD_FORMAT}; write the shards again, or use another version of Triform",
                path=path,
            )
        manifest = msgspec.json.decode(content, type=ShardManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged_manifest_error(str(error), path) from None
    if any(Path(shard.name).name != shard.name for shard in manifest.shards):
        raise _damaged_manifest_error("a shard has the name of a path", path)
    return manifest


def _damaged_manifest_error(reason: str, path: str) -> DataError:
    return DataError(
        f"the manifest is damaged ({reason}); "
        "copy it again, or delete the folder and repeat `triform data tokenize`",
        path=path,
    )


def fingerprint_shards(location: str) -> str:
    """Return a short hash of the manifest, which has the checksums of all shards."""
    read_manifest(location)
    return hashlib.sha256(read_shard_file(location, MANIFEST_FILE)).hexdigest()[:16]


def digest_tokenizer(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 digest of a tokenizer without the tokens around a text, which shards do not have."""
    plain = copy(tokenizer)
    plain.special_tokens = tokenizer.special_tokens._replace(before=(), after=())
    return hashlib.sha256(plain.to_json().encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while raw := file.read(BLOCK_SIZE):
            hasher.update(raw)
    return hasher.hexdigest()


def find_damage(folder: Path, shard: TokenShard) -> str:
    """Return which file of a shard is missing or altered, and how; an empty string if the shard is intact."""
    for suffix in SHARD_SUFFIXES:
        name = f"{shard.name}.{suffix}"
        try:
            if file_sha256(folder / name) != shard.sha256.get(suffix):
                return f"{name} is damaged: its checksum is not the one in {MANIFEST_FILE}"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
    return ""
