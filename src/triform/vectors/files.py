"""Vectors in files: word2vec's text and binary formats, as gensim and others write them, and safetensors.

The text format is a line "WORDS WIDTH", then a line a word; without the first line it is GloVe's. The binary one
has the same first line, then each word, a space, and its numbers as little-endian float32. In safetensors the
tensor `vectors` holds the numbers and `words` the words as UTF-8, a line each. Words stand in order of frequency.
"""

from __future__ import annotations

import codecs
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save_file

from triform.data.files import BLOCK, MAX_LINE_BYTES, limited_lines, opened
from triform.errors import CheckpointError, ConfigError, DataError
from triform.io.files import part_path

Matrix = NDArray[np.float32]
FORMAT = "1"  # of our safetensors; another number in a file means that it is newer than this code
READS = {".txt": "text", ".vec": "text", ".bin": "binary", ".safetensors": "safetensors"}
WRITES = {ending: kind for ending, kind in READS.items() if ending != ".vec"}
FLOATS = ("F64", "F32", "F16", "BF16")  # what safetensors call the numbers that are read
PARTS = {"text": " \n", "binary": " \n", "safetensors": "\n"}  # what parts words in a file: it can be in none
MAX_COUNT_DIGITS, MAX_WIDTH_DIGITS = 12, 6  # of the number of words in a file, and of numbers in a vector
MAX_WORD_BYTES = 1 << 16
SHORTEST_NUMBER = 2  # bytes of a number in a text file, with the space before it


class Content(NamedTuple):
    """What a file holds: words, their vectors as rows, and how they were made, where the file says so."""

    words: list[str]
    matrix: Matrix  # (words, width)
    about: dict[str, Any]


def kind_of(path: Path, known: dict[str, str]) -> str:
    """The format, told by the name's ending."""
    name = path.name.lower()
    bare = name.removesuffix(".gz") if known is READS else name
    ending = Path(bare).suffix
    if ending in known and not (ending == ".safetensors" and bare != name):
        return known[ending]
    says = f"ends in {ending!r}" if ending else "has no ending"
    hint = " (of gensim's own files: save them there with wv.save_word2vec_format)" if known is READS else ""
    raise ConfigError(
        f"{path}: {says}, which does not say how vectors are kept; known are {', '.join(known)}{hint}"
    )


def read(path: Path) -> Content:
    """The vectors of a file; a DataError that says what is wrong with it."""
    found = {"text": _read_text, "binary": _read_binary, "safetensors": _read_tensors}[kind_of(path, READS)](path)
    if not found.words or not found.matrix.shape[1]:
        raise DataError("holds no vectors", path=path)
    if "" in found.words:
        raise DataError(f"word {found.words.index('') + 1:,} is empty; make the file again", path=path)
    finite = np.isfinite(found.matrix).all(axis=1)
    if not finite.all():
        word = found.words[int(np.argmin(finite))]
        raise DataError(f"the vector of {word!r} has a number that is not finite; make the file again", path=path)
    return _each_word_once(found)


def _each_word_once(found: Content) -> Content:
    """The first vector of a word counts, as for gensim."""
    places = {word: place for place, word in reversed(list(enumerate(found.words)))}
    if len(places) == len(found.words):
        return found
    kept = sorted(places.values())
    return Content([found.words[place] for place in kept], found.matrix[kept], found.about)


def width_of(path: Path) -> int:
    """How many numbers a vector of this file has; only its beginning is read."""
    kind = kind_of(path, READS)
    if kind == "safetensors":
        with _tensors(path) as file:
            return int(file.get_slice("vectors").get_shape()[1])
    with opened(str(path)) as file:
        return _sizes(_first_line(file), path, headless=kind == "text")[1]


def _first_line(file: BinaryIO) -> bytes:
    """Without a byte order mark."""
    return file.readline(MAX_LINE_BYTES).removeprefix(codecs.BOM_UTF8)


