"""Choose the parameters to train: all of them, the upper layers, or LoRA adapters and a new head."""

from __future__ import annotations

import re
from typing import NamedTuple

from torch import nn

from triform.config import Config
from triform.errors import ConfigError
from triform.nn.lora import apply_lora

LAYER_NAME = re.compile(r"(encoder\.)?blocks\.(\d+)\.")


class TrainableCount(NamedTuple):
    """The number of trainable parameters, and how many of them are LoRA adapters."""

    trainable: int
    adapters: int


def count_trainable(model: nn.Module) -> TrainableCount:
    """Count the parameters that are not frozen."""
    counts = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    return TrainableCount(sum(counts.values()), sum(count for name, count in counts.items() if ".lora_" in name))


def layer_depths(model: nn.Module) -> dict[str, int]:
    """Return the layer of each parameter, counted from the input: 0 for embeddings, the highest for the head.

    The layers of a decoder come after those of its encoder. A final norm counts as part of the layer before it, and
    a head that is tied to the embedding as part of the embedding.
    """
    names = [name for name, _ in model.named_parameters()]
    matches = {name: match for name in names if (match := LAYER_NAME.match(name))}
    n_encoder_layers = max((int(match[2]) + 1 for match in matches.values() if match[1]), default=0)
    depth_by_name = {
        name: int(match[2]) + 1 + (0 if match[1] else n_encoder_layers) for name, match in matches.items()
    }
    last_layer = max(depth_by_name.values())
    for name in names:
        if "embedding" in name.split("."):
            depth_by_name[name] = 0
        elif name.startswith("final_norm."):
            depth_by_name[name] = last_layer
        elif name not in depth_by_name:
            depth_by_name[name] = n_encoder_layers if name.startswith("encoder.") else last_layer + 1
    return depth_by_name


def freeze_parameters(model: nn.Module, config: Config) -> None:
    """Freeze the layers of `train.freeze_layers`; with LoRA, everything except adapters and a classification head.

    A classification head is always trained, because it may be new. A language-model head is a part of the base
    model.

    Raises:
        ConfigError: The model has fewer layers than `train.freeze_layers`, or no parameter would be trained.
    """
    train = config.train
    if train.lora_rank:
        apply_lora(model, train)
    elif train.freeze_layers >= 0:
        _freeze_layers(model, train.freeze_layers)
        _unfreeze_positions(model, vectors_loaded=bool(train.embeddings))
    for name, parameter in model.named_parameters():
        if config.task == "classify" and name.startswith("classification_head."):
            parameter.requires_grad_()
        if name.startswith("linear_part."):  # it is fitted, not trained by steps
            parameter.requires_grad_(False)


def _unfreeze_positions(model: nn.Module, *, vectors_loaded: bool) -> None:
    """If word vectors were loaded, freeze only these, because the rest of the embedding is not trained yet."""
    for name, parameter in model.named_parameters():
        if vectors_loaded and "embedding" in (parts := name.split(".")) and "token_embedding" not in parts:
            parameter.requires_grad_()


def _freeze_layers(model: nn.Module, n_frozen: int) -> None:
    depth_by_name = layer_depths(model)
    n_layers = max(depth_by_name[name] for name in depth_by_name if LAYER_NAME.match(name))
    if n_frozen > n_layers:
        raise ConfigError(f"train.freeze_layers={n_frozen} is too large: this model has {n_layers} layers")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(depth_by_name[name] > n_frozen)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"train.freeze_layers={n_frozen} leaves nothing to train: the head is tied to the embedding, which is "
            "frozen too; freeze fewer layers"
        )
