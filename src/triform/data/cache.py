"""What was made of large text files, kept between runs: a text is tokenized once.

An entry is a folder named by a hash of everything that decides its content: the sha256 of the files, and what was
done with them. It is made aside and appears by rename, with a seal that knows the size and a checksum of each file,
so that damage is noticed and mended. Entries longest unused go when they exceed `LIMIT` together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import triform
from triform.data.files import BLOCK, SMALL, digest, size_of
from triform.errors import CheckpointError

FORMAT = 1  # part of every name: a new one leaves old entries unused
LIMIT = 10 << 30  # bytes of all entries
ABANDONED = 24 * 3600  # seconds after which something half made will not be finished
SEAL, FACT = "seal.json", "fact.json"
ENTRY = re.compile(r"[0-9a-f]{32}")
HALF_MADE = re.compile(rf"{ENTRY.pattern}\..*\.part")

Make = Callable[[Path], None]
Fact = TypeVar("Fact")


def cache_folder() -> Path:
    """For tokens: TRIFORM_CACHE, or where the system keeps such things."""
    given = os.environ.get("TRIFORM_CACHE")
    return Path(given) if given else _kept_by_the_system() / "tokens"


def sets_folder() -> Path:
    """For known sets that were downloaded: beside the tokens."""
    given = os.environ.get("TRIFORM_CACHE")
    return (Path(given) if given else _kept_by_the_system()) / "sets"


def _kept_by_the_system() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "triform"


class TokenCache:
    """What is made of these files: in the cache where they are large, else in the run's own folder.

    A file that lies in the run's own folder is gone with it, and what is made of it too. What the user should
    know is added to `notices`.
    """

    def __init__(self, files: Sequence[str], own: Path, notices: list[str]) -> None:
        self.files, self.own, self.notices = files, own, notices

    @property
    def large(self) -> bool:
        """Whether there is so much text that work on it is worth keeping."""
        outside = [name for name in self.files if Path(name).parent != self.own.parent]
        return sum(map(size_of, outside)) >= SMALL

    def recall(self, what: object, find: Callable[[], Fact]) -> Fact:
        """What `find` finds in the files, of plain values (no tuples); looked for once where they are large."""
        if not self.large:
            return find()

        def make(folder: Path) -> None:
            (folder / FACT).write_text(json.dumps(find()), encoding="utf-8")

        def read(folder: Path) -> Fact:
            fact: Fact = json.loads((folder / FACT).read_text(encoding="utf-8"))
            return fact

        return self.open(what, make, read)

    def open(self, what: object, make: Make, read: Callable[[Path], Fact]) -> Fact:
        """What `read` finds in the folder; an entry that it cannot read is damaged, and built again."""
        place = self.folder(what, make)
        try:
            return read(place)
        except (CheckpointError, OSError, ValueError, TypeError, EOFError, RecursionError) as error:
            if place == self.own:
                raise
            self._discard(place, str(error).partition("\n")[0])
        return read(self.folder(what, make))

    def folder(self, what: object, make: Make) -> Path:
        """A folder with what `make` writes into it; `what` (plain values) decides its content with the files."""
        place = self._place(what) if self.large else None
        if place is not None:
            try:
                return self._kept(place, make)
            except (OSError, CheckpointError) as error:  # no room, or no right to write: the run's own does as well
                said = f"the token cache {place.parent} cannot be written, so tokens are made again next time"
                reason = getattr(error, "strerror", None) or str(error)
                if not any(notice.startswith(said) for notice in self.notices):
                    self.notices.append(f"{said}: {reason}")
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            make(self.own)
        except OSError as error:
            raise CheckpointError(f"{self.own}: tokens cannot be written: {error.strerror or error}") from None
        return self.own

    def _place(self, what: object) -> Path | None:
        try:
            base = cache_folder()
        except RuntimeError:  # a user without a home
            return None
        files = [(digest(name), Path(name.removesuffix(".gz")).suffix) for name in self.files]
        facts = json.dumps([FORMAT, triform.__version__, files, what], sort_keys=True)
        return base / hashlib.sha256(facts.encode()).hexdigest()[:32]

    def _kept(self, place: Path, make: Make) -> Path:
        if place.is_dir() and not self._damaged(place):
            if os.access(place / SEAL, os.W_OK):  # a cache that can only be read serves as well
                os.utime(place / SEAL)  # its last use
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f"{place.name}.{os.getpid()}.", suffix=".part", dir=place.parent))
        try:
            make(aside)
            _seal(aside)
            self._put(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        prune(place.parent, keep=place)
        return place

    def _put(self, aside: Path, place: Path) -> None:
        """Under its name; another process may have been faster, and what it made is as good."""
        try:
            aside.rename(place)
        except OSError:
            if not place.is_dir() or self._damaged(place):
                aside.rename(place)

    def _damaged(self, place: Path) -> bool:
        """Whether an entry is not as it was sealed; it is then removed."""
        problem = damage(place)
        if problem:
            self._discard(place, problem)
        return bool(problem)

    def _discard(self, place: Path, problem: str) -> None:
        self.notices.append(f"{place}: this token cache is damaged ({problem}); it is built again")
        shutil.rmtree(place)


def _seal(folder: Path) -> None:
    files = {file.name: [file.stat().st_size, _checksum(file)] for file in sorted(folder.iterdir())}
    (folder / SEAL).write_text(json.dumps({"files": files}), encoding="utf-8")


def damage(folder: Path) -> str:
    """What is wrong with an entry; empty when nothing is."""
    try:
        files: dict[str, list[int]] = json.loads((folder / SEAL).read_text(encoding="utf-8"))["files"]
        for name, (size, checksum) in files.items():
            if (folder / name).stat().st_size != size:
                return f"{name} has {(folder / name).stat().st_size} bytes where {size} were written"
            if _checksum(folder / name) != checksum:
                return f"{name} has changed"
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror or error}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{SEAL} cannot be read"
    return ""


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while raw := file.read(BLOCK):
            found = zlib.crc32(raw, found)
    return found


def prune(base: Path, *, keep: Path) -> None:
    """Remove what was left half made, and the entries longest unused where all together exceed the limit."""
    entries: list[tuple[float, int, Path]] = []
    for entry in base.iterdir():
        with suppress(OSError):  # another process may just have removed it
            if HALF_MADE.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > ABANDONED:
                shutil.rmtree(entry)
            elif ENTRY.fullmatch(entry.name):
                size = sum(file.stat().st_size for file in entry.iterdir())
                entries.append(((entry / SEAL).stat().st_mtime, size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total > LIMIT and entry != keep:
            shutil.rmtree(entry, ignore_errors=True)
            total -= size
