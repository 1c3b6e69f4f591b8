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

from triform.analysis.parameters import count_parameters
from triform.config import Config
from triform.config.settings import build_config, coerce_setting
from triform.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from triform.evaluation.baselines import BaselineMetrics, FittedBaselines
from triform.evaluation.metrics import Metrics
from triform.explain.probes import build_untrained_model
from triform.nn.precision import Precision, cast_model, resolve_precision
from triform.tasks import TASKS, Prediction, Task
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.leaks import training_file_warnings
from triform.tasks.task import Dataset
from triform.training.adapter import Adapter, read_adapter
from triform.training.init_from import load_interrupted_weights, load_matching_weights
from triform.training.run_folder import RunFolder
from triform.training.tensors import load_weights, named_weights, validate_shapes

if TYPE_CHECKING:
    from triform.explain.attention_maps import Explanation

IMPLIED_STRATEGY = {
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "beam_size": "beam",
    "length_penalty": "beam",
}


# A recorded CUDA graph is replayed by one thread at a time, and while one is recorded no other thread may use the
# device, whichever run it belongs to.
_ACCELERATOR_LOCK = threading.RLock()


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
        n_parameters = count_parameters(
            self.config, self.task.sizes
        ).total  # int8 layers have none that torch could count
        adapter = f", adapter={str(self.adapter)!r}" if self.adapter else ""
        return (
            f"Run(task={self.task.name!r}, path={str(self.path)!r}{adapter}, parameters={n_parameters:,}, "
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
        config = self._resolve_call_config(decode, seed)
        with self._inference_context():
            return self.task.predict(texts, decode=config.decode, seed=config.seed)

    def evaluate(
        self, data: str | Path = "", *, lines: Container[int] | None = None, stride: int = 0, **decode: object
    ) -> Metrics:
        """Scores on a file; for translate also `source,target`. Without one: the run's own held-out data.

        With `lines`, on the rows of the file that begin there: `triform audit` tells seen ones from others. With
        `stride`, text is read in windows that begin so many tokens apart, not side by side.
        """
        return self.evaluate_with_notices(str(data), decode, lines, stride)[0]

    def evaluate_with_notices(
        self, data: str, decode: Mapping[str, object], lines: Container[int] | None = None, stride: int = 0
    ) -> tuple[Metrics, list[str]]:
        notices = self.training_file_notices(data) if data else []
        name = data or self.test_set()
        if not name:
            self._require_own_data("say which file to score")
        config = self._resolve_call_config(decode)
        dataset = (
            self.task.load_dataset(name, notices, lines) if name else self.task.load_validation_dataset(notices)
        )
        if dataset is None:
            raise ConfigError("nothing was held out of this run's training data; say which file to score")
        with self._inference_context():
            metrics = self.task.evaluate(_with_stride(dataset, stride) if stride else dataset, decode=config.decode)
            if not math.isfinite(metrics["loss"]):
                raise NonFiniteError
        return metrics, notices

    def training_file_notices(self, name: str) -> list[str]:
        """A warning where a file, or `source,target`, has the content of what the run was trained on.

        The checkpoint has the fingerprints of the training files, so that they may have moved since.
        """
        folder, data = RunFolder(self.path, verify=self.verify), self.config.data
        fingerprints: dict[str, str] = {}
        with suppress(CheckpointError):  # the model answers without its checkpoint
            if latest := folder.latest_checkpoint():
                fingerprints = folder.read_state(latest)["metadata"].get("data", {})
        trained_on = [fingerprints[file] for file in (data.train, data.source, data.target) if file in fingerprints]
        return training_file_warnings(name, trained_on)

    def baselines(self, data: str | Path = "") -> BaselineMetrics:
        """Scores of what needs no Transformer, fitted on this run's training data, on what `evaluate` scores."""
        self._require_own_data("baselines have nothing to be fitted on")
        return self._fitted_baselines.evaluate(self.task.iter_examples(str(data) or self.test_set()))

    @cached_property
    def _fitted_baselines(self) -> FittedBaselines:
        return self.task.fit_baselines()

    def explain(self, text: str, *, target: str = "", max_new_tokens: int = 0) -> Explanation:
        """Where the model looks: attention maps of a text, beside a target or what the model itself writes.

        For a classifier also how much each token speaks for a label (`target`, or the one predicted). Always of
        the weights as they were trained: maps and gradients are not for rounded ones.
        """
        from triform.explain.inspection import explain

        task = self._fp32_task(self.task.device.type)
        with self._inference_context():
            return explain(task, text, target=target, max_new_tokens=max_new_tokens, title=self.path.name)

    def export(self, to: str, out: str | Path) -> str:
        """Write a folder that other programs read, and return the name of the family that the model was written as.

        Args:
            to: "hf" for transformers, "ctranslate2" for decoders and translators, or "onnx" for classifiers.
            out: The folder to write. It must be empty or not exist.

        The stored fp32 weights are written, whatever precision and device the run was opened with.
        """
        from triform.pretrained.run_export import export

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

    def _require_own_data(self, consequence: str) -> None:
        """A published model that was only imported does not say what it was trained on."""
        if not (self.config.data.train or self.config.data.source):
            raise ConfigError(f"{self.path}: was not trained here and names no data: {consequence}")

    def progress(self) -> dict[str, object]:
        """Where its training stands: the step, the best scores and their step, and why it ended."""
        folder = RunFolder(self.path, verify=self.verify)
        latest = folder.latest_checkpoint()
        return dict(folder.read_state(latest)["progress"]) if latest else {}

    def _resolve_call_config(self, decode: Mapping[str, object], seed: int | None = None) -> Config:
        """The run's settings with those of one call put over them."""
        settings = {f"decode.{name}": coerce_setting(f"decode.{name}", value) for name, value in decode.items()}
        for name, strategy in IMPLIED_STRATEGY.items():  # who asks for a beam of 8 wants a beam
            if name in decode and "strategy" not in decode:
                settings["decode.strategy"] = strategy
        return build_config(settings | ({} if seed is None else {"seed": seed}), self.config)

    @contextmanager
    def _inference_context(self) -> Iterator[None]:
        """Use the model: on an accelerator one thread at a time, on a CPU as many as there are."""
        with nullcontext() if self.task.device.type == "cpu" else _ACCELERATOR_LOCK:
            try:
                yield
            except NonFiniteError:
                raise NonFiniteError(self.path) from None


def _with_stride(data: Dataset, stride: int) -> Dataset:
    if not isinstance(data, LanguageModelDataset):
        raise ConfigError("a stride is for decoders, which read running text in windows")
    return data.with_stride(stride)


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
    torch_device = resolve_device(device)
    folder = RunFolder(Path(path), verify=verify)
    config = folder.read_config()
    resolved_precision = resolve_precision(precision, torch_device, config.model)
    notices = folder.verify_files()
    loaded_adapter = read_adapter(Path(adapter), verify=verify) if adapter else None
    if loaded_adapter is not None:
        task, notices = load_with_adapter(folder, loaded_adapter), (*notices, *loaded_adapter.notices)
    elif folder.model_file.exists():
        task = _load_trained_task(config, folder)
    else:
        with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced at once
            task = TASKS[config.task].load(config, folder.path)
            notices = (*notices, load_interrupted_weights(task, folder))
    cast_model(task.model.to(torch_device).eval(), resolved_precision)
    adapter_path = loaded_adapter.path if loaded_adapter else None
    return Run(
        path=folder.path,
        task=task,
        precision=resolved_precision,
        adapter=adapter_path,
        verify=verify,
        notices=notices,
    )


def _load_trained_task(config: Config, folder: RunFolder) -> Task:
    """The task of a run with its weights; what does not fit the settings is refused before memory is taken."""
    shapes = folder.read_shapes()
    if config.model.n_layers > len(shapes):
        raise CheckpointError(
            f"{folder.model_file}: does not fit the settings: it has {len(shapes)} tensors, "
            f"too few for model.n_layers={config.model.n_layers}"
        )
    task = _load_meta_task(config, folder.path)
    validate_shapes(folder.model_file, shapes, named_weights(task.model))
    task.model = build_untrained_model(config, task.sizes)
    load_weights(task.model, folder.read_weights(verify=False), folder.model_file)  # `load` has verified them
    return task


def _load_meta_task(config: Config, folder: Path) -> Task:
    """The task of a run folder with a model that has shapes and no numbers."""
    with torch.device("meta"):
        return TASKS[config.task].load(config, folder)


def load_with_adapter(base: RunFolder, adapter: Adapter) -> Task:
    """What a LoRA run came to, from its base and its adapter."""
    try:
        task = _load_meta_task(adapter.config, base.path)
        load_matching_weights(
            task, base.path, verify=False
        )  # here only shapes are compared; `load` has verified the base
        task.model = build_untrained_model(adapter.config, task.sizes)
        load_matching_weights(task, base.path, verify=False)
        adapter.apply_to(task.model)
    except ConfigError as error:
        raise CheckpointError(f"{adapter.path}: is an adapter for another base: {error}") from None
    return task


def resolve_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU; anything else must be there."""
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    if name not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"unknown device {name!r}; choose from auto, cpu, cuda, mps")
    if (name == "cuda" and not has_cuda) or (name == "mps" and not has_mps):
        raise ConfigError(f"device {name!r} is not available here; use --device auto or cpu")
    return torch.device(name)
