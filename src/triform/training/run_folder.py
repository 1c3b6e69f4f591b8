"""The run folder, which contains all files of a run. Nothing is pickled.

Files are written atomically (`triform.io.files`), so a process that is killed leaves either the old file or the new
one. Files that affect predictions have digests (`triform.io.digests`), and only one process at a time writes to a
folder (`triform.io.locks`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from triform.config import Config, DataConfig
from triform.config.settings import SettingValue, flatten_config
from triform.errors import CheckpointError
from triform.io import files
from triform.io.digests import atomic_recorded_files, record_digests, verify_digests
from triform.io.errors import damaged_error, write_errors, write_run_text
from triform.io.events import read_events
from triform.io.locks import folder_lock
from triform.io.run_config import (
    encode_run_config,
    read_run_config,
    read_setting_sources,
    refuse_links_of_run,
)
from triform.io.run_layout import (
    ADAPTER_FILE,
    CHECKPOINT_FILES,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    METRICS_FILE,
    MODEL_FILE,
    REPORT_FILE,
    RUN_FILES,
    RUN_FOLDER_PATTERNS,
    SHARD_FILES,
    SOURCES_FILE,
    STATE_FILE,
    TENSORS_FILE,
    TOKENS_FOLDER,
)
from triform.training.checkpoint_schema import find_state_problem
from triform.training.tensors import NewTensor, read_shapes, read_tensors, save_tensors

UNVALIDATED_SUFFIX = "-unvalidated"  # suffix of a checkpoint whose validation was interrupted


def checkpoint_step(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


class RunFolder:
    """Reads and writes the files of one run.

    Args:
        path: The folder.
        verify: Compare files with their digests before they are used.
        request: The settings that the user gives, each with its value and its source. They are recorded with the
            settings of the run.
    """

    def __init__(
        self, path: Path, *, verify: bool = True, request: Mapping[str, tuple[SettingValue, str]] | None = None
    ) -> None:
        self.path, self.verify, self.request = path, verify, request
        self.config_file = path / CONFIG_FILE
        self.model_file = path / MODEL_FILE
        self.adapter_file = path / ADAPTER_FILE
        self.metrics_file = path / METRICS_FILE
        self.checkpoints_folder = path / CHECKPOINTS_FOLDER
        self.tokens_folder = path / TOKENS_FOLDER

    @contextmanager
    def lock(self, purpose: str) -> Iterator[str]:
        """Hold the lock of the folder, which is created if needed. See `triform.io.locks.folder_lock`."""
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file; choose another --out")
        refuse_links_of_run(self.path)
        with folder_lock(self.path, purpose) as notice:
            for folder in (self.checkpoints_folder, self.tokens_folder):
                files.remove_leftovers(folder)
            yield notice

    def verify_files(self, *patterns: str) -> tuple[str, ...]:
        """Verify the files of the run by their digests, and return a notice if an older run has none."""
        if self.verify and not verify_digests(self.path, patterns or RUN_FILES):
            return (f"{self.path} was saved without digests by an older Triform, so damage cannot be detected",)
        return ()

    def prepare_resume(self) -> tuple[str, ...]:
        """Verify a run before it is continued.

        Without `verify`, the current digests of the files are recorded, because they are valid from now on.

        Returns:
            Notices for the user.
        """
        notices = self.verify_files()
        if not self.verify:
            with write_errors(self.path, self.path):
                record_digests(self.path)
        return notices

    def clear(self, *, keep_names: Collection[str] = ()) -> None:
        """Remove the files of an earlier run. Other files are kept."""
        with write_errors(self.path):
            for path in (
                path
                for pattern in RUN_FOLDER_PATTERNS
                for path in self.path.glob(pattern)
                if path.name not in keep_names
            ):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def delete_tokens(self) -> None:
        """Delete the encoded training data, which a finished run no longer needs."""
        shutil.rmtree(self.tokens_folder, ignore_errors=True)

    def write_config(self, config: Config) -> None:
        """Write the settings of the run and, where they are known, their sources."""
        sources = self._merge_sources(config)
        with write_errors(self.config_file, self.path), atomic_recorded_files(self.config_file) as (temporary,):
            temporary.write_bytes(encode_run_config(config))
        if sources is not None:
            write_run_text(self.path / SOURCES_FILE, json.dumps(sources, indent=1) + "\n")

    def _merge_sources(self, config: Config) -> dict[str, str] | None:
        """Return where the settings come from; None if some sources are unknown."""
        if self.request is None:
            return None
        current, sources = flatten_config(config), {}
        if self.config_file.exists():  # the run is trained longer, and its other settings keep their sources
            stored, recorded = flatten_config(self.read_config()), read_setting_sources(self.path)
            if recorded is None:
                return None
            sources = {
                name: recorded[name] for name in current if name in recorded and stored[name] == current[name]
            }
        # A value that was adapted, for example to the memory of the device, is no longer the requested one.
        return sources | {name: source for name, (value, source) in self.request.items() if value == current[name]}

    def write_weights(self, weights: dict[str, Tensor]) -> None:
        """Write the weights that the run predicts with."""
        with write_errors(self.model_file, self.path), atomic_recorded_files(self.model_file) as (temporary,):
            save_tensors(temporary, weights)

    def read_weights(self, *, verify: bool = True) -> dict[str, Tensor]:
        """Return the weights of the model. With `verify`, they are compared with their digest first."""
        if verify:
            self.verify_files(self.model_file.name)
        return read_tensors(self.model_file)

    def read_shapes(self) -> dict[str, list[int]]:
        """Return the shapes of the model's weights, from the header of their file."""
        return read_shapes(self.model_file)

    def read_config(self) -> Config:
        """Return the settings of the run; see `triform.io.run_config.read_run_config`."""
        return read_run_config(self.path, verify=self.verify)

    def checkpoint_path(self, state: dict[str, Any]) -> Path:
        """Return the folder of the checkpoint with this state.

        A checkpoint whose validation was interrupted has a different name, because the checkpoint of
        the validated step is written later.
        """
        step, validation_due = state["progress"]["step"], state["progress"]["validation_due"]
        return self.checkpoints_folder / f"step-{step:09d}{UNVALIDATED_SUFFIX if validation_due else ''}"

    def write_checkpoint(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write a checkpoint, and only then remove the older ones."""
        destination = self.checkpoint_path(state)
        if destination.exists():
            return
        with write_errors(destination, self.path):
            self.checkpoints_folder.mkdir(exist_ok=True)
            with files.atomic_folder(destination) as temporary:
                save_tensors(temporary / TENSORS_FILE, tensors)
                (temporary / STATE_FILE).write_bytes(json.dumps(state).encode())
                record_digests(temporary, CHECKPOINT_FILES)
            self.remove_older_checkpoints(destination)

    def remove_older_checkpoints(self, latest: Path) -> None:
        """Remove all checkpoints but the latest one."""
        for old_checkpoint in self.checkpoints_folder.glob("step-*"):
            if old_checkpoint != latest:
                shutil.rmtree(old_checkpoint)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint. One whose removal was interrupted is incomplete."""
        files.refuse_special_file(self.checkpoints_folder)
        # Of two checkpoints of one step, the validated one is newer and has the shorter name.
        candidates = sorted(
            self.checkpoints_folder.glob("step-*"), key=lambda path: (path.name[:14], -len(path.name))
        )[::-1]
        for path in candidates:
            files.refuse_special_file(path)
        intact = [path for path in candidates if (path / STATE_FILE).exists()]
        return intact[0] if intact else None

    def read_checkpoint(
        self, path: Path, new_tensor: NewTensor | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the state of a checkpoint.

        Args:
            path: The checkpoint.
            new_tensor: See `triform.training.sharded_tensors.read_shards`. By default, tensors are read as a whole.
        """
        files.refuse_special_files(path, not_links="*")
        if self.verify:
            verify_digests(path, CHECKPOINT_FILES)
        if new_tensor is None and not any(path.glob(SHARD_FILES)):
            tensors = read_tensors(path / TENSORS_FILE)
        else:
            # Importing torch.distributed.checkpoint takes more than a second.
            from triform.training.sharded_tensors import new_full_tensor, read_shards

            tensors = read_shards(path, new_tensor or new_full_tensor)
        return tensors, self.read_state(path)

    def read_latest_checkpoint(self) -> tuple[Path, dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest checkpoint with its tensors and its state; None if there is none.

        A run that is being trained may replace its checkpoint meanwhile. Then the new one is read.
        """
        while checkpoint := self.latest_checkpoint():
            try:
                return checkpoint, *self.read_checkpoint(checkpoint)
            except (CheckpointError, FileNotFoundError):
                if checkpoint == self.latest_checkpoint():
                    raise
        return None

    def read_data_fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of the data files of the run by path; none if there is no usable checkpoint."""
        with suppress(CheckpointError):  # a run can be used without its checkpoint
            if latest := self.latest_checkpoint():
                return dict(self.read_state(latest)["metadata"].get("data", {}))
        return {}

    def read_training_fingerprints(self, data: DataConfig) -> list[str]:
        """Return the fingerprints of the training files of the run, which `data` names."""
        fingerprints = self.read_data_fingerprints()
        return [fingerprints[file] for file in (data.train, data.source, data.target) if file in fingerprints]

    def is_complete(self, config: Config | None = None) -> bool:
        """Return whether the run is complete, with these or its stored settings. The report is written last."""
        same_config = config is None or config == self.read_config()
        return same_config and self.is_finished() and (self.path / REPORT_FILE).exists()

    def discard_if_unused(self) -> None:
        """Remove the files of a failed start if there was no run before. The lock removes an empty folder."""
        if not self.config_file.exists():
            self.delete_tokens()

    def metrics_show_end(self) -> bool:
        """Return whether training ended without an interruption, according to the metrics."""
        events = read_events(self.metrics_file)
        return any(event["event"] == "end" and event.get("reason") != "interrupted" for event in events)

    def is_finished(self) -> bool:
        """Return whether training has finished."""
        checkpoint = self.latest_checkpoint()
        return checkpoint is not None and bool(self.read_state(checkpoint).get("finished"))

    def read_progress(self) -> dict[str, Any]:
        """Return the progress in the latest checkpoint: the step, the best metrics and their step, and seconds."""
        latest = self.latest_checkpoint()
        return dict(self.read_state(latest)["progress"]) if latest else {}

    def read_state(self, path: Path) -> dict[str, Any]:
        """Return the state of a checkpoint: progress, data position, schedule and callbacks."""
        files.refuse_special_files(path, not_links="*")
        if self.verify:
            verify_digests(path, [STATE_FILE])
        try:
            state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged_error(path, error) from None
        if problem := find_state_problem(state):
            raise damaged_error(path, f"state.json: {problem}")
        return dict(state)
