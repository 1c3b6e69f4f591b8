"""The run folder: everything a run is, on disk, with nothing pickled.

Each file is written under a temporary name, flushed to the disk and renamed, so that a kill at any moment leaves
either the old file or the new one. What decides the answers of a run is sealed by digests (`triform.io.digests`),
and only one process at a time writes to a folder (`triform.io.locks`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

import triform
from triform.config import Config
from triform.config.settings import build_config, load_toml, parse_settings, to_toml
from triform.errors import CheckpointError, ConfigError
from triform.io import files
from triform.io.digests import (
    CHECKPOINT_FILES,
    DIGESTS_FILE,
    RUN_FILES,
    record_digests,
    replace_files,
    verify_digests,
)
from triform.io.errors import damaged_error, write_errors
from triform.io.locks import folder_lock
from triform.training.checkpoint_schema import find_state_problem
from triform.training.tensors import read_tensors, write_temporary

RUN_FORMAT = 1
LAST_CONFIG_KEY = (
    "decode.max_new_tokens"  # the last setting of every config.toml: with it and its line's end, one is whole
)
UNVALIDATED_SUFFIX = "-unvalidated"  # ends the name of a checkpoint whose validation was interrupted
RUN_FOLDER_PATTERNS = (
    "config.toml",
    "tokenizer*.json",
    "model.safetensors",
    DIGESTS_FILE,
    "adapter.safetensors",
    "metrics.jsonl",
    "report.html",
    "checkpoints",
    "tokens",
)


def checkpoint_step(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


class RunFolder:
    def __init__(self, path: Path, *, verify: bool = True) -> None:
        """Without `verify`, files are used even where they do not match their digests."""
        self.path, self.verify = path, verify
        self.config_file = path / "config.toml"
        self.model_file = path / "model.safetensors"
        self.adapter_file = path / "adapter.safetensors"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints_folder = path / "checkpoints"
        self.tokens_folder = path / "tokens"

    @contextmanager
    def lock(self, purpose: str) -> Iterator[str]:
        """Hold the folder for this process, creating it where it is missing; see `triform.io.locks.folder_lock`."""
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path}: is a file; choose another --out")
        with folder_lock(self.path, purpose) as notice:
            for folder in (self.checkpoints_folder, self.tokens_folder):
                files.remove_leftovers(folder)
            yield notice

    def verify_files(self, *patterns: str) -> tuple[str, ...]:
        """Verify the files of the run by their digests, and return a notice where an older run has none."""
        if self.verify and not verify_digests(self.path, patterns or RUN_FILES):
            return (f"{self.path}: was saved by an older Triform without digests, so damage would not be noticed",)
        return ()

    def verify_before_resume(self) -> tuple[str, ...]:
        """Verify the run; without `verify`, record its files as they are, since they count from here on."""
        notices = self.verify_files()
        if not self.verify:
            with write_errors(self.path, self.path):
                record_digests(self.path)
        return notices

    def clear(self, *, keep_name: str = "") -> None:
        """Remove what an earlier run left here; files that are not a run's stay."""
        with write_errors(self.path):
            for path in (
                path
                for pattern in RUN_FOLDER_PATTERNS
                for path in self.path.glob(pattern)
                if path.name != keep_name
            ):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def delete_tokens(self) -> None:
        """A finished run needs its encoded training data no more; it can be made again from the text."""
        shutil.rmtree(self.tokens_folder, ignore_errors=True)

    def write_config(self, config: Config) -> None:
        with write_errors(self.config_file, self.path):
            temporary = files.temporary_path(self.config_file)
            temporary.write_bytes(to_toml(config, {"format": RUN_FORMAT, "triform": triform.__version__}).encode())
            files.fsync_path(temporary)
            replace_files({temporary: self.config_file})

    def write_weights(self, weights: dict[str, Tensor]) -> None:
        """Write the model that the run answers with."""
        with write_errors(self.model_file, self.path):
            replace_files({write_temporary(self.model_file, weights): self.model_file})

    def read_weights(self) -> dict[str, Tensor]:
        self.verify_files(self.model_file.name)
        return read_tensors(self.model_file)

    def read_config(self) -> Config:
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path}: no such run folder")
        files.refuse_special_files(self.path)
        if not self.config_file.exists():
            seeds = sorted(self.path.glob("seed-*/config.toml"))
            hint = f"; it holds several seeds, name one of them, such as {seeds[0].parent}" if seeds else ""
            if (self.path / "config.json").exists():
                hint = "; of a published model `triform convert import` makes one"
            raise CheckpointError(f"{self.path}: is not a run folder: it has no config.toml{hint}")
        self.verify_files(self.config_file.name)
        try:
            document = load_toml(self.config_file)
            if int(document.get("format", 0)) > RUN_FORMAT:
                version = document.get("triform", "a newer version")
                raise CheckpointError(
                    f"{self.path}: was made by Triform {version}; this is {triform.__version__}: upgrade to open it"
                )
            settings = parse_settings(document, self.config_file)
            if LAST_CONFIG_KEY not in settings or not self.config_file.read_bytes().endswith(b"\n"):
                raise damaged_error(self.path, "config.toml lacks its end")
            return build_config(settings)
        except (ConfigError, TypeError, ValueError) as error:
            raise damaged_error(self.path, error) from None

    def write_checkpoint(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], *, validation_due: bool = False
    ) -> None:
        """A folder that appears whole, by rename; older ones go only afterwards.

        One whose validation was interrupted has a name of its own, for that of the finished step comes after it.
        """
        destination = self.checkpoints_folder / f"step-{step:09d}{UNVALIDATED_SUFFIX if validation_due else ''}"
        if destination.exists():
            return
        with write_errors(destination, self.path):
            self.checkpoints_folder.mkdir(exist_ok=True)
            temporary = files.temporary_path(destination)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                tensors_file, state_file = (temporary / name for name in CHECKPOINT_FILES)
                write_temporary(tensors_file, tensors).replace(tensors_file)
                files.write_text(state_file, json.dumps(state))
                record_digests(temporary, CHECKPOINT_FILES)
                temporary.replace(destination)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            files.fsync_path(self.checkpoints_folder)
            for old_checkpoint in self.checkpoints_folder.glob("step-*"):
                if old_checkpoint != destination:
                    shutil.rmtree(old_checkpoint)

    def latest_checkpoint(self) -> Path | None:
        """The newest whole checkpoint. One that a kill left half removed has lost a file and does not count."""
        # of one step's two, the one that was validated is the newer and has the shorter name
        candidates = sorted(
            self.checkpoints_folder.glob("step-*"), key=lambda path: (path.name[:14], -len(path.name))
        )[::-1]
        intact = [path for path in candidates if (path / "state.json").exists()]
        return intact[0] if intact else None

    def read_checkpoint(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        files.refuse_special_files(path)
        if self.verify:
            verify_digests(path, CHECKPOINT_FILES)
        return read_tensors(path / "tensors.safetensors"), self.read_state(path)

    def is_complete(self, config: Config | None = None) -> bool:
        """Whether nothing is left to do here, under these settings or its own; the report is written last."""
        same_config = config is None or config == self.read_config()
        return same_config and self.is_finished() and (self.path / "report.html").exists()

    def discard_if_unused(self) -> None:
        """A start that failed leaves no trace where there was no run before; its lock removes an empty folder."""
        if not self.config_file.exists():
            self.delete_tokens()

    def metrics_show_end(self) -> bool:
        """Whether the metrics tell of an end that was not an interruption."""
        if not self.metrics_file.exists():
            return False
        lines = self.metrics_file.read_text(encoding="utf-8").splitlines()
        return any('"event": "end"' in line and '"reason": "interrupted"' not in line for line in lines)

    def is_finished(self) -> bool:
        """Whether training here came to its end."""
        checkpoint = self.latest_checkpoint()
        return checkpoint is not None and bool(self.read_state(checkpoint).get("finished"))

    def read_state(self, path: Path) -> dict[str, Any]:
        files.refuse_special_files(path)
        if self.verify:
            verify_digests(path, ["state.json"])
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged_error(path, error) from None
        if problem := find_state_problem(state):
            raise damaged_error(path, f"state.json: {problem}")
        return dict(state)
