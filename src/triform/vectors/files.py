"""Read and write word vectors: the text and binary formats of word2vec, and safetensors.

The text format has a line "WORDS WIDTH", then one line per word; without the first line it is the format of GloVe.
The binary format has the same first line, then each word, a space, and its numbers as little-endian float32. In
safetensors the tensor `vectors` holds the numbers and `words` the words as UTF-8, one per line. Words are sorted by
frequency.
"""

from __future__ import annotations

import codecs
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save_file

from triform.data.files import BLOCK_SIZE, MAX_LINE_BYTES, iter_byte_lines, open_bytes
from triform.errors import CheckpointError, ConfigError, DataError
from triform.io.files import atomic_file, temporary_path

Matrix = NDArray[np.float32]
FORMAT_VERSION = "1"  # of Triform's safetensors files; another version is newer than this code
READ_FORMATS = {".txt": "text", ".vec": "text", ".bin": "binary", ".safetensors": "safetensors"}
WRITE_FORMATS = {suffix: kind for suffix, kind in READ_FORMATS.items() if suffix != ".vec"}
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")  # dtypes of safetensors that can be read
WORD_SEPARATORS = {"text": " \n", "binary": " \n", "safetensors": "\n"}  # characters that no word may contain
MAX_COUNT_DIGITS, MAX_WIDTH_DIGITS = 12, 6  # of the number of words, and of the width of a vector
MAX_WORD_BYTES = 1 << 16
MIN_NUMBER_BYTES = 2  # of a number in a text file: a digit and a space


class VectorFile(NamedTuple):
    """The contents of a file: words, their vectors, and metadata if the file has any."""

    words: list[str]
    matrix: Matrix  # (words, width)
    metadata: dict[str, Any]


def detect_format(path: Path, formats: dict[str, str]) -> str:
    """Return the format of a path by its suffix.

    Args:
        path: The file.
        formats: The format of each suffix.

    Returns:
        "text", "binary" or "safetensors".

    Raises:
        ConfigError: The suffix is not known.
    """
    name = path.name.lower()
    uncompressed_name = name.removesuffix(".gz") if formats is READ_FORMATS else name
    suffix = Path(uncompressed_name).suffix
    if suffix in formats and not (suffix == ".safetensors" and uncompressed_name != name):
        return formats[suffix]
    problem = f"unknown file format {suffix!r}" if suffix else "the file name has no suffix"
    hint = "; convert gensim's own files with wv.save_word2vec_format" if formats is READ_FORMATS else ""
    raise ConfigError(f"{path}: {problem}; supported formats are {', '.join(formats)}{hint}")


def read_vectors(path: Path) -> VectorFile:
    """Read the vectors of a file.

    Args:
        path: A file in one of the formats of this module.

    Returns:
        The words, their vectors and the metadata. If a word occurs twice, its first vector counts.

    Raises:
        DataError: The file is missing or damaged.
        ConfigError: The suffix is not known.
    """
    content = {"text": _read_text, "binary": _read_binary, "safetensors": _read_safetensors}[
        detect_format(path, READ_FORMATS)
    ](path)
    if not content.words or not content.matrix.shape[1]:
        raise DataError("the file contains no vectors", path=path)
    if "" in content.words:
        raise DataError(f"word {content.words.index('') + 1:,} is empty; create the file again", path=path)
    finite = np.isfinite(content.matrix).all(axis=1)
    if not finite.all():
        word = content.words[int(np.argmin(finite))]
        raise DataError(f"the vector of {word!r} has a number that is not finite; create the file again", path=path)
    return _drop_duplicates(content)


def _drop_duplicates(content: VectorFile) -> VectorFile:
    """Keep the first vector of each word, as gensim does."""
    first_index = {word: index for index, word in reversed(list(enumerate(content.words)))}
    if len(first_index) == len(content.words):
        return content
    indices = sorted(first_index.values())
    return VectorFile([content.words[index] for index in indices], content.matrix[indices], content.metadata)


def read_width(path: Path) -> int:
    """Return the width of the vectors of a file. Only the start of the file is read.

    Args:
        path: A file in one of the formats of this module.

    Returns:
        The number of dimensions.

    Raises:
        DataError: The file is missing or damaged.
    """
    kind = detect_format(path, READ_FORMATS)
    if kind == "safetensors":
        with _open_safetensors(path) as file:
            return int(file.get_slice("vectors").get_shape()[1])
    with open_bytes(str(path)) as file:
        return _parse_header(_first_line(file), path, header_optional=kind == "text")[1]


def _first_line(file: BinaryIO) -> bytes:
    """Read the first line, without a byte order mark."""
    return file.readline(MAX_LINE_BYTES).removeprefix(codecs.BOM_UTF8)


