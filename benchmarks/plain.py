"""Models and training steps of peers, as people write them in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainLM(nn.Module):
    """A language model of torch.nn modules: embeddings, a causal nn.TransformerEncoder, a head."""

    def __init__(self, vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_ff: int, max_len: int) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = (
            nn.Embedding(vocab_size, d_model),
            nn.Embedding(max_len, d_model),
        )
        layer = nn.TransformerEncoderLayer(d_model, n_heads, d_ff, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers, nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        return self.head(self.encoder(x, mask=mask, is_causal=True))


class PlainTranslator(nn.Module):
    """nn.Transformer with embeddings and a head, as the report on TED talks has it."""

    def __init__(self, vocab_size: int, d_model: int, n_layers: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.transformer = nn.Transformer(
            d_model, n_heads, n_layers, n_layers, 4 * d_model, dropout, batch_first=True
        )
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(
            self.transformer(
                self.token_embedding(source), self.token_embedding(target), tgt_mask=mask, tgt_is_causal=True
            )
        )


class PlainGPT(nn.Module):
    """GPT-2 in its usual plain form: one product for q, k and v, fused attention, tied embeddings."""

    def __init__(
        self, vocab_size: int, d_model: int, n_layers: int, n_heads: int, max_len: int, dropout: float
    ) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = (
            nn.Embedding(vocab_size, d_model),
            nn.Embedding(max_len, d_model),
        )
        self.blocks = nn.ModuleList(PlainBlock(d_model, n_heads, dropout) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.head.weight = self.token_embedding.weight
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(
            self.token_embedding(tokens)
            + self.position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
        )
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PlainBlock(nn.Module):
    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attn_norm, self.ffn_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.n_heads, -1).transpose(1, 2)
            for part in self.qkv(self.attn_norm(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.dropout(self.out_proj(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.ffn_norm(x)))))


def build_train_step(
    model: nn.Module, inputs: Callable[[], tuple[tuple[Tensor, ...], Tensor]], *, bf16: bool, clip: float = 1.0,
    compiled: bool = False, get_logits: Callable[[Any], Tensor] = lambda out: out, **adam: Any,
) -> Callable[[], Tensor]:  # fmt: skip
    """Return a typical training step: autocast, cross entropy in float32, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, **adam)
    device = next(model.parameters()).device.type

    def precision() -> AbstractContextManager[Any]:
        return torch.autocast(device, dtype=torch.bfloat16) if bf16 else nullcontext()

    def compute_loss(model_inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return F.cross_entropy(get_logits(model(*model_inputs)).flatten(0, -2).float(), targets.flatten())

    loss_fn = torch.compile(compute_loss) if compiled else compute_loss

    def step() -> Tensor:
        model_inputs, targets = inputs()
        with precision():
            loss = loss_fn(model_inputs, targets)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
