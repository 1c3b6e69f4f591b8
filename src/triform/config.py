"""Every setting, as frozen dataclasses that check themselves.

A zero (or "auto", or -1 where zero means something) is a setting left open. Most are chosen from the size of
the data when training starts, and the chosen value is what the run folder's config.toml holds; how to decode
and at what precision stay open until they are needed, since they depend on the call and the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from triform.errors import ConfigError

TaskName = Literal["classify", "generate", "translate"]
TokenizerKind = Literal["auto", "char", "word", "bpe", "imported"]
ModelKind = Literal["transformer"]
PositionKind = Literal["learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "relative", "t5", "none"]
ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive"]
Reach = Literal["auto", "full", "causal"]
NormKind = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
ActivationKind = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"]
PoolingKind = Literal["mean", "first"]
HeadActivation = Literal["relu", "tanh"]
OptimizerKind = Literal["adam", "adamw", "sgd"]
ScheduleKind = Literal["constant", "cosine", "linear", "noam", "plateau"]
Precision = Literal["auto", "fp32", "bf16"]
LoraLayers = Literal["all", "attention"]
Strategy = Literal["auto", "greedy", "sample", "beam"]
Answer = Literal["auto", "yes", "no"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)


def _require(good: bool, problem: str) -> None:
    if not good:
        raise ConfigError(problem)


def _at_least(section: str, least: float, **values: float) -> None:
    for name, value in values.items():
        _require(value >= least, f"{section}.{name}={value} is too small: it must be at least {least}")


def _between(section: str, low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        _require(low <= value <= high, f"{section}.{name}={value} must lie between {low} and {high}")


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
    header: Answer = "auto"
    labels: tuple[str, ...] = ()  # empty: those of the training data, sorted
    valid_fraction: float = 0.1
    max_len: int = 0  # tokens a model reads at once

    def __post_init__(self) -> None:
        _between("data", 0.0, 0.5, valid_fraction=self.valid_fraction)
        _at_least("data", 0, max_len=self.max_len)
        _require(self.max_len != 1, "data.max_len=1 leaves nothing to read: it must be at least 2")
        for first, second in (("source", "target"), ("valid_source", "valid_target")):
            _require(
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
    shared: bool = True  # translate: one vocabulary for both languages
    dropout: float = 0.0  # bpe, classify and translate: the share of merges left out at random in training text
    file: str = ""  # a tokenizer of Triform or another library, to take its vocabulary instead of learning one

    def __post_init__(self) -> None:
        _at_least("tokenizer", 0, vocab_size=self.vocab_size)
        _at_least("tokenizer", 1, min_count=self.min_count)
        _between("tokenizer", 0.0, 0.5, dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Transformer's shape. Sizes are named as in the paper."""

    kind: ModelKind = "transformer"
    d_model: int = 0
    d_ff: int = 0  # 0: four times d_model; for swiglu 8/3 of it, which costs the same
    n_layers: int = 0  # of the encoder and of the decoder, where a model has both
    n_heads: int = 0
    n_kv_heads: int = 0  # heads of keys and values, shared by groups of query heads; 0: as many as n_heads
    dropout: float = 0.1  # of embeddings and of what each sublayer adds
    attention_dropout: float = 0.0  # of attention weights; costs speed, fused kernels are faster without
    positions: PositionKind = "learned"
    rotary_base: float = 10_000.0
    rotary_scaling: tuple[float, ...] = ()  # [factor]: linear; [factor, low, high, original length]: Llama 3's
    max_distance: int = 0  # relative, t5: farther is all alike; 0: 16 and 128, as published
    n_buckets: int = 32  # t5
    score: ScoreKind = "scaled_dot"
    reach: Reach = "auto"  # auto: encoders read both ways, decoders only back
    window: int = -1  # keys a position reads, itself included, on each side it may look; -1: all
    layer_windows: tuple[int, ...] = ()  # instead of window: one a layer, repeated, e.g. [8, -1]
    norm: NormKind = "layer"
    norm_position: NormPosition = "pre"
    norm_eps: float = 0.0  # what keeps a norm from dividing by zero; 0: 1e-5 for layer, 1e-6 for rms
    final_norm: bool = True
    embedding_norm: bool = False  # a norm after the embeddings, as BERT has it
    segments: int = 0  # kinds of text that have an embedding of their own, as BERT's two; 0: none
    activation: ActivationKind = "gelu"
    bias: bool = True  # in output projections, feedforward and norms
    qkv_bias: bool = True
    out_bias: Answer = "auto"  # of attention's output projections alone; auto: as bias
    tie_embeddings: bool = True
    scale_embeddings: bool = False  # times sqrt(d_model), so that fixed positions do not drown them
    pair_rows: int = 0  # classify: rows of a second table, for pairs of neighbouring tokens; 0: none
    pooling: PoolingKind = "mean"  # classify: what stands for a text, the mean of its states or the first
    head_hidden: int = 0  # classify: width of a hidden layer before the labels; 0: none
    head_activation: HeadActivation = "relu"  # of that layer
    head_bias: bool = True

    def __post_init__(self) -> None:
        _at_least("model", 0, d_model=self.d_model, d_ff=self.d_ff, n_layers=self.n_layers)
        _at_least("model", 0, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads, head_hidden=self.head_hidden)
        _at_least("model", 0, max_distance=self.max_distance, pair_rows=self.pair_rows)
        _at_least("model", 0, norm_eps=self.norm_eps, segments=self.segments)
        _at_least("model", 4, n_buckets=self.n_buckets)
        _between("model", 0.0, 0.95, dropout=self.dropout, attention_dropout=self.attention_dropout)
        if self.d_model and self.n_heads and self.d_model % self.n_heads:
            down = self.d_model - self.d_model % self.n_heads
            raise ConfigError(
                f"model.d_model={self.d_model} is not divisible by model.n_heads={self.n_heads}; "
                f"try d_model={' or '.join(str(width) for width in (down, down + self.n_heads) if width)}"
            )
        self._check_heads()
        self._check_positions()
        self._check_windows()

    def _check_heads(self) -> None:
        heads, shared = self.n_heads, self.n_kv_heads
        if not (heads and shared) or heads % shared == 0:
            return
        fitting = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
        raise ConfigError(
            f"model.n_heads={heads} is not divisible by model.n_kv_heads={shared}: every key/value head "
            f"serves as many query heads; choose from {fitting}"
        )

    def _check_positions(self) -> None:
        _require(
            not (self.positions in ("sinusoidal", "sinusoidal_halves") and self.d_model % 2),
            f"model.positions={self.positions} needs an even model.d_model, not {self.d_model}",
        )
        if self.positions == "rotary" and self.n_heads and self.head_dim % 2:
            raise ConfigError(
                f"model.positions=rotary turns pairs of coordinates: the head size, model.d_model / model.n_heads "
                f"= {self.head_dim}, must be even"
            )
        _require(self.rotary_base > 1, f"model.rotary_base={self.rotary_base} must be above 1")
        self._check_scaling()
        _require(self.n_buckets % 2 == 0, f"model.n_buckets={self.n_buckets} must be even: half for each side")
        nearest = self.max_distance_or_published
        _require(
            self.positions != "t5" or nearest > self.n_buckets // 2,
            f"model.max_distance={nearest} is too small: with model.n_buckets={self.n_buckets} it must be above "
            f"{self.n_buckets // 2}, or the buckets for far distances hold nothing",
        )
        if self.score == "additive" and self.positions in ("rotary", "relative"):
            raise ConfigError(
                f"model.positions={self.positions} changes the dot product of query and key, and "
                "model.score=additive takes none; use positions=t5, alibi, learned or sinusoidal with it"
            )

    def _check_scaling(self) -> None:
        scaling = self.rotary_scaling
        _require(
            len(scaling) in (0, 1, 4) and all(number > 0 for number in scaling),
            f"model.rotary_scaling={list(scaling)} must be empty, [factor], or [factor, low, high, original "
            "length], all above 0",
        )
        _require(
            len(scaling) < 4 or scaling[1] < scaling[2],
            f"model.rotary_scaling={list(scaling)}: its second number, low, must be below its third, high",
        )
        _require(
            not scaling or self.positions == "rotary",
            f"model.rotary_scaling={list(scaling)} is for model.positions=rotary, not {self.positions}",
        )

    def _check_windows(self) -> None:
        for name, shown, widths in (
            ("window", self.window, (self.window,)),
            ("layer_windows", list(self.layer_windows), self.layer_windows),
        ):
            _require(
                all(width == -1 or width > 0 for width in widths),
                f"model.{name}={shown} leaves a position nothing to read, not even itself: "
                "a window must be at least 1, or -1 for no window",
            )
        if not self.layer_windows:
            return
        pattern = list(self.layer_windows)
        _require(
            self.window == -1,
            f"model.window={self.window} and model.layer_windows={pattern} are two ways to say one thing: "
            "set only one of them",
        )
        _require(
            self.n_layers % len(pattern) == 0,
            f"model.layer_windows={pattern} is a pattern of {len(pattern)} layers and does not fit "
            f"model.n_layers={self.n_layers}: the number of layers must be a multiple of it",
        )

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
    def max_distance_or_published(self) -> int:
        return self.max_distance or (16 if self.positions == "relative" else 128)

    def notes(self, max_len: int) -> list[str]:
        """What is allowed but does less than it says."""
        wide = sorted({width for width in self.windows if width >= max_len})
        return [f"a window of {width} is no limit: the model reads {max_len} tokens at once" for width in wide]

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each layer; -1 where there is none."""
        pattern = self.layer_windows or (self.window,)
        return pattern * (self.n_layers // len(pattern))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the model learns and how often we look."""

    optimizer: OptimizerKind = "adamw"
    lr: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.98)
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    schedule: ScheduleKind = "cosine"
    warmup_steps: int = -1
    final_lr_ratio: float = 0.05  # where cosine and linear end, as a share of lr
    plateau_factor: float = 0.5
    plateau_patience: int = 5
    batch_size: int = 0  # examples a batch; or:
    batch_tokens: int = 0  # tokens a batch with its padding, of the longer side of a pair
    accumulate: int = 1  # batches a step
    auto_batch: bool = False  # where memory is short: more and smaller batches a step, learning from as much
    max_steps: int = 0  # or:
    epochs: float = 0.0
    clip_norm: float = 1.0  # 0: off
    label_smoothing: float = 0.0
    consistency: float = 0.0  # how much two readings of a batch, which dropout makes differ, must agree (R-Drop)
    average: float = 0.0  # decay of a moving average of the weights, which is what is judged and kept; 0: none
    base: str = ""  # a run folder whose weights and vocabulary training begins with: `--from`
    freeze: int = -1  # embeddings and so many layers, counted from the input, that do not learn; -1: all learn
    layer_decay: float = 1.0  # of the rate, from the head down: times this for every layer below it
    lora_rank: int = 0  # of the adapters that learn instead of the base's matrices; 0: none
    lora_alpha: float = 0.0  # adapters count alpha / rank times; 0: twice the rank
    lora_dropout: float = 0.0  # of what adapters read
    lora_layers: LoraLayers = "all"  # which matrices of a layer have one: all, or those of attention
    precision: Precision = "auto"
    eval_every: int = 0
    checkpoint_every: int = 0
    log_every: int = 0
    patience: int = 0  # evaluations without a better score before stopping; 0: never stop early

    def __post_init__(self) -> None:
        _at_least("train", 0, lr=self.lr, weight_decay=self.weight_decay, clip_norm=self.clip_norm)
        _at_least("train", 0, batch_size=self.batch_size, batch_tokens=self.batch_tokens)
        _at_least("train", 0, max_steps=self.max_steps, epochs=self.epochs, patience=self.patience)
        _at_least("train", 0, eval_every=self.eval_every, checkpoint_every=self.checkpoint_every)
        _at_least("train", 0, log_every=self.log_every, plateau_patience=self.plateau_patience)
        _at_least("train", 0, consistency=self.consistency)
        _at_least("train", 1, accumulate=self.accumulate)
        _at_least("train", -1, warmup_steps=self.warmup_steps)
        _between("train", 0.0, 0.9, label_smoothing=self.label_smoothing)
        _between("train", 0.0, 0.999999, average=self.average)
        _between("train", 0.0, 1.0, final_lr_ratio=self.final_lr_ratio, momentum=self.momentum)
        _between("train", 0.01, 0.99, plateau_factor=self.plateau_factor)
        _between("train", 0.01, 1.0, layer_decay=self.layer_decay)
        _between("train", 0.0, 0.95, lora_dropout=self.lora_dropout)
        _at_least("train", -1, freeze=self.freeze)
        _at_least("train", 0, lora_rank=self.lora_rank, lora_alpha=self.lora_alpha)
        _require(
            bool(self.base) or not self.lora_rank,
            f"train.lora_rank={self.lora_rank}: adapters change a model that has learned already; "
            "say which with --from RUN (train.base)",
        )
        _require(
            not self.lora_rank or self.freeze < 0,
            f"train.lora_rank={self.lora_rank} freezes the whole base: leave out train.freeze={self.freeze}",
        )
        _require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            f"train.betas={list(self.betas)} must be two numbers from 0 up to, not including, 1",
        )
        for first, second in (("batch_size", "batch_tokens"), ("max_steps", "epochs")):
            _require(
                not (getattr(self, first) and getattr(self, second)),
                f"train.{first} and train.{second} are two ways to say one thing: set only one of them",
            )


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How tokens are chosen when the model writes."""

    strategy: Strategy = "auto"  # sample for generate, beam for translate
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    beam_size: int = 4
    length_penalty: float = 0.6
    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        _require(
            self.temperature > 0,
            f"decode.temperature={self.temperature} must be above 0; decode.strategy=greedy takes the best token",
        )
        _require(0 < self.top_p <= 1, f"decode.top_p={self.top_p} must be above 0 and at most 1")
        _at_least("decode", 0, top_k=self.top_k, max_new_tokens=self.max_new_tokens)
        _at_least("decode", 0, length_penalty=self.length_penalty)
        _at_least("decode", 1, beam_size=self.beam_size)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, whole."""

    task: TaskName = "classify"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**32, f"seed={self.seed} must lie between 0 and {2**32 - 1}")
        if self.task != "translate" and self.data.source:
            raise ConfigError(f"data.source and data.target are for translate; {self.task} reads data.train")
        if self.model.pair_rows and self.task != "classify":
            raise ConfigError(f"model.pair_rows is for classify; {self.task} reads one new token at a time")
        if self.tokenizer.dropout and (self.task == "generate" or self.tokenizer.kind not in ("auto", "bpe")):
            raise ConfigError("tokenizer.dropout leaves out merges of bpe, and is for classify and translate")
        if self.train.consistency and not (self.model.dropout or self.model.attention_dropout):
            raise ConfigError("train.consistency compares readings that dropout makes differ: set model.dropout")
        if self.model.reach == "full" and self.task != "classify":
            raise ConfigError(
                "model.reach=full lets a decoder read the very token it should predict: "
                f"{self.task} needs auto or causal"
            )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a model must know of its data: how many tokens there are, and how many labels."""

    vocab_size: int
    max_len: int
    n_labels: int = 0
    target_vocab_size: int = 0  # 0: the same vocabulary on both sides
