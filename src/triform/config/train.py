"""The settings of a training run: optimizer, schedule, batches, fine-tuning and evaluation."""

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
    """Settings of the optimizer, the schedule, the batches, fine-tuning and evaluation."""

    optimizer: OptimizerKind = "adamw"
    lr: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.98)
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    schedule: ScheduleKind = "cosine"
    warmup_steps: int = -1
    min_lr_ratio: float = 0.05  # final learning rate of cosine and linear, as a share of lr
    plateau_factor: float = 0.5
    plateau_patience: int = 5
    batch_size: int = 0  # examples per batch; or:
    batch_tokens: int = 0  # tokens per batch including padding, on the longer side of a pair
    grad_accumulation: int = 1  # batches per optimizer step
    auto_batch: bool = False  # when memory runs out: smaller batches, and more of them per step
    max_steps: int = 0  # or:
    epochs: float = 0.0
    max_minutes: float = 0.0  # limit on the training time; 0: no limit
    clip_norm: float = 1.0  # 0: off
    label_smoothing: float = 0.0
    r_drop: float = 0.0  # weight of the R-Drop loss: agreement of two forward passes with different dropout; 0: off
    ema_decay: float = 0.0  # decay of the moving average of the weights that is evaluated and saved; 0: off
    init_from: str = ""  # a run folder whose weights and vocabulary training starts from: `--from`
    embeddings: str = ""  # a file of word vectors that initialises the embeddings of the words it holds
    # Freeze the embeddings and this many layers, counted from the input; -1: freeze nothing.
    freeze_layers: int = -1
    layer_decay: float = 1.0  # factor of the learning rate for each layer further below the head
    lora_rank: int = 0  # rank of the LoRA adapters; 0: no LoRA
    lora_alpha: float = 0.0  # adapters are scaled by alpha / rank; 0: twice the rank
    lora_dropout: float = 0.0  # dropout of the adapters' input
    lora_layers: LoraLayers = "all"  # the matrices with adapters: all, or those of attention
    precision: TrainPrecision = "auto"
    eval_every: int = 0
    checkpoint_every: int = 0
    log_every: int = 0
    patience: int = -1  # evaluations without improvement before stopping; 0: never stop early; -1: automatic

    def __post_init__(self) -> None:
        validate_bounds(self, "train")
        require(
            bool(self.init_from) or not self.lora_rank,
            f"train.lora_rank={self.lora_rank}: adapters need a trained model; "
            "say which with --from RUN (train.init_from)",
        )
        require(
            not (self.init_from and self.embeddings),
            "train.embeddings: a run that starts from another has its embeddings; leave out --embeddings or --from",
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
                f"train.{first} and train.{second} exclude each other: set only one of them",
            )
