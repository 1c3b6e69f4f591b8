"""Explain step by step how a published parameter count differs from the exact one.

A published report counts 68,554,752 parameters for an encoder-decoder with a vocabulary of 30,000, a width of 512,
8 heads and 6 + 6 layers. That sum omits components, counts a matrix twice that is usually shared, and has an error
in its arithmetic. Each difference is a step; the last step ends at the exact total.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from triform.analysis.parameters import ParameterBudget, ParameterGroup, ParameterRow, Role
from triform.config import Config, DataSizes

VOCAB_SIZE, D_MODEL, N_HEADS, N_LAYERS = 30_000, 512, 8, 6
EMBEDDING_COUNT = VOCAB_SIZE * D_MODEL
ATTENTION_COUNT = 2 * N_LAYERS * 4 * D_MODEL**2
FEEDFORWARD_COUNT_PRINTED = 25_251_840
FEEDFORWARD_COUNT = 2 * N_LAYERS * (8 * D_MODEL**2 + 5 * D_MODEL)
FEEDFORWARD_WEIGHT_COUNT = 2 * N_LAYERS * 8 * D_MODEL**2
PUBLISHED_COUNT = 68_554_752


@dataclass(frozen=True, kw_only=True)
class ReconciliationStep:
    """A difference between two counts, its reason, and the running sum."""

    name: str
    why: str
    change: int
    sum: int


def is_published_model(config: Config, sizes: DataSizes) -> bool:
    """Return whether these are the sizes of the model with the published count."""
    model = config.model
    vocab_sizes = {sizes.vocab_size, sizes.target_vocab_size or sizes.vocab_size}
    shape = (model.d_model, model.n_heads, model.n_layers)
    return config.task == "translate" and vocab_sizes == {VOCAB_SIZE} and shape == (D_MODEL, N_HEADS, N_LAYERS)


def reconcile_counts(param_budget: ParameterBudget) -> tuple[ReconciliationStep, ...]:
    """List the steps from the published sum to the exact total; differences of zero are omitted."""
    steps: list[ReconciliationStep] = []
    running_total = 0
    for name, reason, change in (
        *_published_changes(),
        *(step for step in _model_changes(param_budget) if step[2]),
    ):
        running_total += change
        steps.append(ReconciliationStep(name=name, why=reason, change=change, sum=running_total))
    assert running_total == param_budget.total, (
        f"the steps end at {running_total}, the model has {param_budget.total}"
    )
    return tuple(steps)


Change = tuple[str, str, int]


def _published_changes() -> Iterator[Change]:
    yield "embedding", "V·d = 30,000·512", EMBEDDING_COUNT
    yield "attention", "12 layers of 4·d·d, for any H", ATTENTION_COUNT
    yield "feedforward", "as printed for 12 layers of 8·d·d + 5·d", FEEDFORWARD_COUNT_PRINTED
    yield "output", "d·V; this is the published sum", EMBEDDING_COUNT
    correction = FEEDFORWARD_COUNT - FEEDFORWARD_COUNT_PRINTED
    yield "arithmetic error in feedforward", "8·512² + 5·512 = 2,099,712, twelve times 25,196,544", correction


def _model_changes(param_budget: ParameterBudget) -> Iterator[Change]:
    """Yield the differences between this model and the published count, by kind of parameter."""

    def weights(role: Role) -> int:
        return sum(group.layers * row.times * row.weights for group, row in _rows_of_role(param_budget, role))

    def biases(role: Role) -> int:
        return sum(group.layers * row.times * row.biases for group, row in _rows_of_role(param_budget, role))

    yield "self-attention weights", "heads share keys and values in groups", weights("attention") - ATTENTION_COUNT
    yield "self-attention biases", "not in the published count", biases("attention")
    yield (
        "cross-attention weights",
        "not in the published count: 6 decoder layers read the source",
        weights("cross"),
    )
    yield "cross-attention biases", "not in the published count", biases("cross")
    yield "attention scores", "not in the published count: parameters of the score", weights("score")
    yield "feedforward weights", "different width, or a gate", weights("feedforward") - FEEDFORWARD_WEIGHT_COUNT
    published_biases = FEEDFORWARD_COUNT - FEEDFORWARD_WEIGHT_COUNT
    yield "feedforward biases", "different in this model", biases("feedforward") - published_biases
    yield "norms", "not in the published count", weights("norm") + biases("norm")
    yield "positions", "not in the published count", weights("positions")
    yield "second token table", "source and target have one each", weights("tokens") - EMBEDDING_COUNT
    yield "output weights", "shared with the embedding, so counted once", weights("output") - EMBEDDING_COUNT
    yield "output bias", "not in the published count", biases("output")


def _rows_of_role(param_budget: ParameterBudget, role: Role) -> list[tuple[ParameterGroup, ParameterRow]]:
    return [(group, row) for group, row in param_budget.iter_rows() if row.role == role and not row.tied]
