"""What several processes agree on before they train one model: the settings, the data files and the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

import triform
from triform.config import Config
from triform.config.settings import Settings, build_config, flatten_config
from triform.errors import CheckpointError, ConfigError, PeerError
from triform.io.files import read_regular
from triform.io.locks import LOCK_FILE
from triform.training.claim import claim_run_folder
from triform.training.run_folder import RunFolder
from triform.training.setup import data_fingerprints
from triform.world import broadcast_value, current_world, gather_values, run_in_order


def compare_processes(requested: Settings) -> None:
    """Check that all processes have the same settings, data files, and versions of Triform and PyTorch.

    Raises:
        ConfigError: They differ. The message names the first difference.
    """
    if current_world().size == 1:
        return
    fingerprints = run_in_order(lambda: data_fingerprints(build_config(requested)))
    descriptions = gather_values(
        {
            "versions": {"Triform": triform.__version__, "PyTorch": torch.__version__},
            "settings": {name: str(value) for name, value in requested.items()},
            "files": fingerprints,
        }
    )
    for rank, description in enumerate(descriptions):
        if difference := find_difference(descriptions[0], description, rank):
            raise ConfigError(difference) if current_world().is_main else PeerError(difference)


def find_difference(main: dict[str, dict[str, str]], other: dict[str, dict[str, str]], rank: int) -> str:
    """Return the first difference between the main process and another one; empty if there is none."""
    for kind, values in main.items():
        for name in {**values, **other[kind]}:
            value, main_value = other[kind].get(name, "not set"), values.get(name, "not set")
            if value == main_value:
                continue
            if kind == "versions":
                return f"rank {rank} has {name} {value}, and rank 0 has {main_value}; install the same version"
            if kind == "files":
                return f"{name} of rank {rank} differs from that of rank 0; give all machines the same file"
            return f"{name} is {value} in rank {rank} and {main_value} in rank 0; use the same command"
    return ""


@contextmanager
def share_claim(
    folder: RunFolder, requested: Settings, *, resume: bool, overwrite: bool
) -> Iterator[tuple[Config | None, tuple[str, ...]]]:
    """Lock a run folder inside the `with` block for all processes; see `claim_run_folder`. The main one holds it.

    Raises:
        CheckpointError: The folder cannot be used, or a process does not see it.
    """
    is_main = current_world().is_main
    with ExitStack() as stack:

        def claim() -> tuple[Config | None, tuple[str, ...]]:
            claim = claim_run_folder(folder, requested, resume=resume, overwrite=overwrite)
            return stack.enter_context(claim) if is_main else (None, ())

        stored, notices = run_in_order(claim)
        lock_text = broadcast_value(_read_lock_file(folder.path) if is_main else "")
        run_in_order(lambda: _require_same_lock(folder.path, lock_text))
        settings = broadcast_value(None if stored is None else flatten_config(stored))
        yield (None if settings is None else stored or build_config(settings)), notices


def _read_lock_file(path: Path) -> str:
    try:
        return read_regular(path / LOCK_FILE).decode()
    except OSError:
        return "missing"


def _require_same_lock(path: Path, expected: str) -> None:
    if _read_lock_file(path) != expected:
        raise CheckpointError(
            f"{path} of this machine is not the run folder of rank 0; use a folder that all machines share (--out)"
        )
