"""The settings of a training run: optimizer, schedule, batches, fine-tuning and evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triform.config.bounds import validate_bounds
from triform.config.documentation import setting
from triform.config.validation import Section, require

OptimizerKind = Literal["adam", "adamw", "muon", "sgd"]
ScheduleKind = Literal["constant", "cosine", "linear", "noam", "plateau"]
TrainPrecision = Literal["auto", "fp32", "bf16"]
LoraLayers = Literal["all", "attention"]
ParallelKind = Literal["auto", "ddp", "fsdp"]
ObjectiveKind = Literal["auto", "masked", "denoise"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Section):
    """How the model is trained: optimizer, schedule, batches, length, fine-tuning, validation and checkpoints."""

    objective: ObjectiveKind = setting(
        "auto",
        "What the model learns: its task, or to restore texts without labels, from which the task then starts.",
        auto="The labels, the next tokens or the translations of the task.",
        details="`triform pretrain` sets it. `masked` is for classify: the encoder predicts masked tokens, as in "
        "BERT (Devlin et al., 2019). `denoise` is for translate: the model restores a text from a copy with "
        "masked, dropped and moved tokens, as in BART (Lewis et al., 2020).",
    )
    mask_rate: float = setting(
        0.15,
        "The fraction of the tokens of each text that are masked.",
        applies_to="train.objective=masked or denoise",
        details="Of the tokens that `masked` predicts, 80 % become the mask token, 10 % a random token, and 10 % "
        "stay as they are.",
    )
    optimizer: OptimizerKind = setting(
        "adamw",
        "The optimizer.",
        details="`muon` orthogonalises the updates of weight matrices of blocks (Jordan et al., 2024). It updates "
        "all other weights as `adamw` does. The budget of a CPU (train.max_steps) uses `muon`.",
    )
    lr: float = setting(
        0.0,
        "The peak learning rate.",
        auto="2e-3 up to model.d_model=128, 1e-3 up to 256, 5e-4 above. With --from a tenth of that, unless LoRA "
        "is used. Within the budget of a CPU (train.max_steps), "
        "with `muon` five times that for generate and twice that for translate. For classify, see "
        "train.max_steps.",
    )
    betas: tuple[float, ...] = setting(
        (0.9, 0.98),
        "The decay rates of the two moving averages of Adam.",
        applies_to="train.optimizer=adam, adamw or muon",
    )
    momentum: float = setting(0.9, "The momentum of SGD.", applies_to="train.optimizer=sgd")
    weight_decay: float = setting(
        0.01,
        "The weight decay of matrices.",
        details="Biases and norms have none. With `adam` and `sgd` it is an L2 penalty; with `adamw` and `muon` "
        "it is decoupled from the gradient.",
    )
    schedule: ScheduleKind = setting(
        "cosine",
        "How the learning rate changes after the warm-up.",
        details="`cosine` and `linear` fall to train.min_lr_ratio at the last step, `noam` falls with the square "
        "root of the step, `plateau` falls when the validation loss stops falling, and `constant` stays.",
    )
    warmup_steps: int = setting(
        -1,
        "The number of steps in which the learning rate rises linearly to its peak.",
        auto="A twentieth of all steps, at most 1,000.",
    )
    min_lr_ratio: float = setting(
        0.05,
        "The learning rate of the last step, as a fraction of the peak.",
        applies_to="train.schedule=cosine or linear",
    )
    plateau_factor: float = setting(
        0.5,
        "The factor that the learning rate is multiplied by on a plateau.",
        applies_to="train.schedule=plateau",
    )
    plateau_patience: int = setting(
        5,
        "The number of validations without a lower loss that are tolerated before the learning rate falls.",
        applies_to="train.schedule=plateau",
    )
    batch_size: int = setting(
        0,
        "The number of examples in a batch; for generate, the number of windows of data.max_len tokens.",
        auto="For generate, a number of tokens divided by data.max_len: 1,024 below 1 million training tokens, "
        "4,096 below 20 million, else 16,384; 1,024 within the budget of a CPU (train.max_steps). For classify, "
        "see train.max_steps; otherwise, train.batch_tokens is used instead.",
        details="Set either this or train.batch_tokens.",
    )
    batch_tokens: int = setting(
        0,
        "The number of tokens in a batch, padding included; for translate, on the longer side of the pairs.",
        auto="For classify and translate, 1,024 below 1 million training tokens, 4,096 below 20 million, else "
        "16,384; for translate 2,048 within the budget of a CPU (train.max_steps). For generate, train.batch_size "
        "is used instead.",
        details="Set either this or train.batch_size.",
    )
    grad_accumulation: int = setting(
        1,
        "The number of batches whose gradients are summed for one optimizer step.",
        details="Use it if a large batch does not fit into memory; the result is that of one large batch.",
    )
    auto_batch: bool = setting(
        False,
        "Whether batches are made smaller, with more of them in each step, when they do not fit into GPU memory.",
    )
    max_steps: int = setting(
        0,
        "The number of optimizer steps.",
        auto="The number of steps that train.epochs takes. On a CPU, generate and translate have a budget instead: "
        "as many steps as take about 5 and 10 minutes on two ordinary cores, at most 15 and 20 epochs. The steps, "
        "the model, the vocabulary and the batches are chosen to fit a fixed number of operations, so they do not "
        "depend on the machine: width 128 with 4 layers (generate) or 2 (translate), and no model.dropout for "
        "generate below 3 epochs. Recurrent models, masked and denoising pretraining, --from and distillation have "
        "no budget. For classify without a size of the model and train.epochs, 8 epochs (4 from 1 million training "
        "tokens on), but at least 300 steps. The rest is chosen with it: one layer of width 64, "
        "model.dropout=0.5, train.lr=0.005, train.weight_decay=0.1, train.label_smoothing=0.1, train.batch_size=32 "
        "(64 from 10,000 texts on), lower-case words (above 3 million characters without those that occur once), "
        "and below 2,000 texts train.r_drop=3 and one validation. "
        "model.term_buckets is about twice the number of training tokens, at most 1,048,576, and 0 if tokens "
        "times labels exceed 30 million. train.refit_linear_part is on if texts are held "
        "out of a training file of up to 30 million characters.",
        details="Set either this or train.epochs.",
    )
    epochs: float = setting(
        0.0,
        "The number of passes over the training data; fractions are allowed.",
        auto="8 for classify, 10 for translate, and 15 for generate and pretraining; with 2 million training "
        "tokens or more, 2, 3 and 5. Not used if train.max_steps is set, or chosen for a CPU.",
        details="Set either this or train.max_steps.",
    )
    max_minutes: float = setting(
        0.0,
        "A limit on the training time in minutes, which lowers the number of steps to what fits.",
        details="0 means no limit. It replaces the budget of a CPU (train.max_steps), so that more minutes train a "
        "larger model.",
    )
    clip_norm: float = setting(
        1.0, "The largest norm of the gradient; larger gradients are scaled down.", details="0 turns clipping off."
    )
    label_smoothing: float = setting(
        0.0, "The fraction of the probability of the target that is spread over all labels or tokens."
    )
    r_drop: float = setting(
        0.0,
        "The weight of the R-Drop loss, which makes two passes with different dropout agree.",
        applies_to="model.dropout or model.attention_dropout above 0",
        details="0 turns it off; above 0, each step takes two forward passes.",
    )
    token_cutoff: float = setting(
        0.0,
        "The share of the tokens of a training text, chosen anew in each step, that the model cannot see.",
        details="0 turns it off. The input vectors of these tokens, positions included, are set to 0 (token "
        "cutoff, Shen et al., 2020); for translate, on both sides. Typical values are 0.05 to 0.2.",
    )
    simcut: float = setting(
        0.0,
        "The weight of the SimCut loss, which makes the predictions for a whole text and for a cut one agree.",
        applies_to="train.token_cutoff above 0",
        details="0 turns it off; above 0, each step takes two forward passes. The loss is the cross-entropy of the "
        "whole text plus this weight times the divergence of the predictions for the cut text from those for the "
        "whole one (Gao et al., 2022, who use a weight of 3 and train.token_cutoff=0.05). It cannot be combined "
        "with train.r_drop or train.distill_from.",
    )
    ema_decay: float = setting(
        0.0,
        "The decay of the moving average of the weights, which is validated and saved instead of the weights.",
        details="0 turns averaging off. Typical values are 0.99 to 0.9999.",
    )
    distill_from: str = setting(
        "",
        "The run, or the ensemble of several runs, whose probabilities the model learns besides the labels.",
        details="`triform distill` sets it. The teacher has the same task, vocabulary and labels.",
    )
    distill_weight: float = setting(
        0.5,
        "The weight of the teacher's probabilities in the loss; the labels have the rest.",
        applies_to="train.distill_from",
    )
    distill_temperature: float = setting(
        2.0,
        "The temperature of the probabilities of teacher and student that are compared.",
        applies_to="train.distill_from",
        details="Above 1, the probabilities of wrong labels or tokens count more (Hinton et al., 2015).",
    )
    init_from: str = setting(
        "",
        "The run folder whose weights, model settings and vocabulary training starts from.",
        details="The option --from sets it, and also accepts the folder of a published model.",
    )
    embeddings: str = setting(
        "",
        "A file of word vectors that initialises the embeddings of the words that it contains.",
        details="It cannot be combined with train.init_from.",
    )
    freeze_layers: int = setting(
        -1,
        "The number of layers, counted from the input, that are not trained; the embeddings are frozen with them.",
        details="0 freezes only the embeddings; -1 freezes nothing.",
    )
    layer_decay: float = setting(
        1.0,
        "The factor that the learning rate is multiplied by for each layer further away from the output.",
        details="1 gives all layers the same learning rate.",
    )
    lora_rank: int = setting(
        0,
        "The rank of the LoRA adapters, which are trained instead of the weights of the base model.",
        applies_to="training with --from (train.init_from)",
        details="0 means no LoRA.",
    )
    lora_alpha: float = setting(
        0.0,
        "Scales the LoRA adapters by this number divided by their rank.",
        auto="Twice train.lora_rank.",
        applies_to="train.lora_rank above 0",
    )
    lora_dropout: float = setting(
        0.0, "The dropout probability of the input of the LoRA adapters.", applies_to="train.lora_rank above 0"
    )
    lora_layers: LoraLayers = setting(
        "all",
        "Which linear layers of the blocks get LoRA adapters: all, or those of attention.",
        applies_to="train.lora_rank above 0",
    )
    precision: TrainPrecision = setting(
        "auto",
        "The number format of training.",
        auto="`bf16` on a GPU that supports it, or tf32 there for recurrent models and up to model.d_model=128. "
        "Elsewhere `fp32`.",
        details="Recurrent models accept `auto` and `fp32` only.",
    )
    parallel: ParallelKind = setting(
        "auto",
        "How several processes train a model: each with a copy of it (`ddp`), or each with a part of it (`fsdp`).",
        auto="`ddp` if weights, gradients and optimizer state fit into the memory of a device, else `fsdp`.",
        applies_to="training with torchrun",
    )
    refit_linear_part: bool = setting(
        False,
        "Whether the linear part is fitted once more after training, to the held-out validation texts as well.",
        applies_to="model.term_buckets",
        details="The vocabulary then has the words of all texts of the training file. The metrics of the "
        "validation texts are those of the model before that. For the default of classify, see train.max_steps.",
    )
    exact: bool = setting(
        False,
        "Whether gradients are summed in an order that does not depend on the number of processes.",
        details="1, 2, 4 and 8 processes then train the same weights, bit by bit, on CPUs. This is slower, because "
        "each batch is computed in 8 parts on one thread.",
    )
    eval_every: int | Literal["epoch"] = setting(
        0,
        "The number of steps between validations, or `epoch` for one after every epoch.",
        auto="A tenth of all steps, at most 1,000; a sixth within the budget of a CPU. For small data of classify, "
        "see train.max_steps.",
    )
    eval_train: int = setting(
        0,
        "The number of training examples that are evaluated with the validation set, under the name train.",
        details="-1 evaluates all of them. For generate, an example is a window of data.max_len tokens.",
    )
    checkpoint_every: int = setting(
        0,
        "The number of steps between checkpoints.",
        auto="A tenth of all steps, at most 1,000; or train.eval_every if that is a number.",
    )
    log_every: int = setting(
        0, "The number of steps between two logged training losses.", auto="A hundredth of all steps, at most 50."
    )
    baseline: bool = setting(
        True,
        "Whether training ends with a comparison with the baseline of the task on the validation data.",
        details="Simple methods without a Transformer are fitted on the training data: TF-IDF logistic regression, "
        "n-grams or word-by-word translation. Runs with --quiet, of --seeds, of studies and of searches are not "
        "compared.",
    )
    patience: int = setting(
        -1,
        "The number of validations in a row without improvement after which training stops.",
        auto="For classify, 5 with fewer than 200 validation texts, 4 with fewer than 1,000, else 3, but at least "
        "the number of validations in one epoch. For the other tasks and for pretraining 0.",
        details="0 means that training never stops early.",
    )

    def __post_init__(self, given: frozenset[str] | None) -> None:
        validate_bounds(self, "train")
        require(
            bool(self.init_from) or not self.lora_rank,
            f"train.lora_rank={self.lora_rank} needs a trained model; name it with --from RUN (train.init_from)",
        )
        require(
            not (self.init_from and self.embeddings),
            "train.embeddings cannot be combined with train.init_from; leave out --embeddings or --from",
        )
        require(
            not self.lora_rank or self.freeze_layers < 0,
            f"train.lora_rank={self.lora_rank} freezes the whole base model; "
            f"leave out train.freeze_layers={self.freeze_layers}",
        )
        require(
            not (self.distill_from and self.r_drop),
            f"train.distill_from cannot be combined with train.r_drop={self.r_drop}; leave one of them out",
        )
        require(
            not self.simcut or self.token_cutoff > 0,
            f"train.simcut={self.simcut} needs tokens to cut; set train.token_cutoff, for example to 0.05",
        )
        for name in ("r_drop", "distill_from"):
            value = getattr(self, name)
            require(
                not (self.simcut and value),
                f"train.simcut={self.simcut} cannot be combined with train.{name}={value}; "
                f"{'leave one of them out' if value == self.distill_from else f'set train.{name}=0 to use it'}",
            )
        require(
            not (self.exact and self.parallel == "fsdp"),
            "train.exact=true needs a copy of the model in each process; leave out train.parallel=fsdp",
        )
        require(
            not (self.optimizer == "muon" and self.parallel == "fsdp"),
            "train.optimizer=muon needs whole matrices in each process; leave out train.parallel=fsdp",
        )
        require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            f"train.betas={list(self.betas)} must be two numbers, each at least 0 and below 1",
        )
        for first, second in (("batch_size", "batch_tokens"), ("max_steps", "epochs")):
            require(
                not (getattr(self, first) and getattr(self, second)),
                f"train.{first} and train.{second} cannot be combined; set only one of them",
            )
