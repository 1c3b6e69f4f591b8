"""An adapter by itself: what LoRA learned, in a small file, with its settings and a mark of the base it changes.

The file is copied to other places, so its digest lies in its own metadata: over the settings and every tensor.
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
from triform.errors import CheckpointError, ConfigError
from triform.nn.lora import merged, plain_name, scale_of
from triform.settings import build, settings_of, to_toml
from triform.training.folder import check_finite, damaged, read_shapes, read_tensors, write_part, writing

FORMAT = 2  # 1 had no digest
KEY = "triform-adapter"  # of the file's metadata


class AdapterFile:
    """Where the adapters of a model that learns are kept."""

    def __init__(self, path: Path, model: nn.Module, config: Config) -> None:
        self.path, self.model, self.config = path, model, config

    def write(self) -> None:
        """All that learns, as it is now."""
        learned: dict[str, Tensor] = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        about = {"format": FORMAT, "triform": triform.__version__, "base": self.mark}
        about |= {"config": to_toml(self.config, {})}
        told = json.dumps(about | {"sha256": digest(about, learned)})
        with writing(self.path, self.path.parent):
            part = write_part(self.path, learned, {KEY: told})  # one entry, for the library keeps no order
            part.replace(self.path)

    @cached_property
    def mark(self) -> str:
        """Of the base, which does not change."""
        return fingerprint({plain_name(n): p for n, p in self.model.named_parameters() if not p.requires_grad})


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Of names, shapes and every number."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {tuple(tensor.shape)} ".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().data)
    return found.hexdigest()


def digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of an adapter: its metadata, and the names, dtypes, shapes and bytes of its tensors."""
    found = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


class Adapter(NamedTuple):
    path: Path
    config: Config  # of the run that it was learned in
    tensors: dict[str, Tensor]
    mark: str
    notices: tuple[str, ...] = ()

    def put_on(self, model: nn.Module) -> None:
        """Add it to a plain model that holds the base's weights."""
        weights = dict(model.named_parameters())
        layers, own = self._parts(weights)
        if fingerprint({name: p for name, p in weights.items() if name not in own}) != self.mark:
            raise ConfigError("the base model's weights do not match the adapter (fingerprint differs)")
        with torch.no_grad():
            for name in own:
                weights[name].copy_(self.tensors[name])
            for layer, (a, b) in layers.items():
                weight = weights[f"{layer}.weight"]
                weight.copy_(merged(weight, a, b, scale_of(self.config.train)))

    def _parts(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, tuple[Tensor, Tensor]], set[str]]:
        """Return the two factors for each adapted layer, and the names of weights that were trained as a whole."""
        own = {name for name in self.tensors if ".lora_" not in name}
        layers = {name.rpartition(".lora_")[0] for name in self.tensors if name not in own}
        if self.tensors.keys() != own | {f"{layer}.lora_{part}.weight" for layer in layers for part in "ab"}:
            raise damaged(self.path, "a layer lacks one of its two factors")
        a_name, b_name = "{}.lora_a.weight", "{}.lora_b.weight"
        factors = {each: (self.tensors[a_name.format(each)], self.tensors[b_name.format(each)]) for each in layers}
        shapes = {name: tuple(self.tensors[name].shape) for name in own}
        for layer, (a, b) in factors.items():
            rank = self.config.train.lora_rank
            fits = a.ndim == b.ndim == 2 and len(a) == b.shape[1] == rank
            shapes[f"{layer}.weight"] = (len(b), a.shape[1]) if fits else ()
        for name, shape in shapes.items():
            if name not in weights:
                raise ConfigError(f"the base model has no {name}")
            if tuple(weights[name].shape) != shape:
                raise ConfigError(f"the adapter's {name} does not have the shape that the base model has")
        return factors, own


def read_adapter(path: Path, *, verify: bool = True) -> Adapter:
    """Read an adapter.

    Raises:
        CheckpointError: The file is missing, not an adapter, damaged, or does not match its own digest.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; an adapter is the adapter.safetensors of a LoRA run")
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get(KEY)
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
    if told is None:
        raise CheckpointError(f"{path}: is not an adapter; one is the adapter.safetensors of a LoRA run")
    about = _read_about(path, told)
    read_shapes(path)
    tensors = read_tensors(path)
    wanted = about.pop("sha256", None)
    older = f"{path}: was saved by an older Triform without a digest, so damage would not be noticed"
    if verify and wanted is not None and digest(about, tensors) != wanted:
        raise CheckpointError(
            f"{path}: is damaged: it does not match its own digest; restore it from a copy, "
            "or give --no-verify (in Python verify=False) to use it all the same"
        )
    check_finite(path, tensors)
    try:
        config = build(settings_of(tomllib.loads(about["config"]), path))
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    return Adapter(path, config, tensors, about["base"], (older,) if verify and wanted is None else ())


def _read_about(path: Path, told: str) -> dict[str, Any]:
    try:
        about = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    if not isinstance(about, dict) or not isinstance(about.get("format"), int):
        raise damaged(path, "its metadata does not say its format")
    if about["format"] > FORMAT:
        raise CheckpointError(f"{path}: was made by Triform {about.get('triform', 'newer')}: upgrade to use it")
    for name in ("triform", "base", "config", *(["sha256"] if about["format"] > 1 else [])):
        if not isinstance(about.get(name), str):
            raise damaged(path, f"its metadata has no {name}")
    return about
