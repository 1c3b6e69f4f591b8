"""Every way that queries can match keys, with parameters that are not as they start."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from triform.config import ModelConfig, PositionKind, ScoreKind
from triform.nn.kernels import Kernel, Matching
from triform.nn.masks import Rule
from triform.nn.positions import Relation, relation
from triform.nn.scores import SCORES

HEADS, WIDTH, MAX_LEN = 4, 4, 512
RELATIONS: list[PositionKind] = ["none", "rotary", "alibi", "relative", "t5"]
SCORE_NAMES: list[ScoreKind] = ["scaled_dot", "dot", "cosine", "additive"]
PAIRS = [
    (score, position)
    for score in SCORE_NAMES
    for position in RELATIONS
    if not (score == "additive" and position in ("rotary", "relative"))
]
DOT_PAIRS = [(score, position) for score, position in PAIRS if score != "additive" and position != "relative"]


def matching(
    score: ScoreKind, position: PositionKind, *, causal: bool, heads: int = HEADS, width: int = WIDTH
) -> Matching:
    far = 3 if position == "relative" else 0
    config = ModelConfig(
        d_model=heads * width, n_heads=heads, positions=position, score=score, max_distance=far, n_buckets=8
    )
    made = Matching(SCORES[score](config), relation(config, MAX_LEN, causal=causal))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def without_relation(config: ModelConfig) -> Matching:
    return Matching(SCORES[config.score](config), Relation(config, 0, causal=False))


def parameters_of(made: Matching) -> dict[str, Tensor]:
    """By the last part of their names: score and relation have no name in common."""
    return {name.partition(".")[2]: parameter for name, parameter in made.named_parameters()}


def inputs(rows: int, t: int, s: int, kv_heads: int, seed: int = 0, width: int = WIDTH) -> tuple[Tensor, ...]:
    numbers = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, t), (kv_heads, s), (kv_heads, s))
    return tuple(torch.randn(rows, *shape, width, generator=numbers).double().requires_grad_() for shape in shapes)


def turned(made: Matching, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """What attention hands to a kernel: queries and keys as they are at their positions."""
    t, s = q.shape[-2], k.shape[-2]
    return made.relation.turn(q, torch.arange(s - t, s)), made.relation.turn(k, torch.arange(s))


def attended(kernel: Kernel, qkv: tuple[Tensor, ...], rule: Rule, made: Matching, dropout: float = 0.0) -> Tensor:
    q, k, v = qkv
    return kernel(*turned(made, q, k), v, rule, made, dropout)


def with_gradients(y: Tensor, leaves: list[Tensor]) -> Iterator[Tensor]:
    """The answer, then the gradients of all leaves for an uneven cotangent."""
    yield y
    yield from torch.autograd.grad((y * y.detach().cos()).sum(), leaves)
