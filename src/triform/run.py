"""Open a trained run with `load`, then predict, evaluate, explain and export."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triform.analysis.parameters import count_parameters
from triform.config import Config
from triform.config.merging import override_decode
from triform.config.settings import validate_seed
from triform.data.in_memory import is_in_memory, iter_texts
from triform.errors import ConfigError, NonFiniteError
from triform.evaluation.baselines import BaselineMetrics, FittedBaselines
from triform.evaluation.details import DetailedMetrics
from triform.io.ensembles import RunPath, join_run_paths
from triform.nn.kernels.precision import Precision
from triform.tasks import Dataset, Task
from triform.tasks.batch import split_by_length
from triform.tasks.language_model_data import with_stride
from triform.tasks.leaks import training_file_warnings
from triform.tasks.mixture_decoding import Mixtures
from triform.tasks.prediction import Keep, PredictionList, validate_keep, validate_request
from triform.training.data_copies import resolve_in_memory, temporary_copy
from triform.training.linear_part import restore_linear_part
from triform.training.loading import Checkpoint
from triform.training.opening import open_task
from triform.training.run_folder import RunFolder
from triform.world import SINGLE_PROCESS, World

if TYPE_CHECKING:
    from triform.explain.attention_maps import Explanation

Lines = Container[int] | None  # the lines of a file to use; None: all of them
Settings = Mapping[str, object]
# CUDA allows only one thread to replay a CUDA graph, and none to use the device while a graph is captured.
_ACCELERATOR_LOCK = threading.RLock()


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained model with its settings and tokenizers, opened from its folder by `triform.load`.

    Several threads may use one run at the same time with different decoding settings, because these settings are
    arguments of each call and a call changes nothing in the run.

    Attributes:
        path: The run folder; for an ensemble, the folder that contains its runs, or their paths with commas.
        task: The task with its model.
        precision: The number format of the weights: fp32, bf16 or int8.
        adapter: The LoRA adapter that was merged into the weights, if any.
        members: The run folders of an ensemble, whose probabilities are averaged; empty for a single run.
        verify: Whether files are compared with their digests.
        notices: Messages for the user about how the run was opened.
        step: The training step of the weights if the run was opened at its latest checkpoint, else None.
        world: The processes that share the work of `predict` and `evaluate`. All of them make the same calls.

    Example:
        >>> import triform
        >>> tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
        >>> run = triform.train("generate", out="run", model=tiny, train={"max_steps": 2}, device="cpu", quiet=True)
        >>> run.predict("If you", strategy="greedy", max_new_tokens=5)[0].input
        'If you'
        >>> sorted(run.evaluate())
        ['bits_per_byte', 'loss', 'perplexity', 'token_accuracy', 'tokens']
    """

    path: Path
    task: Task
    precision: Precision = "fp32"
    adapter: Path | None = None
    members: tuple[Path, ...] = ()
    verify: bool = True
    notices: tuple[str, ...] = ()
    step: int | None = None
    world: World = SINGLE_PROCESS

    def __repr__(self) -> str:
        n_parameters = count_parameters(self.config, self.task.sizes).total  # torch counts none in int8 layers
        size = f"members={len(self.members)}" if self.members else f"parameters={n_parameters:,}"
        adapter = f", adapter={str(self.adapter)!r}" if self.adapter else ""
        return (
            f"Run(task={self.task.name!r}, path={str(self.path)!r}{adapter}, {size}, "
            f"device={str(self.task.device)!r}, precision={self.precision!r})"
        )

    def __getstate__(self) -> bytes:
        """Return the content as bytes, because `multiprocessing` sends a file descriptor for each tensor.

        A fork server accepts 250 of them.
        """
        return pickle.dumps(self.__dict__)

    def __setstate__(self, content: bytes) -> None:
        self.__dict__.update(pickle.loads(content))

    def _repr_html_(self) -> str:
        from triform.reporting.run_card import render_run_card

        if self.members:
            return f"<pre>{escape(repr(self))}</pre>"
        return render_run_card(self.path, self.task, self.precision)

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.task.config

    def predict(
        self,
        texts: Any,
        *,
        top: int = 0,
        keep: Keep | None = None,
        seed: int | None = None,
        rows: Sequence[int] | None = None,
        **decode: object,
    ) -> PredictionList:
        """Return a label, a continuation or a translation for each text.

        Args:
            texts: One text, an iterable of texts, or a data frame, whose text column is found as in a file.
            top: The number of `alternatives` of each prediction: for a classifier the most probable labels, for a
                language model the most probable next tokens after the prompt, for a translator the best hypotheses
                of beam search, at most `beam_size`.
            keep: The part to read of a text that is longer than the model's context, "first" or "last". The default
                is "last" for a language model, which continues the end of a prompt, else "first".
            seed: The random seed for sampling. The default is the seed of the run.
            rows: The number of each text, from which sampling derives random numbers. The default is 0, 1, 2, …
            **decode: Decoding settings of this call, such as `temperature=0.7` or `beam_size=8`. A setting that
                only one strategy uses also selects this strategy.

        Raises:
            DataError: A text is not a string, or contains characters that the model cannot read.
            ConfigError: A setting is unknown or out of bounds, or a translator cannot give `top` hypotheses.
        """
        if not isinstance(texts, str | list | tuple):
            texts = iter_texts(texts, self.config.task, resolve_in_memory(texts, self.config.data))
        texts = [texts] if isinstance(texts, str) else list(texts)
        validate_request(texts, top, keep)
        if seed is not None:
            validate_seed(seed)
        resolved = override_decode(self.config.decode, **decode)
        options: dict[str, Any] = {"decode": resolved, "seed": seed, "top": top, "keep": keep}
        with self.inference_context():
            task = self.mixtures.find_task(resolved.mix) if resolved.mix else self.task
            return PredictionList(task.predictor.predict_in_parallel(texts, self.world, rows=rows, **options))

    @cached_property
    def mixtures(self) -> Mixtures:
        """The mixtures of the model with models of counts, by the value of `decode.mix`."""
        return Mixtures(self.task)

    def evaluate(
        self, data: Any = "", *, lines: Lines = None, stride: int = 0, details: bool | int = False, **decode: object
    ) -> DetailedMetrics:
        """Return the metrics on a file or on data in memory.

        Args:
            data: The file; for translate also two files as `source,target`. It may also be a data frame or an
                iterable of rows, as for `triform.train`. The default is the validation data of the run.
            lines: Use only the rows that start on one of these lines, for example those that `triform audit`
                reports as unseen.
            stride: For generate: the distance in tokens between the starts of two windows. With 0, windows do not
                overlap.
            details: Also compute the `details` of the result: for a classifier the metrics of each label, the
                confusion matrix and the most confident mistakes, for a translator the worst sentences, and for a
                language model the loss by context and by token frequency. A number limits mistakes or sentences.
            **decode: Decoding settings of this call, for translations; `mix` is for language models.

        Raises:
            DataError: The file cannot be used.
            ConfigError: A setting is unknown, or `data` is empty and the run has no validation data.
        """
        if is_in_memory(data):
            with temporary_copy(data, self.config) as (path, config):
                run = replace(self, task=self.task.with_config(config))
                vars(run)["mixtures"] = self.mixtures  # whose data is that of the run
                return run.evaluate_with_notices(path, decode, lines, stride, details)[0]
        return self.evaluate_with_notices(str(data), decode, lines, stride, details)[0]

    def evaluate_with_notices(
        self, data: str, decode: Settings, lines: Lines = None, stride: int = 0, details: bool | int = False
    ) -> tuple[DetailedMetrics, list[str]]:
        """Return the metrics of `evaluate` and notices, such as a warning that the file is training data."""
        notices = self.training_file_notices(data) if data else []
        dataset = self._load_eval_dataset(data, notices, lines)
        dataset = with_stride(dataset, stride) if stride else dataset
        return self._evaluate_dataset(dataset, decode, details, data, lines), notices

    def evaluate_by_length(
        self, data: str | Path = "", *, edges: Sequence[int], **decode: object
    ) -> dict[str, DetailedMetrics]:
        """Return the metrics on the texts of each length, for example to see how a model copes with longer texts.

        Args:
            data: The file, as for `evaluate`.
            edges: The largest number of tokens of each range, in ascending order: [64, 128] stands for the ranges
                "1 to 64" and "65 to 128". A pair of sentences is as long as its longer side with the end token. For
                generate, a range contains the predictions after that many tokens of a window.
            **decode: Decoding settings of this call. They affect the metrics of translations.

        Returns:
            The metrics by the name of the range. Empty ranges and texts above the last edge are left out.

        Raises:
            DataError: The file cannot be used, or all ranges are empty.
            ConfigError: The edges are not in ascending order or are above `data.max_len`, or a setting is unknown.
        """
        return self.evaluate_by_length_with_notices(str(data), edges, decode)[0]

    def evaluate_by_length_with_notices(
        self, data: str, edges: Sequence[int], decode: Settings, details: bool | int = False
    ) -> tuple[dict[str, DetailedMetrics], list[str]]:
        """Return the metrics of `evaluate_by_length` and notices, such as the number of texts that are too long."""
        notices = self.training_file_notices(data) if data else []
        name, max_len = data or "held-out data", self.config.data.max_len
        parts, n_longer = split_by_length(self._load_eval_dataset(data, []), edges, max_len, name)
        if n_longer:
            notices.append(f"{name}: {n_longer} texts are left out, because they have more than {edges[-1]} tokens")
        return {key: self._evaluate_dataset(part, decode, details, data) for key, part in parts.items()}, notices

    def _load_eval_dataset(self, data: str, notices: list[str], lines: Lines = None) -> Dataset:
        if name := data or self.test_set():
            return self.task.data.load_dataset(name, notices, lines)
        self._require_own_data("name the file to evaluate")
        if (dataset := self.task.data.load_validation_dataset(notices)) is None:
            raise ConfigError("this run has no validation data; name the file to evaluate")
        return dataset

    def _evaluate_dataset(
        self, dataset: Dataset, decode: Settings, details: bool | int, data: str, lines: Lines = None
    ) -> DetailedMetrics:
        options: dict[str, Any] = {"decode": override_decode(self.config.decode, **decode), "world": self.world}
        read_examples = partial(self.task.data.iter_examples, data or self.test_set(), lines)
        task = self.task if data or self.test_set() else self.validation_task
        with self.inference_context():
            evaluator = (self.mixtures.find_task(mix) if (mix := options["decode"].mix) else task).evaluator
            metrics = evaluator.evaluate_optionally_detailed(dataset, details, read_examples, **options)
            if not math.isfinite(metrics["loss"]):
                raise NonFiniteError
        return metrics

    @cached_property
    def validation_task(self) -> Task:
        """The task to evaluate on the validation data, which a refitted linear part has learned."""
        return restore_linear_part(self.task, self._folders)

    @property
    def _folders(self) -> list[RunFolder]:
        return [RunFolder(path, verify=self.verify) for path in self.members or (self.path,)]

    def training_file_notices(self, name: str) -> list[str]:
        """Return a warning if a file, or two files as `source,target`, has the content of the training data.

        Files are compared by the fingerprints in the checkpoint, because the training files may have been moved.
        """
        configs = (folder.read_config() for folder in self._folders) if self.members else [self.config]
        read = map(RunFolder.read_training_fingerprints, self._folders, (config.data for config in configs))
        return next(filter(None, (training_file_warnings(name, fingerprints) for fingerprints in read)), [])

    def baselines(self, data: str | Path = "") -> BaselineMetrics:
        """Return the metrics of simple models without a Transformer, fitted on this run's training data.

        Args:
            data: The file to evaluate on, as for `evaluate`.
        """
        self._require_own_data("baselines need training data")
        return self._fitted_baselines.evaluate(self.task.data.iter_examples(str(data) or self.test_set()))

    @cached_property
    def _fitted_baselines(self) -> FittedBaselines:
        return self.task.data.fit_baselines()

    def explain(
        self,
        text: str,
        *,
        target: str = "",
        max_new_tokens: int = 0,
        keep: Keep | None = None,
        pad_to: int = 0,
        maps: bool = True,
        attributions: bool = True,
    ) -> Explanation:
        """Return the attention maps of a text and, for a classifier, the contribution of each token to a label.

        The model runs in fp32, even if the run was opened with another precision.

        Args:
            text: The text.
            target: The label, continuation or translation to explain. The default is the model's prediction.
            max_new_tokens: For generate: the number of tokens to generate if there is no target.
            keep: The part to show of a text that is longer than the model's context, as for `predict`.
            pad_to: Pad the text to this number of tokens, so that the maps show the padding.
            maps: Whether to compute attention maps.
            attributions: Whether to compute attributions. They take many passes of the model.
        """
        from triform.explain.inspection import explain

        validate_keep(keep)
        task = self._fp32_task(self.task.device.type)
        settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "keep": keep, "pad_to": pad_to}
        contents: dict[str, Any] = {"maps": maps, "attributions": attributions}
        with self.inference_context():
            return explain(task, text, target=target, title=self.path.name, **settings, **contents)

    def export(self, to: str, out: str | Path, **statement: Any) -> str:
        """Export the model to a folder that other programs read, and return the name of its model family.

        The stored fp32 weights are exported, even if the run was opened with another precision.

        Args:
            to: "hf" for transformers, "ctranslate2" for decoders and translators, or "onnx" for classifiers.
            out: The folder to write. It must be empty or not exist.
            **statement: What the model card states: `license`, `languages`, `dataset` and `base_model`, as in
                `triform.pretrained.card_metadata.CardInfo`.
        """
        from triform.pretrained.run_export import export_with_card

        metrics = None if self.members else self.progress().get("best")  # those of an ensemble differ
        return export_with_card(self._fp32_task("cpu"), to, Path(out), metrics, **statement)

    def _fp32_task(self, device: str) -> Task:
        """Return the task on a device, with its weights in fp32 as they are stored."""
        if self.precision == "fp32" and self.task.device.type == device:
            return self.task
        checkpoint: Checkpoint = "best" if self.step is None else "latest"
        options: dict[str, Any] = {"adapter": self.adapter or "", "checkpoint": checkpoint, "verify": self.verify}
        return load(self.path, device=device, precision="fp32", **options).task

    def test_set(self) -> str:
        """Return the name of the test split if the run was trained on a built-in dataset, else an empty string."""
        train = self.config.data.train
        return train.partition("/")[0] + "/test" if train.startswith("builtin:") else ""

    def _require_own_data(self, consequence: str) -> None:
        """Refuse a model that was imported and not trained here, because its training data is unknown."""
        if not (self.config.data.train or self.config.data.source):
            raise ConfigError(f"{self.path} is an imported model without training data: {consequence}")

    def progress(self) -> dict[str, object]:
        """Return the state of training: the step, the best metrics and their step, and why training ended."""
        return self._folders[0].read_progress()

    @contextmanager
    def inference_context(self) -> Iterator[None]:
        """Run the model: one thread at a time on an accelerator, any number of threads on a CPU."""
        device = next(self.task.model.parameters()).device
        with nullcontext() if device.type == "cpu" else _ACCELERATOR_LOCK:
            try:
                yield
            except NonFiniteError:
                raise NonFiniteError(self.path) from None


