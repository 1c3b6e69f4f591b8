"""Read the folder of a published model: config.json, and tensors from safetensors or torch files.

No code in a file is executed: torch files are read with `weights_only`, and files that need more are refused.
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
from triform.io.files import read_json, refuse_special_files
from triform.io.run_layout import CONFIG_FILE

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # in order of preference
NANOGPT_FILE = "ckpt.pt"
LFS_POINTER_HEADER = (
    b"version https://git-lfs"  # first bytes of a pointer file, before Git LFS has fetched the content
)
PART_SUFFIXES = (".json", ".safetensors", ".bin")  # files that are only one part of a model
# Names of norm parameters in files converted from TensorFlow.
OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """Configuration and tensors of a published model."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    config_file: str = "config.json"  # the file that contains `config`

    @property
    def config_path(self) -> Path:
        """The path of the file that contains `config`."""
        return self.folder / self.config_file

    @property
    def model_type(self) -> str:
        """The name of the architecture, such as "gpt2"; empty if config.json does not give it."""
        return str(self.config.get("model_type", ""))

    @property
    def architecture(self) -> str:
        """The model class in `transformers`; empty if config.json does not name it."""
        architectures = self.config.get("architectures")
        return str(architectures[0]) if isinstance(architectures, list) and architectures else ""

    def read_optional_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file in the folder, or an empty dictionary if there is no such file."""
        path = self.folder / name
        return read_json_object(path) if path.is_file() else {}


def read_checkpoint(path: Path) -> PretrainedCheckpoint:
    """Read a Hugging Face folder, or nanoGPT's ckpt.pt (the file, or a folder that contains it).

    Raises:
        CheckpointError: The folder or file is missing, incomplete, damaged or unsafe to read.
    """
    if path.is_file() and path.suffix in PART_SUFFIXES:
        raise CheckpointError(f"{path}: this is a single file of a model; pass the folder that contains it")
    if path.is_file() or (not (path / "config.json").exists() and (path / NANOGPT_FILE).exists()):
        return _read_nanogpt(path if path.is_file() else path / NANOGPT_FILE)
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: no such folder; pass a folder with config.json and weights, or hub:OWNER/NAME to download one"
        )
    if not (path / "config.json").exists():
        if (path / CONFIG_FILE).exists():
            raise CheckpointError(f"{path}: this is a run folder already and needs no import")
        raise CheckpointError(f"{path}: config.json is missing, so the type of the model is unknown")
    refuse_special_files(path)
    return PretrainedCheckpoint(
        path, read_json_object(path / "config.json"), _rename_old_suffixes(_read_weights(path))
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must contain an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights from one file, or from the files that an index lists."""
    for name in WEIGHT_FILES:
        if (folder / name).exists():
            return _read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            return _read_shards(index)
    raise CheckpointError(
        f"{folder}: no weights found; expected {' or '.join(WEIGHT_FILES)}, or an index with its parts"
    )


def _read_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json_object(index).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(file, str) for file in weight_map.values())
    ):
        raise CheckpointError(f"{index}: weight_map is missing; it must map tensor names to file names")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(weight_map.values())):
        shard = index.parent / Path(name).name
        if not shard.is_file():
            raise CheckpointError(f"{index}: the file {name} is missing; download the folder again")
        tensors |= _read_file(shard)
    missing = sorted(set(weight_map) - set(tensors))
    if missing:
        raise CheckpointError(f"{index}: the tensor {missing[0]} is missing from {weight_map[missing[0]]}")
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if _read_head(path, len(LFS_POINTER_HEADER)) == LFS_POINTER_HEADER:
        raise CheckpointError(f"{path}: Git LFS has not downloaded this file yet; run git lfs pull")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path}: the file is truncated or not a safetensors file ({error}); download it again"
            ) from None
    state_dict = _read_torch(path)
    if not _is_state_dict(state_dict):
        raise CheckpointError(f"{path}: expected a dictionary of named tensors, found other content")
    return state_dict


def _read_head(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from None


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )


def _read_torch(path: Path) -> Any:
    if not _read_head(path, 2).startswith((b"PK", b"\x80")):  # a zip file, or a pickle in old files
        raise CheckpointError(f"{path}: the file is truncated or not a PyTorch file; download it again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about unusual pickles, which are read or refused below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: this pickle contains more than weights and could run code, so it is not read; "
            "convert the weights to safetensors"
        ) from None
    except Exception as error:  # a damaged file can raise almost anything
        reason = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path}: the file is truncated or not a PyTorch file ({reason}); download it again"
        ) from None


def _read_nanogpt(path: Path) -> PretrainedCheckpoint:
    """Read nanoGPT's checkpoint of sizes and weights. Tensor names of a compiled model have a prefix."""
    content = _read_torch(path)
    if not isinstance(content, dict) or not {"model", "model_args"} <= content.keys():
        raise CheckpointError(f"{path}: not a checkpoint of nanoGPT: model or model_args is missing")
    if not _is_state_dict(content["model"]) or not isinstance(content["model_args"], dict):
        raise CheckpointError(
            f"{path}: not a checkpoint of nanoGPT: model must contain tensors and model_args their sizes"
        )
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in content["model"].items()}
    return PretrainedCheckpoint(path.parent, {**content["model_args"], "model_type": "nanogpt"}, tensors, path.name)


def _rename_old_suffixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    def rename(name: str) -> str:
        old_suffix = next((suffix for suffix in OLD_SUFFIXES if name.endswith(suffix)), "")
        return name.removesuffix(old_suffix) + OLD_SUFFIXES[old_suffix] if old_suffix else name

    return {rename(name): tensor for name, tensor in tensors.items()}
