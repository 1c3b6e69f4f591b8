"""Defaults for training on a CPU: a model, batches and a number of steps that take minutes on two cores.

The budget is a number of operations and not a time, so that the same settings are chosen on every machine. A user
who sets `train.epochs` or `train.max_steps` has decided how long training takes, and nothing here applies then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from triform.analysis.capacity import training_flops_per_token
from triform.config import Config, DataSizes, TaskName
from triform.config.settings import Settings, build_config
from triform.formatting import format_duration
from triform.tasks.defaults import default_lr, with_model_defaults, with_unset
from triform.text.bpe import MIN_AUTO_VOCAB
from triform.world import current_world

FLOPS_PER_SECOND = 150e9  # of two cores that train a small model
STEP_FLOPS = 5e8  # operations that take as long as a step does besides its matrix products
MUON_FLOPS = 25  # of an update, for each weight of a block and each unit of the width
MIN_TOKENS_PER_WEIGHT = 1.5  # of the blocks; with fewer tokens within the budget, a smaller model learns more
CHARACTERS_PER_TOKEN = 1_000  # of the training text, for each token of the vocabulary of a language model
MIN_DROPOUT_EPOCHS = 3  # with fewer epochs, a language model does not overfit and needs no dropout
N_VALIDATIONS = 6  # the first one within a minute, so that a usable model exists early
BATCH_FILL = 0.75  # share of the tokens of a batch of pairs that are not padding
# With sinusoidal positions, which are the same on both sides, a translator finds out sooner which words correspond.
TRANSLATOR_POSITIONS: Settings = {"model.positions": "sinusoidal", "model.scale_embeddings": True}
SLACK = 2.0  # `train.max_minutes` times steps and lowers their number; a fast machine can take more of them


class SizeChoice(NamedTuple):
    """The width, layers and heads of a model."""

    d_model: int
    n_layers: int
    n_heads: int


class TaskBudget(NamedTuple):
    """The budget of a task, and what uses it well."""

    minutes: float  # on two cores
    max_vocab_size: int
    batch_tokens: int
    max_epochs: float
    muon_lr_factor: float  # the best learning rate of Muon, as a multiple of the default
    sizes: tuple[SizeChoice, ...]  # to choose from, the largest first


BUDGETS: dict[TaskName, TaskBudget] = {
    "generate": TaskBudget(
        minutes=5,
        max_vocab_size=2_048,
        batch_tokens=1_024,
        max_epochs=15,
        muon_lr_factor=5,
        sizes=(SizeChoice(512, 6, 8), SizeChoice(256, 6, 4), SizeChoice(192, 4, 6), SizeChoice(128, 4, 4)),
    ),
    "translate": TaskBudget(
        minutes=10,
        max_vocab_size=4_096,
        batch_tokens=2_048,
        max_epochs=20,
        muon_lr_factor=2,
        sizes=(SizeChoice(512, 6, 8), SizeChoice(256, 4, 4), SizeChoice(128, 2, 4)),
    ),
}


@dataclass(frozen=True)
class CpuBudget:
    """The budget of a training run on a CPU.

    Args:
        user_settings: The names of the settings that the user has given.
    """

    user_settings: Collection[str]

    @classmethod
    def choose(cls, config: Config, user_settings: Collection[str], device_type: str) -> CpuBudget | None:
        """Return the budget of a run; None if its length does not depend on one."""
        train = config.train
        has_length = bool(train.max_steps or train.epochs)
        is_plain = train.objective == "auto" and not (train.init_from or train.distill_from)
        is_plain = is_plain and not config.model.is_recurrent
        if device_type != "cpu" or config.task not in BUDGETS or has_length or not is_plain:
            return None
        return cls(user_settings)

    def choose_vocabulary(self, config: Config, n_characters: int) -> Config:
        """Return settings with a small automatic vocabulary: the output layer costs as much as several others."""
        max_vocab_size = BUDGETS[config.task].max_vocab_size
        if config.task == "generate":
            max_vocab_size = max(MIN_AUTO_VOCAB, min(max_vocab_size, n_characters // CHARACTERS_PER_TOKEN))
        return with_unset(config, {"tokenizer.max_vocab_size": max_vocab_size}, self.user_settings)

    def resolve(self, config: Config, n_tokens: int, n_rows: int) -> tuple[Config, str]:
        """Choose the size of the model, the batches, the optimizer and the number of steps.

        Args:
            config: The settings, with those that the data determines.
            n_tokens: The number of training tokens.
            n_rows: The number of texts that they form; for translate, of sources and targets.

        Returns:
            The settings, and a notice that says what was chosen.
        """
        budget, train = BUDGETS[config.task], config.train
        is_alone = current_world().size == 1 and train.parallel != "fsdp"  # Muon needs whole matrices
        if is_alone:
            config = with_unset(config, {"train.optimizer": "muon"}, self.user_settings)
        keeps_positions = "model.positions" in self.user_settings or config.model.d_model % 2
        if config.task == "translate" and not keeps_positions:
            config = with_unset(config, TRANSLATOR_POSITIONS, self.user_settings)
        if not train.batch_size and not train.batch_tokens:
            config = build_config(_batch_settings(config, budget.batch_tokens), config)
        flops = 60 * (train.max_minutes or budget.minutes) * FLOPS_PER_SECOND
        mean_length = (
            max(1, n_tokens // n_rows) if config.task == "translate" else config.data.longest_training_example
        )
        plan = _choose_plan(config, n_tokens, mean_length, flops)
        max_steps = max(1, round(budget.max_epochs * plan.steps_per_epoch))
        steps = min(max_steps, plan.count_steps(flops))
        settings: Settings = {"train.max_steps": steps}
        if train.max_minutes:  # steps are timed later, and their number is lowered to what fits
            settings["train.max_steps"] = min(max_steps, plan.count_steps(SLACK * flops))
        elif not train.eval_every:
            settings["train.eval_every"] = -(-steps // N_VALIDATIONS)
        if config.train.optimizer == "muon" and not train.lr:
            settings["train.lr"] = budget.muon_lr_factor * default_lr(plan.config.model.d_model)
        config = build_config(settings, plan.config)
        if (
            config.task == "generate"
            and config.model.head_dim % 2 == 0
            and config.model.attention_score != "additive"
        ):
            config = with_unset(config, {"model.positions": "rotary"}, self.user_settings)
        if config.task == "generate" and steps < MIN_DROPOUT_EPOCHS * plan.steps_per_epoch and not train.r_drop:
            config = with_unset(config, {"model.dropout": 0.0}, self.user_settings)
        return config, plan.describe(steps, is_limited=steps < max_steps)


@dataclass(frozen=True)
class Plan:
    """The costs of training a model of one size."""

    config: Config  # with the size of the model
    n_block_weights: int
    step_flops: float
    step_tokens: int  # without padding; for translate, of both sides
    steps_per_epoch: float

    @classmethod
    def estimate(cls, config: Config, n_tokens: int, mean_length: int) -> Plan:
        """Estimate the costs for settings with the size of the model."""
        model, train = config.model, config.train
        vocab_size = config.tokenizer.vocab_size or config.tokenizer.max_vocab_size  # two vocabularies: at most
        sizes = DataSizes(vocab_size=vocab_size, max_len=config.data.max_len)
        n_sides = 2 if config.task == "translate" else 1
        step_tokens = n_sides * (train.batch_tokens or train.batch_size * mean_length) * train.grad_accumulation
        block_weights = model.d_model * (4 * model.d_model + 2 * model.d_ff)
        cross_attn_weights = 4 * model.d_model**2 if config.task == "translate" else 0
        n_block_weights = model.n_layers * (n_sides * block_weights + cross_attn_weights)
        step_flops = STEP_FLOPS + step_tokens * training_flops_per_token(config, sizes, mean_length)
        if train.optimizer == "muon":
            step_flops += MUON_FLOPS * model.d_model * n_block_weights
        if config.task == "translate":
            step_tokens = round(BATCH_FILL * step_tokens)
        return cls(config, n_block_weights, step_flops, step_tokens, max(1.0, n_tokens / step_tokens))

    def count_steps(self, flops: float) -> int:
        """Return the number of steps that a number of operations allows."""
        return max(1, int(flops / self.step_flops))

    def is_small_enough(self, flops: float) -> bool:
        """Return whether the model sees enough text within a number of operations."""
        return self.count_steps(flops) * self.step_tokens >= MIN_TOKENS_PER_WEIGHT * self.n_block_weights

    def describe(self, steps: int, *, is_limited: bool) -> str:
        """Return what was chosen and how to train for longer."""
        model, minutes = self.config.model, self.config.train.max_minutes
        size = f"{model.n_layers} layer{'s' * (model.n_layers > 1)} of width {model.d_model}"
        if minutes:
            return f"chosen for {minutes:g} minutes on a CPU: {size}"
        duration = format_duration(steps * self.step_flops / FLOPS_PER_SECOND)
        length = (
            f"{steps} steps ({round(steps / self.steps_per_epoch, 1):,g} epochs), about {duration} on two cores"
        )
        longer = "; --set train.max_minutes=30 trains a larger model for longer" if is_limited else ""
        return f"chosen for a CPU: {size}, {length}{longer}"


def _choose_plan(config: Config, n_tokens: int, mean_length: int, flops: float) -> Plan:
    """Return the plan of the largest model that sees enough text. Sizes that the user has set are kept."""
    model = config.model
    choices = [
        size
        for size in BUDGETS[config.task].sizes
        if size.n_heads % (model.n_kv_heads or 1) == 0 and size.n_layers % (len(model.layer_windows) or 1) == 0
    ]
    for size in () if model.d_model or model.n_layers or model.n_heads else choices:
        settings: Settings = {f"model.{name}": value for name, value in size._asdict().items()}
        sized = with_model_defaults(build_config(settings, config), n_tokens)
        plan = Plan.estimate(sized, n_tokens, mean_length)
        if plan.is_small_enough(flops) or size == choices[-1]:
            return plan
    return Plan.estimate(with_model_defaults(config, n_tokens), n_tokens, mean_length)


def _batch_settings(config: Config, batch_tokens: int) -> Settings:
    if config.task == "generate":  # all windows have the same length
        return {"train.batch_size": max(1, batch_tokens // config.data.longest_training_example)}
    return {"train.batch_tokens": batch_tokens}
