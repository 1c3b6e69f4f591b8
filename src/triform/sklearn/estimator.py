"""What the estimators share: parameters that become settings, and a run that lives in memory.

Fitting is `triform.train` in a temporary folder. What the folder held (the run's own files, as bytes) is what an
estimator keeps, pickles and saves; nothing else is needed to open the model again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TextIO, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from triform.config import TaskName
from triform.errors import CheckpointError, ConfigError, InterruptedRun
from triform.launch import Options, train
from triform.report import write_report
from triform.run import Run, load, pick_device
from triform.settings import OPEN, Settings, Value, build, chosen, flatten, typed
from triform.sklearn.given import check_settings, in_users_words, plain, seed_of
from triform.training.claim import claimed
from triform.training.folder import OWN, RunFolder

SETTINGS = {
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
GIVEN = ".given.jsonl"  # hidden: to a run folder, what begins with a dot is no file of someone else's
# What dies with its process need not be saved on the way.
UNSAVED: Settings = {"train.checkpoint_every": 1_000_000_000}
KEPT = tuple(name for name in OWN if name not in ("checkpoints", "tokens", "report.html"))
ALONE = threading.RLock()


class TextEstimator(BaseEstimator):
    """Abstract: an estimator of one task. A parameter that is None is left to the preset, or to Triform."""

    task: ClassVar[TaskName]
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
    @in_users_words()
    def from_run(cls, path: str | Path, *, device: str = "auto") -> Self:
        """A fitted estimator from a run folder, with the run's settings as its parameters."""
        folder = RunFolder(Path(path))
        config = folder.read_config()
        if config.task != cls.task:
            raise CheckpointError(f"{path}: is a run of {config.task}; {cls.__name__} opens runs of {cls.task}")
        if not folder.model_file.exists():
            raise CheckpointError(f"{path}: has no model yet; train it further with --resume")
        have = flatten(config)
        named: dict[str, Any] = {
            name: have[dotted] if have[dotted] or dotted not in OPEN else None for name, dotted in SETTINGS.items()
        }
        others = {
            name: value
            for name, value in chosen(have).items()
            if name not in (*SETTINGS.values(), *UNSAVED, "task", "seed") and not _is_of_files(name)
        }
        estimator = cls(**named, settings=others or None, random_state=config.seed, device=device)
        with undisturbed(device):
            estimator._keep(load(folder.path, device=device), run_files(folder.path))
        return estimator

    @in_users_words()
    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a run folder, which `triform.load` and every command open."""
        check_is_fitted(self)
        folder = RunFolder(Path(path))
        if folder.config_file.exists() and not overwrite:
            raise CheckpointError(f"{path}: already holds a run; choose another path or give overwrite=True")
        with claimed(folder, {}, overwrite=overwrite):
            folder.clear()
            self._write(folder.path)
            return write_report(folder.path).parent

    def _train(self, rows: Iterable[Mapping[str, str]], **more: Value) -> None:
        """Train on rows of texts, in a folder that is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="triform-") as name:
            folder, data = Path(name), Path(name) / GIVEN
            with data.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            given: Settings = {"seed": seed_of(self.random_state), "data.train": str(data)}
            asked: dict[str, Any] = UNSAVED | self._settings() | more | given
            shown = cast(TextIO, Shown(sys.stderr, str(data)))
            options = Options(out=name, device=self.device, quiet=not self.verbose, progress=shown)
            try:
                with in_users_words(str(data)), undisturbed(self.device):
                    run = train(self.task, preset=self.preset or "", options=options, **asked)
            except InterruptedRun:  # there is nothing to go on with: the folder goes
                raise KeyboardInterrupt from None
            run.task.config = build({"data.train": GIVEN}, run.config)
            RunFolder(folder).write_config(run.config)
            self._keep(run, run_files(folder, hiding=data))

    def _settings(self) -> Settings:
        """The parameters that say something, under Triform's names."""
        asked = {dotted: getattr(self, name) for name, dotted in SETTINGS.items()}
        asked = {name: value for name, value in asked.items() if value is not None}
        for name, value in check_settings({} if self.settings is None else self.settings).items():
            if _is_of_files(name) or name in ("task", "seed"):
                raise ConfigError(
                    f"settings: {name!r} cannot be set here: fit gives the texts, random_state the seed"
                )
            asked[name] = value
        return {name: typed(name, plain(value)) for name, value in asked.items()}

    def _keep(self, run: Run, files: dict[str, bytes]) -> None:
        self._run, self._files = run, files
        self.settings_ = flatten(run.config)

    @property
    def _model(self) -> Run:
        """The fitted model; opened when it is asked where it is not yet: unpickled, or set to another device."""
        check_is_fitted(self)
        with in_users_words():
            if self._run is None or self._run.task.device.type != pick_device(self.device).type:
                with tempfile.TemporaryDirectory(prefix="triform-") as name, undisturbed(self.device):
                    self._write(Path(name))
                    self._run = load(name, device=self.device)
            return self._run

    def _write(self, folder: Path) -> None:
        """The config comes last: without one, a folder is no run."""
        for name, content in sorted(self._files.items(), key=lambda item: item[0] == "config.toml"):
            (folder / name).write_bytes(content)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return state | {"_run": None} if "_run" in state else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.no_validation = True  # texts are looked at by `check_texts`: an array of numbers has no place here
        return tags


class Shown:
    """A stream on which the file of texts that were given in memory is called X."""

    def __init__(self, out: TextIO, file: str) -> None:
        self.out, self.file = out, file

    def write(self, text: str) -> int:
        return self.out.write(text.replace(self.file, "X"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)


@contextmanager
def undisturbed(device: str) -> Iterator[None]:
    """One thread at a time, for all draw from torch's one stream of random numbers; it is left as it was found.

    To seed is to seed every device. Their states lie on the host: keeping them costs nothing, but starting CUDA
    would, so that is not done where only the CPU is used.
    """
    far = pick_device(device).type != "cpu" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with ALONE, torch.random.fork_rng(range(torch.accelerator.device_count()) if far else ()):
        yield


def _is_of_files(name: str) -> bool:
    """Whether a setting says where data lies: for an estimator that is `fit`'s affair."""
    return name.startswith("data.") and name not in SETTINGS.values()


def run_files(folder: Path, hiding: Path | None = None) -> dict[str, bytes]:
    """What makes a run folder a run, as bytes; the path of what lay in memory is no one's business."""
    found = {path.name: path.read_bytes() for pattern in KEPT for path in sorted(folder.glob(pattern))}
    if hiding is not None and "metrics.jsonl" in found:
        written = json.dumps(str(hiding), ensure_ascii=False)[1:-1].encode()
        found["metrics.jsonl"] = found["metrics.jsonl"].replace(written, GIVEN.encode())
    return found
