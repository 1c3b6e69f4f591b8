"""A trained run, opened from its folder: `load` it, then predict and evaluate."""

from __future__ import annotations

import math
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from triform.baselines import Fitted, Table
from triform.config import Config
from triform.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from triform.explain.trial import fresh_model
from triform.metrics import Scores
from triform.models.budget import budget
from triform.nn.precision import Precision, cast_model, resolve_precision
from triform.settings import build, typed
from triform.tasks import TASKS, Prediction, Task
from triform.tasks.leaks import training_file_notices
from triform.tasks.task import Dataset
from triform.tasks.windows import Stream
from triform.training.adapter import Adapter, read_adapter
from triform.training.base import load_interrupted, take
from triform.training.folder import RunFolder, check_shapes, load_weights, read_shapes, read_tensors, weights_of

if TYPE_CHECKING:
    from triform.explain.maps import Explanation

IMPLIES = {
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "beam_size": "beam",
    "length_penalty": "beam",
}


# A recorded CUDA graph is replayed by one thread at a time, and while one is recorded no other thread may use the
# device, whichever run it belongs to.
_ACCELERATOR = threading.RLock()


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained model with everything around it, opened from its folder."""

    path: Path
    task: Task
    precision: Precision = "fp32"
    adapter: Path | None = None
    verify: bool = True
    notices: tuple[str, ...] = ()  # what the user should know about how the run was opened

    def __repr__(self) -> str:
        parameters = budget(self.config, self.task.sizes).total  # int8 layers have none that torch could count
        adapter = f", adapter={str(self.adapter)!r}" if self.adapter else ""
        return (
            f"Run(task={self.task.name!r}, path={str(self.path)!r}{adapter}, parameters={parameters:,}, "
            f"device={str(self.task.device)!r}, precision={self.precision!r})"
        )

    @property
    def config(self) -> Config:
        return self.task.config

    def predict(self, texts: Sequence[str], *, seed: int | None = None, **decode: object) -> list[Prediction]:
        """A label, a continuation or a translation for each text; `decode` settings count for this call."""
        texts = [texts] if isinstance(texts, str) else texts
        for text in texts:
            if not isinstance(text, str):
                raise DataError(f"predict takes texts; {text!r} is {type(text).__name__}")
        config = self._call_config(decode, seed)
        with self._calling():
            return self.task.predict(texts, decode=config.decode, seed=config.seed)

    def evaluate(
        self, data: str | Path = "", *, lines: Container[int] | None = None, stride: int = 0, **decode: object
    ) -> Scores:
        """Scores on a file; for translate also `source,target`. Without one: the run's own held-out data.

        With `lines`, on the rows of the file that begin there: `triform audit` tells seen ones from others. With
        `stride`, text is read in windows that begin so many tokens apart, not side by side.
        """
        return self.evaluate_with_notices(str(data), decode, lines, stride)[0]

    def evaluate_with_notices(
        self, data: str, decode: Mapping[str, object], lines: Container[int] | None = None, stride: int = 0
    ) -> tuple[Scores, list[str]]:
        notices = self.training_file_notices(data) if data else []
        name = data or self.test_set()
        if not name:
            self._need_own_data("say which file to score")
        config = self._call_config(decode)
        found = self.task.read(name, notices, lines) if name else self.task.held_out(notices)
        if found is None:
            raise ConfigError("nothing was held out of this run's training data; say which file to score")
        with self._calling():
            scores = self.task.evaluate(_strided(found, stride) if stride else found, decode=config.decode)
            if not math.isfinite(scores["loss"]):
                raise NonFiniteError
        return scores, notices

    def training_file_notices(self, name: str) -> list[str]:
        """A warning where a file, or `source,target`, has the content of what the run was trained on.

        The checkpoint has the fingerprints of the training files, so that they may have moved since.
        """
        folder, data = RunFolder(self.path, verify=self.verify), self.config.data
        known: dict[str, str] = {}
        with suppress(CheckpointError):  # the model answers without its checkpoint
            if latest := folder.latest_checkpoint():
                known = folder.read_state(latest)["marks"].get("data", {})
        trained_on = [known[file] for file in (data.train, data.source, data.target) if file in known]
        return training_file_notices(name, trained_on)

    def baselines(self, data: str | Path = "") -> Table:
        """Scores of what needs no Transformer, fitted on this run's training data, on what `evaluate` scores."""
        self._need_own_data("baselines have nothing to be fitted on")
        return self._baselines.scores(self.task.rows(str(data) or self.test_set()))

    @cached_property
    def _baselines(self) -> Fitted:
        return self.task.baselines()

    def explain(self, text: str, *, target: str = "", n_new: int = 0) -> Explanation:
        """Where the model looks: attention maps of a text, beside a target or what the model itself writes.

        For a classifier also how much each token speaks for a label (`target`, or the one predicted). Always of
        the weights as they were trained: maps and gradients are not for rounded ones.
        """
        from triform.explain.look import explain

        task = self._fp32_task(self.task.device.type)
        with self._calling():
            return explain(task, text, target=target, n_new=n_new, title=self.path.name)

    def export(self, to: str, out: str | Path) -> str:
        """Write a folder that other programs read, and return the name of the family that the model was written as.

        Args:
            to: "hf" for transformers, "ctranslate2" for decoders and translators, or "onnx" for classifiers.
            out: The folder to write. It must be empty or not exist.

        The stored fp32 weights are written, whatever precision and device the run was opened with.
        """
        from triform.pretrained.exported import export

        return export(self._fp32_task("cpu"), to, Path(out))

    def _fp32_task(self, device: str) -> Task:
        """The task with its weights as they are stored, on a device."""
        if self.precision == "fp32" and self.task.device.type == device:
            return self.task
        adapter = self.adapter or ""
        return load(self.path, device=device, precision="fp32", adapter=adapter, verify=self.verify).task

    def test_set(self) -> str:
        """The test part of the built-in set that the run was trained on, if it was."""
        train = self.config.data.train
        return train.partition("/")[0] + "/test" if train.startswith("builtin:") else ""

    def _need_own_data(self, otherwise: str) -> None:
        """A published model that was only imported does not say what it was trained on."""
        if not (self.config.data.train or self.config.data.source):
            raise ConfigError(f"{self.path}: was not trained here and names no data: {otherwise}")

    def progress(self) -> dict[str, object]:
        """Where its training stands: the step, the best scores and their step, and why it ended."""
        folder = RunFolder(self.path, verify=self.verify)
        latest = folder.latest_checkpoint()
        return dict(folder.read_state(latest)["progress"]) if latest else {}

    def _call_config(self, decode: Mapping[str, object], seed: int | None = None) -> Config:
        """The run's settings with those of one call put over them."""
        settings = {f"decode.{name}": typed(f"decode.{name}", value) for name, value in decode.items()}
        for name, strategy in IMPLIES.items():  # who asks for a beam of 8 wants a beam
            if name in decode and "strategy" not in decode:
                settings["decode.strategy"] = strategy
        return build(settings | ({} if seed is None else {"seed": seed}), self.config)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Use the model: on an accelerator one thread at a time, on a CPU as many as there are."""
        with nullcontext() if self.task.device.type == "cpu" else _ACCELERATOR:
            try:
                yield
            except NonFiniteError:
                raise NonFiniteError(self.path) from None


def _strided(data: Dataset, stride: int) -> Dataset:
    if not isinstance(data, Stream):
        raise ConfigError("a stride is for decoders, which read running text in windows")
    return data.strided(stride)


def load(
    path: str | Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    adapter: str | Path = "",
    verify: bool = True,
) -> Run:
    """Open a run folder.

    Args:
        path: The run folder.
        device: auto, cpu, cuda or mps.
        precision: auto (fp32 on every machine), fp32, bf16, or int8 (on the CPU only).
        adapter: The adapter.safetensors of a LoRA run that began with this one.
        verify: Compare the files with their digests. Without, files that were edited on purpose can be used.

    Raises:
        CheckpointError: The folder is not a run, a file of it does not match its digest, or its weights do not fit
            the settings or are not finite.
    """
    place = pick_device(device)
    folder = RunFolder(Path(path), verify=verify)
    config = folder.read_config()
    resolved = resolve_precision(precision, place, config.model)
    notices = folder.check()
    found = read_adapter(Path(adapter), verify=verify) if adapter else None
    if found is not None:
        task, notices = adapted(folder, found), (*notices, *found.notices)
    elif folder.model_file.exists():
        task = _trained(config, folder)
    else:
        with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced at once
            task = TASKS[config.task].load(config, folder.path)
            notices = (*notices, load_interrupted(task, folder))
    cast_model(task.model.to(place).eval(), resolved)
    own = found.path if found else None
    return Run(path=folder.path, task=task, precision=resolved, adapter=own, verify=verify, notices=notices)


def _trained(config: Config, folder: RunFolder) -> Task:
    """The task of a run with its weights; what does not fit the settings is refused before memory is taken."""
    shapes = read_shapes(folder.model_file)
    if config.model.n_layers > len(shapes):
        raise CheckpointError(
            f"{folder.model_file}: does not fit the settings: it has {len(shapes)} tensors, "
            f"too few for model.n_layers={config.model.n_layers}"
        )
    task = _without_memory(config, folder.path)
    check_shapes(folder.model_file, shapes, weights_of(task.model))
    task.model = fresh_model(config, task.sizes)
    load_weights(task.model, read_tensors(folder.model_file), folder.model_file)
    return task


def _without_memory(config: Config, folder: Path) -> Task:
    """The task of a run folder with a model that has shapes and no numbers."""
    with torch.device("meta"):
        return TASKS[config.task].load(config, folder)


def adapted(base: RunFolder, adapter: Adapter) -> Task:
    """What a LoRA run came to, from its base and its adapter."""
    try:
        task = _without_memory(adapter.config, base.path)
        take(task, base.path, verify=False)  # here only shapes are compared; `load` has verified the base
        task.model = fresh_model(adapter.config, task.sizes)
        take(task, base.path, verify=False)
        adapter.put_on(task.model)
    except ConfigError as error:
        raise CheckpointError(f"{adapter.path}: is an adapter for another base: {error}") from None
    return task


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
