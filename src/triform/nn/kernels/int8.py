"""Linear layers with int8 weights, for the CPU. They read a quarter of the memory and multiply small integers.

Weights have one scale for each output, with 127 steps on either side of zero. Inputs are quantised when the layer
is called, with one scale for the whole batch, so the other texts of a batch can change the last digits of a result.
Embeddings and norms stay in fp32. PyTorch's quantised tensors are deprecated, so `int8_unavailable_reason` compares
the operators with the plain product before they are used.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

MIN_OUT_FEATURES = 16  # smaller layers, such as the head of a classifier, cost little and stay exact
MAX_PROBE_ERROR = 0.05  # relative to the largest output; working kernels are within 0.01


class Int8Linear(nn.Module):
    """A linear layer with int8 weights. It cannot be trained."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        bias = None if layer.bias is None else layer.bias.detach().float()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecation; `int8_unavailable_reason` checks the operators
            self.packed = torch.ops.quantized.linear_prepack(_quantize_weight(layer.weight.detach().float()), bias)
        # Without VNNI the kernels accumulate in 16 bits; inputs of 7 bits keep them from overflowing.
        self.reduce_range = not torch.cpu._is_vnni_supported()

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        return torch.ops.quantized.linear_dynamic(x, self.packed, self.reduce_range)

    @property
    def weight(self) -> Tensor:
        """The dequantised weights, within half a step of the original ones."""
        return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _quantize_weight(weight: Tensor) -> Tensor:  # (out, in)
    scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127  # (out)
    zero_points = torch.zeros(len(weight), dtype=torch.long)
    return torch.quantize_per_channel(weight, scales, zero_points, 0, torch.qint8)


def int8_unavailable_reason() -> str:
    """Return why int8 is not available on this machine, or an empty string if it is."""
    with torch.random.fork_rng(devices=[]):
        layer = nn.Linear(64, 48, dtype=torch.float32)
    x = torch.linspace(-1, 1, 5 * 64, dtype=torch.float32).sin().view(5, 64)
    with torch.inference_mode():
        expected = layer(x)
        try:
            relative_error = (Int8Linear(layer)(x) - expected).abs().max() / expected.abs().max()
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            return str(error).partition("\n")[0] or type(error).__name__
    return "" if relative_error < MAX_PROBE_ERROR else f"int8 products differ by {relative_error:.0%} from fp32"


def quantize_linears(model: nn.Module) -> None:
    """Replace the linear layers by int8 ones, in place. A head no longer shares its weights with the embedding."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features >= MIN_OUT_FEATURES:
                setattr(parent, name, Int8Linear(layer))
