"""Multi-head attention: one module for self-attention, cross-attention and cached decoding."""

from __future__ import annotations

from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.cache import KeysValues, Memory
from triform.nn.kernels import Kernel, fused
from triform.nn.masks import Rule
from triform.nn.scores import SCORES


class Attention(nn.Module):
    """Queries from `x`, keys and values from `source`; for self-attention both are the same."""

    def __init__(self, config: ModelConfig, kernel: Kernel = fused) -> None:
        super().__init__()
        self.n_heads, self.head_dim = config.n_heads, config.head_dim
        self.query = nn.Linear(config.d_model, config.d_model, bias=config.qkv_bias)
        self.key_value = nn.Linear(config.d_model, 2 * config.d_model, bias=config.qkv_bias)
        self.out = nn.Linear(config.d_model, config.d_model, bias=config.bias)
        self.score = SCORES[config.score](config)
        self.dropout = config.attention_dropout
        self.kernel = kernel

    def forward(self, x: Tensor, source: Tensor, rule: Rule, memory: Memory) -> Tensor:
        q = self.heads(self.query(x))  # (B, H, T, Dh)
        k, v = memory.read(lambda: self.keys_values(source))  # (B, H, S, Dh) each
        y = self.kernel(q, k, v, rule, self.score, self.dropout * self.training)  # (B, H, T, Dh)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def heads(self, x: Tensor) -> Tensor:  # (B, T, H * Dh) -> (B, H, T, Dh)
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def keys_values(self, source: Tensor) -> KeysValues:
        k, v = self.key_value(source).chunk(2, dim=-1)  # (B, S, D) each
        return self.heads(k), self.heads(v)
