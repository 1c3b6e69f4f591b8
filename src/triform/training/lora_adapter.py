"""LoRA adapter files: the trained weights, the settings of the run, and a fingerprint of the base model.

Adapter files are copied to other folders, so each contains a digest of its settings and tensors.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

import triform
from triform.config import Config
from triform.config.settings import build_config, parse_settings, to_toml
from triform.errors import CheckpointError, ConfigError
from triform.io.errors import damaged_error, write_errors
from triform.io.files import atomic_file
from triform.nn.lora import LoraLinear, lora_scale, merge_weight
from triform.training.tensors import read_shapes, read_tensors, save_tensors, validate_finite

ADAPTER_FORMAT = 3  # written into the metadata; another format is refused
METADATA_KEY = "triform-adapter"  # in the metadata of the safetensors file


def base_parameter_name(name: str) -> str:
    """Return the name of a parameter in a model without adapters."""
    return name.replace(".base.", ".")


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by the names of a model without adapters, with the adapters added."""
    weights: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        layer = model.get_submodule(name.rpartition(".base.")[0]) if name.endswith(".base.weight") else None
        if isinstance(layer, LoraLinear):
            weights[base_parameter_name(name)] = merge_weight(
                parameter, layer.lora_a.weight, layer.lora_b.weight, layer.scale
            )
        elif ".lora_" not in name:
            weights[base_parameter_name(name)] = parameter
    return weights


class AdapterFile:
    """Writer of the adapter of a model in training."""

    def __init__(self, path: Path, model: nn.Module, config: Config) -> None:
        self.path, self.model, self.config = path, model, config

    def write(self) -> None:
        """Write the current trainable parameters."""
        trainable: dict[str, Tensor] = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        metadata = {"format": ADAPTER_FORMAT, "triform": triform.__version__, "base": self.base_fingerprint}
        metadata |= {"config": to_toml(self.config, {})}
        metadata_json = json.dumps(metadata | {"sha256": adapter_digest(metadata, trainable)})
        with write_errors(self.path, self.path.parent), atomic_file(self.path) as temporary:
            save_tensors(
                temporary, trainable, {METADATA_KEY: metadata_json}
            )  # a single key, because the library does not keep the order

    @cached_property
    def base_fingerprint(self) -> str:
        """The fingerprint of the frozen base model."""
        return weights_fingerprint(
            {base_parameter_name(n): p for n, p in self.model.named_parameters() if not p.requires_grad}
        )


def weights_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 digest of the names, shapes and values of weights."""
    hasher = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        hasher.update(f"{name} {tuple(tensor.shape)} ".encode())
        hasher.update(tensor.detach().cpu().contiguous().numpy().data)
    return hasher.hexdigest()


def adapter_digest(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 digest of the metadata and the tensors of an adapter."""
    hasher = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        hasher.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


class Adapter(NamedTuple):
    """The content of an adapter file."""

    path: Path
    config: Config  # of the run that trained it
    tensors: dict[str, Tensor]
    base_fingerprint: str

    def apply_to(self, model: nn.Module) -> None:
        """Merge the adapter into the weights of its base model.

        Raises:
            ConfigError: The model is not the base that the adapter was trained with.
        """
        weights = dict(model.named_parameters())
        layers, full_weights = self._split_tensors(weights)
        base_weights = {name: p for name, p in weights.items() if name not in full_weights}
        if weights_fingerprint(base_weights) != self.base_fingerprint:
            raise ConfigError("the base model's weights do not match the adapter (fingerprint differs)")
        with torch.no_grad():
            for name in full_weights:
                weights[name].copy_(self.tensors[name])
            for layer, (a, b) in layers.items():
                weight = weights[f"{layer}.weight"]
                weight.copy_(merge_weight(weight, a, b, lora_scale(self.config.train)))

    def _split_tensors(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, tuple[Tensor, Tensor]], set[str]]:
        """Return the two factors of each adapted layer, and the names of weights that were trained directly."""
        full_weights = {name for name in self.tensors if ".lora_" not in name}
        layers = {name.rpartition(".lora_")[0] for name in self.tensors if name not in full_weights}
        if self.tensors.keys() != full_weights | {
            f"{layer}.lora_{factor}.weight" for layer in layers for factor in "ab"
        }:
            raise damaged_error(self.path, "one of the two factors of a layer is missing")
        a_name, b_name = "{}.lora_a.weight", "{}.lora_b.weight"
        factors = {
            layer_name: (self.tensors[a_name.format(layer_name)], self.tensors[b_name.format(layer_name)])
            for layer_name in layers
        }
        shapes = {name: tuple(self.tensors[name].shape) for name in full_weights}
        for layer, (a, b) in factors.items():
            rank = self.config.train.lora_rank
            shapes_match = a.ndim == b.ndim == 2 and len(a) == b.shape[1] == rank
            shapes[f"{layer}.weight"] = (len(b), a.shape[1]) if shapes_match else ()
        for name, shape in shapes.items():
            if name not in weights:
                raise ConfigError(f"the base model has no {name}")
            if tuple(weights[name].shape) != shape:
                raise ConfigError(f"the shape of {name} differs between the adapter and the base model")
        return factors, full_weights


def read_adapter(path: Path, *, verify: bool = True) -> Adapter:
    """Read an adapter.

    Raises:
        CheckpointError: The file is missing, is not an adapter, is damaged, or does not match its digest.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; name the adapter.safetensors of a LoRA run")
    try:
        with safe_open(path, framework="pt") as file:
            metadata_json = (file.metadata() or {}).get(METADATA_KEY)
    except (OSError, SafetensorError) as error:
        raise damaged_error(path, error) from None
    if metadata_json is None:
        raise CheckpointError(f"{path} is not an adapter; name the adapter.safetensors of a LoRA run")
    metadata = _parse_metadata(path, metadata_json)
    read_shapes(path)
    tensors = read_tensors(path)
    expected_digest = metadata.pop("sha256")
    if verify and adapter_digest(metadata, tensors) != expected_digest:
        raise CheckpointError(
            f"{path} is damaged: it does not match its digest; restore it from a copy, "
            "or use --no-verify (in Python verify=False) to open it anyway"
        )
    validate_finite(path, tensors)
    try:
        config = build_config(parse_settings(tomllib.loads(metadata["config"]), path))
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        raise damaged_error(path, error) from None
    return Adapter(
        path=path,
        config=config,
        tensors=tensors,
        base_fingerprint=metadata["base"],
    )


def _parse_metadata(path: Path, metadata_json: str) -> dict[str, Any]:
    try:
        metadata = json.loads(metadata_json)
    except (ValueError, RecursionError) as error:
        raise damaged_error(path, error) from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format"), int):
        raise damaged_error(path, "the format number is missing from its metadata")
    if metadata["format"] != ADAPTER_FORMAT:
        raise CheckpointError(
            f"{path} has adapter format {metadata['format']}, and this Triform reads format {ADAPTER_FORMAT}; "
            f"use Triform {metadata.get('triform', 'of another version')}"
        )
    for name in ("triform", "base", "config", "sha256"):
        if not isinstance(metadata.get(name), str):
            raise damaged_error(path, f"its metadata has no {name}")
    return metadata
