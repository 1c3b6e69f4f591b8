"""Options that are short for `--set`, such as `--lr`, and a decorator that adds them to a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, NamedTuple

import typer

from triform.errors import ConfigError


class Shorthand(NamedTuple):
    """The setting that an option stands for, and how the option is shown in the help."""

    setting: str
    metavar: str
    help: str


SHORTHANDS = {
    "--epochs": Shorthand("train.epochs", "N", "Train for N passes over the training data."),
    "--max-steps": Shorthand("train.max_steps", "N", "Train for N optimization steps."),
    "--lr": Shorthand("train.lr", "RATE", "Use this peak learning rate."),
    "--batch-size": Shorthand("train.batch_size", "N", "Put N examples into each batch."),
    "--text-column": Shorthand(
        "data.text_column", "NAME", "Read texts from this column of a table: a name, or a number counted from 1."
    ),
    "--label-column": Shorthand(
        "data.label_column", "NAME", "Read labels from this column of a table: a name, or a number counted from 1."
    ),
    "--temperature": Shorthand(
        "decode.temperature", "T", "Sample at this temperature; lower values give likelier text."
    ),
    "--top-k": Shorthand("decode.top_k", "K", "Sample from the K most likely tokens only."),
    "--top-p": Shorthand(
        "decode.top_p", "P", "Sample from the most likely tokens only, up to a total probability of P."
    ),
    "--beam-size": Shorthand("decode.beam_size", "N", "Search with N beams."),
    "--max-new-tokens": Shorthand("decode.max_new_tokens", "N", "Write at most N tokens."),
}


def with_shorthands(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options of `SHORTHANDS` to a command, before its `--set`, and hand their values to it through `set_`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**arguments: Any) -> None:
            values = {option: arguments.pop(_parameter_name(option)) for option in names}
            arguments["set_"] = merge_shorthands(arguments["set_"], values)
            command(**arguments)

        new_parameters = [
            inspect.Parameter(
                _parameter_name(option),
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    str | None,
                    typer.Option(option, metavar=SHORTHANDS[option].metavar, help=SHORTHANDS[option].help),
                ],
            )
            for option in names
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
    """The assignments of `--set`, and those that the options stand for.

    Raises:
        ConfigError: If an option and a `--set` give one setting different values.
    """
    from triform.config.settings import coerce_setting, parse_assignments

    merged_assignments = list(assignments or [])
    settings = parse_assignments(merged_assignments) if any(value is not None for value in values.values()) else {}
    for option, value in values.items():
        if value is None:
            continue
        name = SHORTHANDS[option].setting
        try:
            typed_value = coerce_setting(name, value.strip())
        except ConfigError as error:
            raise ConfigError(f"{option} {value}: {error}") from None
        validate_agreement(option, typed_value, name, settings)
        merged_assignments.append(f"{name}={value}")
    return merged_assignments


def validate_agreement(option: str, value: object, name: str, settings: Mapping[str, object]) -> None:
    """A ConfigError where an option and `--set` give a setting different values."""
    if name in settings and settings[name] != value:
        raise ConfigError(
            f"{option} {value} and --set {name}={settings[name]} are different values of one setting: "
            "give one of them"
        )


def _parameter_name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
