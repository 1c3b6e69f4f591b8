"""What a command is asked about: a run folder, a preset or a file of settings, as settings and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triform.errors import ConfigError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.config import Config, Sizes
    from triform.settings import Settings

Subject = Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder; or give --preset or --config.")]
Preset = Annotated[str, typer.Option(help="Named settings, e.g. transformer-base or small.")]
ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
TaskOption = Annotated[str, typer.Option(help="classify, generate or translate, where it is not said.")]
VocabSize = Annotated[int, typer.Option(metavar="N", show_default=False, help="Tokens in the vocabulary.")]
MaxLen = Annotated[int, typer.Option(metavar="N", show_default=False, help="Tokens read at once.")]
Labels = Annotated[int, typer.Option(metavar="N", show_default=False, help="classify: how many labels.")]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says, put together."""

    run: Path | None
    preset: str
    config: Path | None
    task: str
    settings: Settings
    labels: int
    no_verify: bool = False

    def __post_init__(self) -> None:
        if sum(map(bool, (self.run, self.preset, self.config))) != 1:
            raise ConfigError("say which model with exactly one of RUN, --preset NAME and --config FILE")

    @property
    def name(self) -> str:
        return str(self.run or self.preset or self.config)


def settled(asked: Asked) -> tuple[Config, Sizes]:
    """All settings and sizes; what only data could tell must be given."""
    from triform.config import Sizes
    from triform.models.budget import check_sizes
    from triform.settings import build

    config = _config(asked)
    known = _known_sizes(asked, config)
    sizes = Sizes(
        vocab_size=known.vocab_size,
        max_len=config.data.max_len or known.max_len,
        n_labels=asked.labels or len(config.data.labels) or known.n_labels,
        target_vocab_size=known.target_vocab_size,
    )
    model = config.model
    if not model.d_ff and model.d_model and model.n_layers and model.n_heads and sizes.max_len:
        from triform.tasks.defaults import settle

        width = settle(config, 0, {"data.max_len": sizes.max_len}).model.d_ff
        config = build({"model.d_ff": width}, config)
    check_sizes(config, sizes)
    if config.task == "classify" and sizes.n_labels < 2:
        raise ConfigError(f"--labels {sizes.n_labels}: a classifier needs at least two labels")
    for note in config.model.notes(sizes.max_len):
        echo(f"note: {note}", err=True)
    return config, sizes


def _config(asked: Asked) -> Config:
    from triform.presets import BY_SIZE
    from triform.presets import preset as named
    from triform.settings import build, flatten, overlay, read_toml, typed

    task: Any = typed("task", asked.task) if asked.task else None
    if asked.preset:
        if asked.preset in BY_SIZE and not task:
            raise ConfigError(
                f"preset {asked.preset!r} fits any task: say which with --task classify, generate or translate"
            )
        kind: Any = asked.settings.get("model.kind", "transformer")
        base = flatten(named(asked.preset, task, kind))
    elif asked.config:
        base = read_toml(asked.config)
        if "task" not in base and not task:
            raise ConfigError(f"{asked.config}: names no task: say --task classify, generate or translate")
        base.setdefault("task", task)
    else:
        from triform.training.folder import RunFolder

        assert asked.run
        folder = RunFolder(asked.run, verify=not asked.no_verify)
        folder.check()
        base = flatten(folder.read_config())
    if task and base["task"] != task:
        raise ConfigError(f"{asked.name} is for {base['task']}, not {task}: leave --task out")
    return build(overlay(base, asked.settings))


def _known_sizes(asked: Asked, config: Config) -> Sizes:
    """Vocabularies: as asked, else of the run's tokenizers, else of the settings, else as reported for a preset."""
    from triform.config import Sizes
    from triform.presets import REPORTED_SIZES

    none = Sizes(vocab_size=0, max_len=0)
    reported = REPORTED_SIZES.get(asked.preset, none)
    two = config.task == "translate" and not config.tokenizer.shared
    if asked.run and "tokenizer.vocab_size" not in asked.settings:
        from triform.text import read_tokenizer

        # where one vocabulary numbers the pieces of both languages, either side's file says how large it is
        source = read_tokenizer(asked.run, side="source").vocab_size
        target = read_tokenizer(asked.run, side="target").vocab_size if two else 0
        return Sizes(vocab_size=source, max_len=0, target_vocab_size=target)
    size = config.tokenizer.vocab_size or reported.vocab_size
    return Sizes(
        vocab_size=size,
        max_len=reported.max_len,
        n_labels=reported.n_labels,
        target_vocab_size=size if two else 0,
    )
