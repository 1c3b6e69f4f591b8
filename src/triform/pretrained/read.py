"""A published model's folder as it is found: config.json, and its tensors from safetensors or plain torch files.

Nothing in a file is ever run: torch files are read as weights only, and what holds more than that is refused.
"""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from triform.errors import CheckpointError
from triform.io.files import refuse_special_files
from triform.text.special import read_json

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that is there
NANOGPT = "ckpt.pt"
POINTER = b"version https://git-lfs"  # how a file begins that `git clone` left for Git LFS to fetch
PARTS = (".json", ".safetensors", ".bin")  # files that say nothing without the others of their folder
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of norms, in files that came from TensorFlow


@dataclass(frozen=True)
class Foreign:
    """What a folder says of a model, and the model's tensors by their names there."""

    place: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    source: str = "config.json"  # the file that says what model it is

    @property
    def where(self) -> Path:
        return self.place / self.source

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def architecture(self) -> str:
        """The class that wrote the weights, where that is said."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    def beside(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder that need not be there."""
        path = self.place / name
        return read_object(path) if path.is_file() else {}


def read_folder(place: Path) -> Foreign:
    """A Hugging Face folder, or nanoGPT's ckpt.pt (the file, or a folder that holds it)."""
    if place.is_file() and place.suffix in PARTS:
        raise CheckpointError(f"{place}: is one file of a model; give the folder that holds them all")
    if place.is_file() or (not (place / "config.json").exists() and (place / NANOGPT).exists()):
        return _read_nanogpt(place if place.is_file() else place / NANOGPT)
    if not place.is_dir():
        raise CheckpointError(
            f"{place}: no such folder; give one with config.json and weights, or hub:OWNER/NAME to download it"
        )
    if not (place / "config.json").exists():
        if (place / "config.toml").exists():
            raise CheckpointError(f"{place}: is a run folder already, and needs no import")
        raise CheckpointError(f"{place}: has no config.json, so nothing says what model this is")
    refuse_special_files(place)
    return Foreign(place, read_object(place / "config.json"), _renamed(_read_weights(place)))


def read_object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds {type(found).__name__} where an object was expected")
    return found


def _read_weights(place: Path) -> dict[str, Tensor]:
    """One file, or those that an index names."""
    for name in WEIGHTS:
        if (place / name).exists():
            return _read_file(place / name)
        index = place / f"{name}.index.json"
        if index.exists():
            return _read_shards(index)
    raise CheckpointError(f"{place}: has no weights: neither {' nor '.join(WEIGHTS)}, whole or in parts")


def _read_shards(index: Path) -> dict[str, Tensor]:
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise CheckpointError(f"{index}: has no weight_map that says which file holds which tensor")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(named.values())):
        shard = index.parent / Path(name).name
        if not shard.is_file():
            raise CheckpointError(f"{index}: names {name}, which is not there: the folder is not complete")
        tensors |= _read_file(shard)
    missing = sorted(set(named) - set(tensors))
    if missing:
        raise CheckpointError(f"{index}: {named[missing[0]]} should hold {missing[0]} and does not")
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if _opening(path, len(POINTER)) == POINTER:
        raise CheckpointError(f"{path}: only points to the weights, which Git LFS keeps: fetch them, git lfs pull")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: is cut off or no safetensors file ({error}); fetch it again") from None
    found = _read_torch(path)
    if not _are_named_tensors(found):
        raise CheckpointError(f"{path}: holds more than named tensors, which is not how published weights are kept")
    return found


def _opening(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None


def _are_named_tensors(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    )


def _read_torch(path: Path) -> Any:
    if not _opening(path, 2).startswith((b"PK", b"\x80")):  # a zip file, or of old a pickle
        raise CheckpointError(f"{path}: is cut off or no file of torch; fetch it again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual pickles, which are read or refused
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: is a pickle that holds more than plain weights; reading it could run code, so it is refused"
        ) from None
    except Exception as error:  # whatever a damaged file can come up with
        problem = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: is cut off or no file of torch ({problem}); fetch it again") from None


def _read_nanogpt(path: Path) -> Foreign:
    """nanoGPT keeps its sizes and its weights in one file; a compiled model's names have a prefix."""
    found = _read_torch(path)
    if not isinstance(found, dict) or not {"model", "model_args"} <= found.keys():
        raise CheckpointError(f"{path}: is no checkpoint of nanoGPT: it lacks model or model_args")
    if not _are_named_tensors(found["model"]) or not isinstance(found["model_args"], dict):
        raise CheckpointError(
            f"{path}: is no checkpoint of nanoGPT: there model holds tensors and model_args their sizes"
        )
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in found["model"].items()}
    return Foreign(path.parent, {**found["model_args"], "model_type": "nanogpt"}, tensors, path.name)


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    def new(name: str) -> str:
        old = next((ending for ending in OLD_ENDINGS if name.endswith(ending)), "")
        return name.removesuffix(old) + OLD_ENDINGS[old] if old else name

    return {new(name): tensor for name, tensor in tensors.items()}
