"""The result of the baseline that a run is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from triform.evaluation.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class BaselineResult:
    """The best baseline of a task on the validation data of a run.

    Attributes:
        name: The method, as a noun phrase.
        metrics: Its metrics on the validation data.
        n_train: The number of rows that it was fitted on; for generate, the number of tokens.
        is_sample: Whether these are a part of the training data.
        token_probs: Of an n-gram model, the probability of each token of the validation data except the first.
        known_context: Of an n-gram model, how many tokens before each of these it knows.
        mixed: The metric of the run for a mixture of the model with the baseline; None if they cannot be mixed.
    """

    name: str
    metrics: Metrics
    n_train: int
    is_sample: bool = False
    token_probs: list[float] = field(default_factory=list)
    known_context: list[int] = field(default_factory=list)
    mixed: float | None = None
