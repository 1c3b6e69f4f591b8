"""All settings, as frozen dataclasses that validate their values.

Some settings have a default that stands for an automatic choice: 0, "auto", or -1 where 0 has a meaning. Most of
them are chosen from the size of the data when training starts, and the config.toml of the run has the chosen value.
The decoding strategy and the precision are chosen when they are used: they depend on the task and the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from triform.config.bounds import validate_bounds
from triform.config.combinations import validate_combinations
from triform.config.decode import DecodeConfig, DecodingStrategy, MixComponent
from triform.config.documentation import setting
from triform.config.model import (
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
    ScaleKind,
    ScoreKind,
)
from triform.config.train import (
    LoraLayers,
    ObjectiveKind,
    OptimizerKind,
    ScheduleKind,
    TrainConfig,
    TrainPrecision,
)
from triform.config.validation import AutoBool, Section, require

__all__ = [
    "TASK_NAMES",
    "TRAIN_SET",
    "ActivationKind",
    "AttentionDirection",
    "AutoBool",
    "Config",
    "DataConfig",
    "DataSizes",
    "DecodeConfig",
    "DecodingStrategy",
    "DelimiterKind",
    "HeadActivation",
    "LoraLayers",
    "MixComponent",
    "ModelConfig",
    "ModelKind",
    "NormKind",
    "NormPosition",
    "ObjectiveKind",
    "OptimizerKind",
    "PoolingKind",
    "PositionKind",
    "RecurrentKind",
    "ScaleKind",
    "ScheduleKind",
    "ScoreKind",
    "TaskName",
    "TokenizerConfig",
    "TokenizerKind",
    "TrainConfig",
    "TrainPrecision",
]

TaskName = Literal["classify", "generate", "translate"]
TokenizerKind = Literal["auto", "char", "word", "bpe", "wordpiece", "imported"]
DelimiterKind = Literal["auto", "comma", "semicolon", "tab", "pipe"]
TRAIN_SET = "train"  # the name of the training set among the sets that are evaluated during training
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    """Which files are read, how their columns are named, and what is held out for validation."""

    train: str = setting(
        "",
        "The training file, builtin:NAME for a built-in dataset, or a folder of token shards.",
        auto="The built-in dataset of the task.",
        details="The option --data sets it. For translate, SOURCE,TARGET names two aligned files.",
    )
    extra: tuple[str, ...] = setting(
        (),
        "Further training files, which are read after data.train.",
        applies_to="classify and translate",
        details="The option --extra-data sets it. Nothing of them is held out for validation.",
    )
    extra_tag: str = setting(
        "",
        "A word that is put before each source of data.extra, so that the model can tell these pairs from others.",
        applies_to="translate with data.extra",
        details="A typical value is <BT>, for pairs from back-translation (Caswell et al., 2019).",
    )
    valid: str = setting(
        "",
        "The validation file.",
        auto="A part of the training file (data.valid_fraction). Built-in sets have a validation split.",
        details="The option --valid sets it. For translate, SOURCE,TARGET names two aligned files. Its metrics "
        "select the best weights.",
    )
    valid_name: str = setting(
        "valid", "The name of the validation set in tables and curves.", details="--valid NAME=FILE sets it."
    )
    monitor: tuple[str, ...] = setting(
        (),
        "Further sets that are evaluated with the validation set, each as NAME=FILE.",
        details="The second --valid NAME=FILE and those after it set it. They do not affect training.",
    )
    source: str = setting(
        "",
        "A file with one source sentence per line.",
        applies_to="translate",
        details="The option --source sets it. It needs data.target, and replaces data.train.",
    )
    target: str = setting(
        "",
        "A file with the translation of each line of data.source.",
        applies_to="translate",
        details="The option --target sets it.",
    )
    valid_source: str = setting("", "The source sentences of the validation set.", applies_to="translate")
    valid_target: str = setting("", "The translations of data.valid_source.", applies_to="translate")
    text_column: str = setting(
        "",
        "The column that contains the texts: a name, or a number counted from 1.",
        auto="Found by its name or its content.",
        applies_to="classify and generate, with tables",
    )
    label_column: str = setting(
        "",
        "The column that contains the labels: a name, or a number counted from 1.",
        auto="Found by its name or its content.",
        applies_to="classify, with tables",
    )
    source_column: str = setting(
        "",
        "The column that contains the source sentences: a name, or a number counted from 1.",
        auto="Found by its name, or else the first column.",
        applies_to="translate, with tables",
    )
    target_column: str = setting(
        "",
        "The column that contains the translations: a name, or a number counted from 1.",
        auto="Found by its name, or else the second column.",
        applies_to="translate, with tables",
    )
    header: AutoBool = setting(
        "auto",
        "Whether the first row of a table contains the names of its columns.",
        auto="Found by looking at the first rows.",
        applies_to=".csv and .tsv files",
    )
    delimiter: DelimiterKind = setting(
        "auto",
        "The character between the columns of a .csv file.",
        auto="The one that gives the first rows the same number of columns.",
        applies_to=".csv files",
    )
    labels: tuple[str, ...] = setting(
        (),
        "The labels, in the order of the outputs.",
        auto="Those of the training file, sorted.",
        applies_to="classify",
    )
    valid_fraction: float = setting(
        0.1,
        "The fraction of the training file that is held out for validation.",
        applies_to="training without a validation file",
        details="With 0, nothing is held out and the last weights are kept.",
    )
    max_len: int = setting(
        0,
        "The largest number of tokens that the model reads at once; longer texts are cut.",
        auto="For classify and pretraining, the length of the longest training text; if that is above 256, the "
        "length that 95 % of the texts do not exceed, at most 1,024 (pretraining: 512). For generate, 128, or a "
        "quarter of the training tokens if that is less. For translate, the length of the longest sentence plus "
        "8, at most 256.",
    )
    train_max_len: int = setting(
        0,
        "The largest number of tokens of a training example, to train on shorter texts than the model can read.",
        auto="data.max_len.",
        details="In generate, training reads windows of this length. In classify and translate, longer training "
        "examples are left out. Validation and evaluation read up to data.max_len tokens.",
    )

    def __post_init__(self, given: frozenset[str] | None) -> None:
        validate_bounds(self, "data")
        require(self.max_len != 1, "data.max_len=1 is too small; it must be at least 2")
        require(self.train_max_len != 1, "data.train_max_len=1 is too small; it must be at least 2")
        require(
            not self.max_len or self.train_max_len <= self.max_len,
            f"data.train_max_len={self.train_max_len} must be at most data.max_len={self.max_len}; "
            "raise data.max_len",
        )
        for first, second in (("source", "target"), ("valid_source", "valid_target")):
            require(
                bool(getattr(self, first)) == bool(getattr(self, second)),
                f"data.{first} and data.{second} must be given together",
            )
        names = [TRAIN_SET, self.valid_name, *(name for name, _ in self.monitored_files)]
        require(
            self.valid_name != TRAIN_SET,
            f"data.valid_name={TRAIN_SET!r} is the name of the training examples (train.eval_train); "
            "choose another name for the validation data",
        )
        require(bool(self.valid_name), "data.valid_name is empty; give the validation data a name, such as 'valid'")
        for entry in self.monitor:
            name, _, file = entry.partition("=")
            require(bool(name and file), f"data.monitor={entry!r} must be NAME=FILE")
            require(names.count(name) == 1, f"data.monitor: two sets are named {name!r}; give each another name")

    @property
    def longest_training_example(self) -> int:
        """The largest number of tokens of a training example."""
        return self.train_max_len or self.max_len

    @property
    def monitored_files(self) -> list[tuple[str, str]]:
        """The name and the file of every set of `monitor`."""
        pairs = (entry.partition("=") for entry in self.monitor)
        return [(name, file) for name, _, file in pairs]


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Section):
    """How text is split into tokens. A tokenizer is trained on the training text unless you give a file."""

    kind: TokenizerKind = setting(
        "auto",
        "The kind of tokenizer: characters, words, byte-level BPE, WordPiece, or one from another library.",
        auto="For classify, `word` below 3 million characters of training text, or up to 30 million without a "
        "size of the model (see train.max_steps), else `bpe`. For generate, `char` below 50,000 characters, else "
        "`bpe`. For translate, `bpe`.",
        details="`wordpiece` normalises and splits text as BERT does. `imported` needs tokenizer.file.",
    )
    vocab_size: int = setting(
        0,
        "The number of tokens in the vocabulary.",
        auto="For `bpe` and `wordpiece`, the number of characters of training text divided by 200, between 512 and "
        "tokenizer.max_vocab_size. For `word` and `char`, everything that occurs in the training text.",
    )
    max_vocab_size: int = setting(
        16_384,
        "The largest vocabulary that is chosen automatically.",
        applies_to="tokenizer.kind=bpe or wordpiece, without tokenizer.vocab_size",
        details="Within the budget of a CPU (train.max_steps), generate uses a thousandth of the number of "
        "characters of training text, between 512 and 2,048, and translate 4,096.",
    )
    min_count: int = setting(
        1,
        "How often a word must occur in the training text to get into the vocabulary.",
        applies_to="tokenizer.kind=word",
        details="Rarer words become `<unk>`.",
    )
    lowercase: bool = setting(
        False,
        "Whether text is converted to lower case.",
        details="`wordpiece` also removes accents then, as BERT does.",
    )
    joint_vocab: bool = setting(True, "Whether both languages share one vocabulary.", applies_to="translate")
    bpe_dropout: float = setting(
        0.0,
        "The fraction of BPE merges that are skipped at random in training text.",
        applies_to="classify and translate with tokenizer.kind=bpe",
    )
    file: str = setting(
        "",
        "A tokenizer file, or a folder with one, that is used instead of training a tokenizer.",
        details="Files of Triform, tokenizers, tiktoken and SentencePiece are supported.",
    )

    def __post_init__(self, given: frozenset[str] | None) -> None:
        validate_bounds(self, "tokenizer")


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """All settings of a run. They are immutable and validated together.

    Example:
        >>> from triform import Config
        >>> from triform.config import ModelConfig
        >>> config = Config(task="generate", seed=1, model=ModelConfig(d_model=64))
        >>> config.model.d_model
        64
    """

    task: TaskName = setting(
        "classify", "The task of the model.", details="The first argument of triform train sets it."
    )
    seed: int = setting(
        0, "The random seed for initialisation, shuffling and dropout.", details="The option --seed sets it."
    )
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def __post_init__(self, given: frozenset[str] | None) -> None:
        validate_bounds(self)
        validate_combinations(self)

    @property
    def predicts_labels(self) -> bool:
        """Whether the model is a classifier, and not an encoder that is only pretrained."""
        return self.task == "classify" and self.train.objective == "auto"


@dataclass(frozen=True, kw_only=True)
class DataSizes:
    """The sizes of the data that a model is built for."""

    vocab_size: int
    max_len: int
    n_labels: int = 0
    target_vocab_size: int = 0  # 0: source and target share one vocabulary
