"""`Family`: a table of how one family's config.json and tensor names correspond to Triform's."""

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

# Names of activations in config.json. Where several mean the same, the first one is written.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Settings that are the same in all families.
COMMON_SETTINGS: Settings = {
    "kind": "transformer",
    "attention_score": "scaled_dot",
    "attention_scale": "head_dim",
    "window": -1,
    "layer_windows": (),
    "bigram_buckets": 0,
    "term_buckets": 0,
}
MAX_SIZE = 2**31  # limit for vocab_size and max_len
# Settings that have no effect in most families: settings of other position schemes, of classification heads, and
# biases, which are read from the tensors.
IGNORED_SETTINGS = ("attention_direction", "max_distance", "n_buckets")
CLASSIFIER_SETTINGS = ("pooling", "head_hidden", "head_activation")
BIAS_SETTINGS = ("bias", "qkv_bias", "out_bias", "head_bias")
IGNORED_WITHOUT_ROTARY = (*IGNORED_SETTINGS, *CLASSIFIER_SETTINGS, *BIAS_SETTINGS, "rotary_base")
# Keys of config.json that name special tokens.
SPECIAL_TOKEN_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


class ConfigKey(NamedTuple):
    """A key of config.json, the `model` setting that it corresponds to, and the value if the key is missing."""

    key: str
    setting: str
    default: Any


@dataclass(frozen=True, kw_only=True)
class ImportSpec:
    """The settings and sizes that a checkpoint describes, in Triform's terms."""

    model_settings: Settings  # settings of `model`, without that prefix
    vocab_size: int
    max_len: int
    target_vocab_size: int = 0
    labels: tuple[str, ...] = ()
    new_head: bool = False  # classify: the checkpoint has no classification head, so a new one is created
    unused_patterns: tuple[str, ...] = ()  # patterns of tensors that are skipped
    padded_tensors: tuple[str, ...] = ()  # tensors with more rows than the vocabulary has tokens
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """Describe one family. `read_spec` and `write_config` handle what `config_keys` cannot express."""

    name: str
    model_types: tuple[str, ...]  # accepted values of model_type in config.json; the first is exported
    task: TaskName
    prefix: str  # of tensor names; models published without a head may lack it
    config_keys: tuple[ConfigKey, ...]
    fixed_settings: Settings  # settings that all models of the family share
    patterns: tuple[NamePattern, ...]
    read_spec: Callable[[PretrainedCheckpoint, Settings], ImportSpec]
    write_config: Callable[[Config, DataSizes], dict[str, Any]] | None = None  # None: import only
    # Further reasons why a model cannot be exported.
    find_extra_mismatches: Callable[[Config, DataSizes], list[str]] = lambda config, sizes: []
    # Keys of config.json that must be missing or have this value.
    required_values: Mapping[str, Any] = field(default_factory=dict)
    ignored_settings: tuple[str, ...] = ()  # settings that have no effect in this family
    # Alternative tensor names, mapped to the names in `patterns`.
    tensor_aliases: Mapping[str, str] = field(default_factory=dict)
    ignored_tensors: tuple[str, ...] = ()  # patterns of tensors that are not weights, such as masks
    label_head: str = ""  # classify: the module that computes the logits of labels
    other_heads: tuple[str, ...] = ()  # patterns of tensors of heads for other tasks
    write_zero_biases: bool = True  # export biases that a model lacks as zeros
    adapt_model: Callable[[nn.Module, Config], tuple[nn.Module, Config]] = lambda model, config: (model, config)
    # Tensors to export that Triform's model does not have.
    constant_tensors: Callable[[Config], dict[str, Tensor]] = lambda config: {}

    def read_settings(self, checkpoint: PretrainedCheckpoint) -> Settings:
        """Return the settings that a checkpoint's config.json describes.

        Raises:
            ConfigError: The weights are quantized, or a value is not supported.
        """
        config, path = checkpoint.config, checkpoint.config_path
        if config.get("quantization_config"):
            raise ConfigError(f"{path}: quantized weights are not supported; use the original model")
        for key, value in self.required_values.items():
            if config.get(key) not in (None, value):
                raise ConfigError(f"{path}: {key}={config[key]!r} is not supported; it must be {value!r}")
        settings = {
            config_key.setting: from_config_value(config_key, config.get(config_key.key), path)
            for config_key in self.config_keys
        }
        return {**COMMON_SETTINGS, **self.fixed_settings, **settings}

    def find_mismatches(self, config: Config, sizes: DataSizes) -> list[str]:
        """Return the settings that this family cannot express, each with the value that it requires."""
        model, expected = config.model, COMMON_SETTINGS | self.fixed_settings
        differing = [
            name for name, value in expected.items() if _canonical_value(name, getattr(model, name), model) != value
        ]
        problems = [
            f"model.{name}={getattr(model, name)} ({self.name} requires {expected[name]})" for name in differing
        ]
        if (
            any(config_key.setting == "activation" for config_key in self.config_keys)
            and model.activation not in ACTIVATIONS.values()
        ):
            problems.append(
                f"model.activation={model.activation} ({self.name} requires one of {', '.join(ACTIVATIONS)})"
            )
        if self.task != "generate" and model.attention_direction == "causal":
            problems.append(f"model.attention_direction=causal ({self.name} is bidirectional)")
        return problems + self.find_extra_mismatches(config, sizes)

    def build_config(self, config: Config, sizes: DataSizes) -> dict[str, Any]:
        """Return the content of config.json for a model with these settings."""
        assert self.write_config is not None
        values = {
            config_key.key: to_config_value(config_key.setting, config.model) for config_key in self.config_keys
        }
        return {"model_type": self.model_types[0], "dtype": "float32", **values, **self.write_config(config, sizes)}


