"""The base class of the estimators: parameters become settings, and the fitted run is kept in memory.

`fit` calls `triform.train` in a temporary folder. An estimator keeps, pickles and saves the files of this run
folder as bytes, from which the model can be opened again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TextIO, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from triform.config.settings import (
    AUTO_SETTINGS,
    Settings,
    SettingValue,
    build_config,
    coerce_setting,
    flatten_config,
    non_default_settings,
)
from triform.device import resolve_device
from triform.errors import CheckpointError, ConfigError, RunInterruptedError
from triform.io.run_layout import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    METRICS_FILE,
    REPORT_FILE,
    RUN_FOLDER_PATTERNS,
    TOKENS_FOLDER,
)
from triform.launch import RunOptions, train
from triform.reporting.run_report import write_report
from triform.run import Run, load
from triform.sklearn.validation import InputError, check_settings, resolve_seed, to_python_scalar, translate_errors
from triform.text.estimator import TextEstimatorBase
from triform.training.claim import claim_run_folder
from triform.training.run_folder import RunFolder

PARAMETER_SETTINGS = {
    "d_model": "model.d_model",
    "n_layers": "model.n_layers",
    "n_heads": "model.n_heads",
    "dropout": "model.dropout",
    "tokenizer": "tokenizer.kind",
    "vocab_size": "tokenizer.vocab_size",
    "max_len": "data.max_len",
    "epochs": "train.epochs",
    "max_steps": "train.max_steps",
    "batch_size": "train.batch_size",
    "learning_rate": "train.lr",
    "validation_fraction": "data.valid_fraction",
}
INPUT_FILE = ".given.jsonl"  # hidden, because a run folder ignores files that start with a dot
# No checkpoints are needed, because the temporary folder is removed.
NO_CHECKPOINTS: Settings = {"train.checkpoint_every": 1_000_000_000}
PICKLED_FILES = tuple(
    name for name in RUN_FOLDER_PATTERNS if name not in (CHECKPOINTS_FOLDER, TOKENS_FOLDER, REPORT_FILE)
)
FIT_LOCK = threading.RLock()


class TextEstimator(TextEstimatorBase, BaseEstimator):
    """Abstract base class of the estimators. A parameter that is None is chosen by the preset or from the data.

    Args:
        preset: The name of a preset, such as `small`.
        d_model: The width of the model.
        n_layers: The number of layers.
        n_heads: The number of attention heads.
        dropout: The dropout probability.
        tokenizer: The kind of tokenizer: word, bpe or char.
        vocab_size: The size of the vocabulary.
        max_len: The number of tokens that the model reads.
        epochs: The number of passes over the data.
        max_steps: The number of optimizer steps, instead of epochs.
        batch_size: The number of texts in a batch.
        learning_rate: The peak learning rate.
        validation_fraction: The fraction of the data that is held out to select the best weights.
        settings: Other settings by name, such as `{"model.d_ff": 64}`.
        device: auto, cpu, cuda or mps.
        random_state: The random seed for initialisation, shuffling and dropout.
        verbose: Show the progress of training.
    """

    input_error = InputError
    _run: Run | None
    _files: dict[str, bytes]

    def __init__(
        self,
        *,
        preset: str | None = None,
        d_model: int | None = None,
        n_layers: int | None = None,
        n_heads: int | None = None,
        dropout: float | None = None,
        tokenizer: str | None = None,
        vocab_size: int | None = None,
        max_len: int | None = None,
        epochs: float | None = None,
        max_steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float = 0.0,
        settings: Mapping[str, object] | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.preset = preset
        self.d_model = d_model
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.dropout = dropout
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_len = max_len
        self.epochs = epochs
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    @translate_errors()
    def from_run(cls, path: str | Path, *, device: str = "auto") -> Self:
        """Return a fitted estimator from a run folder, with the run's settings as its parameters.

        Args:
            path: The run folder.
            device: auto, cpu, cuda or mps.

        Raises:
            CheckpointError: The folder is not a finished run of this task.
        """
        folder = RunFolder(Path(path))
        config = folder.read_config()
        if config.task != cls.task:
            raise CheckpointError(f"{path} is a run of {config.task}; {cls.__name__} opens runs of {cls.task}")
        if not folder.model_file.exists():
            raise CheckpointError(f"{path} has no model yet; continue its training with --resume")
        flat = flatten_config(config)
        parameters: dict[str, Any] = {
            name: flat[setting] if flat[setting] or setting not in AUTO_SETTINGS else None
            for name, setting in PARAMETER_SETTINGS.items()
        }
        other_settings = {
            name: value
            for name, value in non_default_settings(flat).items()
            if name not in (*PARAMETER_SETTINGS.values(), *NO_CHECKPOINTS, "task", "seed")
            and not _is_data_setting(name)
        }
        estimator = cls(**parameters, settings=other_settings or None, random_state=config.seed, device=device)
        with isolated_rng(device):
            estimator._store_run(load(folder.path, device=device), read_run_files(folder.path))
        return estimator

    @translate_errors()
    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a run folder, which `triform.load` and every command can open, and return its path.

        Args:
            path: The folder to write.
            overwrite: Whether a run in this folder may be replaced.

        Returns:
            The folder.

        Raises:
            CheckpointError: The folder contains a run and `overwrite` is False.
            CheckpointError: The folder contains other files, or cannot be written.
        """
        check_is_fitted(self)
        folder = RunFolder(Path(path))
        if folder.config_file.exists() and not overwrite:
            raise CheckpointError(f"{path} already contains a run; choose another path or use overwrite=True")
        with claim_run_folder(folder, {}, overwrite=overwrite):
            folder.clear()
            self._write_files(folder.path)
            return write_report(folder.path).parent

    def _train(self, rows: Iterable[Mapping[str, str]], **extra_settings: SettingValue) -> None:
        """Train on rows in a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="triform-") as name:
            folder, data = Path(name), Path(name) / INPUT_FILE
            with data.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            input_settings: Settings = {"seed": resolve_seed(self.random_state), "data.train": str(data)}
            settings: dict[str, Any] = NO_CHECKPOINTS | self._requested_settings() | extra_settings | input_settings
            stream = cast(TextIO, RenamingStream(sys.stderr, str(data)))
            options = RunOptions(out=name, device=self.device, quiet=not self.verbose, progress=stream)
            try:
                with translate_errors(str(data)), isolated_rng(self.device):
                    run = train(self.task, preset=self.preset or "", options=options, **settings)
            except RunInterruptedError:  # the run cannot be resumed, because the folder is removed
                raise KeyboardInterrupt from None
            final_config = build_config({"data.train": INPUT_FILE}, run.config)
            run = replace(run, task=run.task.with_config(final_config))
            RunFolder(folder).write_config(run.config)
            self._store_run(run, read_run_files(folder, hidden_path=data))

    def _requested_settings(self) -> Settings:
        """Return the parameters that are not None, under the names of their settings."""
        requested = {setting: getattr(self, name) for name, setting in PARAMETER_SETTINGS.items()}
        requested = {name: value for name, value in requested.items() if value is not None}
        for name, value in check_settings({} if self.settings is None else self.settings).items():
            if _is_data_setting(name) or name in ("task", "seed"):
                raise ConfigError(
                    f"settings: {name!r} cannot be set here; pass texts to fit, and the seed as random_state"
                )
            requested[name] = value
        return {name: coerce_setting(name, to_python_scalar(value)) for name, value in requested.items()}

    def _store_run(self, run: Run, files: dict[str, bytes]) -> None:
        self._run, self._files = run, files
        self.settings_ = flatten_config(run.config)

    @property
    def _fitted_run(self) -> Run:
        """The fitted run. It is opened after unpickling or when the device has changed."""
        check_is_fitted(self)
        with translate_errors():
            if self._run is None or self._run.task.device.type != resolve_device(self.device).type:
                with tempfile.TemporaryDirectory(prefix="triform-") as name, isolated_rng(self.device):
                    self._write_files(Path(name))
                    self._run = load(name, device=self.device)
            return self._run

    def _write_files(self, folder: Path) -> None:
        """Write the run folder. The config is written last, because a folder without one is not a run."""
        for name, content in sorted(self._files.items(), key=lambda item: item[0] == CONFIG_FILE):
            (folder / name).write_bytes(content)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return state | {"_run": None} if "_run" in state else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.no_validation = True  # `check_texts` validates the input, which is text and not numbers
        return tags


class RenamingStream:
    """A stream that replaces the name of the temporary training file by X."""

    def __init__(self, stream: TextIO, file_name: str) -> None:
        self.stream, self.file_name = stream, file_name

    def write(self, text: str) -> int:
        return self.stream.write(text.replace(self.file_name, "X"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def isolated_rng(device: str) -> Iterator[None]:
    """Restore torch's random state at the end, with one thread at a time because the state is global.

    Seeding affects every device, so the states of all devices are saved. If only the CPU is used, CUDA is not
    initialised for this.
    """
    uses_accelerator = resolve_device(device).type != "cpu" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with FIT_LOCK, torch.random.fork_rng(range(torch.accelerator.device_count()) if uses_accelerator else ()):
        yield


def _is_data_setting(name: str) -> bool:
    """Return whether a setting describes the data, which `fit` provides."""
    return name.startswith("data.") and name not in PARAMETER_SETTINGS.values()


def read_run_files(folder: Path, hidden_path: Path | None = None) -> dict[str, bytes]:
    """Read the files of a run folder. The path of the temporary training file is removed from them."""
    files = {path.name: path.read_bytes() for pattern in PICKLED_FILES for path in sorted(folder.glob(pattern))}
    if hidden_path is not None and METRICS_FILE in files:
        hidden_json = json.dumps(str(hidden_path), ensure_ascii=False)[1:-1].encode()
        files[METRICS_FILE] = files[METRICS_FILE].replace(hidden_json, INPUT_FILE.encode())
    return files
