"""The settings of a model: its kind and its shape."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from triform.config.bounds import validate_bounds
from triform.config.validation import AutoBool, require
from triform.errors import ConfigError

RecurrentKind = Literal["rnn", "gru", "lstm"]
ModelKind = Literal["transformer", "rnn", "gru", "lstm"]
PositionKind = Literal["learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "relative", "t5", "none"]
ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive"]
AttentionDirection = Literal["auto", "full", "causal"]
NormKind = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
ActivationKind = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"]
PoolingKind = Literal["mean", "first", "last"]
HeadActivation = Literal["relu", "tanh"]

# The settings that a recurrent model uses. All others must keep their default or a value that changes nothing.
RECURRENT_SETTINGS = (
    *(
        "kind",
        "d_model",
        "n_layers",
        "dropout",
        "attention_dropout",
        "attention_score",
        "attention_direction",
        "bias",
        "qkv_bias",
    ),
    *("out_bias", "tie_embeddings", "bigram_buckets", "pooling", "head_hidden", "head_activation"),
    "head_bias",
)
# Settings that a recurrent model uses only in translate, where it attends to the source.
ATTENTION_SETTINGS = ("attention_score", "attention_dropout", "qkv_bias", "out_bias")
RECURRENT_NO_OPS = {"n_heads": 1, "positions": "none", "scale_embeddings": True}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of the model. Sizes are named as in "Attention Is All You Need"."""

    kind: ModelKind = "transformer"  # or a recurrent model: rnn, gru, lstm
    d_model: int = 0
    d_ff: int = 0  # 0: four times d_model; for swiglu 8/3 of it, which costs the same
    n_layers: int = 0  # per stack: an encoder-decoder has so many in each
    n_heads: int = 0
    n_kv_heads: int = 0  # heads of keys and values, shared by groups of query heads; 0: as many as n_heads
    dropout: float = 0.1  # of the embeddings and of each sublayer's output
    attention_dropout: float = 0.0  # of the attention weights; slower than 0, which allows faster kernels
    positions: PositionKind = "learned"
    rotary_base: float = 10_000.0
    rotary_scaling: tuple[float, ...] = ()  # [factor]: linear; [factor, low, high, original length]: Llama 3's
    max_distance: int = 0  # relative, t5: larger distances count as this one; 0: 16 and 128, as published
    n_buckets: int = 32  # t5
    attention_score: ScoreKind = "scaled_dot"
    attention_direction: AttentionDirection = "auto"  # auto: full in encoders, causal in decoders
    window: int = -1  # keys that a position attends to on each visible side, itself included; -1: all
    layer_windows: tuple[int, ...] = ()  # instead of window: one per layer, repeated, e.g. [8, -1]
    norm: NormKind = "layer"
    norm_position: NormPosition = "pre"
    norm_eps: float = 0.0  # epsilon of the norms; 0: 1e-5 for layer, 1e-6 for rms
    final_norm: bool = True
    embedding_norm: bool = False  # a norm after the embeddings, as BERT has it
    n_segments: int = 0  # number of segment embeddings, 2 in BERT; 0: none
    activation: ActivationKind = "gelu"
    bias: bool = True  # in output projections, feedforward and norms
    qkv_bias: bool = True
    out_bias: AutoBool = "auto"  # in the output projections of attention; auto: as bias
    tie_embeddings: bool = True
    scale_embeddings: bool = False  # multiply by sqrt(d_model)
    bigram_buckets: int = 0  # classify: rows of a hashed embedding table for bigrams; 0: none
    pooling: PoolingKind = "mean"  # classify: how the states of a text become one vector
    head_hidden: int = 0  # classify: width of a hidden layer before the labels; 0: none
    head_activation: HeadActivation = "relu"  # of that layer
    head_bias: bool = True

    def __post_init__(self) -> None:
        validate_bounds(self, "model")
        if self.d_model and self.n_heads and self.d_model % self.n_heads:
            lower = self.d_model - self.d_model % self.n_heads
            raise ConfigError(
                f"model.d_model={self.d_model} is not divisible by model.n_heads={self.n_heads}; "
                f"try d_model={' or '.join(str(width) for width in (lower, lower + self.n_heads) if width)}"
            )
        self._validate_heads()
        self._validate_positions()
        self._validate_windows()
        if self.is_recurrent:
            self._validate_recurrent()

    def _validate_recurrent(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name not in RECURRENT_SETTINGS and value not in (
                setting.default,
                RECURRENT_NO_OPS.get(setting.name, setting.default),
            ):
                displayed = list(value) if isinstance(value, tuple) else value
                raise ConfigError(
                    f"model.{setting.name}={displayed} means nothing to model.kind={self.kind}, which reads one "
                    "token after the other: leave it out"
                )
        require(
            self.pooling != "first",
            f"model.pooling=first is for Transformers: the first state of model.kind={self.kind} has read little; "
            "use mean or last",
        )

    def _validate_heads(self) -> None:
        n_heads, n_kv_heads = self.n_heads, self.n_kv_heads
        if not (n_heads and n_kv_heads) or n_heads % n_kv_heads == 0:
            return
        divisors = ", ".join(str(count) for count in range(1, n_heads + 1) if n_heads % count == 0)
        raise ConfigError(
            f"model.n_heads={n_heads} is not divisible by model.n_kv_heads={n_kv_heads}: every key/value head "
            f"serves as many query heads; choose from {divisors}"
        )

    def _validate_positions(self) -> None:
        require(
            not (self.positions in ("sinusoidal", "sinusoidal_halves") and self.d_model % 2),
            f"model.positions={self.positions} needs an even model.d_model, not {self.d_model}",
        )
        if self.positions == "rotary" and self.n_heads and self.head_dim % 2:
            raise ConfigError(
                f"model.positions=rotary turns pairs of coordinates: the head size, model.d_model / model.n_heads "
                f"= {self.head_dim}, must be even"
            )
        require(self.rotary_base > 1, f"model.rotary_base={self.rotary_base} must be above 1")
        self._validate_rotary_scaling()
        require(self.n_buckets % 2 == 0, f"model.n_buckets={self.n_buckets} must be even: half for each side")
        max_distance = self.resolved_max_distance
        require(
            self.positions != "t5" or max_distance > self.n_buckets // 2,
            f"model.max_distance={max_distance} is too small: with model.n_buckets={self.n_buckets} it must be "
            f"above {self.n_buckets // 2}, or the buckets for far distances hold nothing",
        )
        if self.attention_score == "additive" and self.positions in ("rotary", "relative"):
            raise ConfigError(
                f"model.positions={self.positions} changes the dot product of query and key, and "
                "model.attention_score=additive takes none; use positions=t5, alibi, learned or sinusoidal with it"
            )

    def _validate_rotary_scaling(self) -> None:
        scaling = self.rotary_scaling
        require(
            len(scaling) in (0, 1, 4) and all(number > 0 for number in scaling),
            f"model.rotary_scaling={list(scaling)} must be empty, [factor], or [factor, low, high, original "
            "length], all above 0",
        )
        require(
            len(scaling) < 4 or scaling[1] < scaling[2],
            f"model.rotary_scaling={list(scaling)}: its second number, low, must be below its third, high",
        )
        require(
            not scaling or self.positions == "rotary",
            f"model.rotary_scaling={list(scaling)} is for model.positions=rotary, not {self.positions}",
        )

    def _validate_windows(self) -> None:
        for name, displayed, widths in (
            ("window", self.window, (self.window,)),
            ("layer_windows", list(self.layer_windows), self.layer_windows),
        ):
            require(
                all(width == -1 or width > 0 for width in widths),
                f"model.{name}={displayed} leaves a position nothing to read, not even itself: "
                "a window must be at least 1, or -1 for no window",
            )
        if not self.layer_windows:
            return
        pattern = list(self.layer_windows)
        require(
            self.window == -1,
            f"model.window={self.window} and model.layer_windows={pattern} exclude each other: "
            "set only one of them",
        )
        require(
            self.n_layers % len(pattern) == 0,
            f"model.layer_windows={pattern} is a pattern of {len(pattern)} layers and does not fit "
            f"model.n_layers={self.n_layers}: the number of layers must be a multiple of it",
        )

    @property
    def is_recurrent(self) -> bool:
        return self.kind in get_args(RecurrentKind)

    @property
    def as_single_head(self) -> ModelConfig:
        """A recurrent model as parts that it shares with the Transformer see it: attention with one head.

        Tokens come in at full size: no norm raises small ones, and states of small inputs leave attention flat.
        """
        return replace(self, n_heads=1, positions="none", scale_embeddings=True)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values: as many as of queries, unless said."""
        return self.n_kv_heads or self.n_heads

    @property
    def has_out_bias(self) -> bool:
        return self.bias if self.out_bias == "auto" else self.out_bias == "yes"

    @property
    def resolved_max_distance(self) -> int:
        return self.max_distance or (16 if self.positions == "relative" else 128)

    def window_notices(self, max_len: int) -> list[str]:
        """What is allowed but does less than it says."""
        ineffective = sorted({width for width in self.windows if width >= max_len})
        return [
            f"a window of {width} is no limit: the model reads {max_len} tokens at once" for width in ineffective
        ]

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each layer; -1 where there is none."""
        pattern = self.layer_windows or (self.window,)
        return pattern * (self.n_layers // len(pattern))
