"""The arguments that name a model (a run folder, a preset or a settings file), and the settings they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from triform.cli.completion import complete_preset, complete_run, complete_task
from triform.cli.help import SETTINGS, argument, option
from triform.errors import ConfigError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.config import Config, DataSizes
    from triform.config.settings import Settings

OptionalRunArgument = Annotated[
    Path | None,
    argument(
        "RUN",
        "Run folder. Use --preset or --config instead for a model that is not trained.",
        complete=complete_run,
    ),
]
PresetOption = Annotated[
    str,
    option(
        SETTINGS,
        "NAME",
        "Use the settings of a preset, for example small or transformer-base.",
        complete=complete_preset,
    ),
]
ConfigOption = Annotated[Path | None, option(SETTINGS, "FILE", "Read settings from a TOML file.")]
TaskOption = Annotated[
    str,
    option(
        SETTINGS,
        "TASK",
        "Task: classify, generate or translate. Needed if the settings do not name it.",
        complete=complete_task,
        name="--task",
    ),
]
VocabSizeOption = Annotated[int, option(SETTINGS, "N", "Number of tokens in the vocabulary.", show_default=False)]
MaxLenOption = Annotated[int, option(SETTINGS, "N", "Maximum length of a text in tokens.", show_default=False)]
LabelsOption = Annotated[int, option(SETTINGS, "N", "For classify: number of labels.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The arguments and options by which a command names a model."""

    run: Path | None
    preset: str
    config: Path | None
    task: str
    settings: Settings
    labels: int
    no_verify: bool = False

    def __post_init__(self) -> None:
        if sum(map(bool, (self.run, self.preset, self.config))) != 1:
            raise ConfigError("name a model with exactly one of RUN, --preset NAME and --config FILE")

    @property
    def name(self) -> str:
        return str(self.run or self.preset or self.config)


def resolve_model(arguments: ModelArguments) -> tuple[Config, DataSizes]:
    """Return the complete settings and sizes. Without a run, sizes that depend on the data come from options."""
    from triform.analysis.parameters import validate_sizes
    from triform.config import DataSizes
    from triform.config.settings import build_config

    config = _resolve_config(arguments)
    known_sizes = _resolve_known_sizes(arguments, config)
    sizes = DataSizes(
        vocab_size=known_sizes.vocab_size,
        max_len=config.data.max_len or known_sizes.max_len,
        n_labels=arguments.labels or len(config.data.labels) or known_sizes.n_labels,
        target_vocab_size=known_sizes.target_vocab_size,
    )
    model = config.model
    if not model.d_ff and model.d_model and model.n_layers and model.n_heads and sizes.max_len:
        from triform.tasks.defaults import resolve_defaults

        d_ff = resolve_defaults(config, 0, {"data.max_len": sizes.max_len}).model.d_ff
        config = build_config({"model.d_ff": d_ff}, config)
    validate_sizes(config, sizes)
    if config.predicts_labels and sizes.n_labels < 2:
        raise ConfigError(f"--labels {sizes.n_labels}: a classifier needs at least two labels")
    for note in config.model.window_notices(sizes.max_len):
        echo(f"note: {note}", err=True)
    return config, sizes


def _resolve_config(arguments: ModelArguments) -> Config:
    from triform.config.presets import SIZE_PRESETS
    from triform.config.presets import preset as named
    from triform.config.settings import build_config, coerce_setting, flatten_config, merge_settings, read_settings

    task: Any = coerce_setting("task", arguments.task) if arguments.task else None
    if arguments.preset:
        if arguments.preset in SIZE_PRESETS and not task:
            raise ConfigError(
                f"preset {arguments.preset!r} fits any task; add --task classify, generate or translate"
            )
        kind: Any = arguments.settings.get("model.kind", "transformer")
        base = flatten_config(named(arguments.preset, task, kind))
    elif arguments.config:
        base = read_settings(arguments.config)
        if "task" not in base and not task:
            raise ConfigError(
                f"{arguments.config}: the task is missing; add --task classify, generate or translate"
            )
        base.setdefault("task", task)
    else:
        from triform.training.run_folder import RunFolder

        assert arguments.run
        folder = RunFolder(arguments.run, verify=not arguments.no_verify)
        folder.verify_files()
        base = flatten_config(folder.read_config())
    if task and base["task"] != task:
        raise ConfigError(f"{arguments.name} is for {base['task']}, not {task}; leave out --task")
    return build_config(merge_settings(base, arguments.settings))


def _resolve_known_sizes(arguments: ModelArguments, config: Config) -> DataSizes:
    """Return the sizes given as options, else those of the run, the settings or the preset, in this order."""
    from triform.config import DataSizes
    from triform.config.presets import REPORTED_SIZES

    unknown_sizes = DataSizes(vocab_size=0, max_len=0)
    reported = REPORTED_SIZES.get(arguments.preset, unknown_sizes)
    has_two_vocabularies = config.task == "translate" and not config.tokenizer.joint_vocab
    if arguments.run and "tokenizer.vocab_size" not in arguments.settings:
        from triform.text import read_tokenizer

        # With a joint vocabulary, the tokenizers of both sides have the same size.
        source = read_tokenizer(arguments.run, side="source").vocab_size
        target = read_tokenizer(arguments.run, side="target").vocab_size if has_two_vocabularies else 0
        return DataSizes(vocab_size=source, max_len=0, target_vocab_size=target)
    size = config.tokenizer.vocab_size or reported.vocab_size
    return DataSizes(
        vocab_size=size,
        max_len=reported.max_len,
        n_labels=reported.n_labels,
        target_vocab_size=size if has_two_vocabularies else 0,
    )