def _canonical_value(name: str, value: SettingValue, model: ModelConfig) -> SettingValue:
    """Return one value for equivalent values of a setting."""
    if name == "n_kv_heads":
        return 0 if value == model.n_heads else value
    return 0.0 if name == "norm_eps" and value == DEFAULT_EPS[model.norm] else value


def from_config_value(config_key: ConfigKey, value: Any, path: object) -> SettingValue:
    """Convert the value of a key in config.json to the corresponding setting.

    Raises:
        ConfigError: The value is out of range or not supported. The message names the file and the key.
    """
    value = config_key.default if value is None else value
    if config_key.setting == "activation":
        if value not in list(ACTIVATIONS):  # a list, because the value may be unhashable
            raise ConfigError(
                f"{path}: {config_key.key}={value!r} is not supported; it must be one of {', '.join(ACTIVATIONS)}"
            )
        value = ACTIVATIONS[value]
    try:
        result = coerce_setting(f"model.{config_key.setting}", value)
    except ConfigError as error:
        raise ConfigError(f"{path}: {config_key.key} is {error}") from None
    if type(result) is int and not result and config_key.default:  # in Triform, 0 means: choose a value
        raise ConfigError(f"{path}: {config_key.key}=0 must be a whole number above 0")
    return result


def to_config_value(setting: str, model: ModelConfig) -> Any:
    """Convert a setting to its value in config.json, which has no automatic values."""
    if setting == "activation":
        return next(name for name, activation in ACTIVATIONS.items() if activation == model.activation)
    if setting == "norm_eps":
        return model.norm_eps or DEFAULT_EPS[model.norm]
    return model.kv_heads if setting == "n_kv_heads" else getattr(model, setting)


def require_float(path: object, key: str, value: Any) -> float:
    """Return a value of config.json as a float; raise `ConfigError` if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ConfigError(f"{path}: {key}={value!r} must be a number")
    return float(value)


def require_size(checkpoint: PretrainedCheckpoint, key: str, default: int = 0) -> int:
    """Return a size from config.json; raise `ConfigError` if it is not a whole number in range."""
    value = checkpoint.config.get(key)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise ConfigError(
            f"{checkpoint.config_path}: {key}={format_value(value)} must be a whole number from 1 to {MAX_SIZE}"
        )
    return value
