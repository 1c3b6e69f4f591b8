"""The page docs/cli.md: every command with its usage, examples, arguments and options.

Run `python -m triform.cli.reference > docs/cli.md` after a change of the commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
import typer.main

from triform.cli.help import help_sections, split_help, summary_line, usage_pieces
from triform.cli.main import app
from triform.formatting import echo

INTRODUCTION = """\
# Command line

This page lists every command with its arguments and options. `--help` prints the same texts, for example
`triform train --help`. See also the [settings](settings.md) that `--set` changes, and the
[exit codes and file formats](reference.md)."""


def reference_page() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION, *(part for context in iter_contexts(root_context()) for part in _command_parts(context))]
    return "\n\n".join(parts) + "\n"


def root_context() -> Any:
    """Return the context of the command `triform`."""
    command = typer.main.get_command(app)
    return typer.Context(command, info_name="triform", help_option_names=["-h", "--help"])


def iter_contexts(context: Any) -> Iterator[Any]:
    """Yield the context of a command, then those of the commands below it in the order of the help."""
    yield context
    command = context.command
    for name in command.list_commands(context) if hasattr(command, "commands") else ():
        yield from iter_contexts(typer.Context(command.commands[name], info_name=name, parent=context))


def _command_parts(context: Any) -> Iterator[str]:
    command = context.command
    description, examples = split_help(command)
    paragraphs = description.removeprefix(summary_line(command)).strip()
    usage = " ".join([context.command_path, *usage_pieces(command)])
    yield f"## {context.command_path}"
    yield summary_line(command)
    yield "\n".join(["```text", f"Usage: {usage}", "", *examples, "```"])
    if paragraphs:
        yield paragraphs
    for heading, rows in help_sections(command, context):
        lines = [f"| {_format_term(term, context)} | {_escape(text)} |" for term, text in rows]
        yield "\n".join([f"| {heading} | |", "|---|---|", *lines])


def _format_term(term: str, context: Any) -> str:
    """Return an option or argument as code, and a subcommand as a link to its section."""
    if term in getattr(context.command, "commands", {}):
        return f"[{term}](#{context.command_path.replace(' ', '-')}-{term})"
    return f"`{_escape(term)}`"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    echo(reference_page().rstrip("\n"))
