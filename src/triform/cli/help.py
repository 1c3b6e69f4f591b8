"""What `--help` shows: usage, a summary, examples, and the options in groups.

The help of a command is its docstring: a summary line, further paragraphs, and a block of examples that starts with
the line `Examples:`. The group of an option is its `rich_help_panel`. The text is plain and the same in every
version of typer.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# The headings under which several commands show options.
DATA = "Data"
SETTINGS = "Model and settings"
TRAINING = "Training"
EVALUATION = "Evaluation"
GENERATION = "Text generation"
RUN_FOLDER = "Run folder"
DEVICE = "Device and precision"
OUTPUT = "Output"  # always the last one

EXAMPLES_HEADING = "Examples:"
HELP_OPTION_TEXT = "Show this help and exit."
# What users of other tools write instead of one of our commands.
COMMAND_ALIASES = {
    "version": "--version",
    "classify": "train classify",
    "generate": "train generate",
    "translate": "train translate",
    "fit": "train",
    "finetune": "train",
    "fine-tune": "train",
    "test": "evaluate",
    "score": "evaluate",
    "infer": "predict",
    "run": "predict",
    "import": "convert import",
    "export": "convert export",
    "download": "data get",
    "tokenize": "tokenizer encode",
    "info": "doctor",
}


class HelpLayout:
    """Triform's layout of the help, for commands and for groups of commands."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the summary line, which is never shortened."""
        return summary_line(self)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help` with Triform's description."""
        return _describe_help_option(super().get_help_option(ctx))  # type: ignore[misc]  # of the command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; that of a group has the summary of each of its commands."""
        write_help(self, ctx, formatter)


class HelpCommand(HelpLayout, TyperCommand):
    """A command with Triform's layout of the help."""


class HelpGroup(HelpLayout, TyperGroup):
    """A command that has subcommands, with Triform's layout of the help. Without a subcommand it shows its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the group; no arguments at all mean `--help`."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a subcommand by its name, or fail with the nearest one."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(describe_unknown_command(ctx.command_path, self.commands, args))
        return super().resolve_command(ctx, args)


def option(
    group: str,
    metavar: str,
    help_text: str,
    *,
    name: str = "",
    minimum: int | None = None,
    show_default: bool = True,
    complete: Callable[..., list[str]] | None = None,
) -> Any:
    """Declare an option with a value, for use in `Annotated`.

    Args:
        group: The heading under which the help shows the option.
        metavar: The value as the help shows it, such as `FILE`.
        help_text: What the option does, in complete sentences.
        name: The option, if it is not named after the parameter.
        minimum: The smallest value of a number.
        show_default: Whether the help shows the default.
        complete: A function that offers values to the shell; see `triform.cli.completion`.
    """
    return typer.Option(
        *([name] if name else []),
        metavar=metavar,
        help=help_text,
        rich_help_panel=group,
        min=minimum,
        show_default=show_default,
        autocompletion=complete,
    )


def flag(group: str, name: str, help_text: str) -> Any:
    """Declare an option without a value; see `option`."""
    return typer.Option(name, help=help_text, rich_help_panel=group)


def argument(metavar: str, help_text: str, *, complete: Callable[..., list[str]] | None = None) -> Any:
    """Declare a positional argument; see `option`."""
    return typer.Argument(metavar=metavar, help=help_text, autocompletion=complete)


def new_group(name: str, help_text: str) -> typer.Typer:
    """Return an empty group of commands, such as `triform vectors`."""
    return typer.Typer(name=name, help=cleandoc(help_text), cls=HelpGroup, rich_markup_mode=None)


def describe_unknown_command(parent: str, known_commands: Collection[str], arguments: Sequence[str]) -> str:
    """Return that a command does not exist and which one may be meant.

    Args:
        parent: The command before it, such as `triform` or `triform vectors`.
        known_commands: The commands that exist there.
        arguments: The unknown command and what follows it.
    """
    name = arguments[0]
    suggestion = ""
    if name == "help":
        known = [argument for argument in arguments[1:2] if argument in known_commands]
        return f"to read the help, write {' '.join([parent, *known, '--help'])}"
    if parent == "triform" and name in COMMAND_ALIASES:
        suggestion = COMMAND_ALIASES[name]
    elif matches := difflib.get_close_matches(name, known_commands, n=1):
        suggestion = matches[0]
    return f"no such command {name}" + (f"; did you mean {parent} {suggestion}?" if suggestion else "")


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write usage, description, examples, arguments, options by group, and subcommands by group."""
    formatter.write_usage(ctx.command_path, " ".join(usage_pieces(command)))
    description, examples = split_help(command)
    for paragraph in description.split("\n\n"):
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(paragraph.replace("\n", " "))
    if examples:
        with formatter.section(_bold("Examples")):
            for example in examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
    for heading, rows in help_sections(command, ctx):
        with formatter.section(_bold(heading)):
            formatter.write_dl(rows)


def summary_line(command: Any) -> str:
    """Return the first line of a command's help."""
    return (command.help or "").strip().partition("\n")[0]


def split_help(command: Any) -> tuple[str, list[str]]:
    """Return the description of a command and its example command lines."""
    description, _, examples = (command.help or "").partition(f"\n{EXAMPLES_HEADING}\n")
    return description.strip(), [line.strip() for line in examples.splitlines() if line.strip()]


def usage_pieces(command: Any) -> list[str]:
    """Return what follows the name of a command in its usage line, with the options that are required."""
    options = [param for param in command.params if param.param_type_name == "option" and param.required]
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    pieces = ["[OPTIONS]", *(f"{option.opts[0]} {option.metavar}" for option in options)]
    return [*pieces, *map(format_argument, arguments), *(["COMMAND ..."] if hasattr(command, "commands") else [])]


def format_argument(argument: Any) -> str:
    """Return an argument in the usual notation: `RUN`, `[RUN]`, `FILE...` or `[FILE]...`."""
    text = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{text}..." if argument.nargs == -1 else text


def help_sections(command: Any, ctx: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the headings of the help with their rows: arguments or subcommands, then options by group."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.params:
        if param.param_type_name == "argument":
            sections.setdefault("Arguments", []).append((format_argument(param), param.help or ""))
    for name in command.list_commands(ctx) if hasattr(command, "commands") else ():
        subcommand = command.commands[name]
        heading = getattr(subcommand, "rich_help_panel", None) or "Commands"
        sections.setdefault(heading, []).append((name, summary_line(subcommand)))
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    for option in sorted(options, key=lambda option: option_group(option) == OUTPUT):
        sections.setdefault(option_group(option), []).append((format_option(option), describe_option(option)))
    help_option = command.get_help_option(ctx)
    last_heading = list(sections)[-1] if options else "Options"
    sections.setdefault(last_heading, []).append((format_option(help_option), help_option.help))
    return list(sections.items())


def option_group(option: Any) -> str:
    """Return the heading under which an option is shown."""
    return getattr(option, "rich_help_panel", None) or "Options"


def format_option(option: Any) -> str:
    """Return an option with the name of its value, such as `--out RUN`."""
    names = ", ".join(sorted(option.opts, key=len))
    return names if option.is_flag else f"{names} {option.metavar}"


def describe_option(option: Any) -> str:
    """Return the help of an option, and whether it is required or what its default is."""
    text = option.help or ""
    if option.required:
        return f"{text} Required."
    is_shown = option.show_default and not option.is_flag and option.default not in (None, "", (), [])
    return f"{text} The default is {option.default}." if is_shown else text


def _describe_help_option(option: Any) -> Any:
    if option is not None:
        option.help = HELP_OPTION_TEXT
    return option


def _bold(heading: str) -> str:
    return typer.style(heading, bold=True)  # click removes the escape codes where standard output is no terminal
