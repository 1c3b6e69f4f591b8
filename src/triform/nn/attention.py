"""Multi-head attention: one module for self-attention, cross-attention and cached decoding.

`naive_attention` is the formula, written out step by step. `Attention` projects its inputs to queries, keys and
values, calls its `kernel` (the formula, unless `triform.nn.kernels.use_fast_kernels` set a faster one) and projects
the result back. What varies between models is in the `ScoreFunction`: how the contents of a query and a key are
compared (`scores.py` has the other ways), and how their distance counts (`positions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.initialisation import FusedLinear, ResidualLinear
from triform.nn.masks import AttentionMask

KeyValue = tuple[Tensor, Tensor]  # each (B, G, S, Dh)


class KVStore(Protocol):
    """Keeps the keys and values of one attention module between calls; `generation/kv_cache.py` has them."""

    def update(self, project: Callable[[], KeyValue]) -> KeyValue:
        """Store the new keys and values, which `project` computes, and return all of them."""


class ContentScore(nn.Module):
    """How well the contents of a query and a key match: their dot product, scaled: `q · k / sqrt(head_dim)`."""

    is_dot_product: ClassVar[bool] = True  # whether prepare_queries(q) · prepare_keys(k) * scale is the score

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = config.score_scale

    def forward(self, q: Tensor, k: Tensor) -> Tensor:  # (B, H, T, Dh), (B, H, S, Dh) -> (B, H, T, S)
        return self.prepare_queries(q) @ self.prepare_keys(k).transpose(-2, -1) * self.scale

    def prepare_queries(self, q: Tensor) -> Tensor:
        """Transform the queries before the dot product, for example normalise them."""
        return q

    def prepare_keys(self, k: Tensor) -> Tensor:
        """Transform the keys before the dot product."""
        return k


class RelativePosition(nn.Module):
    """How the distance between a query and a key counts. The base class ignores distance."""

    has_distance_bias: ClassVar[bool] = False  # adds a bias that depends only on head and distance
    needs_naive_formula: ClassVar[bool] = False  # depends on queries or weights, which no fused kernel supports

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, H, T, Dh), (T) or (B, T) -> (B, H, T, Dh)
        """Rotate queries or keys by an angle that depends on their positions, as in RoPE."""
        return x

    def distance_bias(self, distances: Tensor) -> Tensor:  # (...) -> (H, ...)
        """Return the bias of each distance for each head, where `has_distance_bias`."""
        raise NotImplementedError

    def score_bias(self, q: Tensor, distances: Tensor) -> Tensor:  # (B, H, T, Dh), (T or 1, S) -> (B or 1, H, T, S)
        """Return what is added to the scores of the scaled queries `q`; a distance is key minus query position."""
        return q.new_zeros(())

    def value_bias(self, weights: Tensor, distances: Tensor) -> Tensor:  # (B, H, T, S) -> (B, H, T, Dh)
        """Return what is added to the weighted mean of the values."""
        return weights.new_zeros(())


class ScoreFunction(nn.Module):
    """The attention score of every query and key: how well they match, plus what their distance adds."""

    def __init__(self, score: ContentScore, relative_position: RelativePosition) -> None:
        super().__init__()
        self.score, self.relative_position = score, relative_position

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:  # -> (B, H, T, S)
        scaled_queries = self.score.prepare_queries(q) * self.score.scale
        return self.score(q, repeat_kv(k, q)) + self.relative_position.score_bias(scaled_queries, distances)


class AttentionKernel(Protocol):
    """Computes attention from q (B, H, T, Dh), k and v (B, G, S, Dh); returns (B, H, T, Dh)."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
    ) -> Tensor: ...


def repeat_kv(x: Tensor, q: Tensor) -> Tensor:  # (B, G, S, Dh) -> (B, H, S, Dh)
    """Repeat the heads of keys or values for the query heads that share them."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def attention_weights(q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction) -> Tensor:
    """Return how much each query attends to each key: (B, H, T, S), every row sums to one."""
    t, s = q.shape[-2], k.shape[-2]
    scores = score_fn(q, k, mask.distances(t, s, q.device))  # (B, H, T, S)
    keep = mask.dense(t, s, q.device)
    weights = scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    return weights.masked_fill(~keep, 0.0)  # the softmax of a row without any key to read is NaN


def naive_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute softmax(score(q, k) + bias) · v step by step. A query with no key to read gets zeros."""
    weights = attention_weights(q, k, mask, score_fn)
    weights = F.dropout(weights, dropout, training=dropout > 0).to(v.dtype)
    distances = mask.distances(q.shape[-2], k.shape[-2], q.device)
    value_bias = score_fn.relative_position.value_bias(weights, distances)
    return weights @ repeat_kv(v, q) + value_bias  # (B, H, T, Dh)


class Attention(nn.Module):
    """Multi-head attention, with fewer heads of keys and values (G) than of queries (H) where configured.

    Args:
        config: Sizes, biases and dropout.
        relative_position: How distance counts; None where it does not, as in cross-attention.
        score_class: How the contents of a query and a key are compared.

    Example:
        >>> import torch
        >>> from triform.nn.masks import causal_mask
        >>> attention = Attention(ModelConfig(d_model=8, n_heads=2))
        >>> x = torch.randn(3, 5, 8)
        >>> attention(x, x, causal_mask, torch.arange(5)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        config: ModelConfig,
        relative_position: RelativePosition | None = None,
        score_class: type[ContentScore] = ContentScore,
    ) -> None:
        super().__init__()
        kv_dim = config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=config.qkv_bias)
        self.kv_proj = FusedLinear(config.d_model, kv_dim, n_projections=2, bias=config.qkv_bias)
        self.out_proj = ResidualLinear(config.d_model, config.d_model, bias=config.has_out_bias)
        self.score_fn = ScoreFunction(score_class(config), relative_position or RelativePosition())
        self.dropout = config.attention_dropout
        self.kernel: AttentionKernel = naive_attention

    def forward(
        self, x: Tensor, source: Tensor, mask: AttentionMask, positions: Tensor, kv_store: KVStore | None = None
    ) -> Tensor:
        """Let every position of `x` attend to the positions of `source` that the mask allows.

        Args:
            x: Input of the query projection (B, T, D).
            source: Input of the key and value projections (B, S, D); `x` itself in self-attention.
            mask: Which keys a query may read.
            positions: Position of each token of `x` in its text: (T) or (B, T). Used by self-attention only; there
                the keys have the same positions. Cross-attention has no relative positions.
            kv_store: Keys and values of earlier calls. It decides whether keys and values must be projected at all.

        Returns:
            The attended values (B, T, D).
        """
        queries, project_kv = self.project(x, source)
        rotate = self.score_fn.relative_position.rotate
        q = rotate(self.split_heads(queries), positions)  # (B, H, T, Dh)

        def compute_kv() -> KeyValue:  # (B, G, S, Dh) each
            keys, values = project_kv().chunk(2, dim=-1)
            return rotate(self.split_heads(keys), positions), self.split_heads(values)

        k, v = compute_kv() if kv_store is None else kv_store.update(compute_kv)
        y = self.kernel(q, k, v, mask, self.score_fn, self.dropout * self.training)  # (B, H, T, Dh)
        return self.out_proj(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Return the queries, and a callable that projects keys and values on demand."""
        return self.q_proj(x), lambda: self.kv_proj(source)

    def split_heads(self, x: Tensor) -> Tensor:  # (B, T, H * Dh) -> (B, H, T, Dh)
        """Give each head its part of the last dimension."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
