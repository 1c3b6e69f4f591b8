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

from triform.nn.embedding import InputEmbedding
from triform.nn.linear import FusedLinear, ResidualLinear

TIED_EMBEDDING_STD = 0.02


def initialise_weights(model: nn.Module, depth: int) -> None:
    """Draw all weights of a model with so many blocks along its residual stream; 0: it has none."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in linears:
        nn.init.xavier_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    output_weights = {id(layer.weight) for layer in linears}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, FusedLinear) and module.n_projections > 1:
            for part in module.weight.chunk(module.n_projections):  # each as wide as if it stood alone
                nn.init.xavier_normal_(part)
        elif isinstance(module, ResidualLinear) and depth:
            module.weight.data.div_(math.sqrt(2 * depth))
    for module in model.modules():
        if isinstance(module, InputEmbedding) and module.bigram_buckets:
            nn.init.zeros_(module.bigram_embedding.weight)  # a pair that was never seen says nothing
        if (
            depth
            and isinstance(module, InputEmbedding)
            and module.scale != 1
            and id(module.token_embedding.weight) in output_weights
        ):
            nn.init.normal_(module.token_embedding.weight, std=TIED_EMBEDDING_STD)
