"""Run folders: written as the torch side writes them, and read whoever wrote them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import triform
from triform.config import Config
from triform.config.settings import build_config, load_toml, parse_settings, to_toml
from triform.errors import CheckpointError, ConfigError
from triform.io import digests
from triform.io.digests import DIGESTS_FILE, replace_files
from triform.io.files import refuse_special_files, temporary_path
from triform.io.locks import folder_lock
from triform.scratch import weights
from triform.scratch.module import FlatParameters
from triform.text import Tokenizer

RUN_FORMAT = 1
LAST_CONFIG_KEY = (
    "decode.max_new_tokens"  # the last setting of every config.toml: with it and its line's end, one is whole
)
MODEL_FILE = "model.safetensors"
# What a run may leave in its folder, torch's too.
RUN_FOLDER_PATTERNS = (
    *(
        "config.toml",
        "tokenizer*.json",
        MODEL_FILE,
        DIGESTS_FILE,
        "adapter.safetensors",
        "metrics.jsonl",
        "report.html",
    ),
    *("checkpoints", "tokens"),
)


def write_run(
    folder: Path,
    config: Config,
    tokenizers: Mapping[str, Tokenizer],
    parameters: FlatParameters,
    *,
    overwrite: bool,
) -> None:
    """A run. Its config comes last: without one, a folder is no run."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file; choose another folder")
    with folder_lock(folder, "saving a run"), convert_write_errors(folder):
        prepare_folder(folder, overwrite=overwrite)
        for name, tokenizer in tokenizers.items():
            tokenizer.save(folder / name)
        model_path, config_path = folder / MODEL_FILE, folder / "config.toml"
        weights.save_tensors(temporary_path(model_path), parameters)
        temporary_path(config_path).write_bytes(
            to_toml(config, {"format": RUN_FORMAT, "triform": triform.__version__}).encode()
        )
        replace_files({temporary_path(model_path): model_path, temporary_path(config_path): config_path})


@contextmanager
def convert_write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror or error}") from None


def prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """An empty folder: an older run goes only if that was asked for, and what is not a run's stays."""
    run_files = [path for pattern in RUN_FOLDER_PATTERNS for path in folder.glob(pattern)]
    others = [path for path in folder.iterdir() if path not in run_files and not path.name.startswith(".")]
    if others and folder / "config.toml" not in run_files:
        raise CheckpointError(f"{folder}: exists and is not a run folder; choose another one")
    if run_files and not overwrite:
        raise CheckpointError(f"{folder}: already holds a run; choose another folder, or give overwrite=True")
    for path in run_files:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_config(folder: Path, *, verify: bool = True) -> Config:
    config_path = folder / "config.toml"
    if not config_path.exists():
        raise CheckpointError(f"{folder}: is not a run folder: it has no config.toml")
    refuse_special_files(folder)
    if verify:
        digests.verify_digests(folder)
    try:
        document = load_toml(config_path)
        if int(document.get("format", 0)) > RUN_FORMAT:
            raise CheckpointError(f"{folder}: was made by a newer Triform: upgrade to open it")
        settings = parse_settings(document, config_path)
        if LAST_CONFIG_KEY not in settings or not config_path.read_bytes().endswith(b"\n"):
            raise CheckpointError(f"{folder}: is damaged (config.toml lacks its end)")
        return build_config(settings)
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: is damaged ({error})") from None
