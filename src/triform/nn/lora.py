"""Low-rank adapters (LoRA, arXiv:2106.09685): trained weights stay frozen, and two thin matrices are learned.

W x becomes W x + scale · B A x, with A random and B zero, so that training starts from the unchanged model. After
training, W + scale · B A is one matrix again, computed in float64 so that every device gives the same result.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from triform.config import LoraLayers, TrainConfig

TARGET_MODULES: dict[LoraLayers, tuple[str, ...]] = {
    "all": ("attn", "cross_attn", "ffn"),
    "attention": ("attn", "cross_attn"),
}


class LoraLinear(nn.Module):
    """A frozen linear layer with a learned low-rank adapter."""

    def __init__(self, base: nn.Linear, config: TrainConfig) -> None:
        super().__init__()
        factory_kwargs = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.base = base
        self.lora_a = nn.Linear(base.in_features, config.lora_rank, bias=False, **factory_kwargs)
        self.lora_b = nn.Linear(config.lora_rank, base.out_features, bias=False, **factory_kwargs)
        nn.init.zeros_(self.lora_b.weight)
        self.dropout = nn.Dropout(config.lora_dropout)
        self.scale = lora_scale(config)

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        return self.base(x) + self.scale * self.lora_b(self.lora_a(self.dropout(x)))


def lora_scale(config: TrainConfig) -> float:
    """Return the factor of the adapters: `lora_alpha` / rank, or 2 by default."""
    return config.lora_alpha / config.lora_rank if config.lora_alpha else 2.0


def apply_lora(model: nn.Module, config: TrainConfig) -> None:
    """Freeze the model in place and add trainable adapters to the linear layers of its blocks."""
    model.requires_grad_(requires_grad=False)
    for name, parent in list(model.named_modules()):
        if name.rpartition(".")[2] in TARGET_MODULES[config.lora_layers]:
            for child_name, layer in list(parent.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(parent, child_name, LoraLinear(layer, config))


def merge_lora(model: nn.Module) -> None:
    """Replace every adapted layer, in place, by a plain one with the adapter added to its weight."""
    for parent in list(model.modules()):
        for child_name, layer in list(parent.named_children()):
            if isinstance(layer, LoraLinear):
                with torch.no_grad():
                    a, b = layer.lora_a.weight, layer.lora_b.weight
                    layer.base.weight.copy_(merge_weight(layer.base.weight, a, b, layer.scale))
                setattr(parent, child_name, layer.base)


def merge_weight(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:  # (out, in), (r, in), (out, r)
    """Return the weight plus the adapter, computed in float64 on the CPU."""
    merged_fp64 = weight.detach().cpu().double() + scale * (b.detach().cpu().double() @ a.detach().cpu().double())
    return merged_fp64.to(weight.dtype)
