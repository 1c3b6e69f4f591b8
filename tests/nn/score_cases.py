"""Every way that queries can match keys, with parameters that are not as they start."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from triform.config import ModelConfig, PositionKind, ScoreKind
from triform.nn.attention import AttentionKernel, RelativePosition, ScoreFunction
from triform.nn.masks import AttentionMask
from triform.nn.positions import build_relative_position
from triform.nn.scores import SCORES

HEADS, WIDTH, MAX_LEN = 4, 4, 512
RELATIVE_POSITIONS: list[PositionKind] = ["none", "rotary", "alibi", "relative", "t5"]
SCORE_NAMES: list[ScoreKind] = ["scaled_dot", "dot", "cosine", "additive"]
PAIRS = [
    (score, position)
    for score in SCORE_NAMES
    for position in RELATIVE_POSITIONS
    if not (score == "additive" and position in ("rotary", "relative"))
]
DOT_PAIRS = [(score, position) for score, position in PAIRS if score != "additive" and position != "relative"]


def build_score_fn(
    score: ScoreKind, position: PositionKind, *, causal: bool, heads: int = HEADS, width: int = WIDTH
) -> ScoreFunction:
    max_distance = 3 if position == "relative" else 0
    config = ModelConfig(
        d_model=heads * width,
        n_heads=heads,
        positions=position,
        attention_score=score,
        max_distance=max_distance,
        n_buckets=8,
    )
    score_fn = ScoreFunction(SCORES[score](config), build_relative_position(config, MAX_LEN, causal=causal))
    for parameter in score_fn.parameters():
        nn.init.normal_(parameter, std=0.5)
    return score_fn


def score_fn_without_position(config: ModelConfig) -> ScoreFunction:
    return ScoreFunction(SCORES[config.attention_score](config), RelativePosition())


def parameters_of(score_fn: ScoreFunction) -> dict[str, Tensor]:
    """By the last part of their names: score and relation have no name in common."""
    return {name.partition(".")[2]: parameter for name, parameter in score_fn.named_parameters()}


def random_qkv(rows: int, t: int, s: int, kv_heads: int, seed: int = 0, width: int = WIDTH) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, t), (kv_heads, s), (kv_heads, s))
    return tuple(
        torch.randn(rows, *shape, width, generator=generator).double().requires_grad_() for shape in shapes
    )


def rotate_qk(score_fn: ScoreFunction, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """What attention hands to a kernel: queries and keys as they are at their positions."""
    t, s = q.shape[-2], k.shape[-2]
    return score_fn.relative_position.rotate(q, torch.arange(s - t, s)), score_fn.relative_position.rotate(
        k, torch.arange(s)
    )


def run_kernel(
    kernel: AttentionKernel,
    qkv: tuple[Tensor, ...],
    mask: AttentionMask,
    score_fn: ScoreFunction,
    dropout: float = 0.0,
) -> Tensor:
    q, k, v = qkv
    return kernel(*rotate_qk(score_fn, q, k), v, mask, score_fn, dropout)


def output_and_gradients(y: Tensor, leaves: list[Tensor]) -> Iterator[Tensor]:
    """The answer, then the gradients of all leaves for an uneven cotangent."""
    yield y
    yield from torch.autograd.grad((y * y.detach().cos()).sum(), leaves)
