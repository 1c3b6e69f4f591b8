"""Weights to begin with, and weights in files: `safetensors` under the names that the torch models use."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from triform.errors import CheckpointError
from triform.scratch.attention import MultiHeadAttention
from triform.scratch.blocks import PositionwiseFeedForward
from triform.scratch.layers import Embedding, LayerNorm, Linear
from triform.scratch.models import TokenPositionEmbedding
from triform.scratch.module import Array, FlatParameters, Module, Parameter

TIED_EMBEDDING_STD = 0.02


def initialise_weights(model: Module, n_layers: int, rng: np.random.Generator) -> None:
    """As the torch models begin: Xavier normal, what writes to the residual stream over √(2 · depth), norms 1."""

    def fill_normal(weight: Array, std: float) -> None:
        weight[...] = rng.standard_normal(weight.shape) * std

    modules = list(model.modules())
    matrices = [module.weight for module in modules if isinstance(module, Linear)]
    for weight in matrices:
        fill_normal(weight.value, math.sqrt(2 / sum(weight.shape)))
    linear_ids = {id(weight) for weight in matrices}
    for module in modules:
        if isinstance(module, LayerNorm):
            module.weight.value[...] = 1
        elif isinstance(module, Embedding):
            fill_normal(module.weight.value, module.weight.shape[1] ** -0.5)
        elif isinstance(module, MultiHeadAttention):
            for half in np.split(module.kv_proj.weight.value, 2):  # each as wide as if it stood alone
                fill_normal(half, math.sqrt(2 / sum(half.shape)))
            module.out_proj.weight.value /= math.sqrt(2 * n_layers)
        elif isinstance(module, PositionwiseFeedForward):
            module.down_proj.weight.value /= math.sqrt(2 * n_layers)
    # Scaled up as inputs and read as outputs too: a fresh model would be sure of repeating itself.
    for module in modules:
        if (
            isinstance(module, TokenPositionEmbedding)
            and module.scale != 1
            and id(module.token_embedding.weight) in linear_ids
        ):
            fill_normal(module.token_embedding.weight.value, TIED_EMBEDDING_STD)


def load_state_dict(weights: FlatParameters, tensors: dict[str, Array], origin: str = "the weights") -> None:
    """Take these numbers, all or none; every parameter must be there, with its shape, and finite."""
    if mismatched := sorted(weights.named.keys() ^ tensors.keys()):
        raise CheckpointError(f"{origin}: do not fit the settings: {mismatched[0]} is missing or unknown")
    values = {key: check_tensor(tensors[key], parameter, key, origin) for key, parameter in weights.named.items()}
    for key, parameter in weights.named.items():
        parameter.value[...] = values[key]


def check_tensor(tensor: Array, parameter: Parameter, key: str, origin: str) -> Array:
    """In the number format of the parameter."""
    tensor = np.asarray(tensor)
    if tensor.shape != parameter.shape:
        raise CheckpointError(
            f"{origin}: do not fit the settings: {key} is {tensor.shape}, wanted {parameter.shape}"
        )
    if tensor.dtype.kind not in "fiu":
        raise CheckpointError(f"{origin}: {key} must be real numbers; these are {tensor.dtype}")
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        tensor = tensor.astype(parameter.value.dtype)
    if not np.isfinite(tensor).all():
        raise CheckpointError(f"{origin}: {key} holds what is no finite number")
    return tensor


def state_dict(weights: FlatParameters) -> dict[str, Array]:
    """Copies, by name."""
    return {name: parameter.value.copy() for name, parameter in weights.named.items()}


def load_tensors(path: Path) -> dict[str, Array]:
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, SafetensorError, TypeError) as error:
        raise CheckpointError(f"{path}: is damaged, or not a safetensors file ({error})") from None


def save_tensors(path: Path, weights: FlatParameters) -> None:
    try:
        save_file(state_dict(weights), path)
        path.chmod(0o644)  # the library writes for the owner alone
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from None
