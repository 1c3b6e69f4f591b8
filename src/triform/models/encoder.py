"""The encoder: every token reads every token; its states, averaged, decide on a label."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.nn.block import NORMS, Block
from triform.nn.cache import NO_CACHE
from triform.nn.embedding import Embedding
from triform.nn.init import initialise
from triform.nn.masks import real, window


class Encoder(nn.Module):
    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.reach = window(config.window)
        self.embedding = Embedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, T) -> (B, T, D)
        rule = self.reach & real(keep)
        x = self.embedding(tokens, torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, rule, NO_CACHE)
        return self.norm(x)


def mean_of_real(x: Tensor, keep: Tensor | None) -> Tensor:  # (B, T, D) -> (B, D)
    """The mean over real tokens; padding has no share in it."""
    if keep is None:
        return x.mean(dim=1)
    share = keep[:, :, None].to(x.dtype)
    return (x * share).sum(dim=1) / share.sum(dim=1).clamp(min=1)


def _label_head(config: ModelConfig, n_labels: int) -> nn.Module:
    if not config.head_hidden:
        return nn.Linear(config.d_model, n_labels, bias=config.head_bias)
    hidden = nn.Linear(config.d_model, config.head_hidden)
    return nn.Sequential(hidden, nn.ReLU(), nn.Linear(config.head_hidden, n_labels, bias=config.head_bias))


class Classifier(nn.Module):
    """Encoder, mean over real tokens, label scores."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.encoder = Encoder(config, sizes)
        self.dropout = nn.Dropout(config.dropout)
        self.head = _label_head(config, sizes.n_labels)
        initialise(self, config.n_layers)

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, T) -> (B, labels)
        return self.head(self.dropout(mean_of_real(self.encoder(tokens, keep), keep)))