def _sizes(line: bytes, path: Path, *, headless: bool = False) -> tuple[int, int]:
    """How many words and numbers the first line promises; GloVe's files have none, and promise -1 words."""
    parts = line.split()
    if len(parts) == 2 and all(part.isdigit() for part in parts):
        if len(parts[0]) > MAX_COUNT_DIGITS or len(parts[1]) > MAX_WIDTH_DIGITS:
            raise DataError("its first line promises more words or numbers than any file holds", path=path)
        return int(parts[0]), int(parts[1])
    if headless and len(parts) > 2 and all(map(_is_number, parts[1:])):
        return -1, len(parts) - 1
    raise DataError("is not word vectors: its first line should be how many words, and how many numbers", path=path)


def _is_number(part: bytes) -> bool:
    try:
        return math.isfinite(float(part))
    except ValueError:
        return False


def _read_text(path: Path) -> Content:
    words: list[str] = []
    rows: list[Matrix] = []
    with opened(str(path)) as file, warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # how numpy says that a number is none
        first = _first_line(file)
        n, width = _sizes(first, path, headless=True)
        _check_size(path, n * width * SHORTEST_NUMBER)
        promised = n >= 0
        lines = ((number + 1, line) for number, line in limited_lines(file, str(path)))
        for number, line in lines if promised else chain([(1, first)], lines):
            if len(words) == n:
                _check_nothing_left(path, n, chain([line], (other for _, other in lines)))
                break
            word, _, numbers = line.rstrip().partition(b" ")
            try:
                row = np.fromstring(numbers.decode("ascii"), np.float32, sep=" ")
                words.append(word.decode())
            except (ValueError, DeprecationWarning):
                raise DataError("is not a word and its numbers", path=path, line=number) from None
            if len(row) != width:
                raise DataError(f"has {len(row)} numbers instead of {width}", path=path, line=number)
            rows.append(row)
    _check_whole(path, len(words), n)
    return Content(words, np.stack(rows) if rows else np.empty((0, width), np.float32), {})


def _check_nothing_left(path: Path, n: int, lines: Iterable[bytes]) -> None:
    """After the words that the first line promises there may be blank lines, no more words."""
    if left := sum(bool(line.strip()) for line in lines):
        raise DataError(f"its first line promises {n:,} words; lines left after them: {left:,}", path=path)


def _read_binary(path: Path) -> Content:
    with opened(str(path)) as file:
        n, width = _sizes(file.readline(MAX_LINE_BYTES), path)
        _check_size(path, n * width * 4)
        words, rows, rest = _binary_rows(file, path, n, width)
    _check_whole(path, len(words), n)
    if rest:
        raise DataError(
            f"{rest:,} bytes follow the last word: it is damaged, or text that should end in .txt", path=path
        )
    return Content(words, np.stack(rows).astype(np.float32) if rows else np.empty((0, width), np.float32), {})


def _binary_rows(file: BinaryIO, path: Path, n: int, width: int) -> tuple[list[str], list[Matrix], int]:
    """At most n words with their vectors, and how many bytes follow them; read a little at a time."""
    words: list[str] = []
    rows: list[Matrix] = []
    held, at, size = b"", 0, 4 * width
    while len(words) < n:
        space = held.find(b" ", at)
        if space < 0 or space + 1 + size > len(held):
            if space < 0 and len(held) - at > MAX_WORD_BYTES:
                raise DataError(f"word {len(words) + 1:,} does not end: the file is damaged", path=path)
            more = file.read(max(BLOCK, len(held)))
            if not more:
                break
            held, at = held[at:] + more, 0
            continue
        try:
            words.append(held[at:space].lstrip(b"\n").decode())
        except UnicodeDecodeError:
            raise DataError(f"word {len(words) + 1} is not UTF-8: the file is damaged", path=path) from None
        rows.append(np.frombuffer(held, "<f4", width, space + 1))
        at = space + 1 + size
    rest = len(held[at:].strip()) if len(words) == n else 0
    while more := file.read(BLOCK):
        rest += len(more.strip())
    return words, rows, rest


def _check_size(path: Path, least: int) -> None:
    """Before anything is read: a file cannot hold what its first line promises in fewer bytes."""
    size = path.stat().st_size
    if not path.name.lower().endswith(".gz") and size < least:
        raise DataError(f"was cut short: {size:,} bytes of at least {least:,}; copy it again", path=path)


