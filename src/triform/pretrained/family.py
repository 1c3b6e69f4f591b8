"""A family of published models, as data: how its config.json is told in our settings, and its names in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from torch import Tensor, nn

from triform.config import Config, DataSizes, ModelConfig, TaskName
from triform.config.bounds import format_value
from triform.config.settings import Settings, SettingValue, coerce_setting
from triform.errors import ConfigError
from triform.nn.norm import DEFAULT_EPS
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.name_mapping import NamePattern

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
COMMON_SETTINGS: Settings = {
    "kind": "transformer",
    "attention_score": "scaled_dot",
    "window": -1,
    "layer_windows": (),
    "bigram_buckets": 0,
}
MAX_SIZE = 2**31  # of a vocabulary, or of what a model reads at once
IGNORED_SETTINGS = ("attention_direction", "max_distance", "n_buckets")


class ConfigKey(NamedTuple):
    """A key of config.json, our setting for it (of `model`), and what holds where the file does not say."""

    key: str
    setting: str
    default: Any


@dataclass(frozen=True, kw_only=True)
class ImportSpec:
    """What a folder says of its model, in our words."""

    model_settings: Settings  # settings of `model`, without that prefix
    vocab_size: int
    max_len: int
    target_vocab_size: int = 0
    labels: tuple[str, ...] = ()
    new_head: bool = False  # classify: the folder has no scores of labels
    unused_patterns: tuple[str, ...] = ()  # patterns of its tensors that have no part in this
    padded_tensors: tuple[str, ...] = ()  # its tensors that have rows beyond the vocabulary
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that is known of a family. `read` and `write` add what words alone do not say."""

    name: str
    model_types: tuple[str, ...]  # config.json's model_type; the first is written
    task: TaskName
    prefix: str  # of the names of a model with a head; without one they may lack it
    config_keys: tuple[ConfigKey, ...]
    fixed_settings: Settings  # what all its models have, whatever config.json says
    patterns: tuple[NamePattern, ...]
    read_spec: Callable[[PretrainedCheckpoint, Settings], ImportSpec]
    write_config: Callable[[Config, DataSizes], dict[str, Any]] | None = None  # None: not a format that others read
    find_extra_mismatches: Callable[[Config, DataSizes], list[str]] = (
        lambda config, sizes: []
    )  # what else a model must not have
    required_values: Mapping[str, Any] = field(default_factory=dict)  # keys that may have one value
    ignored_settings: tuple[str, ...] = ()  # settings that change nothing in this form
    tensor_aliases: Mapping[str, str] = field(
        default_factory=dict
    )  # a tensor's other name, and the one it has here
    ignored_tensors: tuple[str, ...] = ()  # tensors that nobody needs
    label_head: str = ""  # classify: their module that scores labels
    other_heads: tuple[str, ...] = ()  # tensors of heads for what Triform does not do
    write_zero_biases: bool = True  # biases that a model lacks are written as zeros
    adapt_model: Callable[[nn.Module, Config], tuple[nn.Module, Config]] = lambda model, config: (model, config)
    constant_tensors: Callable[[Config], dict[str, Tensor]] = (
        lambda config: {}
    )  # tensors that a model here does not have

    def read_settings(self, checkpoint: PretrainedCheckpoint) -> Settings:
        """What the words of a config.json say, each of our own type."""
        config, path = checkpoint.config, checkpoint.config_path
        if config.get("quantization_config"):
            raise ConfigError(f"{path}: the weights are quantized, which is not read; take the original model")
        for key, value in self.required_values.items():
            if config.get(key) not in (None, value):
                raise ConfigError(f"{path}: {key}={config[key]!r} is not done here, only {value!r}")
        settings = {
            config_key.setting: from_config_value(config_key, config.get(config_key.key), path)
            for config_key in self.config_keys
        }
        return {**COMMON_SETTINGS, **self.fixed_settings, **settings}

    def find_mismatches(self, config: Config, sizes: DataSizes) -> list[str]:
        """The settings that this family cannot have, each with what it would have to be."""
        model, expected = config.model, COMMON_SETTINGS | self.fixed_settings
        differing = [
            name for name, value in expected.items() if _canonical_value(name, getattr(model, name), model) != value
        ]
        problems = [f"model.{name}={getattr(model, name)} ({self.name} has {expected[name]})" for name in differing]
        if (
            any(config_key.setting == "activation" for config_key in self.config_keys)
            and model.activation not in ACTIVATIONS.values()
        ):
            problems.append(
                f"model.activation={model.activation} ({self.name} has one of {', '.join(ACTIVATIONS)})"
            )
        if self.task != "generate" and model.attention_direction == "causal":
            problems.append(f"model.attention_direction=causal ({self.name} reads both ways)")
        return problems + self.find_extra_mismatches(config, sizes)

    def build_config(self, config: Config, sizes: DataSizes) -> dict[str, Any]:
        """The config.json of a model with these settings."""
        assert self.write_config is not None
        values = {
            config_key.key: to_config_value(config_key.setting, config.model) for config_key in self.config_keys
        }
        return {"model_type": self.model_types[0], "dtype": "float32", **values, **self.write_config(config, sizes)}


def _canonical_value(name: str, value: SettingValue, model: ModelConfig) -> SettingValue:
    """A setting that has more than one way to say one thing, said in one of them."""
    if name == "n_kv_heads":
        return 0 if value == model.n_heads else value
    return 0.0 if name == "norm_eps" and value == DEFAULT_EPS[model.norm] else value


def from_config_value(config_key: ConfigKey, value: Any, path: object) -> SettingValue:
    """What a key of config.json says, as our setting."""
    value = config_key.default if value is None else value
    if config_key.setting == "activation":
        if value not in list(ACTIVATIONS):  # which need not be a word
            raise ConfigError(
                f"{path}: {config_key.key}={value!r} is not known; known are {', '.join(ACTIVATIONS)}"
            )
        value = ACTIVATIONS[value]
    try:
        result = coerce_setting(f"model.{config_key.setting}", value)
    except ConfigError as error:
        raise ConfigError(f"{path}: {config_key.key} is {error}") from None
    if type(result) is int and not result and config_key.default:  # a setting of ours that is 0 would be left open
        raise ConfigError(f"{path}: {config_key.key}=0 must be a whole number above 0")
    return result


def to_config_value(setting: str, model: ModelConfig) -> Any:
    """A setting of ours as config.json has it: nothing is left open there."""
    if setting == "activation":
        return next(name for name, activation in ACTIVATIONS.items() if activation == model.activation)
    if setting == "norm_eps":
        return model.norm_eps or DEFAULT_EPS[model.norm]
    return model.kv_heads if setting == "n_kv_heads" else getattr(model, setting)


def require_float(path: object, key: str, value: Any) -> float:
    """A number of config.json that need not be whole."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ConfigError(f"{path}: {key}={value!r} must be a number")
    return float(value)


def require_size(checkpoint: PretrainedCheckpoint, key: str, default: int = 0) -> int:
    """A size of config.json that depends on the data."""
    value = checkpoint.config.get(key)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise ConfigError(
            f"{checkpoint.config_path}: {key}={format_value(value)} must be a whole number from 1 to {MAX_SIZE}"
        )
    return value
