"""Initial weights, and the linear layers that need their own.

Linear layers start as Xavier normal, which keeps the scale of activations at any width. Layers that write to the
residual stream are divided by sqrt(2 · depth), so that the stream does not grow with depth. Embeddings start with
standard deviation 1/sqrt(D), which suits inputs and output weights alike; only tied embeddings that are scaled up
as inputs start smaller, because a new model would otherwise repeat its input.
"""

from __future__ import annotations

import math

from torch import nn

from triform.nn.embedding import InputEmbedding

TIED_EMBEDDING_STD = 0.02


class FusedLinear(nn.Linear):
    """Several projections of one input in one matrix; each is initialised separately."""

    def __init__(self, in_features: int, out_features: int, *, n_projections: int, bias: bool) -> None:
        super().__init__(in_features, n_projections * out_features, bias=bias)
        self.n_projections = n_projections


class ResidualLinear(nn.Linear):
    """A projection whose output is added to the residual stream."""


def initialise_weights(model: nn.Module, depth: int) -> None:
    """Initialise the weights of a model in place.

    Args:
        model: The model.
        depth: Number of blocks along the residual stream; 0 for a model without one.
    """
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
            for part in module.weight.chunk(module.n_projections):
                nn.init.xavier_normal_(part)
        elif isinstance(module, ResidualLinear) and depth:
            module.weight.data.div_(math.sqrt(2 * depth))
    for embedding in (module for module in model.modules() if isinstance(module, InputEmbedding)):
        if embedding.bigram_buckets:
            nn.init.zeros_(embedding.bigram_embedding.weight)  # an unseen bigram adds nothing
        if depth and embedding.scale != 1 and id(embedding.token_embedding.weight) in output_weights:
            nn.init.normal_(embedding.token_embedding.weight, std=TIED_EMBEDDING_STD)
