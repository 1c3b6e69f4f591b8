"""The base class of the NumPy estimators: settings, tokenizers, model, training and saving."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from triform.config import Config, DataSizes
from triform.config.settings import build_config
from triform.errors import DataError
from triform.scratch import run_folder, weights
from triform.scratch.module import FlatParameters
from triform.scratch.supported import check_model, check_training, resolve_defaults
from triform.scratch.training import TrainingData, train_model
from triform.text import Tokenizer
from triform.text.estimator import TextEstimatorBase


class NumpyEstimator(TextEstimatorBase):
    """Abstract base class of the NumPy estimators, which combine a model with its tokenizers.

    Args:
        config: The settings; unset sizes get defaults for small data.
    """

    model_class: ClassVar[Any]
    model: Any
    weights: FlatParameters

    def __init__(self, config: Config | None = None) -> None:
        config = replace(config or Config(), task=self.task)
        # A seed is an integer.
        self.initial_config = self.config = resolve_defaults(build_config({"seed": config.seed}, config))
        check_model(self.config.model)
        self.tokenizers: dict[str, Tokenizer] = {}  # by the names of their files
        self.losses: list[float] = []  # of each step

    def sizes(self) -> DataSizes:
        """Return the sizes of vocabularies and labels that the model needs."""
        return DataSizes(vocab_size=self.tokenizer.vocab_size, max_len=self.config.data.max_len)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the input text."""
        return next(iter(self.tokenizers.values()))

    def check_fitted(self) -> None:
        """Raise a DataError if the model is not fitted."""
        if "weights" not in vars(self):
            raise DataError("this model is not fitted yet; call fit first, or open a run with scratch.load")

    def build_model(self) -> None:
        """Build the model for these settings and vocabularies, with random weights."""
        self.model = self.model_class(self.config.model, self.sizes())
        self.weights = FlatParameters(self.model)
        weights.initialise_weights(self.model, self.config.model.n_layers, np.random.default_rng(self.config.seed))

    def reset_config(self) -> None:
        """Restore the initial settings, without those that were derived from earlier data."""
        check_training(self.initial_config)
        self.config = self.initial_config

    def fit_copy(self, *data: Any) -> Self:
        """Train a copy and adopt it if training succeeds, so that a failure leaves this estimator unchanged."""
        estimator = copy(self)
        vars(self).update(vars(estimator.run_training(estimator.prepare_data(*data))))
        return self

    def check_pairs(
        self, first: object, second: object, first_name: str, second_name: str
    ) -> tuple[list[str], list[str]]:
        """Return two lists of texts of the same length."""
        first_texts = self.check_texts(first, first_name, allow_empty=True)
        second_texts = self.check_texts(second, second_name, allow_empty=True)
        self.check_same_length(first_name, len(first_texts), second_name, len(second_texts))
        if not first_texts:
            raise DataError(f"there are no {first_name} to train on")
        return first_texts, second_texts

    def prepare_data(self, *data: Any) -> TrainingData:
        """Resolve settings, tokenizers and model from the data, and return it in batches."""
        raise NotImplementedError

    def run_training(self, data: TrainingData) -> Self:
        """Train the model on prepared data."""
        self.losses = train_model(self.model, self.weights, data, self.config)
        return self

    def resolve_max_len(self, longest: int, limit: int) -> None:
        """Set `data.max_len` to the longest text, up to a limit, unless it is set."""
        max_len = self.config.data.max_len or max(2, min(limit, longest))
        self.config = replace(self.config, data=replace(self.config.data, max_len=max_len))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run folder that `triform.load` and all commands can open.

        Args:
            path: The folder to write.
            overwrite: Whether an existing run may be replaced.

        Raises:
            CheckpointError: The folder contains a run or other files, or cannot be written.
            DataError: The model is not fitted yet.
        """
        self.check_fitted()
        vocab_size = self.tokenizer.vocab_size if len(self.tokenizers) == 1 else 0
        config = replace(
            self.config,
            tokenizer=replace(self.config.tokenizer, vocab_size=vocab_size),
            data=replace(self.config.data, valid_fraction=0.0),  # there is no validation data
        )
        run_folder.write_run(Path(path), config, self.tokenizers, self.weights, overwrite=overwrite)
