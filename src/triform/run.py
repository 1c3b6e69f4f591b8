"""A trained run, opened from its folder: `load` it, then predict and evaluate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.metrics import Scores
from triform.settings import build, typed
from triform.tasks import TASKS, Prediction, Task
from triform.training.folder import RunFolder, load_weights, read_tensors


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained model with everything around it, opened from its folder."""

    path: Path
    task: Task

    @property
    def config(self) -> Config:
        return self.task.config

    def predict(self, texts: Sequence[str], *, seed: int | None = None, **decode: object) -> list[Prediction]:
        """A label, a continuation or a translation for each text; `decode` settings count for this call."""
        if isinstance(texts, str):
            texts = [texts]
        with self._decoding(decode, seed):
            return self.task.predict(texts)

    def evaluate(self, data: str | Path = "", **decode: object) -> Scores:
        """Scores on a file; for translate also `source,target`. Without one: the run's own held-out data."""
        return self.evaluate_with_notices(str(data), decode)[0]

    def evaluate_with_notices(self, data: str, decode: Mapping[str, object]) -> tuple[Scores, list[str]]:
        notices: list[str] = []
        name = data or self.held_out_data()
        with self._decoding(decode):
            return self.task.evaluate(self.task.read(name, notices)), notices

    def progress(self) -> dict[str, object]:
        """Where its training stands: the step, the best scores and their step, and why it ended."""
        folder = RunFolder(self.path)
        latest = folder.latest_checkpoint()
        return dict(folder.read_state(latest)["progress"]) if latest else {}

    def held_out_data(self) -> str:
        """The test part of a built-in set, or the validation file the run was given."""
        data = self.config.data
        if data.train.startswith("builtin:"):
            return data.train.partition("/")[0] + "/test"
        name = data.valid or (f"{data.valid_source},{data.valid_target}" if data.valid_source else "")
        if not name:
            raise ConfigError("this run has no held-out file of its own; say --data FILE")
        return name

    @contextmanager
    def _decoding(self, decode: Mapping[str, object], seed: int | None = None) -> Iterator[None]:
        kept = self.task.config
        settings = {f"decode.{name}": typed(f"decode.{name}", value) for name, value in decode.items()}
        self.task.config = build(settings | ({} if seed is None else {"seed": seed}), kept)
        try:
            yield
        finally:
            self.task.config = kept


def load(path: str | Path, *, device: str = "auto") -> Run:
    """Open a run folder."""
    folder = RunFolder(Path(path))
    config = folder.read_config()
    if not folder.model_file.exists():
        raise CheckpointError(f"{path}: has no model yet; train it further with --resume")
    with torch.random.fork_rng(
        devices=[]
    ):  # initial weights are about to be replaced: draw nothing from the caller
        task = TASKS[config.task].load(config, folder.path)
    load_weights(task.model, read_tensors(folder.model_file), folder.model_file)
    task.model.to(pick_device(device)).eval()
    return Run(path=folder.path, task=task)


def pick_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU; anything else must be there."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if name not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"unknown device {name!r}; choose from auto, cpu, cuda, mps")
    if (name == "cuda" and not cuda) or (name == "mps" and not mps):
        raise ConfigError(f"device {name!r} is not available here; use --device auto or cpu")
    return torch.device(name)