def load(
    path: RunPath,
    *,
    device: str = "auto",
    precision: str = "auto",
    adapter: str | Path = "",
    checkpoint: Checkpoint = "best",
    verify: bool = True,
) -> Run:
    """Open a run folder, or an ensemble, which averages the probabilities of several runs.

    Args:
        path: The run folder. For an ensemble, the folder of `triform train --seeds`, or a list of run folders.
        device: auto, cpu, cuda or mps.
        precision: auto (fp32 on every machine), fp32, bf16, or int8 (CPU only).
        adapter: The adapter.safetensors of a LoRA run that was trained from this one.
        checkpoint: The weights to load: "best" for those with the best validation, or "latest" for those of the
            latest checkpoint, which a run writes while it trains.
        verify: Compare the files with their digests. Set it to False to open files that you edited on purpose.

    Returns:
        The run, ready to predict, evaluate, explain and export.

    Raises:
        CheckpointError: The folder is not a run folder, a file does not match its digest, or the weights do not
            match the settings or are not finite.
        ConfigError: The device does not support the run or the precision, `checkpoint` is unknown or combined with
            an adapter, or the runs of an ensemble have different tasks, vocabularies or labels.

    Example:
        >>> import triform
        >>> triform.load("no/such/run")
        Traceback (most recent call last):
        ...
        triform.errors.CheckpointError: no/such/run: no such run folder
    """
    opened = open_task(
        join_run_paths(path),
        device=device,
        precision=precision,
        adapter=adapter,
        checkpoint=checkpoint,
        verify=verify,
    )
    return Run(verify=verify, **vars(opened))
