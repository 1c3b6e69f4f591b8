"""Record and verify the SHA-256 digest of every file that affects the predictions of a run.

The digests are written to `digests.json` when a run is saved and compared when it is opened. While a file is being
replaced, both its old and its new digest are valid, so a process that is killed leaves a folder that verifies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from triform.errors import CheckpointError
from triform.io.files import atomic_files, read_regular, write_text
from triform.io.run_layout import CONFIG_FILE, DIGESTS_FILE, RUN_FILES

DIGESTS_FORMAT = 1
BLOCK_BYTES = 1 << 22  # read at a time; small blocks would interrupt a training thread more often
Digests = dict[str, list[str]]  # by file name; two digests while the file is being replaced


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file, which is read in blocks."""
    digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while n_bytes := file.readinto(block):
            digest.update(block[:n_bytes])
    return digest.hexdigest()


def record_digests(folder: Path, patterns: Iterable[str] = RUN_FILES) -> None:
    """Record the current digests of the files in a folder."""
    write_digests(folder, compute_digests(folder, patterns))


def replace_files(renames: Mapping[Path, Path]) -> None:
    """Rename complete files to their final names, all in one folder, and record their digests.

    If the folder has no digests yet, the current digests of the run's other files are recorded too.
    """
    folder = next(iter(renames.values())).parent
    recorded = read_digests(folder)
    if recorded is None:
        recorded = compute_digests(folder, RUN_FILES)
    final = recorded | {path.name: [file_digest(temporary_path)] for temporary_path, path in renames.items()}
    transitional = {
        name: [*new, *(old for old in recorded.get(name, ()) if old not in new)] for name, new in final.items()
    }
    write_digests(folder, transitional)
    for temporary_path, path in renames.items():
        temporary_path.replace(path)
    if transitional != final:
        write_digests(folder, final)


def atomic_recorded_files(*paths: Path) -> AbstractContextManager[tuple[Path, ...]]:
    """Write files of one folder as `triform.io.files.atomic_files` does, and record their digests."""
    return atomic_files(*paths, publish=replace_files)


def verify_digests(folder: Path, patterns: Iterable[str] = RUN_FILES) -> bool:
    """Compare files with their digests.

    Returns:
        Whether the folder has digests. Folders written by early versions of Triform have none.

    Raises:
        CheckpointError: A file does not match its digest, or has none. The message names the file.
    """
    patterns = list(patterns)
    recorded = read_digests(folder)
    while recorded is not None:
        mismatch = _find_mismatch(folder, patterns, recorded)
        if mismatch is None:
            return True
        reread = read_digests(folder)
        if reread == recorded:
            raise _mismatch_error(mismatch)
        recorded = reread  # a training process has just replaced a file
    return False


def _find_mismatch(folder: Path, patterns: Iterable[str], recorded: Digests) -> Path | None:
    for path in _matching_files(folder, patterns):
        try:
            if file_digest(path) not in recorded.get(path.name, ()):
                return path
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    return None


def _mismatch_error(path: Path) -> CheckpointError:
    if path.name == CONFIG_FILE:
        return CheckpointError(
            f"{path} does not match {DIGESTS_FILE}: it is damaged, or was edited after the run was saved; "
            "restore it, or use --no-verify (in Python verify=False) if you edited it on purpose"
        )
    return CheckpointError(
        f"{path} does not match {DIGESTS_FILE}: it is damaged, or is a file of another run; "
        "restore it from a copy, or use --no-verify (in Python verify=False) to open it anyway"
    )


def read_digests(folder: Path) -> Digests | None:
    """Return the recorded digests, or None if the folder has no digest file."""
    path = folder / DIGESTS_FILE
    try:
        content = json.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise _malformed_error(path, error) from None
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise _malformed_error(path, "the format number is missing")
    if content["format"] > DIGESTS_FORMAT:
        raise CheckpointError(f"{path} was written by a newer Triform; upgrade Triform to open it")
    digests = content.get("sha256")
    if not isinstance(digests, dict) or not all(isinstance(values, list) for values in digests.values()):
        raise _malformed_error(path, "the list of digests is missing")
    return digests


def _malformed_error(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged ({reason}); restore it from a copy, or use --no-verify (in Python verify=False)"
    )


def _matching_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]


def compute_digests(folder: Path, patterns: Iterable[str] = RUN_FILES) -> Digests:
    """Return the current digests of the files in a folder."""
    return {path.name: [file_digest(path)] for path in _matching_files(folder, patterns)}


def write_digests(folder: Path, digests: Digests) -> None:
    """Write the digest file of a folder."""
    text = json.dumps({"format": DIGESTS_FORMAT, "sha256": dict(sorted(digests.items()))}, indent=1)
    write_text(folder / DIGESTS_FILE, text + "\n")
