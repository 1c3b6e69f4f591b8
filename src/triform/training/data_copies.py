"""Copies of data that is passed from Python: a run folder contains them, so that the run can be used without it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from triform.config import Config, DataConfig, TaskName
from triform.config.merging import flatten_settings, merge_request
from triform.config.settings import build_config
from triform.data.in_memory import is_in_memory, write_copy
from triform.errors import ConfigError, DataError
from triform.io.files import read_regular
from triform.io.run_config import refuse_links_of_run
from triform.io.run_layout import CONFIG_FILE, DATA_FOLDER
from triform.training.claim import create_default_folder
from triform.world import current_world

PLACEHOLDER = "in-memory"
DATA_KEYWORDS = ("data", "data.train", "valid", "data.valid")


@contextmanager
def copy_in_memory_data(
    task: TaskName, preset: str, config: str | Path | Config | None, settings: Mapping[str, Any], out: str
) -> Iterator[tuple[dict[str, Any], str]]:
    """Copy data frames and iterables among the settings to files in the run folder.

    A copy is named after its content, so passing the same data again resumes a run. Copies that no run uses are
    removed at the end of the `with` block.

    Args:
        task: The task.
        preset: The name of a preset, or an empty string.
        config: A config, or the path of a TOML file, which may name columns.
        settings: The keyword arguments of `triform.train`.
        out: The run folder. If it is empty and there is data to copy, a new folder is created.

    Yields:
        The settings with the names of files, and the run folder.
    """
    frames, others = _split_settings(settings)
    if not frames:
        yield dict(settings), out
        return
    data_config = build_config(merge_request(task, preset, config, flatten_settings(others))).data
    if not out and current_world().size > 1:
        raise ConfigError("several processes need out=RUN to train on data that is passed from Python")
    type_name = type(next(iter(frames.values()))).__name__
    folder = Path(out or create_default_folder({"task": task, "data.train": type_name}))
    refuse_links_of_run(folder)
    existing = set(folder.glob(f"{DATA_FOLDER}/*"))
    created: list[Path] = []
    try:
        for keyword, data in frames.items():
            name = keyword.removeprefix("data.").removeprefix("valid.").replace("data", "train")
            path = write_copy(data, task, data_config, folder / DATA_FOLDER, name).absolute()
            created += [] if path in {item.absolute() for item in existing} else [path]
            _insert(others, keyword, str(path))
        yield others, str(folder)
    except BaseException:
        _remove_unused(folder, created)
        raise
    _remove_unused(folder, list((folder / DATA_FOLDER).iterdir()))


@contextmanager
def temporary_copy(data: Any, config: Config) -> Iterator[tuple[str, Config]]:
    """Write data to a temporary file that exists inside the `with` block. Errors name the data, not the file.

    Yields:
        The file, and the settings with which it is read.
    """
    data_config = resolve_in_memory(data, config.data)
    with tempfile.TemporaryDirectory(prefix="triform-") as folder:
        path = str(write_copy(data, config.task, data_config, Path(folder), "data"))
        try:
            yield path, replace(config, data=data_config)
        except DataError as error:
            error.args = (str(error).replace(f"{path}, line", "data, row").replace(path, "data"),)
            raise


def resolve_in_memory(data: Any, data_config: DataConfig) -> DataConfig:
    """Return how the columns of data are found: by the settings of the run if the data has these columns."""
    names = [str(name) for name in getattr(data, "columns", getattr(data, "column_names", ()))]
    missing = [
        setting
        for setting in ("text_column", "label_column", "source_column", "target_column")
        if names and getattr(data_config, setting) and getattr(data_config, setting) not in names
    ]
    return replace(data_config, **dict.fromkeys(missing, ""))  # type: ignore[arg-type]


def _split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data in memory by its keyword, such as `data` or `valid.test`, and the other settings."""
    frames: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for keyword, value in settings.items():
        if keyword in ("data", "valid") and isinstance(value, Mapping):
            others[keyword] = dict(value)
            for name, item in value.items():
                if is_in_memory(item) and (keyword == "valid" or name in ("train", "valid")):
                    frames[f"{keyword}.{name}"] = item
                    others[keyword][name] = PLACEHOLDER  # keeps the order of the sets
        elif keyword in DATA_KEYWORDS and is_in_memory(value):
            frames[keyword] = value
        elif keyword in ("source", "target") and is_in_memory(value):
            raise ConfigError(f"{keyword} must be a file; pass pairs of sentences as data=zip(source, target)")
        else:
            others[keyword] = value
    return frames, others


def _insert(settings: dict[str, Any], keyword: str, path: str) -> None:
    section, _, name = keyword.partition(".")
    if isinstance(settings.get(section), dict):
        settings[section][name] = path
    else:
        settings[keyword] = path


def _remove_unused(folder: Path, copies: list[Path]) -> None:
    """Remove copies that no run in the folder, or in a folder below it, names in its settings."""
    paths = (*folder.glob(CONFIG_FILE), *folder.glob(f"*/{CONFIG_FILE}"))
    configs = [read_regular(path).decode() for path in paths]
    for copy in copies:
        if not any(copy.name in text for text in configs):
            copy.unlink(missing_ok=True)
    for empty in (folder / DATA_FOLDER, folder):
        with suppress(OSError):  # it is not empty
            empty.rmdir()
