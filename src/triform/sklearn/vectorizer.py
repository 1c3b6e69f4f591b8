"""Texts as vectors: what an encoder makes of them, as its layer of labels reads it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from torch import Tensor

from triform.data.samplers import batch_by_length
from triform.data.token_store import TokenStore
from triform.errors import ConfigError
from triform.nn.layouts import as_layout, pack, pad
from triform.run import Run
from triform.sklearn.classifier import fit_classifier
from triform.sklearn.estimator import PARAMETER_SETTINGS, TextEstimator
from triform.sklearn.validation import Array, check_texts
from triform.tasks.classification_data import encode_texts
from triform.tasks.classify import Classify
from triform.tasks.task import BucketedDataset


class TextVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator):
    """What stands for a text in an encoder, the mean of its states unless `model.pooling` says otherwise.

    As many features as `d_model`.

    `fit(X, y)` trains a classifier and leaves its last layer off. With `run`, the folder of a classifier that
    was trained before, `fit` only opens it.
    """

    task = "classify"

    def __init__(
        self,
        *,
        run: str | Path | None = None,
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
        super().__init__(
            preset=preset, d_model=d_model, n_layers=n_layers, n_heads=n_heads, dropout=dropout,
            tokenizer=tokenizer, vocab_size=vocab_size, max_len=max_len, epochs=epochs, max_steps=max_steps,
            batch_size=batch_size, learning_rate=learning_rate, validation_fraction=validation_fraction,
            settings=settings, device=device, random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.run = run

    def fit(self, X: object, y: object = None) -> Self:
        """Learn to tell the classes apart; with a `run`, which has learned already, y is not looked at."""
        if self.run is None:
            fit_classifier(self, X, y)
            return self
        check_texts(X)
        defaults = TextVectorizer().get_params()
        changed = [
            name for name in (*PARAMETER_SETTINGS, "preset", "settings") if getattr(self, name) != defaults[name]
        ]
        if changed:
            raise ConfigError(
                f"run={str(self.run)!r} has learned with settings of its own; leave out {', '.join(changed)}"
            )
        estimator = self.from_run(self.run, device=self.device)
        self._store_run(estimator._fitted_run, estimator._files)
        return self

    def transform(self, X: object) -> Array:
        """(n, d_model) numbers in float32."""
        return compute_pooled_states(self._fitted_run, check_texts(X))

    @property
    def _n_features_out(self) -> int:
        """For `get_feature_names_out`."""
        return self._fitted_run.config.model.d_model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.run is None
        tags.transformer_tags.preserves_dtype = []
        return tags


@torch.inference_mode()
def compute_pooled_states(run: Run, texts: list[str]) -> Array:
    """What the encoder makes of each text, as the layer of labels would read it."""
    task = cast(Classify, run.task)
    model, tokenizer, max_len = task.model.eval(), task.tokenizer, task.config.data.max_len
    store = TokenStore.build_from_batches(encode_texts(texts, tokenizer), vocab_size=tokenizer.vocab_size)
    collate = pack if task.device.type == "cpu" else partial(pad, fill=tokenizer.special_tokens.pad_or_zero)
    vectors: Array = np.empty((len(texts), task.config.model.d_model), dtype=np.float32)
    for indices in batch_by_length(np.minimum(store.lengths, max_len), batch_tokens=BucketedDataset.EVAL_TOKENS):
        tokens, keep = collate(
            [tokenizer.special_tokens.truncate(store[index], max_len) for index in indices.tolist()]
        )
        layout = as_layout(keep.to(task.device) if isinstance(keep, Tensor) else keep)
        states = model.encoder(tokens.to(task.device), layout)
        vectors[indices] = model.pool(layout, states).float().cpu().numpy()
    return vectors
