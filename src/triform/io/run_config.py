"""The config.toml of a run folder: written complete, and read whatever format it has. No torch."""

from __future__ import annotations

import json
from pathlib import Path

import triform
from triform.config import Config
from triform.config.settings import build_config, load_toml, parse_settings, to_toml
from triform.errors import CheckpointError, ConfigError
from triform.io.digests import verify_digests
from triform.io.errors import damaged_error
from triform.io.files import refuse_special_files
from triform.io.migration import migrate_settings
from triform.io.run_layout import CONFIG_FILE, LAST_CONFIG_KEY, RUN_FORMAT, SOURCES_FILE


def encode_run_config(config: Config) -> bytes:
    """Return the content of the config.toml of a run with these settings."""
    return to_toml(config, {"format": RUN_FORMAT, "triform": triform.__version__}).encode()


def read_run_format(folder: Path) -> int:
    """Return the format that a run folder was written in."""
    return int(load_toml(folder / CONFIG_FILE).get("format", 0))


def read_run_config(folder: Path, *, verify: bool = True) -> Config:
    """Return the settings of a run; those of format 1 under their names of today.

    Args:
        folder: The run folder.
        verify: Compare config.toml with its digest.

    Raises:
        CheckpointError: The folder is not a run folder, is damaged, or was made by a newer Triform.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run folder")
    refuse_special_files(folder)
    config_file = folder / CONFIG_FILE
    if not config_file.exists():
        raise CheckpointError(f"{folder}: is not a run folder: it has no {CONFIG_FILE}{_other_folder_hint(folder)}")
    if verify:
        verify_digests(folder, [CONFIG_FILE])
    try:
        document = load_toml(config_file)
        run_format = int(document.get("format", 0))
        if run_format > RUN_FORMAT:
            version = document.get("triform", "a newer version")
            raise CheckpointError(
                f"{folder}: was made by Triform {version}; this is {triform.__version__}: upgrade to open it"
            )
        document = migrate_settings(document) if run_format < RUN_FORMAT else document
        settings = parse_settings(document, config_file)
        if LAST_CONFIG_KEY not in settings or not config_file.read_bytes().endswith(b"\n"):
            raise damaged_error(folder, f"{CONFIG_FILE} lacks its end")
        return build_config(settings)
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
        sources = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(sources, dict) or not all(isinstance(source, str) for source in sources.values()):
            raise ValueError("it is not an object of strings")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is damaged ({error}); delete it, the run works without it") from None
    return sources


def _other_folder_hint(folder: Path) -> str:
    """Say what a folder without config.toml may be instead."""
    if (folder / "config.json").exists():
        return "; of a published model `triform convert import` makes one"
    seeds = sorted(folder.glob(f"seed-*/{CONFIG_FILE}"))
    return f"; it holds several seeds, name one of them, such as {seeds[0].parent}" if seeds else ""
