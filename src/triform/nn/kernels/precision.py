"""The precision of a trained model: fp32, bf16, or int8 products on the CPU.

`auto` is fp32 on every machine, so that a run gives the same answers wherever it is opened. bf16 and int8 are
faster on some hardware and change the logits, so they must be requested.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import nn

from triform.config import ModelConfig
from triform.errors import ConfigError
from triform.nn.kernels import int8
from triform.nn.kernels.cpu_linear import use_cpu_products

Precision = Literal["fp32", "bf16", "int8"]
BF16_CPU_FLAGS = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # torch.cpu's names for them


def resolve_precision(requested: str, device: torch.device, model: ModelConfig) -> Precision:
    """Return the precision to use, or raise `ConfigError` where it is unknown or not available."""
    if requested in ("auto", "fp32"):
        return "fp32"
    if requested not in get_args(Precision):
        raise ConfigError(f"unknown precision {requested!r}; choose from auto, {', '.join(get_args(Precision))}")
    if model.is_recurrent:
        raise ConfigError(f"precision {requested} is for Transformers; model.kind={model.kind} answers in fp32")
    if requested == "int8" and device.type != "cpu":
        raise ConfigError(f"precision int8 is for the CPU, not for {device.type}; use bf16, or --device cpu")
    if requested == "int8" and (reason := int8.int8_unavailable_reason()):
        raise ConfigError(f"precision int8 is not available on this machine ({reason}); use fp32")
    return cast("Precision", requested)


def has_bf16(device: torch.device) -> bool:
    """Return whether the hardware multiplies bf16; where it does not, bf16 is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and any(getattr(torch.cpu, flag, bool)() for flag in BF16_CPU_FLAGS)


def cast_model(model: nn.Module, precision: Precision) -> None:
    """Convert a model in place, after its weights are loaded. It cannot be trained afterwards."""
    if precision == "bf16":
        model.to(torch.bfloat16)
    elif precision == "int8":
        int8.quantize_linears(model)
    else:
        use_cpu_products(model)


def is_reduced_precision(model: nn.Module) -> bool:
    """Return whether a model was cast to less than fp32."""
    has_low_precision = any(parameter.dtype != torch.float32 for parameter in model.parameters())
    return has_low_precision or any(isinstance(module, int8.Int8Linear) for module in model.modules())
