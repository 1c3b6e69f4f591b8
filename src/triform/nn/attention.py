"""Multi-head attention: one module for self-attention, cross-attention and cached decoding."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.kernels.dispatch import dispatch_attention
from triform.nn.kernels.sdpa import AttentionKernel, ScoreFunction
from triform.nn.kv_cache import KeyValue, KVStore
from triform.nn.linear import FusedLinear, ResidualLinear
from triform.nn.masks import AttentionMask
from triform.nn.positions import RelativePosition
from triform.nn.scores import SCORES


class Attention(nn.Module):
    """Queries from `x`, keys and values from `source`; for self-attention both are the same.

    Keys and values may have fewer heads (G) than queries (H): each serves a group of them.
    """

    def __init__(
        self, config: ModelConfig, relative_position: RelativePosition, kernel: AttentionKernel = dispatch_attention
    ) -> None:
        super().__init__()
        kv_dim = config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=config.qkv_bias)
        self.kv_proj = FusedLinear(config.d_model, kv_dim, n_projections=2, bias=config.qkv_bias)
        self.out_proj = ResidualLinear(config.d_model, config.d_model, bias=config.has_out_bias)
        self.score_fn = ScoreFunction(SCORES[config.attention_score](config), relative_position)
        self.dropout = config.attention_dropout
        self.kernel = kernel

    def forward(
        self, x: Tensor, source: Tensor, mask: AttentionMask, positions: Tensor, kv_cache: KVStore
    ) -> Tensor:
        queries, project_kv = self.project(x, source)
        q = self.score_fn.relative_position.rotate(self.split_heads(queries), positions)  # (B, H, T, Dh)
        k, v = kv_cache.read(lambda: self.split_kv(project_kv(), positions))  # (B, G, S, Dh) each
        y = self.kernel(q, k, v, mask, self.score_fn, self.dropout * self.training)  # (B, H, T, Dh)
        return self.out_proj(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def split_heads(self, x: Tensor) -> Tensor:  # (B, T, H * Dh) -> (B, H, T, Dh)
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Queries, and keys with values for who wants them."""
        return self.q_proj(x), lambda: self.kv_proj(source)

    def project_fused(self, x: Tensor, source: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """The same for self-attention in one product: where joining the weights costs nothing, that is faster."""
        layers = self.q_proj, self.kv_proj
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers]) if self.q_proj.bias is not None else None
        queries, kv = F.linear(x, weight, bias).tensor_split([self.q_proj.out_features], dim=-1)
        return queries, lambda: kv

    def split_kv(self, kv: Tensor, positions: Tensor) -> KeyValue:
        k, v = kv.chunk(2, dim=-1)  # (B, S, G * Dh) each
        return self.score_fn.relative_position.rotate(self.split_heads(k), positions), self.split_heads(v)
