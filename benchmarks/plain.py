"""The models of peers, as people write them in plain PyTorch, and their steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainLM(nn.Module):
    """A language model out of torch.nn: embeddings, a causal nn.TransformerEncoder, a head."""

    def __init__(self, vocab_size: int, width: int, layers: int, heads: int, hidden: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.body(x, mask=mask, is_causal=True))


class PlainTranslator(nn.Module):
    """nn.Transformer with embeddings and a head, as R3's report has it."""

    def __init__(self, vocab_size: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.body = nn.Transformer(width, heads, layers, layers, 4 * width, dropout, batch_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(self.body(self.tokens(source), self.tokens(target), tgt_mask=mask, tgt_is_causal=True))


class PlainGPT(nn.Module):
    """GPT-2 as it is usually written by hand: one product for q, k and v, fused attention, tied embeddings."""

    def __init__(self, vocab_size: int, width: int, layers: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.between(x)))))


def stepper(
    model: nn.Module, inputs: Callable[[], tuple[tuple[Tensor, ...], Tensor]], *, half: bool, clip: float = 1.0,
    compiled: bool = False, logits: Callable[[Any], Tensor] = lambda out: out, **adam: Any,
) -> Callable[[], Tensor]:  # fmt: skip
    """A training step as most scripts have it: autocast, cross entropy in float32, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, **adam)
    device = next(model.parameters()).device.type

    def precision() -> AbstractContextManager[Any]:
        return torch.autocast(device, dtype=torch.bfloat16) if half else nullcontext()

    def loss_of(given: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return F.cross_entropy(logits(model(*given)).flatten(0, -2).float(), targets.flatten())

    judge = torch.compile(loss_of) if compiled else loss_of

    def step() -> Tensor:
        given, targets = inputs()
        with precision():
            loss = judge(given, targets)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
