"""Linear layers on the CPU by oneDNN, which torch contains beside the library that `F.linear` calls.

- *A few rows*, as in decode steps: reading the weights takes most of the time. oneDNN keeps a copy of them in
  blocks that fit its kernels, and all threads read it, whatever the number of rows. `F.linear` reads the weights
  with one thread for one row, and takes up to twice as long for 2 to 16 rows as for one.
- *Many rows*, as in training: the library behind `F.linear` (MKL) uses AVX512 only on processors of Intel. On
  others that have it, products by oneDNN take half of the time.

All products compute the same sums in fp32, in another order.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_WEIGHTS = 1 << 12  # of a layer; smaller ones keep their class
MIN_PACKED_WEIGHTS = 1 << 17  # of a layer; smaller ones fit into the cache of a core, and any product is fast
MAX_PACKED_WEIGHTS = 1 << 29  # of a model; larger ones are not copied, to save memory
MAX_PACKED_ROWS = 64  # with more rows, multiplying takes longer than reading the weights
PACKED_BATCH = 16  # rows for which oneDNN arranges the blocks; the same blocks are good for 1 to 64 rows
MIN_MULTIPLICATIONS = 1 << 22  # of a product; smaller ones take as long with either library


class Product(Enum):
    """A way to compute a linear layer; the value says why it is used, as `triform doctor` shows it."""

    PACKED = "oneDNN with packed weights: all threads read them"
    ONEDNN = "oneDNN: F.linear does not use AVX512 on this processor"
    LINEAR = "F.linear: no other product is faster"


class PackedWeight(NamedTuple):
    """A copy of a weight matrix in oneDNN's blocks, and which weights were copied."""

    blocks: Tensor
    address: int
    version: int


class CpuLinear(nn.Linear):
    """A linear layer that shares the parameters of another one and selects its product.

    Args:
        layer: The layer whose parameters are shared.
        can_pack: Whether predictions with a few rows may keep a packed copy of the weights.
    """

    def __init__(self, layer: nn.Linear, *, can_pack: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        is_tracked = not self.weight.is_inference()  # whether changes of the weights can be noticed
        self.can_pack = can_pack and is_tracked and self.weight.numel() >= MIN_PACKED_WEIGHTS
        self.packed: PackedWeight | None = None

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        product = self.select_product(x)
        if product is Product.PACKED:
            return onednn_product(x, self.packed_weight(), self.bias)
        if product is Product.ONEDNN:
            y: Tensor = OneDnnLinear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return y
        return F.linear(x, self.weight, self.bias)

    def select_product(self, x: Tensor) -> Product:
        """Return the fastest product for this input."""
        weight = self.weight
        if not x.dtype is weight.dtype is torch.float32 or not weight.is_cpu:  # the model was cast or moved
            return Product.LINEAR
        n_rows = x.numel() // self.in_features
        if self.can_pack and 0 < n_rows <= MAX_PACKED_ROWS and torch.is_inference_mode_enabled():
            return Product.PACKED
        is_large = n_rows * weight.numel() >= MIN_MULTIPLICATIONS
        return Product.ONEDNN if is_large and mkl_lacks_avx512() else Product.LINEAR

    def packed_weight(self) -> Tensor:
        """Return the packed copy of the weights. It is made anew after they have changed."""
        weight, packed = self.weight, self.packed
        if packed is None or packed.version != weight._version or packed.address != weight.data_ptr():
            blocks = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach(), PACKED_BATCH)
            packed = self.packed = PackedWeight(blocks, weight.data_ptr(), weight._version)
        return packed.blocks

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"packed": None}  # oneDNN's blocks cannot be copied or stored


class OneDnnLinear(torch.autograd.Function):
    """`F.linear` and its gradients by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        d_y = grads[0]
        rows, d_rows = x.reshape(-1, x.shape[-1]), d_y.reshape(-1, d_y.shape[-1])  # (N, in), (N, out)
        d_x = onednn_product(d_y, weight.t(), None) if needs_x else None
        d_weight = transposed_product(d_rows, rows) if needs_weight else None
        return d_x, d_weight, d_rows.sum(dim=0) if needs_bias else None


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (..., in) -> (..., out)
    """Compute `F.linear` by oneDNN, with a weight matrix (out, in), plain or packed."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


def transposed_product(left: Tensor, right: Tensor) -> Tensor:  # (N, L), (N, R) -> (L, R)
    """Compute `left.t() @ right` by oneDNN, which is faster if a result has more columns than rows."""
    if left.shape[1] > right.shape[1]:
        return onednn_product(right.t(), left.t(), None).t()
    return onednn_product(left.t(), right.t(), None)


@cache
def has_onednn() -> bool:
    """Return whether this build of torch multiplies with oneDNN."""
    is_built = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return is_built and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def mkl_lacks_avx512() -> bool:
    """Return whether this processor has AVX512 but `F.linear` does not use it, so that oneDNN is faster."""
    return has_onednn() and torch.backends.cpu.get_cpu_capability() == "AVX512" and not _is_intel()


def _is_intel() -> bool:
    cpu_info = Path("/proc/cpuinfo")  # other systems than Linux do not have it, and keep `F.linear`
    return not cpu_info.exists() or "GenuineIntel" in cpu_info.read_text(encoding="utf-8", errors="replace")


def use_cpu_products(model: nn.Module) -> None:
    """Let the linear layers of a float32 model on the CPU select the fastest product, in place.

    The layers keep their parameters. Predictions with a few rows keep a second, packed copy of the weights, except
    for models with very many of them.
    """
    layers = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear) and not isinstance(layer, CpuLinear) and _is_supported(layer.weight)
    ]
    can_pack = sum(layer.weight.numel() for _, _, layer in layers) <= MAX_PACKED_WEIGHTS
    for parent, name, layer in layers if has_onednn() else ():
        setattr(parent, name, CpuLinear(layer, can_pack=can_pack))


def _is_supported(weight: Tensor) -> bool:
    is_plain = weight.is_cpu and weight.dtype is torch.float32 and weight.is_contiguous()
    return is_plain and weight.numel() >= MIN_WEIGHTS
