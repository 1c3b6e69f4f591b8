"""Multi-head attention: one module for self-attention, cross-attention and cached decoding."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.cache import KeysValues, Memory
from triform.nn.choice import automatic
from triform.nn.kernels import Kernel, Matching
from triform.nn.linear import Inward, Outward
from triform.nn.masks import Rule
from triform.nn.positions import Relation
from triform.nn.scores import SCORES


class Attention(nn.Module):
    """Queries from `x`, keys and values from `source`; for self-attention both are the same.

    Keys and values may have fewer heads (G) than queries (H): each serves a group of them.
    """

    def __init__(self, config: ModelConfig, relation: Relation, kernel: Kernel = automatic) -> None:
        super().__init__()
        shared = config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.query = nn.Linear(config.d_model, config.d_model, bias=config.qkv_bias)
        self.key_value = Inward(config.d_model, shared, parts=2, bias=config.qkv_bias)
        self.out = Outward(config.d_model, config.d_model, bias=config.has_out_bias)
        self.matching = Matching(SCORES[config.score](config), relation)
        self.dropout = config.attention_dropout
        self.kernel = kernel

    def forward(self, x: Tensor, source: Tensor, rule: Rule, positions: Tensor, memory: Memory) -> Tensor:
        asked, told = self.projected(x, source)
        q = self.matching.relation.turn(self.heads(asked), positions)  # (B, H, T, Dh)
        k, v = memory.read(lambda: self.keys_values(told(), positions))  # (B, G, S, Dh) each
        y = self.kernel(q, k, v, rule, self.matching, self.dropout * self.training)  # (B, H, T, Dh)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def heads(self, x: Tensor) -> Tensor:  # (B, T, H * Dh) -> (B, H, T, Dh)
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def projected(self, x: Tensor, source: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Queries, and keys with values for who wants them."""
        return self.query(x), lambda: self.key_value(source)

    def projected_together(self, x: Tensor, source: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """The same for self-attention in one product: where joining the weights costs nothing, that is faster."""
        layers = self.query, self.key_value
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers]) if self.query.bias is not None else None
        asked, told = F.linear(x, weight, bias).tensor_split([self.query.out_features], dim=-1)
        return asked, lambda: told

    def keys_values(self, projected: Tensor, positions: Tensor) -> KeysValues:
        k, v = projected.chunk(2, dim=-1)  # (B, S, G * Dh) each
        return self.matching.relation.turn(self.heads(k), positions), self.heads(v)
