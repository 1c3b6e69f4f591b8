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

from triform.data.loader import in_order_of_length
from triform.data.store import TokenStore
from triform.errors import ConfigError
from triform.nn.rows import pack, pad, rows_of
from triform.run import Run
from triform.sklearn.classifier import fit_to_classes
from triform.sklearn.estimator import SETTINGS, TextEstimator
from triform.sklearn.given import Array, check_texts
from triform.tasks.classify import Classify
from triform.tasks.labelled import encoded_rows
from triform.tasks.task import ByLength


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
            fit_to_classes(self, X, y)
            return self
        check_texts(X)
        usual = TextVectorizer().get_params()
        said = [name for name in (*SETTINGS, "preset", "settings") if getattr(self, name) != usual[name]]
        if said:
            raise ConfigError(
                f"run={str(self.run)!r} has learned with settings of its own; leave out {', '.join(said)}"
            )
        opened = self.from_run(self.run, device=self.device)
        self._keep(opened._model, opened._files)
        return self

    def transform(self, X: object) -> Array:
        """(n, d_model) numbers in float32."""
        return pooled_states(self._model, check_texts(X))

    @property
    def _n_features_out(self) -> int:
        """For `get_feature_names_out`."""
        return self._model.config.model.d_model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.run is None
        tags.transformer_tags.preserves_dtype = []
        return tags


@torch.inference_mode()
def pooled_states(run: Run, texts: list[str]) -> Array:
    """What the encoder makes of each text, as the layer of labels would read it."""
    task = cast(Classify, run.task)
    model, tokenizer, max_len = task.model.eval(), task.tokenizer, task.config.data.max_len
    store = TokenStore.build_rows(encoded_rows(texts, tokenizer), vocab_size=tokenizer.vocab_size)
    lay = pack if task.device.type == "cpu" else partial(pad, fill=tokenizer.special.filling)
    found: Array = np.empty((len(texts), task.config.model.d_model), dtype=np.float32)
    for indices in in_order_of_length(np.minimum(store.lengths, max_len), batch_tokens=ByLength.EVAL_TOKENS):
        tokens, keep = lay([tokenizer.special.cut(store[index], max_len) for index in indices.tolist()])
        rows = rows_of(keep.to(task.device) if isinstance(keep, Tensor) else keep)
        states = model.encoder(tokens.to(task.device), rows)
        found[indices] = model.pool(rows, states).float().cpu().numpy()
    return found
