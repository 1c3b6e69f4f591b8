"""A family of published models, as data: how its config.json is told in our settings, and its names in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from torch import Tensor, nn

from triform.config import Config, ModelConfig, Sizes, TaskName
from triform.config.bounds import format_value
from triform.errors import ConfigError
from triform.nn.norm import USUAL_EPS
from triform.pretrained.names import Pair
from triform.pretrained.read import Foreign
from triform.settings import Settings, Value, typed

# What an activation is called there; of those that are one, the first is written.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# What no family here has; what does not matter where positions are not of the kind that asks for it.
PLAIN: Settings = {"kind": "transformer", "score": "scaled_dot", "window": -1, "layer_windows": (), "pair_rows": 0}
MAX_SIZE = 2**31  # of a vocabulary, or of what a model reads at once
FREE = ("reach", "max_distance", "n_buckets")


class Word(NamedTuple):
    """A key of config.json, our setting for it (of `model`), and what holds where the file does not say."""

    key: str
    setting: str
    usual: Any


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a folder says of its model, in our words."""

    model: Settings  # settings of `model`, without that prefix
    vocab_size: int
    max_len: int
    target_vocab_size: int = 0
    labels: tuple[str, ...] = ()
    fresh: bool = False  # classify: the folder has no scores of labels
    unused: tuple[str, ...] = ()  # patterns of its tensors that have no part in this
    padded: tuple[str, ...] = ()  # its tensors that have rows beyond the vocabulary
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that is known of a family. `read` and `write` add what words alone do not say."""

    name: str
    kinds: tuple[str, ...]  # config.json's model_type; the first is written
    task: TaskName
    prefix: str  # of the names of a model with a head; without one they may lack it
    words: tuple[Word, ...]
    fixed: Settings  # what all its models have, whatever config.json says
    pairs: tuple[Pair, ...]
    read: Callable[[Foreign, Settings], Shape]
    write: Callable[[Config, Sizes], dict[str, Any]] | None = None  # None: not a format that others read
    unfit: Callable[[Config, Sizes], list[str]] = lambda config, sizes: []  # what else a model must not have
    only: Mapping[str, Any] = field(default_factory=dict)  # keys that may have one value
    free: tuple[str, ...] = ()  # settings that change nothing in this form
    aliases: Mapping[str, str] = field(default_factory=dict)  # a tensor's other name, and the one it has here
    ignored: tuple[str, ...] = ()  # tensors that nobody needs
    scores: str = ""  # classify: their module that scores labels
    others: tuple[str, ...] = ()  # tensors of heads for what Triform does not do
    zeros: bool = True  # biases that a model lacks are written as zeros
    adapt: Callable[[nn.Module, Config], tuple[nn.Module, Config]] = lambda model, config: (model, config)
    constants: Callable[[Config], dict[str, Tensor]] = lambda config: {}  # tensors that a model here does not have

    def settings(self, foreign: Foreign) -> Settings:
        """What the words of a config.json say, each of our own type."""
        config, place = foreign.config, foreign.where
        if config.get("quantization_config"):
            raise ConfigError(f"{place}: the weights are quantized, which is not read; take the original model")
        for key, value in self.only.items():
            if config.get(key) not in (None, value):
                raise ConfigError(f"{place}: {key}={config[key]!r} is not done here, only {value!r}")
        said = {word.setting: ours(word, config.get(word.key), place) for word in self.words}
        return {**PLAIN, **self.fixed, **said}

    def misfits(self, config: Config, sizes: Sizes) -> list[str]:
        """The settings that this family cannot have, each with what it would have to be."""
        model, wanted = config.model, PLAIN | self.fixed
        wrong = [name for name, value in wanted.items() if _closed(name, getattr(model, name), model) != value]
        told = [f"model.{name}={getattr(model, name)} ({self.name} has {wanted[name]})" for name in wrong]
        if (
            any(word.setting == "activation" for word in self.words)
            and model.activation not in ACTIVATIONS.values()
        ):
            told.append(f"model.activation={model.activation} ({self.name} has one of {', '.join(ACTIVATIONS)})")
        if self.task != "generate" and model.reach == "causal":
            told.append(f"model.reach=causal ({self.name} reads both ways)")
        return told + self.unfit(config, sizes)

    def config(self, config: Config, sizes: Sizes) -> dict[str, Any]:
        """The config.json of a model with these settings."""
        assert self.write is not None
        said = {word.key: theirs(word.setting, config.model) for word in self.words}
        return {"model_type": self.kinds[0], "dtype": "float32", **said, **self.write(config, sizes)}


def _closed(name: str, value: Value, model: ModelConfig) -> Value:
    """A setting that has more than one way to say one thing, said in one of them."""
    if name == "n_kv_heads":
        return 0 if value == model.n_heads else value
    return 0.0 if name == "norm_eps" and value == USUAL_EPS[model.norm] else value


def ours(word: Word, value: Any, place: object) -> Value:
    """What a key of config.json says, as our setting."""
    value = word.usual if value is None else value
    if word.setting == "activation":
        if value not in list(ACTIVATIONS):  # which need not be a word
            raise ConfigError(f"{place}: {word.key}={value!r} is not known; known are {', '.join(ACTIVATIONS)}")
        value = ACTIVATIONS[value]
    try:
        found = typed(f"model.{word.setting}", value)
    except ConfigError as error:
        raise ConfigError(f"{place}: {word.key} is {error}") from None
    if type(found) is int and not found and word.usual:  # a setting of ours that is 0 would be left open
        raise ConfigError(f"{place}: {word.key}=0 must be a whole number above 0")
    return found


def theirs(setting: str, model: ModelConfig) -> Any:
    """A setting of ours as config.json has it: nothing is left open there."""
    if setting == "activation":
        return next(name for name, kind in ACTIVATIONS.items() if kind == model.activation)
    if setting == "norm_eps":
        return model.norm_eps or USUAL_EPS[model.norm]
    return model.kv_heads if setting == "n_kv_heads" else getattr(model, setting)


def real(place: object, key: str, value: Any) -> float:
    """A number of config.json that need not be whole."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ConfigError(f"{place}: {key}={value!r} must be a number")
    return float(value)


def whole(foreign: Foreign, key: str, usual: int = 0) -> int:
    """A size of config.json that depends on the data."""
    value = foreign.config.get(key)
    value = usual if value is None else value
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise ConfigError(
            f"{foreign.where}: {key}={format_value(value)} must be a whole number from 1 to {MAX_SIZE}"
        )
    return value
