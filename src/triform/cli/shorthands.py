"""The option `--set`: which settings a command accepts, and options that stand for one, such as `--lr`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from triform.cli.help import DATA, GENERATION, TRAINING, option
from triform.errors import ConfigError

if TYPE_CHECKING:
    from triform.config.settings import Settings, SettingValue


class Shorthand(NamedTuple):
    """The setting that an option stands for, and how the help shows the option."""

    setting: str
    group: str
    metavar: str
    help: str
    values: tuple[str, ...] = ()  # that are offered as completions


SHORTHANDS = {
    "--epochs": Shorthand("train.epochs", TRAINING, "N", "Number of passes over the training data."),
    "--max-steps": Shorthand("train.max_steps", TRAINING, "N", "Number of optimizer steps."),
    "--lr": Shorthand("train.lr", TRAINING, "RATE", "Peak learning rate."),
    "--batch-size": Shorthand("train.batch_size", TRAINING, "N", "Number of examples in a batch."),
    "--text-column": Shorthand(
        "data.text_column", DATA, "NAME", "Column with the texts: its name, or its number starting at 1."
    ),
    "--label-column": Shorthand(
        "data.label_column", DATA, "NAME", "Column with the labels: its name, or its number starting at 1."
    ),
    "--temperature": Shorthand(
        "decode.temperature", GENERATION, "T", "Sampling temperature. Lower values give more predictable text."
    ),
    "--top-k": Shorthand("decode.top_k", GENERATION, "K", "Sample only from the K most likely tokens."),
    "--top-p": Shorthand(
        "decode.top_p", GENERATION, "P", "Sample only from the smallest set of tokens with total probability P."
    ),
    "--beam-size": Shorthand("decode.beam_size", GENERATION, "N", "Number of beams in beam search."),
    "--max-new-tokens": Shorthand(
        "decode.max_new_tokens", GENERATION, "N", "Maximum number of tokens to generate for each text."
    ),
    "--mix": Shorthand(
        "decode.mix",
        GENERATION,
        "NAME[,NAME]",
        "For generate: mix the probabilities of the model with those of ngram (an n-gram model of the training "
        "data), cache (a unigram model of the 500 tokens before), or both. The weights are learned on validation "
        "data.",
        ("ngram", "cache", "ngram,cache"),
    ),
}
# The settings of `predict --set` that say how a table is read; the others are decode.*.
TABLE_SETTINGS = ("data.text_column", "data.source_column", "data.header", "data.delimiter")
# Settings that --set changes in a command; those that are not listed take all settings or have no --set.
SETTABLE = {
    "predict": ("decode.", *TABLE_SETTINGS),
    "evaluate": ("decode.",),
    "audit": ("data.", "decode."),
}
TextColumnOption = Annotated[str, option(DATA, "NAME", SHORTHANDS["--text-column"].help)]


def with_shorthands(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options of `SHORTHANDS` to a command. The command receives their values through its parameter `set_`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**arguments: Any) -> None:
            values = {option_name: arguments.pop(_parameter_name(option_name)) for option_name in names}
            arguments["set_"] = merge_shorthands(arguments["set_"], values)
            command(**arguments)

        new_parameters = [
            inspect.Parameter(
                _parameter_name(option_name),
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[str | None, _declare_option(option_name)],
            )
            for option_name in names
        ]
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
        ]
        set_index = [parameter.name for parameter in parameters].index("set_")
        run.__signature__ = inspect.Signature([*parameters[:set_index], *new_parameters, *parameters[set_index:]])  # type: ignore[attr-defined]
        return run

    return decorate


def merge_shorthands(assignments: list[str] | None, values: Mapping[str, str | None]) -> list[str]:
    """Return the assignments of `--set` together with those that the options stand for.

    Raises:
        ConfigError: An option and a `--set` give one setting different values, or a value has the wrong type.
    """
    from triform.config.settings import coerce_setting, parse_assignments

    merged_assignments = list(assignments or [])
    settings = parse_assignments(merged_assignments) if any(value is not None for value in values.values()) else {}
    for option_name, value in values.items():
        if value is None:
            continue
        name = SHORTHANDS[option_name].setting
        try:
            typed_value = coerce_setting(name, value.strip())
        except ConfigError as error:
            raise ConfigError(f"{option_name} {value}: {error}") from None
        validate_agreement(option_name, typed_value, name, settings)
        merged_assignments.append(f"{name}={value}")
    return merged_assignments


def validate_agreement(option_name: str, value: SettingValue, name: str, settings: Settings) -> None:
    """Raise a ConfigError if an option and `--set` give a setting different values."""
    from triform.config.settings import format_setting

    if name in settings and settings[name] != value:
        first, second = format_setting(value), format_setting(settings[name])
        raise ConfigError(
            f"{option_name} {first} and --set {name}={second} give the same setting different values; "
            "use only one of them"
        )


def _declare_option(option_name: str) -> Any:
    _, group, metavar, help_text, values = SHORTHANDS[option_name]

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return option(group, metavar, help_text, name=option_name, complete=complete if values else None)


def _parameter_name(option_name: str) -> str:
    return option_name.removeprefix("--").replace("-", "_")
