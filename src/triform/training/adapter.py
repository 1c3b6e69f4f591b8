"""An adapter by itself: what LoRA learned, in a small file, with its settings and a mark of the base it changes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

import triform
from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.nn.lora import merged, plain_name, scale_of
from triform.settings import build, settings_of, to_toml
from triform.training.folder import damaged, read_tensors, write_tensors

FORMAT = 1
KEY = "triform-adapter"  # of the file's metadata


class AdapterFile:
    """Where the adapters of a model that learns are kept."""

    def __init__(self, path: Path, model: nn.Module, config: Config) -> None:
        self.path, self.model, self.config = path, model, config

    def write(self) -> None:
        """All that learns, as it is now."""
        learned: dict[str, Tensor] = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        about = {"format": FORMAT, "triform": triform.__version__, "base": self.mark}
        told = json.dumps(about | {"config": to_toml(self.config, {})})
        write_tensors(self.path, learned, {KEY: told})  # one entry, for the library keeps no order

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


class Adapter(NamedTuple):
    path: Path
    config: Config  # of the run that it was learned in
    tensors: dict[str, Tensor]
    mark: str

    def put_on(self, model: nn.Module) -> None:
        """Add it to a plain model that holds the base's weights."""
        weights = dict(model.named_parameters())
        beside = {name.removesuffix(".lora_a.weight") for name in self.tensors if name.endswith(".lora_a.weight")}
        own = {name for name in self.tensors if ".lora_" not in name}
        if fingerprint({name: p for name, p in weights.items() if name not in own}) != self.mark:
            raise ConfigError("its weights are others")
        with torch.no_grad():
            for name in own:
                weights[name].copy_(self.tensors[name])
            for layer in beside:
                a, b = (self.tensors[f"{layer}.lora_{part}.weight"] for part in "ab")
                weight = weights[f"{layer}.weight"]
                weight.copy_(merged(weight, a, b, scale_of(self.config.train)))


def read_adapter(path: Path) -> Adapter:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; an adapter is the adapter.safetensors of a LoRA run")
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get(KEY)
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
    if told is None:
        raise CheckpointError(f"{path}: is not an adapter; one is the adapter.safetensors of a LoRA run")
    about = json.loads(told)
    if about["format"] > FORMAT:
        raise CheckpointError(f"{path}: was made by Triform {about['triform']}: upgrade to use it")
    config = build(settings_of(tomllib.loads(about["config"]), path))
    return Adapter(path, config, read_tensors(path), about["base"])
