"""A decoder whose head has a bias, as an equal one whose head has none: GPT-2's head has no place for a bias.

The model gets one more coordinate for each of its attention heads. The last norm writes a constant 1 into the
first of them, and the output layer multiplies it by the bias. In all other layers the new coordinates hold zeros.
So that they do not change what the norms compute, everything that is added to the states is centred first (a layer
norm takes the mean away anyway), and the weights and epsilons of the norms make up for a variance over more
coordinates.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import Config, Sizes
from triform.models.decoder import Decoder
from triform.nn.norm import USUAL_EPS


@torch.no_grad()
def carried_by_last_norm(model: nn.Module, config: Config) -> tuple[nn.Module, Config]:
    """The same function without a head bias; a model that has none is returned as it is."""
    if not config.model.head_bias:
        return model, config
    assert isinstance(model, Decoder)
    old = config.model
    width = old.d_model + old.n_heads
    eps = (old.norm_eps or USUAL_EPS[old.norm]) * old.d_model / width
    new = replace(old, d_model=width, norm_eps=eps, head_bias=False, tie_embeddings=False, bias=True, qkv_bias=True)
    new = replace(new, out_bias="auto")
    sizes = Sizes(vocab_size=model.embedding.tokens.num_embeddings, max_len=config.data.max_len)
    wide = Decoder(new, sizes).eval()
    have = dict(model.named_parameters())
    for name, parameter in wide.named_parameters():
        parameter.zero_()
        if name in have:
            part = _widened(name, have[name].double(), old.n_heads, old.d_model / width)
            parameter[tuple(slice(size) for size in part.shape)] = part
    wide.norm.bias[old.d_model] = 1.0  # type: ignore[operator]
    wide.head.weight[:, : old.d_model] = model.head.weight
    wide.head.weight[:, old.d_model] = model.head.bias
    return wide, replace(config, model=new)


def _widened(name: str, old: Tensor, n_heads: int, share: float) -> Tensor:
    """A parameter as the wider model has it; what is missing at its end is zero."""
    if "norm" in name:
        return old * sqrt(share) if name.endswith("weight") else old
    if "embedding" in name:
        return old - old.mean(dim=1, keepdim=True)
    if "attention.query" in name:
        head = old.shape[0] // n_heads  # scores are divided by the root of the size of a head, which grows
        return _by_head(old, n_heads) * sqrt((head + 1) / head)
    if "attention.key_value" in name:
        return torch.cat([_by_head(part, n_heads) for part in old.chunk(2)])
    if "attention.out" in name or "feedforward.down" in name:
        centred = old - old.mean(dim=0, keepdim=True)
        return _by_head(centred.T.contiguous(), n_heads).T if name.endswith("attention.out.weight") else centred
    return old


def _by_head(rows: Tensor, n_heads: int) -> Tensor:
    """One more row of zeros after the rows of each head."""
    parts = rows.view(n_heads, -1, *rows.shape[1:])
    return F.pad(parts, (0, 0) * (parts.ndim - 2) + (0, 1)).flatten(0, 1)