def _parse_header(line: bytes, path: Path, *, header_optional: bool = False) -> tuple[int, int]:
    """Return the number of words and the width from the first line; -1 words if there is no header (GloVe)."""
    parts = line.split()
    if len(parts) == 2 and all(part.isdigit() for part in parts):
        if len(parts[0]) > MAX_COUNT_DIGITS or len(parts[1]) > MAX_WIDTH_DIGITS:
            raise DataError("the first line declares more words or numbers than any file can contain", path=path)
        return int(parts[0]), int(parts[1])
    if header_optional and len(parts) > 2 and all(map(_is_number, parts[1:])):
        return -1, len(parts) - 1
    raise DataError(
        "these are not word vectors: the first line must be the number of words and the width", path=path
    )


def _is_number(part: bytes) -> bool:
    try:
        return math.isfinite(float(part))
    except ValueError:
        return False


def _read_text(path: Path) -> VectorFile:
    words: list[str] = []
    rows: list[Matrix] = []
    with open_bytes(str(path)) as file, warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy warns about text that is not a number
        first_line = _first_line(file)
        n_words, width = _parse_header(first_line, path, header_optional=True)
        _check_file_size(path, n_words * width * MIN_NUMBER_BYTES)
        has_header = n_words >= 0
        lines = ((line_number + 1, line) for line_number, line in iter_byte_lines(file, str(path)))
        for line_number, line in lines if has_header else chain([(1, first_line)], lines):
            if len(words) == n_words:
                _check_no_extra_lines(path, n_words, chain([line], (other for _, other in lines)))
                break
            word, _, numbers = line.rstrip().partition(b" ")
            try:
                row = np.fromstring(numbers.decode("ascii"), np.float32, sep=" ")
                words.append(word.decode())
            except (ValueError, DeprecationWarning):
                raise DataError("expected a word and its numbers", path=path, line=line_number) from None
            if len(row) != width:
                raise DataError(f"expected {width} numbers, found {len(row)}", path=path, line=line_number)
            rows.append(row)
    _check_word_count(path, len(words), n_words)
    return VectorFile(words, np.stack(rows) if rows else np.empty((0, width), np.float32), {})


def _check_no_extra_lines(path: Path, n_words: int, lines: Iterable[bytes]) -> None:
    """Raise a DataError if more than blank lines follow the last word."""
    if n_extra := sum(bool(line.strip()) for line in lines):
        raise DataError(
            f"the first line declares {n_words:,} words, but {n_extra:,} more lines follow them", path=path
        )


def _read_binary(path: Path) -> VectorFile:
    with open_bytes(str(path)) as file:
        n_words, width = _parse_header(file.readline(MAX_LINE_BYTES), path)
        _check_file_size(path, n_words * width * 4)
        words, rows, n_trailing = _read_binary_rows(file, path, n_words, width)
    _check_word_count(path, len(words), n_words)
    if n_trailing:
        raise DataError(
            f"{n_trailing:,} bytes follow the last word: the file is damaged, or is text and should be named .txt",
            path=path,
        )
    return VectorFile(words, np.stack(rows).astype(np.float32) if rows else np.empty((0, width), np.float32), {})


def _read_binary_rows(file: BinaryIO, path: Path, n_words: int, width: int) -> tuple[list[str], list[Matrix], int]:
    """Read `n_words` words with their vectors, block by block; also return the number of bytes after them."""
    words: list[str] = []
    rows: list[Matrix] = []
    buffer, position, size = b"", 0, 4 * width
    while len(words) < n_words:
        space = buffer.find(b" ", position)
        if space < 0 or space + 1 + size > len(buffer):
            if space < 0 and len(buffer) - position > MAX_WORD_BYTES:
                raise DataError(f"the end of word {len(words) + 1:,} is missing: the file is damaged", path=path)
            block = file.read(max(BLOCK_SIZE, len(buffer)))
            if not block:
                break
            buffer, position = buffer[position:] + block, 0
            continue
        try:
            words.append(buffer[position:space].lstrip(b"\n").decode())
        except UnicodeDecodeError:
            raise DataError(f"word {len(words) + 1} is not UTF-8: the file is damaged", path=path) from None
        rows.append(np.frombuffer(buffer, "<f4", width, space + 1))
        position = space + 1 + size
    n_trailing = len(buffer[position:].strip()) if len(words) == n_words else 0
    while block := file.read(BLOCK_SIZE):
        n_trailing += len(block.strip())
    return words, rows, n_trailing


def _check_file_size(path: Path, min_bytes: int) -> None:
    """Raise a DataError if a file is smaller than its first line implies."""
    size = path.stat().st_size
    if not path.name.lower().endswith(".gz") and size < min_bytes:
        raise DataError(
            f"the file is incomplete: {size:,} of at least {min_bytes:,} bytes; copy it again", path=path
        )


