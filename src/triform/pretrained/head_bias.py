"""Convert a decoder with an output bias to an equivalent one without, because GPT-2's output layer has no bias.

The model gets one more coordinate for each of its attention heads. The final norm writes a constant 1 into the
first of them, and the output layer multiplies it by the bias. Everywhere else the new coordinates hold zeros.

The new coordinates must not change what the norms compute. Everything that is added to the residual stream is
therefore centred first (a layer norm removes the mean anyway), and the weights and epsilons of the norms compensate
for the variance over more coordinates.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import Config, DataSizes
from triform.models.decoder import Decoder
from triform.nn.norm import DEFAULT_EPS


@torch.no_grad()
def fold_head_bias(model: nn.Module, config: Config) -> tuple[nn.Module, Config]:
    """Return a model that computes the same logits without a head bias, and its settings."""
    if not config.model.head_bias:
        return model, config
    assert isinstance(model, Decoder)
    old_config = config.model
    new_width = old_config.d_model + old_config.n_heads
    eps = (old_config.norm_eps or DEFAULT_EPS[old_config.norm]) * old_config.d_model / new_width
    new_config = replace(
        old_config, d_model=new_width, norm_eps=eps, head_bias=False, tie_embeddings=False, bias=True, qkv_bias=True
    )
    new_config = replace(new_config, out_bias="auto")
    sizes = DataSizes(vocab_size=model.embedding.token_embedding.num_embeddings, max_len=config.data.max_len)
    widened = Decoder(new_config, sizes).eval()
    old_parameters = dict(model.named_parameters())
    for name, parameter in widened.named_parameters():
        parameter.zero_()
        if name in old_parameters:
            new_values = _widen_parameter(
                name, old_parameters[name].double(), old_config.n_heads, old_config.d_model / new_width
            )
            parameter[tuple(slice(size) for size in new_values.shape)] = new_values
    widened.final_norm.bias[old_config.d_model] = 1.0  # type: ignore[operator]
    widened.lm_head.weight[:, : old_config.d_model] = model.lm_head.weight
    widened.lm_head.weight[:, old_config.d_model] = model.lm_head.bias
    return widened, replace(config, model=new_config)


def _widen_parameter(name: str, values: Tensor, n_heads: int, variance_ratio: float) -> Tensor:
    """Return the values of a parameter in the wider model; rows and columns beyond them are zero."""
    if "norm" in name:
        return values * sqrt(variance_ratio) if name.endswith("weight") else values
    if "embedding" in name:
        return values - values.mean(dim=1, keepdim=True)
    if "attn.q_proj" in name:
        # Attention scores are divided by the root of head_dim, which grows by one.
        head_dim = values.shape[0] // n_heads
        return _pad_heads(values, n_heads) * sqrt((head_dim + 1) / head_dim)
    if "attn.kv_proj" in name:
        return torch.cat([_pad_heads(part, n_heads) for part in values.chunk(2)])
    if "attn.out_proj" in name or "ffn.down_proj" in name:
        centred = values - values.mean(dim=0, keepdim=True)
        return _pad_heads(centred.T.contiguous(), n_heads).T if name.endswith("attn.out_proj.weight") else centred
    return values


def _pad_heads(rows: Tensor, n_heads: int) -> Tensor:
    """Append a row of zeros to the rows of each head."""
    heads = rows.view(n_heads, -1, *rows.shape[1:])
    return F.pad(heads, (0, 0) * (heads.ndim - 2) + (0, 1)).flatten(0, 1)
