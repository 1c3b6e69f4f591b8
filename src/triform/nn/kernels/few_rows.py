"""Linear layers for decode steps on the CPU, in which a few rows meet a large weight matrix.

Reading the weights takes most of the time. With 2 to 16 rows, `F.linear` takes three to five times as long as with
one, although it reads the same weights. `select_product` returns the fastest product for the number of rows. All of
them compute the same sums, in another order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_WEIGHTS = 1 << 17  # of a layer; smaller ones fit into the cache of a core, and any product is fast
MAX_STATIONARY_ROWS = 4  # rows up to which the product of the weights with the transposed rows is fastest
MAX_FEW_ROWS = 16  # with more rows, `F.linear` is as fast as any other product
N_PARTS = 2  # of the weights in `split_product`

Product = Callable[[Tensor, Tensor], Tensor]  # rows (N, in) and weights (out, in) -> (N, out)


def stationary_product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply the weights by the transposed rows, so that the larger matrix is divided between threads."""
    return torch.mm(weight, x.t()).t().contiguous()


def split_product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply the rows by each part of the weights, in one batch of products that threads divide."""
    parts = weight.view(N_PARTS, -1, weight.shape[1]).transpose(1, 2)  # (parts, in, out / parts)
    return torch.bmm(x.expand(N_PARTS, -1, -1), parts).transpose(0, 1).flatten(1)


PRODUCT_LABELS: dict[Product, str] = {  # as `triform doctor` shows them
    F.linear: "F.linear: no other product is faster",
    stationary_product: "weights @ transposed rows: F.linear is slow for a few rows",
    split_product: f"{N_PARTS} parts of the weights in one batch: F.linear is slow for a few rows",
}


def select_product(n_rows: int, weight: Tensor) -> Product:
    """Return the fastest product of so many rows with these weights."""
    if 1 < n_rows <= MAX_STATIONARY_ROWS:
        return stationary_product
    if MAX_STATIONARY_ROWS < n_rows <= MAX_FEW_ROWS and weight.shape[0] % N_PARTS == 0:
        return split_product
    return F.linear


class FewRowsLinear(nn.Linear):
    """A linear layer that shares the parameters of another one. It cannot be trained, only used to predict."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        if not torch.is_inference_mode_enabled():  # gradients of the input are wanted, by an explanation
            return F.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, self.in_features)
        y = select_product(len(rows), self.weight)(rows, self.weight)
        return (y if self.bias is None else y + self.bias).view(*x.shape[:-1], self.out_features)


def use_few_rows_products(model: nn.Module) -> None:
    """Let the large linear layers of a float32 model on the CPU multiply a few rows fast, in place."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and is_large(layer.weight):
                setattr(parent, name, FewRowsLinear(layer))


def is_large(weight: Tensor) -> bool:
    """Return whether weights are worth another product than `F.linear`."""
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()
    return is_plain and weight.numel() >= MIN_WEIGHTS
