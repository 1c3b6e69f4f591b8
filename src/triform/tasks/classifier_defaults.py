"""Defaults for classifiers: one layer with strong regularisation, a linear part, and enough steps for small data.

Labelled data is mostly small, and a deeper model overfits it or takes too few steps. A user who sets the size of
the model or the length of training has chosen another model, and nothing here applies then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from triform.config import Config
from triform.config.settings import Settings
from triform.tasks.defaults import MILLION, with_unset

MAX_TOKENS = 50 * MILLION  # with more text, a deeper model learns more
CHOICES_OF_THE_USER = (
    *("model.d_model", "model.n_layers", "model.n_heads", "model.layer_windows"),
    *("train.max_steps", "train.epochs"),
)
# A user who sets one of these wants several validations.
SELECTION_SETTINGS = ("data.valid", "train.patience", "train.schedule")
R_DROP = 3.0  # for fewer rows than MIN_SELECTION_ROWS
R_DROP_ALTERNATIVES = (
    "model.dropout",
    "train.simcut",
)  # R-Drop needs dropout, and is not combined
MIN_STEPS = 300  # small data is read again and again
MIN_TERM_BUCKETS, MAX_TERM_BUCKETS = 2**12, 2**20
MAX_WORD_CHARACTERS = 30 * MILLION  # with more text, the vocabulary of words has a large part of the weights
MAX_RARE_WORD_CHARACTERS = 3 * MILLION  # with more text, words that occur once are left out
MAX_TERM_WEIGHTS = 2**22  # buckets × labels: 16 MB
MAX_LINEAR_WORK = 30 * MILLION  # tokens × labels; fitting the linear part takes minutes with more
MIN_SELECTION_ROWS = 2_000  # a tenth of fewer rows is too little to choose between the weights of several steps


@dataclass(frozen=True)
class ClassifierDefaults:
    """The default settings of a classifier.

    Args:
        user_settings: The names of the settings that the user has given.
    """

    user_settings: Collection[str]

    @classmethod
    def choose(cls, config: Config, user_settings: Collection[str]) -> ClassifierDefaults | None:
        """Return the defaults for a run; None if the user has chosen a model or the length of training."""
        has_other_start = bool(config.train.init_from or config.train.embeddings or config.train.distill_from)
        defaults, is_recurrent = cls(user_settings), config.model.is_recurrent
        has_custom_model = has_other_start or is_recurrent or defaults._gives_one_of(CHOICES_OF_THE_USER)
        return defaults if config.predicts_labels and not has_custom_model else None

    def choose_vocabulary(self, config: Config, n_characters: int) -> Config:
        """Choose words in lower case, because few examples are not enough to learn them twice.

        The vocabulary has the words of the held-out texts too if the linear part will be fitted to them.

        Args:
            config: The settings, with a kind of tokenizer.
            n_characters: The number of characters of the training texts.
        """
        if n_characters > MAX_WORD_CHARACTERS:
            return config
        settings: Settings = {"train.refit_linear_part": self._can_refit(config)}
        if not (self._gives_one_of(("tokenizer.kind", "tokenizer.bpe_dropout")) or config.tokenizer.file):
            settings |= {"tokenizer.kind": "word", "tokenizer.lowercase": True}
            if n_characters > MAX_RARE_WORD_CHARACTERS:
                settings["tokenizer.min_count"] = 2
        return with_unset(config, settings, self.user_settings)

    def resolve(self, config: Config, n_tokens: int, n_rows: int) -> tuple[Config, str]:
        """Choose the model, its regularisation, the batches and the number of steps.

        Args:
            config: The settings, with those that the data determines.
            n_tokens: The number of training tokens.
            n_rows: The number of texts that they form.

        Returns:
            The settings, and a notice that says what was chosen.
        """
        if n_tokens > MAX_TOKENS:
            return with_unset(config, {"train.refit_linear_part": False}, self.user_settings), ""
        has_term_buckets = "model.term_buckets" in self.user_settings
        n_buckets = config.model.term_buckets if has_term_buckets else choose_term_buckets(config, n_tokens)
        train, batch_size = config.train, 32 if n_rows < 10_000 else 64
        step_rows = train.batch_size or train.batch_tokens * n_rows // n_tokens or batch_size
        steps_per_epoch = n_rows / (step_rows * train.grad_accumulation)
        n_steps = max(MIN_STEPS, round((8 if n_tokens < MILLION else 4) * steps_per_epoch))
        settings: Settings = {
            "model.d_model": 64,
            "model.n_layers": 1,
            "model.n_heads": 4,
            "model.d_ff": 64,
            "model.dropout": 0.5,
            "train.lr": 5e-3,
            "train.weight_decay": 0.1,
            "train.label_smoothing": 0.1,
            "train.max_steps": n_steps,
            "model.term_buckets": n_buckets,
            "train.refit_linear_part": train.refit_linear_part and n_buckets > 0,
        }
        if n_rows < MIN_SELECTION_ROWS and not self._gives_one_of(SELECTION_SETTINGS):
            settings["train.eval_every"] = n_steps
        if n_rows < MIN_SELECTION_ROWS and not self._gives_one_of(R_DROP_ALTERNATIVES):
            settings["train.r_drop"] = R_DROP
        if "train.batch_tokens" not in self.user_settings:
            settings["train.batch_size"] = batch_size
        config = with_unset(config, settings, self.user_settings)
        is_refitted = config.model.term_buckets and config.train.refit_linear_part
        length = f"{n_steps} steps ({round(n_steps / steps_per_epoch, 1):,g} epochs)"
        return (
            config,
            f"chosen for {n_rows:,} texts: 1 layer of width 64, dropout {config.model.dropout:g}, {length}"
            + (", and a linear part (model.term_buckets)" if config.model.term_buckets else "")
            + (", which is refitted on all texts after training" if is_refitted else ""),
        )

    def _can_refit(self, config: Config) -> bool:
        """Return whether texts are held out of the training file, and the model can have a linear part."""
        disables_linear_part = "model.term_buckets" in self.user_settings and not config.model.term_buckets
        holds_out = not config.data.valid and config.data.valid_fraction > 0
        return holds_out and not disables_linear_part and config.train.parallel != "fsdp"

    def _gives_one_of(self, names: Collection[str]) -> bool:
        return any(name in self.user_settings for name in names)


def choose_term_buckets(config: Config, n_tokens: int) -> int:
    """Return a power of two, about twice the number of training tokens; 0 if there is no linear part."""
    n_labels = max(2, len(config.data.labels))
    if n_tokens * n_labels > MAX_LINEAR_WORK or config.train.parallel == "fsdp":
        return 0
    n_buckets = min(max(MIN_TERM_BUCKETS, 2 * n_tokens), MAX_TERM_BUCKETS, MAX_TERM_WEIGHTS // n_labels)
    return 1 << (n_buckets.bit_length() - 1)
