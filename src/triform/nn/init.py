"""Initial weights.

Linear layers start as Xavier normal, so that small and large models both keep the scale of what passes
through; the two layers that write to the residual stream are divided by sqrt(2 · depth), so that the stream
does not grow with depth. Token embeddings start at 1/sqrt(D): sound as inputs and, tied, as output weights.
"""

from __future__ import annotations

import math

from torch import nn

from triform.nn.attention import Attention
from triform.nn.feedforward import FeedForward


def initialise(model: nn.Module, depth: int) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    for module in model.modules():
        if isinstance(module, Attention):
            module.out.weight.data.div_(math.sqrt(2 * depth))
        elif isinstance(module, FeedForward):
            module.down.weight.data.div_(math.sqrt(2 * depth))
