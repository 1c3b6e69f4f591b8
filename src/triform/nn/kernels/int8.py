"""Linear layers with int8 weights, for the CPU: a quarter of the memory to read, and products of small integers.

Each output has a scale of its own, 127 steps to either side of zero; what comes in is rounded to 8 bits as it
comes, by the range of the whole batch, so that in int8 the neighbours of a text can move its last digits.
Embeddings and norms stay as they are. torch's quantised tensors are deprecated: `int8_unavailable_reason` runs the
operators and compares them with the plain product before they are used.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

MIN_OUT_FEATURES = 16  # a layer with fewer outputs costs nothing, and it is the one that decides: a label's
MAX_PROBE_ERROR = 0.05  # of the largest answer; sound kernels are within 0.01


class Int8Linear(nn.Module):
    """Stands for a linear layer whose weights do not change any more."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        bias = None if layer.bias is None else layer.bias.detach().float()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecation is known; `trouble` finds out when it comes true
            self.packed = torch.ops.quantized.linear_prepack(_quantize_weight(layer.weight.detach().float()), bias)
        # without VNNI the kernels add up in 16 bits, which one bit less keeps from overflowing
        self.reduce_range = not torch.cpu._is_vnni_supported()

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        return torch.ops.quantized.linear_dynamic(x, self.packed, self.reduce_range)

    @property
    def weight(self) -> Tensor:
        """The weights as they are now: within half a step of those that were given."""
        return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _quantize_weight(weight: Tensor) -> Tensor:  # (out, in)
    scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127  # (out)
    zero_points = torch.zeros(len(weight), dtype=torch.long)
    return torch.quantize_per_channel(weight, scales, zero_points, 0, torch.qint8)


def int8_unavailable_reason() -> str:
    """Why int8 cannot be had on this machine; nothing when it can."""
    with torch.random.fork_rng(devices=[]):
        layer = nn.Linear(64, 48, dtype=torch.float32)
    x = torch.linspace(-1, 1, 5 * 64, dtype=torch.float32).sin().view(5, 64)
    with torch.inference_mode():
        expected = layer(x)
        try:
            relative_error = (Int8Linear(layer)(x) - expected).abs().max() / expected.abs().max()
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            return str(error).partition("\n")[0] or type(error).__name__
    return "" if relative_error < MAX_PROBE_ERROR else f"its int8 products are off by {relative_error:.0%}"


def quantize_linears(model: nn.Module) -> None:
    """Exchange the linear layers for int8 ones. A head that shares its weights with an embedding parts from it."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features >= MIN_OUT_FEATURES:
                setattr(parent, name, Int8Linear(layer))
