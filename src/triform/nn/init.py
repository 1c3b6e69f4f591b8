"""Initial weights.

Linear layers start as Xavier normal, so that small and large models both keep the scale of what passes
through; the layers that write to the residual stream are divided by sqrt(2 · depth), so that the stream
does not grow with depth. Embeddings start at 1/sqrt(D), sound as inputs and as output weights. Only where they
are both, and scaled up as inputs, do they start small: else a fresh model would be sure of repeating itself.
A recurrent model has no residual stream: what it reads does not come out again, and nothing adds up.
"""

from __future__ import annotations

import math

from torch import nn

from triform.nn.embedding import Embedding
from triform.nn.linear import Inward, Outward

SMALL = 0.02


def initialise(model: nn.Module, depth: int) -> None:
    """Draw all weights of a model with so many blocks along its residual stream; 0: it has none."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in linear:
        nn.init.xavier_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    outputs = {id(layer.weight) for layer in linear}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, Inward) and module.parts > 1:
            for part in module.weight.chunk(module.parts):  # each as wide as if it stood alone
                nn.init.xavier_normal_(part)
        elif isinstance(module, Outward) and depth:
            module.weight.data.div_(math.sqrt(2 * depth))
    for module in model.modules():
        if isinstance(module, Embedding) and module.n_pairs:
            nn.init.zeros_(module.pairs.weight)  # a pair that was never seen says nothing
        if depth and isinstance(module, Embedding) and module.scale != 1 and id(module.tokens.weight) in outputs:
            nn.init.normal_(module.tokens.weight, std=SMALL)