def _check_word_count(path: Path, n_read: int, n_expected: int) -> None:
    if n_read < n_expected:
        raise DataError(f"the file is incomplete: {n_read:,} of {n_expected:,} words; copy it again", path=path)


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    with open_bytes(str(path)):
        pass  # raises the usual error for a missing or unreadable file
    try:
        with safe_open(path, framework="numpy") as file:
            if not {"vectors", "words"} <= set(file.keys()) or len(file.get_slice("vectors").get_shape()) != 2:
                raise DataError(
                    "these are not word vectors: tensors named vectors and words are missing", path=path
                )
            yield file
    except (OSError, SafetensorError) as error:
        raise DataError(f"the safetensors file is damaged or incomplete ({error})", path=path) from None


def _read_safetensors(path: Path) -> VectorFile:
    with _open_safetensors(path) as file:
        header = file.metadata() or {}
        if header.get("format", FORMAT_VERSION) != FORMAT_VERSION:
            raise DataError(
                f"the file has format {header['format']}, and this Triform reads format {FORMAT_VERSION}; "
                "upgrade Triform",
                path=path,
            )
        dtypes = [file.get_slice(name).get_dtype() for name in ("vectors", "words")]
        if dtypes[0] not in FLOAT_DTYPES or dtypes[1] != "U8":
            raise DataError(
                f"the vectors are {dtypes[0]} and the words {dtypes[1]}; "
                f"expected one of {', '.join(FLOAT_DTYPES)}, and U8",
                path=path,
            )
        matrix = _read_bfloat16(path) if dtypes[0] == "BF16" else to_float32(file.get_tensor("vectors"))
        try:
            words = file.get_tensor("words").tobytes().decode().split("\n")
            metadata = json.loads(header.get("about", "{}"))
        except (ValueError, RecursionError):
            raise DataError("the file is damaged: its words cannot be read", path=path) from None
    if len(words) != len(matrix):
        raise DataError(f"the file is damaged: it has {len(words):,} words and {len(matrix):,} vectors", path=path)
    return VectorFile(words, matrix, metadata)


def to_float32(values: ArrayLike) -> Matrix:
    """Convert to float32. Numbers that are too large become infinite, without a warning.

    Args:
        values: Numbers in any type that NumPy converts.

    Returns:
        A contiguous array.
    """
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32)


def _read_bfloat16(path: Path) -> Matrix:
    """Read vectors in bfloat16, which NumPy lacks, as the upper halves of float32."""
    entry = dict(deserialize(path.read_bytes()))["vectors"]  # type: ignore[no-untyped-call]
    upper_bits = np.frombuffer(entry["data"], "<u2").astype(np.uint32)
    return (upper_bits << 16).view(np.float32).reshape(entry["shape"])


def check_writable(path: Path) -> None:
    """Raise an error if a file with this name cannot be written, before any work is done.

    Args:
        path: The file.

    Raises:
        ConfigError: The suffix is not known.
        CheckpointError: The folder cannot be written to, or the path is a folder.
    """
    detect_format(path, WRITE_FORMATS)
    try:
        if path.is_dir():
            raise OSError("is a folder")
        folder = next(parent for parent in path.parents if parent.exists())
        probe = folder / temporary_path(path).name
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _build_write_error(path, error) from None


def _build_write_error(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} cannot be written ({getattr(error, 'strerror', None) or error})")


def _check_words(path: Path, words: Sequence[str], kind: str) -> None:
    """Raise a ConfigError if a word could not be read back from the format."""
    for word in words:
        if not word or any(separator in word for separator in WORD_SEPARATORS[kind]):
            hint = "; use .safetensors instead" if word and "\n" not in word else ""
            raise ConfigError(f"{path}: this format cannot store the word {word!r}{hint}")


def write_vectors(path: Path, words: Sequence[str], matrix: Matrix, metadata: dict[str, Any]) -> None:
    """Write vectors atomically, in the format of the suffix.

    Args:
        path: The file, whose suffix decides the format. Missing folders are created.
        words: The words.
        matrix: Their vectors, (words, width).
        metadata: Stored in safetensors files only.

    Raises:
        ConfigError: The suffix is not known, or the format cannot store a word.
        CheckpointError: The file cannot be written.
    """
    check_writable(path)
    kind = detect_format(path, WRITE_FORMATS)
    _check_words(path, words, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            _write_file(temporary, kind, words, matrix, metadata)
    except (OSError, SafetensorError, UnicodeEncodeError) as error:
        raise _build_write_error(path, error) from None


def _write_file(path: Path, kind: str, words: Sequence[str], matrix: Matrix, metadata: dict[str, Any]) -> None:
    if kind == "safetensors":
        tensors: dict[str, Any] = {"vectors": matrix, "words": np.frombuffer("\n".join(words).encode(), np.uint8)}
        save_file(tensors, path, {"format": FORMAT_VERSION, "about": json.dumps(metadata)})
        path.chmod(0o644)  # the library gives access to the owner only
        return
    with path.open("wb") as file:
        file.write(f"{len(words)} {matrix.shape[1]}\n".encode())
        for word, row in zip(words, matrix, strict=True):
            file.write(word.encode() + b" ")
            file.write((" ".join(row.astype(str)) + "\n").encode() if kind == "text" else row.tobytes())
