"""The result of the baseline that a run is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from triform.evaluation.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class BaselineResult:
    """The best baseline of a task on the validation data of a run.

    Attributes:
        name: The method, as a noun phrase.
        metrics: Its metrics on the validation data.
        n_train: The number of rows that it was fitted on; for generate, the number of tokens.
        is_sample: Whether these are a part of the training data.
    """

    name: str
    metrics: Metrics
    n_train: int
    is_sample: bool = False
