"""The published count of a Transformer's parameters, walked line by line to the exact one.

A written report adds up an encoder-decoder with a vocabulary of 30,000, 512 wide, 8 heads and 6 + 6 layers to
68,554,752 parameters. The sum leaves parts out, counts one matrix twice that is usually shared, and has a slip
in its arithmetic. Each of these is a step here; the last one lands on the model's own total.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from triform.config import Config, Sizes
from triform.models.budget import Budget, Line, Part, Role

VOCABULARY, WIDTH, HEADS, LAYERS = 30_000, 512, 8, 6
EMBEDDING = VOCABULARY * WIDTH
ATTENTION = 2 * LAYERS * 4 * WIDTH**2
FEEDFORWARD_AS_PRINTED = 25_251_840
FEEDFORWARD = 2 * LAYERS * (8 * WIDTH**2 + 5 * WIDTH)
FEEDFORWARD_WEIGHTS = 2 * LAYERS * 8 * WIDTH**2
PUBLISHED = 68_554_752


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is added or taken away, why, and the sum so far."""

    name: str
    why: str
    change: int
    sum: int


def applies(config: Config, sizes: Sizes) -> bool:
    """Whether these are the sizes of the published count."""
    model = config.model
    vocabularies = {sizes.vocab_size, sizes.target_vocab_size or sizes.vocab_size}
    shape = (model.d_model, model.n_heads, model.n_layers)
    return config.task == "translate" and vocabularies == {VOCABULARY} and shape == (WIDTH, HEADS, LAYERS)


def reconcile(budget: Budget) -> tuple[Step, ...]:
    """From the published sum to the exact total; steps that change nothing are left out after the sum."""
    steps: list[Step] = []
    so_far = 0
    for name, why, change in (*_published(), *(step for step in _ours(budget) if step[2])):
        so_far += change
        steps.append(Step(name=name, why=why, change=change, sum=so_far))
    assert so_far == budget.total, f"the steps end at {so_far}, the model has {budget.total}"
    return tuple(steps)


Change = tuple[str, str, int]


def _published() -> Iterator[Change]:
    yield "embedding", "V·d = 30,000·512", EMBEDDING
    yield "attention", "12 layers of 4·d·d, whatever H is", ATTENTION
    yield "feedforward", "as printed for 12 layers of 8·d·d + 5·d", FEEDFORWARD_AS_PRINTED
    yield "output", "d·V; so far the published sum", EMBEDDING
    slip = FEEDFORWARD - FEEDFORWARD_AS_PRINTED
    yield "a slip in feedforward", "8·512² + 5·512 = 2,099,712, twelve times 25,196,544", slip


def _ours(budget: Budget) -> Iterator[Change]:
    """What this model has more or less than the published one, each kind of parameter in turn."""

    def weights(role: Role) -> int:
        return sum(part.layers * line.times * line.weights for part, line in _counted(budget, role))

    def biases(role: Role) -> int:
        return sum(part.layers * line.times * line.biases for part, line in _counted(budget, role))

    yield "self-attention weights", "groups of heads share keys and values", weights("attention") - ATTENTION
    yield "self-attention biases", "left out", biases("attention")
    yield "cross-attention weights", "left out: 6 decoder layers read the source", weights("cross")
    yield "cross-attention biases", "left out", biases("cross")
    yield "attention's scores", "left out: what the similarity learns", weights("score")
    yield "feedforward weights", "another width, or a gate", weights("feedforward") - FEEDFORWARD_WEIGHTS
    published = FEEDFORWARD - FEEDFORWARD_WEIGHTS
    yield "feedforward biases", "this model's differ", biases("feedforward") - published
    yield "norms", "left out", weights("norm") + biases("norm")
    yield "positions", "left out", weights("positions")
    yield "second token table", "source and target have one each", weights("tokens") - EMBEDDING
    yield "output weights", "shared with the embedding, so counted once", weights("output") - EMBEDDING
    yield "output bias", "left out", biases("output")


def _counted(budget: Budget, role: Role) -> list[tuple[Part, Line]]:
    return [(part, line) for part, line in budget.every_line() if line.role == role and not line.tied]
