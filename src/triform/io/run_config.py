"""Read and write the `config.toml` of a run folder. No torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

import triform
from triform.config import Config
from triform.config.settings import DEFAULTS, build_config, load_toml, parse_settings, to_toml
from triform.errors import CheckpointError, ConfigError
from triform.io.digests import verify_digests
from triform.io.errors import damaged_error
from triform.io.files import refuse_special_files
from triform.io.locks import LOCK_FILE
from triform.io.run_layout import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    DATA_FOLDER,
    LAST_CONFIG_KEY,
    RUN_FOLDER_PATTERNS,
    RUN_FORMAT,
    SOURCES_FILE,
    TOKENS_FOLDER,
)


def encode_run_config(config: Config) -> bytes:
    """Return the content of `config.toml` for these settings."""
    return to_toml(config, {"format": RUN_FORMAT, "triform": triform.__version__}).encode()


def refuse_links_of_run(folder: Path) -> None:
    """Refuse a run folder in which a file or a folder of the run is a link, a pipe, a device or a socket.

    The path to the run folder may contain links. So may what a tracker writes: Weights & Biases makes some.

    Raises:
        CheckpointError: There is one. The message names it.
    """
    refuse_special_files(folder, not_links=(LOCK_FILE, *RUN_FOLDER_PATTERNS))
    checkpoints = folder / CHECKPOINTS_FOLDER
    for inner in (checkpoints, folder / TOKENS_FOLDER, folder / DATA_FOLDER, *checkpoints.glob("step-*")):
        refuse_special_files(inner, not_links="*")


def read_run_config(folder: Path, *, verify: bool = True) -> Config:
    """Return the settings of a run.

    Args:
        folder: The run folder.
        verify: Compare `config.toml` with its digest.

    Raises:
        CheckpointError: The folder is not a run folder, is damaged, or has another format.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run folder")
    refuse_links_of_run(folder)
    config_file = folder / CONFIG_FILE
    if not config_file.exists():
        raise CheckpointError(f"{folder} is not a run folder: it has no {CONFIG_FILE}{_other_folder_hint(folder)}")
    if verify:
        verify_digests(folder, [CONFIG_FILE])
    try:
        document = load_toml(config_file)
        run_format = document.get("format")
        if not isinstance(run_format, int):
            raise damaged_error(folder, f"{CONFIG_FILE} has no format number")
        if run_format != RUN_FORMAT:
            raise CheckpointError(
                f"{folder} has run format {run_format}, and this Triform ({triform.__version__}) reads format "
                f"{RUN_FORMAT}; open it with Triform {document.get('triform', 'of another version')}"
            )
        settings = parse_settings(document, config_file)
        if LAST_CONFIG_KEY not in settings or not config_file.read_bytes().endswith(b"\n"):
            raise damaged_error(folder, f"{CONFIG_FILE} is incomplete")
        return build_config(DEFAULTS | settings)  # a run gives all settings, also those that it was too old to know
    except (ConfigError, TypeError, ValueError) as error:
        raise damaged_error(folder, error) from None


def read_setting_sources(folder: Path) -> dict[str, str] | None:
    """Return where the settings of a run come from, or None if the run does not say.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = folder / SOURCES_FILE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); delete it, because the run works without it") from None


def _other_folder_hint(folder: Path) -> str:
    """Return a hint about what a folder without `config.toml` may be."""
    if (folder / "config.json").exists():
        return "; if this is a published model, convert it with `triform convert import`"
    seeds = sorted(folder.glob(f"seed-*/{CONFIG_FILE}"))
    return f"; it holds runs with several seeds: choose one of them, such as {seeds[0].parent}" if seeds else ""
