"""Initialise weights, and read and write them as safetensors files under the names of the torch models."""

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
    """Initialise like the torch models: Xavier normal, residual outputs scaled by 1/√(2 · layers), norms 1."""

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
            # Keys and values are initialised as separate matrices.
            for half in np.split(module.kv_proj.weight.value, 2):
                fill_normal(half, math.sqrt(2 / sum(half.shape)))
            module.out_proj.weight.value /= math.sqrt(2 * n_layers)
        elif isinstance(module, PositionwiseFeedForward):
            module.down_proj.weight.value /= math.sqrt(2 * n_layers)
    # Scaled embeddings that are tied to the output layer start small; otherwise an untrained model repeats its
    # input.
    for module in modules:
        if (
            isinstance(module, TokenPositionEmbedding)
            and module.scale != 1
            and id(module.token_embedding.weight) in linear_ids
        ):
            fill_normal(module.token_embedding.weight.value, TIED_EMBEDDING_STD)


def load_state_dict(weights: FlatParameters, tensors: dict[str, Array], origin: str = "the weights") -> None:
    """Copy tensors into the parameters. Nothing is copied unless all names, shapes and values are valid."""
    if mismatched := sorted(weights.named.keys() ^ tensors.keys()):
        raise CheckpointError(
            f"{origin}: the tensors do not match the settings: {mismatched[0]} is missing or unknown"
        )
    values = {key: check_tensor(tensors[key], parameter, key, origin) for key, parameter in weights.named.items()}
    for key, parameter in weights.named.items():
        parameter.value[...] = values[key]


def check_tensor(tensor: Array, parameter: Parameter, key: str, origin: str) -> Array:
    """Return a tensor in the data type of its parameter, or raise a CheckpointError."""
    tensor = np.asarray(tensor)
    if tensor.shape != parameter.shape:
        raise CheckpointError(
            f"{origin}: the tensors do not match the settings: {key} has shape {tensor.shape}, "
            f"expected {parameter.shape}"
        )
    if tensor.dtype.kind not in "fiu":
        raise CheckpointError(f"{origin}: {key} must contain real numbers, found {tensor.dtype}")
    with np.errstate(over="ignore"):  # numbers that are too large become infinite
        tensor = tensor.astype(parameter.value.dtype)
    if not np.isfinite(tensor).all():
        raise CheckpointError(f"{origin}: {key} contains NaN or infinity")
    return tensor


def state_dict(weights: FlatParameters) -> dict[str, Array]:
    """Return a copy of every parameter by name."""
    return {name: parameter.value.copy() for name, parameter in weights.named.items()}


def load_tensors(path: Path) -> dict[str, Array]:
    """Read the tensors of a safetensors file."""
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, SafetensorError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged, or is not a safetensors file ({error})") from None


def save_tensors(path: Path, weights: FlatParameters) -> None:
    """Write the parameters to a safetensors file."""
    try:
        save_file(state_dict(weights), path)
        path.chmod(0o644)  # the library allows access only to the owner
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written ({error})") from None
