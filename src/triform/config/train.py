"""The settings of a training: what learns, from how much, and how often we look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triform.config.bounds import validate_bounds
from triform.config.validation import require

OptimizerKind = Literal["adam", "adamw", "sgd"]
ScheduleKind = Literal["constant", "cosine", "linear", "noam", "plateau"]
TrainPrecision = Literal["auto", "fp32", "bf16"]
LoraLayers = Literal["all", "attention"]


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
    min_lr_ratio: float = 0.05  # where cosine and linear end, as a share of lr
    plateau_factor: float = 0.5
    plateau_patience: int = 5
    batch_size: int = 0  # examples a batch; or:
    batch_tokens: int = 0  # tokens a batch with its padding, of the longer side of a pair
    grad_accumulation: int = 1  # batches a step
    auto_batch: bool = False  # where memory is short: more and smaller batches a step, learning from as much
    max_steps: int = 0  # or:
    epochs: float = 0.0
    max_minutes: float = 0.0  # fewer steps, where so many do not fit into this time; 0: any time
    clip_norm: float = 1.0  # 0: off
    label_smoothing: float = 0.0
    r_drop: float = 0.0  # how much two readings of a batch, which dropout makes differ, must agree (R-Drop)
    ema_decay: float = 0.0  # decay of a moving average of the weights, which is what is judged and kept; 0: none
    init_from: str = ""  # a run folder whose weights and vocabulary training begins with: `--from`
    embeddings: str = ""  # a file of word vectors that the embedding begins with, where it has a piece's word
    freeze_layers: int = (
        -1
    )  # embeddings and so many layers, counted from the input, that do not learn; -1: all learn
    layer_decay: float = 1.0  # of the rate, from the head down: times this for every layer below it
    lora_rank: int = 0  # of the adapters that learn instead of the base's matrices; 0: none
    lora_alpha: float = 0.0  # adapters count alpha / rank times; 0: twice the rank
    lora_dropout: float = 0.0  # of what adapters read
    lora_layers: LoraLayers = "all"  # which matrices of a layer have one: all, or those of attention
    precision: TrainPrecision = "auto"
    eval_every: int = 0
    checkpoint_every: int = 0
    log_every: int = 0
    patience: int = -1  # validations without progress before stopping; 0: never stop early; -1: by task and data

    def __post_init__(self) -> None:
        validate_bounds(self, "train")
        require(
            bool(self.init_from) or not self.lora_rank,
            f"train.lora_rank={self.lora_rank}: adapters change a model that has learned already; "
            "say which with --from RUN (train.init_from)",
        )
        require(
            not (self.init_from and self.embeddings),
            "train.embeddings: what begins with another run has its embedding; leave out --embeddings or --from",
        )
        require(
            not self.lora_rank or self.freeze_layers < 0,
            f"train.lora_rank={self.lora_rank} freezes the whole base: "
            f"leave out train.freeze_layers={self.freeze_layers}",
        )
        require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            f"train.betas={list(self.betas)} must be two numbers from 0 up to, not including, 1",
        )
        for first, second in (("batch_size", "batch_tokens"), ("max_steps", "epochs")):
            require(
                not (getattr(self, first) and getattr(self, second)),
                f"train.{first} and train.{second} are two ways to say one thing: set only one of them",
            )
