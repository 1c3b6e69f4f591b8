"""The settings of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from triform.config.bounds import validate_bounds
from triform.config.documentation import setting
from triform.config.validation import AutoBool, Section, require
from triform.errors import ConfigError

RecurrentKind = Literal["rnn", "gru", "lstm"]
ModelKind = Literal["transformer", "rnn", "gru", "lstm"]
PositionKind = Literal["learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "relative", "t5", "none"]
ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive"]
ScaleKind = Literal["head_dim", "d_model", "none"]
AttentionDirection = Literal["auto", "full", "causal"]
NormKind = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
ActivationKind = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"]
PoolingKind = Literal["mean", "first", "last"]
HeadActivation = Literal["relu", "tanh"]

# The settings that a recurrent model uses. All others must keep their default or a value that changes nothing.
RECURRENT_SETTINGS = (
    *("kind", "d_model", "n_layers", "dropout", "attention_dropout", "attention_score", "attention_scale"),
    *("attention_direction", "bias", "qkv_bias", "out_bias", "tie_embeddings", "bigram_buckets", "pooling"),
    *("head_hidden", "head_activation", "head_bias"),
)
# Settings that a recurrent model uses only in translate, where it attends to the source.
ATTENTION_SETTINGS = ("attention_score", "attention_scale", "attention_dropout", "qkv_bias", "out_bias")
RECURRENT_NO_OPS = {"n_heads": 1, "positions": "none", "scale_embeddings": True}

NGRAM_PROJECTION_SIZE = 64  # of the n-grams of a token in the linear part; gives lengths to about 10 %


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """The kind of model, its size and its components. Sizes are named as in "Attention Is All You Need"."""

    kind: ModelKind = setting(
        "transformer",
        "The kind of model: a Transformer or a recurrent network.",
        details="A recurrent model has no heads, positions, norms, windows or feed-forward layers; leave those "
        "settings out.",
    )
    d_model: int = setting(
        0,
        "The width of the model: the length of the vector that represents each token.",
        auto="128 up to 5 million training tokens, 256 up to 50 million, 512 above; see train.max_steps for "
        "classify and for a CPU. With train.embeddings, the length of the word vectors.",
        details="It must be divisible by model.n_heads.",
    )
    d_ff: int = setting(
        0,
        "The width of the feed-forward layers.",
        auto="Four times model.d_model. With model.activation=swiglu, 8/3 of model.d_model, which gives the same "
        "number of parameters.",
        applies_to="model.kind=transformer",
    )
    n_layers: int = setting(
        0,
        "The number of layers; an encoder-decoder has this number in each of its two stacks.",
        auto="2 up to 5 million training tokens, 4 up to 50 million, 6 above; at most 3 in recurrent models. See "
        "train.max_steps for classify and for a CPU.",
    )
    n_heads: int = setting(
        0,
        "The number of attention heads of each layer.",
        auto="4 up to 50 million training tokens, 8 above; lowered until it divides model.d_model.",
        applies_to="model.kind=transformer",
    )
    n_kv_heads: int = setting(
        0,
        "The number of key/value heads, each of which several query heads share (grouped-query attention).",
        auto="The same as model.n_heads.",
        applies_to="model.kind=transformer",
        details="It must divide model.n_heads. A value of 1 is multi-query attention.",
    )
    dropout: float = setting(
        0.1, "The dropout probability of the embeddings and of the output of each attention and feed-forward layer."
    )
    attention_dropout: float = setting(
        0.0,
        "The dropout probability of the attention weights.",
        details="Training is slower with a value above 0, because some fast kernels have no dropout.",
    )
    positions: PositionKind = setting(
        "learned",
        "How the model knows the order of tokens.",
        applies_to="model.kind=transformer",
        details="`learned` and `sinusoidal` add a vector for each position; `sinusoidal_halves` does the same in "
        "the order that Marian uses. `rotary` rotates queries and keys, `alibi` subtracts a penalty that grows "
        "with the distance, `relative` adds a learned vector for each distance (Shaw et al.), `t5` adds a learned "
        "bias for each range of distances, and `none` uses no positions. The budget of a CPU (train.max_steps) "
        "uses `rotary` for generate and `sinusoidal` for translate.",
    )
    rotary_base: float = setting(
        10_000.0, "The base of the rotation frequencies.", applies_to="model.positions=rotary"
    )
    rotary_scaling: tuple[float, ...] = setting(
        (),
        "Scales the rotation frequencies for texts longer than those the model was trained on.",
        applies_to="model.positions=rotary",
        details="One number divides all frequencies by it; four numbers (factor, low, high, original length) are "
        "the rule of Llama 3; an empty list scales nothing.",
    )
    max_distance: int = setting(
        0,
        "The largest distance between two tokens that the model distinguishes.",
        auto="16 with `relative` and 128 with `t5`, as in the papers.",
        applies_to="model.positions=relative or t5",
    )
    n_buckets: int = setting(
        32,
        "The number of distance ranges that have a learned bias.",
        applies_to="model.positions=t5",
        details="It must be even.",
    )
    attention_score: ScoreKind = setting(
        "scaled_dot",
        "How a query is compared with a key.",
        details="`scaled_dot` divides the dot product by a number (model.attention_scale), `dot` does not, "
        "`cosine` multiplies the cosine by a learned temperature, and `additive` is the score of Bahdanau et al. "
        "Recurrent models use it in translate only.",
    )
    attention_scale: ScaleKind = setting(
        "head_dim",
        "The size whose square root divides the dot product of a query and a key.",
        applies_to="model.attention_score=scaled_dot",
        details="`head_dim` is the size of a head, as in the paper; `d_model` is the width of the model, as some "
        "implementations have it; `none` divides by nothing.",
    )
    attention_direction: AttentionDirection = setting(
        "auto",
        "Which tokens each position of the encoder reads: all of them (full), or itself and earlier ones (causal).",
        auto="`full` in encoders, `causal` in decoders.",
        details="generate and translate accept `auto` and `causal` only.",
    )
    window: int = setting(
        -1,
        "The number of tokens that a position attends to on each side, itself included.",
        applies_to="model.kind=transformer",
        details="-1 means no limit. Set either this or model.layer_windows.",
    )
    layer_windows: tuple[int, ...] = setting(
        (),
        "A window for each layer, as a pattern that repeats, for example 8,-1.",
        applies_to="model.kind=transformer",
        details="The number of layers must be a multiple of the length of the pattern. Set either this or "
        "model.window.",
    )
    norm: NormKind = setting(
        "layer", "The normalisation: LayerNorm or RMSNorm.", applies_to="model.kind=transformer"
    )
    norm_position: NormPosition = setting(
        "pre",
        "Whether each layer normalises its input (pre) or the sum of input and output (post).",
        applies_to="model.kind=transformer",
        details="`post` is the order of the original paper; it needs a warm-up.",
    )
    norm_eps: float = setting(
        0.0,
        "The small number that is added to the variance to avoid a division by zero.",
        auto="1e-5 with model.norm=layer, 1e-6 with model.norm=rms.",
        applies_to="model.kind=transformer",
    )
    final_norm: bool = setting(
        True, "Whether a norm follows the last layer of each stack.", applies_to="model.kind=transformer"
    )
    embedding_norm: bool = setting(
        False, "Whether a norm follows the embeddings, as in BERT.", applies_to="model.kind=transformer"
    )
    n_segments: int = setting(
        0,
        "The number of segment embeddings (token types in BERT, which has 2).",
        applies_to="model.kind=transformer",
        details="0 means none.",
    )
    activation: ActivationKind = setting(
        "gelu", "The activation function of the feed-forward layers.", applies_to="model.kind=transformer"
    )
    bias: bool = setting(
        True,
        "Whether feed-forward layers, norms and the output projections of attention have a bias.",
        details="Recurrent models use it for their cells.",
    )
    qkv_bias: bool = setting(True, "Whether the projections to queries, keys and values have a bias.")
    out_bias: AutoBool = setting(
        "auto", "Whether the output projections of attention have a bias.", auto="The same as model.bias."
    )
    tie_embeddings: bool = setting(
        True,
        "Whether the output layer shares its weights with the token embedding.",
        applies_to="generate and translate",
        details="In translate with a joint vocabulary, source and target share one embedding too.",
    )
    scale_embeddings: bool = setting(
        False,
        "Whether token embeddings are multiplied by the square root of model.d_model.",
        applies_to="model.kind=transformer",
        details="The budget of a CPU (train.max_steps) does so for translate, unless model.positions is given.",
    )
    bigram_buckets: int = setting(
        0,
        "The number of rows of a hashed embedding table for pairs of neighbouring tokens.",
        applies_to="classify",
        details="0 means none.",
    )
    term_buckets: int = setting(
        0,
        "The number of hash buckets for pairs of tokens in a linear classifier beside the Transformer.",
        applies_to="classify with model.kind=transformer",
        details="0 means no linear classifier. It reads tokens and neighbouring pairs with the weights of TF-IDF. "
        "A logistic regression is fitted to the training texts before the first step, and each validation fits "
        "the weights with which the two classifiers are added. For the default of classify, see train.max_steps.",
    )
    pooling: PoolingKind = setting(
        "mean",
        "How the states of all tokens become one vector for the classifier: their mean, or the first or last one.",
        applies_to="classify",
        details="Recurrent models accept `mean` and `last` only.",
    )
    head_hidden: int = setting(
        0,
        "The width of a hidden layer between the pooled vector and the labels.",
        applies_to="classify",
        details="0 means no hidden layer.",
    )
    head_activation: HeadActivation = setting(
        "relu",
        "The activation function of the hidden layer of the classification head.",
        applies_to="classify with model.head_hidden above 0",
    )
    head_bias: bool = setting(True, "Whether the output layer has a bias.")

    def __post_init__(self, given: frozenset[str] | None) -> None:
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
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in RECURRENT_SETTINGS and value not in (
                item.default,
                RECURRENT_NO_OPS.get(item.name, item.default),
            ):
                displayed = list(value) if isinstance(value, tuple) else value
                raise ConfigError(
                    f"model.{item.name}={displayed} has no effect with model.kind={self.kind}; leave it out"
                )
        require(
            self.pooling != "first",
            f"model.pooling=first does not work with model.kind={self.kind}, whose first state has read only one "
            "token; use mean or last",
        )

    def _validate_heads(self) -> None:
        n_heads, n_kv_heads = self.n_heads, self.n_kv_heads
        if not (n_heads and n_kv_heads) or n_heads % n_kv_heads == 0:
            return
        divisors = ", ".join(str(count) for count in range(1, n_heads + 1) if n_heads % count == 0)
        raise ConfigError(
            f"model.n_heads={n_heads} is not divisible by model.n_kv_heads={n_kv_heads}; for n_kv_heads, "
            f"choose from {divisors}"
        )

    def _validate_positions(self) -> None:
        require(
            not (self.positions in ("sinusoidal", "sinusoidal_halves") and self.d_model % 2),
            f"model.positions={self.positions} needs an even model.d_model, not {self.d_model}",
        )
        if self.positions == "rotary" and self.n_heads and self.head_dim % 2:
            raise ConfigError(
                f"model.positions=rotary needs an even head size; model.d_model / model.n_heads is {self.head_dim}"
            )
        require(self.rotary_base > 1, f"model.rotary_base={self.rotary_base} must be above 1")
        self._validate_rotary_scaling()
        require(
            self.n_buckets % 2 == 0,
            f"model.n_buckets={self.n_buckets} must be even: one half is for each direction",
        )
        max_distance = self.resolved_max_distance
        require(
            self.positions != "t5" or max_distance > self.n_buckets // 2,
            f"model.max_distance={max_distance} is too small: with model.n_buckets={self.n_buckets} it must be "
            f"above {self.n_buckets // 2}",
        )
        require(
            self.attention_score == "scaled_dot" or self.attention_scale == "head_dim",
            f"model.attention_scale={self.attention_scale} is for model.attention_score=scaled_dot; "
            f"{self.attention_score} is not divided",
        )
        if self.attention_score == "additive" and self.positions in ("rotary", "relative"):
            raise ConfigError(
                f"model.positions={self.positions} does not work with model.attention_score=additive, which has no "
                "dot product; use the positions t5, alibi, learned or sinusoidal"
            )

    def _validate_rotary_scaling(self) -> None:
        scaling = self.rotary_scaling
        require(
            len(scaling) in (0, 1, 4) and all(number > 0 for number in scaling),
            f"model.rotary_scaling={list(scaling)} must be empty, [factor], or [factor, low, high, original "
            "length], with numbers above 0",
        )
        require(
            len(scaling) < 4 or scaling[1] < scaling[2],
            f"model.rotary_scaling={list(scaling)}: the second number (low) must be below the third (high)",
        )
        require(
            not scaling or self.positions == "rotary",
            f"model.rotary_scaling={list(scaling)} applies to model.positions=rotary only, not to {self.positions}",
        )

    def _validate_windows(self) -> None:
        for name, displayed, widths in (
            ("window", self.window, (self.window,)),
            ("layer_windows", list(self.layer_windows), self.layer_windows),
        ):
            require(
                all(width == -1 or width > 0 for width in widths),
                f"model.{name}={displayed} is too small; a window must be at least 1, or -1 for no limit",
            )
        if not self.layer_windows:
            return
        pattern = list(self.layer_windows)
        require(
            self.window == -1,
            f"model.window={self.window} and model.layer_windows={pattern} cannot be combined; "
            "set only one of them",
        )
        require(
            self.n_layers % len(pattern) == 0,
            f"model.layer_windows={pattern} does not fit model.n_layers={self.n_layers}: "
            f"the number of layers must be a multiple of {len(pattern)}",
        )

    @property
    def is_recurrent(self) -> bool:
        return self.kind in get_args(RecurrentKind)

    @property
    def as_single_head(self) -> ModelConfig:
        """Return the settings of a recurrent model for components that it shares with the Transformer: one head.

        Embeddings are scaled up, because no norm does it, and small inputs make attention uniform.
        """
        return replace(self, n_heads=1, positions="none", scale_embeddings=True)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def score_scale(self) -> float:
        """The factor of the dot product of a query and a key."""
        if self.attention_score != "scaled_dot" or self.attention_scale == "none":
            return 1.0
        return 1 / math.sqrt(self.head_dim if self.attention_scale == "head_dim" else self.d_model)

    @property
    def kv_heads(self) -> int:
        """The number of key/value heads; by default the number of query heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def has_out_bias(self) -> bool:
        return self.bias if self.out_bias == "auto" else self.out_bias == "yes"

    @property
    def resolved_max_distance(self) -> int:
        return self.max_distance or (16 if self.positions == "relative" else 128)

    def window_notices(self, max_len: int) -> list[str]:
        """Return notices about windows that have no effect."""
        ineffective = sorted({width for width in self.windows if width >= max_len})
        return [
            f"a window of {width} has no effect: the model reads only {max_len} tokens at once"
            for width in ineffective
        ]

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each layer; -1 means no limit."""
        pattern = self.layer_windows or (self.window,)
        return pattern * (self.n_layers // len(pattern))
