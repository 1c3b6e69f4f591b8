"""A task combines a model with its tokenizers and its loss. Data, evaluation and prediction are separate objects.

Losses are sums over predictions. The trainer divides once, by the number of predictions in the whole step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from triform.analysis.host_memory import require_memory
from triform.config import Config, DataSizes, TaskName
from triform.config.settings import build_config
from triform.io.run_layout import TOKENS_FOLDER
from triform.tasks.batch import Dataset
from triform.tasks.classifier_defaults import ClassifierDefaults
from triform.tasks.cpu_budget import CpuBudget
from triform.tasks.data import TaskData
from triform.tasks.defaults import resolve_defaults, resolve_tokenizer_kind
from triform.tasks.evaluation import Evaluator
from triform.tasks.learned_tokenizers import load_tokenizers, save_tokenizers, tokenizer_versions
from triform.tasks.prediction import Predictor
from triform.text import Tokenizer
from triform.world import current_world


class Task(ABC):
    """Abstract base class of `Classify`, `Generate` and `Translate`.

    Args:
        config: Resolved settings, which are final.
        tokenizers: The tokenizer, or for translate one for the source and one for the target.
    """

    name: ClassVar[TaskName]
    unit: ClassVar[str]  # the name of its examples in messages
    metric: ClassVar[str]  # the metric that selects the best weights
    higher_is_better: ClassVar[bool]
    shown_metrics: ClassVar[tuple[str, ...]]  # the metrics in the table of several sets
    lower_loss_is_progress: ClassVar[bool] = False  # whether a lower loss resets the patience of early stopping
    data_class: ClassVar[type[TaskData]]
    config: Config  # final, see `with_config`
    model: Any
    teacher: Any = None  # the model whose outputs this one learns, if `train.distill_from` names one

    def __init__(self, config: Config, *tokenizers: Tokenizer) -> None:
        self.config, self.tokenizers = config, tokenizers
        self.tokenizer = tokenizers[0]  # of the input text
        self.target_tokenizer = tokenizers[-1]  # of the generated text
        self.sizes = self._data_sizes()
        require_memory(config, self.sizes)
        self.model = self.build_model()

    def _data_sizes(self) -> DataSizes:
        return DataSizes(vocab_size=self.tokenizer.vocab_size, max_len=self.config.data.max_len)

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a new model with initial weights."""

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """Return the loss, summed over the predictions of the batch."""

    @torch.no_grad()
    def teacher_logits(self, *inputs: Any) -> Tensor:
        """Return the outputs of the teacher for the inputs of the model."""
        logits: Tensor = self.teacher(*inputs)
        return logits

    def __setattr__(self, name: str, value: object) -> None:
        if name == "config" and "config" in vars(self):
            raise AttributeError("the settings of a task are final; use with_config to get another task")
        super().__setattr__(name, value)

    def with_config(self, config: Config) -> Self:
        """Return a task with other settings that shares the model and the tokenizers.

        Some training settings, such as the number of steps, are known only after the data has been read.
        """
        task = copy(self)
        vars(task)["config"] = config
        return task

    def tokenizer_for(self, module_name: str) -> Tokenizer:
        """Return the tokenizer of the tokens that a module reads. Modules have the names of `named_modules()`."""
        return self.tokenizer if module_name.startswith("encoder.") else self.target_tokenizer

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def data(self) -> TaskData:
        """The data of the task, which needs no model."""
        return self.choose_data_class(self.config)(self.config, self.tokenizers)

    @classmethod
    def choose_data_class(cls, config: Config) -> type[TaskData]:
        """Return the class that reads the data of these settings."""
        return cls.data_class

    @property
    @abstractmethod
    def evaluator(self) -> Evaluator:
        """The evaluator of the model."""

    @property
    @abstractmethod
    def predictor(self) -> Predictor:
        """The predictor of the model."""

    @classmethod
    def prepare(
        cls,
        config: Config,
        folder: Path,
        *,
        resume: bool = False,
        defaults: CpuBudget | ClassifierDefaults | None = None,
    ) -> PreparedTask:
        """Read the data, train tokenizers, resolve automatic settings and build the model.

        The seed of the settings determines all later random numbers, such as initial weights and dropout.

        Args:
            config: Settings, some of which may be automatic.
            folder: The run folder.
            resume: Use the tokenizers of the run folder instead of training new ones.
            defaults: How to choose settings that the user has not given; None: as for any model.

        The main one of several processes must call this method before the others, which load its tokenizers.

        Raises:
            DataError: A file cannot be used.
            ConfigError: The settings do not match the data, or the model does not fit into memory.
        """
        torch.manual_seed(config.seed)
        data, notices = cls.choose_data_class(config)(config).with_resolved_names(), list[str]()
        cache = data.open_cache(folder, notices)
        data, n_characters = data.scan(cache)
        data = replace(data, config=resolve_tokenizer_kind(data.config, sum(n_characters)))
        if defaults is not None:
            data = replace(data, config=defaults.choose_vocabulary(data.config, sum(n_characters)))
        if resume or not current_world().is_main:
            tokenizers = load_tokenizers(data.config, folder if resume else folder / TOKENS_FOLDER)
        else:
            tokenizers = data.train_or_load_tokenizers(cache, n_characters)
            if current_world().size > 1:  # for the other processes
                (folder / TOKENS_FOLDER).mkdir(exist_ok=True)
                save_tokenizers(tokenizers, folder / TOKENS_FOLDER)
        versions = [tokenizer_versions(tokenizer, data.config.tokenizer) for tokenizer in tokenizers]
        encoded = data.encode_split("train", versions, cache)
        n_versions = len(versions[0])
        config, n_tokens = data.config, encoded.n_tokens // n_versions
        settings = data.settings_from(encoded, tokenizers)
        if defaults is not None:
            n_rows = sum(map(len, encoded.stores)) // n_versions
            config, notice = defaults.resolve(build_config(settings, config), n_tokens, n_rows)
            notices += [notice] if notice else []
        task = cls(resolve_defaults(config, n_tokens, settings), *tokenizers)
        notices += task.data.describe(encoded, n_versions)
        train = task.data.build_training_dataset(encoded, notices, n_versions)
        valid = task.data.load_validation_dataset(notices, folder)
        monitors = task.data.load_monitors(notices, cache, len(train))
        notices += task.data.find_problems(train, valid, folder)
        notices += task.config.model.window_notices(task.config.data.max_len)
        return PreparedTask(task=task, train=train, valid=valid, monitors=monitors, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """Load the task of a run folder with initial weights."""
        return cls(config, *load_tokenizers(config, folder))

    def save(self, folder: Path) -> None:
        """Write the files that `load` needs in addition to the config."""
        save_tokenizers(self.tokenizers, folder)


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task with resolved settings, its datasets, and notices for the user."""

    task: Task
    train: Dataset
    valid: Dataset | None
    monitors: Mapping[str, Dataset]  # sets that are evaluated with each validation, by name
    notices: tuple[str, ...]

    def with_config(self, config: Config, notices: Iterable[str] = ()) -> PreparedTask:
        """Return the same data and model with other settings and more notices."""
        return replace(self, task=self.task.with_config(config), notices=(*self.notices, *notices))