def _check_whole(path: Path, found: int, promised: int) -> None:
    if found < promised:
        raise DataError(f"was cut short: {found:,} of {promised:,} words; copy it again", path=path)


@contextmanager
def _tensors(path: Path) -> Iterator[Any]:
    with opened(str(path)):
        pass  # what is no file, or may not be read, is told as of any other
    try:
        with safe_open(path, framework="numpy") as file:
            if not {"vectors", "words"} <= set(file.keys()) or len(file.get_slice("vectors").get_shape()) != 2:
                raise DataError("is not word vectors: it has no tensors named vectors and words", path=path)
            yield file
    except (OSError, SafetensorError) as error:
        raise DataError(f"is not a whole safetensors file ({error})", path=path) from None


def _read_tensors(path: Path) -> Content:
    with _tensors(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("format", FORMAT) != FORMAT:
            raise DataError(f"format {metadata['format']} is newer than this Triform reads ({FORMAT})", path=path)
        kinds = [file.get_slice(name).get_dtype() for name in ("vectors", "words")]
        if kinds[0] not in FLOATS or kinds[1] != "U8":
            raise DataError(
                f"its vectors are {kinds[0]} and its words {kinds[1]}, not one of {', '.join(FLOATS)} and U8",
                path=path,
            )
        matrix = _halves(path) if kinds[0] == "BF16" else singles(file.get_tensor("vectors"))
        try:
            words = file.get_tensor("words").tobytes().decode().split("\n")
            about = json.loads(metadata.get("about", "{}"))
        except (ValueError, RecursionError):
            raise DataError("is damaged: its words cannot be read", path=path) from None
    if len(words) != len(matrix):
        raise DataError(f"is damaged: {len(words):,} words and {len(matrix):,} vectors", path=path)
    return Content(words, matrix, about)


def singles(numbers: ArrayLike) -> Matrix:
    """As float32; what is too large for it becomes infinite, without a warning."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(numbers, np.float32)


def _halves(path: Path) -> Matrix:
    """Vectors of bfloat16, which numpy does not know: the upper halves of float32."""
    kept = dict(deserialize(path.read_bytes()))["vectors"]  # type: ignore[no-untyped-call]
    upper = np.frombuffer(kept["data"], "<u2").astype(np.uint32)
    return (upper << 16).view(np.float32).reshape(kept["shape"])


def check_writable(path: Path) -> None:
    """Before any work: whether a file of this name can be written here."""
    kind_of(path, WRITES)
    try:
        if path.is_dir():
            raise OSError("it is a folder")
        folder = next(each for each in path.parents if each.exists())
        probe = folder / part_path(path).name
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})")


def _check_words(path: Path, words: Sequence[str], kind: str) -> None:
    """What is written must be read back as it was."""
    for word in words:
        if not word or any(part in word for part in PARTS[kind]):
            hint = "; .safetensors can" if word and "\n" not in word else ""
            raise ConfigError(f"{path}: cannot hold the word {word!r}{hint}")


def write(path: Path, words: Sequence[str], matrix: Matrix, about: dict[str, Any]) -> None:
    """Write the format that the ending says; the file appears whole or not at all."""
    check_writable(path)
    kind = kind_of(path, WRITES)
    _check_words(path, words, kind)
    aside = part_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "safetensors":
            letters = np.frombuffer("\n".join(words).encode(), np.uint8)
            save_file({"vectors": matrix, "words": letters}, aside, {"format": FORMAT, "about": json.dumps(about)})
            aside.chmod(0o644)  # the library writes for the owner alone
        else:
            with aside.open("wb") as file:
                file.write(f"{len(words)} {matrix.shape[1]}\n".encode())
                for word, row in zip(words, matrix, strict=True):
                    file.write(word.encode() + b" ")
                    file.write((" ".join(row.astype(str)) + "\n").encode() if kind == "text" else row.tobytes())
        aside.replace(path)
    except (OSError, SafetensorError, UnicodeEncodeError) as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise _unwritable(path, error) from None
