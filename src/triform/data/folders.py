"""Folders of data: those that `datasets.save_to_disk` writes, and folders of text files.

A folder of text files has one document per file. For classify, the name of each subfolder is the label of the files
in it, as for `load_files` of scikit-learn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from triform.errors import DataError

FolderKind = Literal["dataset", "texts"]
TEXT_SUFFIXES = ("", ".txt", ".text", ".md")  # of the files in a folder of text files
COMPRESSION_SUFFIXES = (".gz", ".zst")
DATASET_STATE, DATASET_INFO, DATASET_SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
RUN_FILE = "config.toml"  # a run folder has it
SHARDS_MANIFEST = "manifest.json"  # a folder of token shards has it


def folder_kind(path: str) -> FolderKind | None:
    """Return what a folder contains, or None if it is not a folder of data.

    Raises:
        DataError: The folder has several splits, one of which must be named.
    """
    folder = Path(path)
    if not path or "\0" in path or not folder.is_dir():
        return None
    if (folder / RUN_FILE).exists() or (folder / SHARDS_MANIFEST).exists():
        return None
    if (folder / DATASET_SPLITS).exists():
        splits = _read_json(folder / DATASET_SPLITS).get("splits")
        names = ", ".join(map(str, splits)) if isinstance(splits, list) else "unknown"
        raise DataError(
            f"the folder has the splits {names}; name one of them, such as {folder / 'train'}", path=path
        )
    if (folder / DATASET_STATE).exists() and (folder / DATASET_INFO).exists():
        return "dataset"
    return "texts" if any(_is_text_file(file) for file in _walk(folder)) else None


def list_dataset_files(path: str) -> list[str]:
    """Return the Arrow files of a folder that `datasets.save_to_disk` has written, in order."""
    state = Path(path) / DATASET_STATE
    entries: Any = _read_json(state).get("_data_files")
    try:
        return [str(state.with_name(Path(entry["filename"]).name)) for entry in entries]
    except (TypeError, KeyError):
        raise DataError("the file is damaged: it has no list of data files", path=state) from None


def list_text_files(path: str) -> list[Path]:
    """Return the files of a folder of text files, sorted. Hidden files are left out.

    Raises:
        DataError: A file is not a text file.
    """
    files = sorted(_walk(Path(path)))
    for file in files:
        if not _is_text_file(file):
            raise DataError(
                f"{file.relative_to(path)} is not a text file; remove it, or name one file instead of the folder",
                path=path,
            )
    return files


def list_labelled_files(path: str) -> list[tuple[Path, str]]:
    """Return the files in the subfolders of a folder, each with the name of its subfolder as its label.

    Raises:
        DataError: There are no subfolders with files, or a file is not a text file.
    """
    folders = sorted(entry for entry in Path(path).iterdir() if entry.is_dir() and not entry.name.startswith("."))
    files = [(file, folder.name) for folder in folders for file in list_text_files(str(folder))]
    if not files:
        raise DataError("the folder has no labels; put the text files of each label in a subfolder", path=path)
    return files


def list_members(path: str) -> list[Path]:
    """Return the files that contain the data of a folder."""
    kind = folder_kind(path)
    if kind == "dataset":
        return [Path(path) / DATASET_INFO, *map(Path, list_dataset_files(path))]
    return sorted(_walk(Path(path))) if kind == "texts" else []


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"the folder cannot be read: {error.strerror or error}", path=folder)

    for directory, folder_names, file_names in os.walk(folder, onerror=refuse):
        folder_names[:] = sorted(name for name in folder_names if not name.startswith("."))
        yield from (Path(directory, name) for name in file_names if not name.startswith("."))


def _is_text_file(file: Path) -> bool:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in COMPRESSION_SUFFIXES:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    return suffix in TEXT_SUFFIXES or suffix[1:].isdecimal()


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"the file is damaged or cannot be read ({error})", path=path) from None
    if not isinstance(content, dict):
        raise DataError("the file is damaged: it is not a JSON object", path=path)
    return content
