"""Which numbers a trained model computes with: fp32, bf16, or int8 products on the CPU.

`auto` never changes what a model says by more than rounding: bf16 where the hardware multiplies it faster than
fp32, else fp32. int8 must be asked for, because it moves scores.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import nn

from triform.config import ModelConfig
from triform.errors import ConfigError
from triform.nn import quantize

Precision = Literal["fp32", "bf16", "int8"]
BF16_UNITS = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # torch.cpu's names for them


def settle(asked: str, device: torch.device) -> Precision:
    """What was asked for, where it can be had; for `auto` what is best here."""
    if asked == "auto":
        return "bf16" if has_bf16(device) else "fp32"
    if asked not in get_args(Precision):
        raise ConfigError(f"unknown precision {asked!r}; choose from auto, {', '.join(get_args(Precision))}")
    if asked == "int8" and device.type != "cpu":
        raise ConfigError(f"precision int8 is for the CPU, not for {device.type}; use bf16, or --device cpu")
    if asked == "int8" and (why := quantize.trouble()):
        raise ConfigError(f"precision int8 cannot be had on this machine ({why}); use fp32 or auto")
    return cast("Precision", asked)


def suited(settled: Precision, asked: str, model: ModelConfig) -> Precision:
    """What a model can have of that: a recurrent one stays in fp32."""
    if not model.is_recurrent:
        return settled
    if asked not in ("auto", "fp32"):
        raise ConfigError(f"precision {asked} is for Transformers; model.kind={model.kind} answers in fp32")
    return "fp32"


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 is multiplied by hardware; elsewhere it is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and any(getattr(torch.cpu, unit, bool)() for unit in BF16_UNITS)


def cast_model(model: nn.Module, precision: Precision) -> None:
    """Once, after the weights are loaded: a model so cast answers, and is not trained any further."""
    if precision == "bf16":
        model.to(torch.bfloat16)
    elif precision == "int8":
        quantize.quantize(model)
