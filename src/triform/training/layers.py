"""How deep each parameter lies, and what of a model learns: all of it, its upper layers, or adapters and a head."""

from __future__ import annotations

import re
from typing import NamedTuple

from torch import nn

from triform.config import Config
from triform.errors import ConfigError
from triform.nn.lora import adapt

LAYER = re.compile(r"(encoder\.)?blocks\.(\d+)\.")


class Learning(NamedTuple):
    """How many parameters learn, and how many of those are adapters', which the model has only meanwhile."""

    learns: int
    adapters: int


def learning(model: nn.Module) -> Learning:
    counts = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    return Learning(sum(counts.values()), sum(count for name, count in counts.items() if ".lora_" in name))


def depths(model: nn.Module) -> dict[str, int]:
    """For each parameter its layer, counted from the input: 0 for embeddings, the highest for the head.

    A decoder's layers come after those of the encoder that it reads. A norm goes with the layer before it, and a
    matrix that is embedding and head in one with the embeddings.
    """
    names = [name for name, _ in model.named_parameters()]
    matches = {name: match for name in names if (match := LAYER.match(name))}
    n_encoder = max((int(match[2]) + 1 for match in matches.values() if match[1]), default=0)
    found = {name: int(match[2]) + 1 + (0 if match[1] else n_encoder) for name, match in matches.items()}
    last = max(found.values())
    for name in names:
        if "embedding" in name.split("."):
            found[name] = 0
        elif name.startswith("norm."):
            found[name] = last
        elif name not in found:
            found[name] = n_encoder if name.startswith("encoder.") else last + 1
    return found


def limit_learning(model: nn.Module, config: Config) -> None:
    """Freeze what the settings say; with `lora_rank`, all but adapters and the head of a classifier.

    A head over a vocabulary comes with the base and is as large as its embedding; one over labels may be new.
    """
    train = config.train
    if train.lora_rank:
        adapt(model, train)
    elif train.freeze >= 0:
        _freeze(model, train.freeze)
        _free_positions(model, given=bool(train.embeddings))
    for name, parameter in model.named_parameters():
        if config.task == "classify" and name.startswith("head."):
            parameter.requires_grad_()


def _free_positions(model: nn.Module, *, given: bool) -> None:
    """Where word vectors were `given`, only they are frozen: all else of an embedding has learned nothing yet."""
    for name, parameter in model.named_parameters():
        if given and "embedding" in (parts := name.split(".")) and "tokens" not in parts:
            parameter.requires_grad_()


def _freeze(model: nn.Module, lowest: int) -> None:
    depth = depths(model)
    n_layers = max(depth[name] for name in depth if LAYER.match(name))
    if lowest > n_layers:
        raise ConfigError(f"train.freeze={lowest}: this model has {n_layers} layers")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(depth[name] > lowest)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"train.freeze={lowest} leaves nothing to learn: the head is the embedding, which is frozen too; "
            "freeze fewer layers"
        )
