"""Weights to begin with, and weights in files: `safetensors` under the names that the torch models use."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from triform.errors import CheckpointError
from triform.scratch.attention import Attention
from triform.scratch.blocks import FeedForward
from triform.scratch.layers import LayerNorm, Linear, Table
from triform.scratch.models import Embedding
from triform.scratch.part import Array, Parameter, Part, Weights

SMALL = 0.02


def initialise(model: Part, depth: int, rng: np.random.Generator) -> None:
    """As the torch models begin: Xavier normal, what writes to the residual stream over √(2 · depth), norms 1."""

    def draw(weight: Array, spread: float) -> None:
        weight[...] = rng.standard_normal(weight.shape) * spread

    parts = list(model.parts())
    matrices = [part.weight for part in parts if isinstance(part, Linear)]
    for weight in matrices:
        draw(weight.value, math.sqrt(2 / sum(weight.shape)))
    outputs = {id(weight) for weight in matrices}
    for part in parts:
        if isinstance(part, LayerNorm):
            part.weight.value[...] = 1
        elif isinstance(part, Table):
            draw(part.weight.value, part.weight.shape[1] ** -0.5)
        elif isinstance(part, Attention):
            for half in np.split(part.key_value.weight.value, 2):  # each as wide as if it stood alone
                draw(half, math.sqrt(2 / sum(half.shape)))
            part.out.weight.value /= math.sqrt(2 * depth)
        elif isinstance(part, FeedForward):
            part.down.weight.value /= math.sqrt(2 * depth)
    # Scaled up as inputs and read as outputs too: a fresh model would be sure of repeating itself.
    for part in parts:
        if isinstance(part, Embedding) and part.scale != 1 and id(part.tokens.weight) in outputs:
            draw(part.tokens.weight.value, SMALL)


def put(weights: Weights, tensors: dict[str, Array], name: str = "the weights") -> None:
    """Take these numbers, all or none; every parameter must be there, with its shape, and finite."""
    if odd := sorted(weights.named.keys() ^ tensors.keys()):
        raise CheckpointError(f"{name}: do not fit the settings: {odd[0]} is missing or unknown")
    values = {each: checked(tensors[each], parameter, each, name) for each, parameter in weights.named.items()}
    for each, parameter in weights.named.items():
        parameter.value[...] = values[each]


def checked(tensor: Array, parameter: Parameter, each: str, name: str) -> Array:
    """In the number format of the parameter."""
    tensor = np.asarray(tensor)
    if tensor.shape != parameter.shape:
        raise CheckpointError(
            f"{name}: do not fit the settings: {each} is {tensor.shape}, wanted {parameter.shape}"
        )
    if tensor.dtype.kind not in "fiu":
        raise CheckpointError(f"{name}: {each} must be real numbers; these are {tensor.dtype}")
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        tensor = tensor.astype(parameter.value.dtype)
    if not np.isfinite(tensor).all():
        raise CheckpointError(f"{name}: {each} holds what is no finite number")
    return tensor


def taken(weights: Weights) -> dict[str, Array]:
    """Copies, by name."""
    return {name: parameter.value.copy() for name, parameter in weights.named.items()}


def read(path: Path) -> dict[str, Array]:
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, SafetensorError, TypeError) as error:
        raise CheckpointError(f"{path}: is damaged, or not a safetensors file ({error})") from None


def write(path: Path, weights: Weights) -> None:
    try:
        save_file(taken(weights), path)
        path.chmod(0o644)  # the library writes for the owner alone
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from None
