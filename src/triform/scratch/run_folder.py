"""Read and write run folders without torch, in the format of the torch implementation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from triform.config import Config
from triform.errors import CheckpointError
from triform.io.digests import atomic_recorded_files, verify_digests
from triform.io.errors import write_errors
from triform.io.locks import folder_lock
from triform.io.run_config import encode_run_config, read_run_config, refuse_links_of_run
from triform.io.run_layout import CONFIG_FILE, LATER_FOLDERS, MODEL_FILE, RUN_FOLDER_PATTERNS
from triform.scratch import weights
from triform.scratch.module import FlatParameters
from triform.text import Tokenizer


def write_run(
    folder: Path,
    config: Config,
    tokenizers: Mapping[str, Tokenizer],
    parameters: FlatParameters,
    *,
    overwrite: bool,
) -> None:
    """Write a run. Its config.toml is written last, because a folder without one is not a run."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; choose another folder")
    refuse_links_of_run(folder)
    with folder_lock(folder, "saving a run"), write_errors(folder):
        prepare_folder(folder, overwrite=overwrite)
        for name, tokenizer in tokenizers.items():
            tokenizer.save(folder / name)
        with atomic_recorded_files(folder / MODEL_FILE, folder / CONFIG_FILE) as (model_file, config_file):
            weights.save_tensors(model_file, parameters)
            config_file.write_bytes(encode_run_config(config))


def prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Remove an older run if `overwrite` is set. Other files are kept."""
    is_run = (folder / CONFIG_FILE).exists()
    patterns = [name for name in RUN_FOLDER_PATTERNS if is_run or name not in LATER_FOLDERS]
    run_files = [path for pattern in patterns for path in folder.glob(pattern)]
    others = [path for path in folder.iterdir() if path not in run_files and not path.name.startswith(".")]
    if others and not is_run:
        raise CheckpointError(f"{folder} exists and is not a run folder; choose another folder")
    if run_files and not overwrite:
        raise CheckpointError(f"{folder} already contains a run; choose another folder, or use overwrite=True")
    for path in run_files:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_config(folder: Path, *, verify: bool = True) -> Config:
    """Return the settings of a run. With `verify`, all of its files are compared with their digests."""
    config = read_run_config(folder, verify=verify)
    if verify:
        verify_digests(folder)
    return config
