"""Every setting, as frozen dataclasses that check themselves.

A zero (or "auto", or -1 where zero means something) is a setting left open. Most are chosen from the size of
the data when training starts, and the chosen value is what the run folder's config.toml holds; how to decode
and at what precision stay open until they are needed, since they depend on the call and the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from triform.config.bounds import validate_bounds
from triform.config.model import (
    ATTENTION_SETTINGS,
    ActivationKind,
    AttentionDirection,
    HeadActivation,
    ModelConfig,
    ModelKind,
    NormKind,
    NormPosition,
    PoolingKind,
    PositionKind,
    RecurrentKind,
    ScoreKind,
)
from triform.config.train import LoraLayers, OptimizerKind, ScheduleKind, TrainConfig, TrainPrecision
from triform.config.validation import AutoBool, require
from triform.errors import ConfigError

__all__ = [
    "TASK_NAMES",
    "ActivationKind",
    "AttentionDirection",
    "AutoBool",
    "Config",
    "DataConfig",
    "DataSizes",
    "DecodeConfig",
    "DecodingStrategy",
    "HeadActivation",
    "LoraLayers",
    "ModelConfig",
    "ModelKind",
    "NormKind",
    "NormPosition",
    "OptimizerKind",
    "PoolingKind",
    "PositionKind",
    "RecurrentKind",
    "ScheduleKind",
    "ScoreKind",
    "TaskName",
    "TokenizerConfig",
    "TokenizerKind",
    "TrainConfig",
    "TrainPrecision",
]

TaskName = Literal["classify", "generate", "translate"]
TokenizerKind = Literal["auto", "char", "word", "bpe", "imported"]
DecodingStrategy = Literal["auto", "greedy", "sample", "beam"]
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the text is and how its files are laid out."""

    train: str = ""  # a file, or builtin:NAME
    valid: str = ""  # empty: held out from train
    source: str = ""  # aligned files, one sentence a line
    target: str = ""
    valid_source: str = ""
    valid_target: str = ""
    text_column: str = ""  # a name, or a number counted from 1; empty: found by looking
    label_column: str = ""
    source_column: str = ""
    target_column: str = ""
    header: AutoBool = "auto"
    labels: tuple[str, ...] = ()  # empty: those of the training data, sorted
    valid_fraction: float = 0.1
    max_len: int = 0  # tokens a model reads at once

    def __post_init__(self) -> None:
        validate_bounds(self, "data")
        require(self.max_len != 1, "data.max_len=1 leaves nothing to read: it must be at least 2")
        for first, second in (("source", "target"), ("valid_source", "valid_target")):
            require(
                bool(getattr(self, first)) == bool(getattr(self, second)),
                f"data.{first} and data.{second} go together: give both or neither",
            )


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How text becomes tokens."""

    kind: TokenizerKind = "auto"
    vocab_size: int = 0
    min_count: int = 1  # word: rarer ones become <unk>
    lowercase: bool = False
    joint_vocab: bool = True  # translate: one vocabulary for both languages
    bpe_dropout: float = 0.0  # bpe, classify and translate: the share of merges left out at random in training text
    file: str = ""  # a tokenizer of Triform or another library, to take its vocabulary instead of learning one

    def __post_init__(self) -> None:
        validate_bounds(self, "tokenizer")


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How tokens are chosen when the model writes."""

    strategy: DecodingStrategy = "auto"  # sample for generate, beam for translate
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    beam_size: int = 4
    length_penalty: float = 0.6
    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        require(
            self.temperature > 0,
            f"decode.temperature={self.temperature} must be above 0; decode.strategy=greedy takes the best token",
        )
        require(0 < self.top_p <= 1, f"decode.top_p={self.top_p} must be above 0 and at most 1")
        validate_bounds(self, "decode")


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run. They are immutable and validated together.

    Example:
        >>> from triform import Config
        >>> from triform.config import ModelConfig
        >>> config = Config(task="generate", seed=1, model=ModelConfig(d_model=64))
        >>> config.model.d_model
        64
    """

    task: TaskName = "classify"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def __post_init__(self) -> None:
        validate_bounds(self)
        if self.task != "translate" and self.data.source:
            raise ConfigError(f"data.source and data.target are for translate; {self.task} reads data.train")
        if self.model.bigram_buckets and self.task != "classify":
            raise ConfigError(f"model.bigram_buckets is for classify; {self.task} reads one new token at a time")
        if self.tokenizer.bpe_dropout and (self.task == "generate" or self.tokenizer.kind not in ("auto", "bpe")):
            raise ConfigError("tokenizer.bpe_dropout leaves out merges of bpe, and is for classify and translate")
        if self.train.r_drop and not (self.model.dropout or self.model.attention_dropout):
            raise ConfigError("train.r_drop compares readings that dropout makes differ: set model.dropout")
        if self.model.attention_direction == "full" and self.task != "classify":
            raise ConfigError(
                "model.attention_direction=full lets a decoder read the very token it should predict: "
                f"{self.task} needs auto or causal"
            )
        if self.model.is_recurrent:
            self._validate_recurrent()

    def _validate_recurrent(self) -> None:
        model, train, kind = self.model, self.train, f"model.kind={self.model.kind}"
        require(
            not train.lora_rank, f"train.lora_rank is for Transformers; {kind} has no layers that adapters know"
        )
        require(train.precision != "bf16", f"train.precision=bf16 is for Transformers; {kind} learns in fp32")
        if self.task != "translate":
            for name in ATTENTION_SETTINGS:
                value = getattr(model, name)
                is_default = value == getattr(ModelConfig, name)
                require(
                    is_default,
                    f"model.{name}={value} is of attention, which {kind} has in translate alone: leave it out",
                )
        require(
            self.task == "generate" or model.attention_direction == "causal" or model.d_model % 2 == 0,
            f"model.d_model={model.d_model} must be even: with {kind} half of it reads forwards and half backwards",
        )


@dataclass(frozen=True, kw_only=True)
class DataSizes:
    """What a model must know of its data: how many tokens there are, and how many labels."""

    vocab_size: int
    max_len: int
    n_labels: int = 0
    target_vocab_size: int = 0  # 0: the same vocabulary on both sides
