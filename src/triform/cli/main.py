"""The command `triform`: registers all commands, and turns errors into one line and an exit code.

Exit codes: 0 success, 1 a check failed, 2 the input was wrong, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import time
from typing import Annotated, Any

import typer
import typer.main

from triform import __version__
from triform.cli.audit import audit
from triform.cli.check import check
from triform.cli.compare import compare
from triform.cli.completion import completion_in_bash
from triform.cli.config import config
from triform.cli.convert import convert
from triform.cli.data import data
from triform.cli.demo import demo
from triform.cli.distill import distill
from triform.cli.doctor import doctor
from triform.cli.evaluate import evaluate
from triform.cli.explain import explain
from triform.cli.help import HelpCommand, HelpGroup
from triform.cli.params import params
from triform.cli.predict import predict
from triform.cli.pretrain import pretrain
from triform.cli.search import search
from triform.cli.serve import serve
from triform.cli.settings import settings
from triform.cli.studio import studio
from triform.cli.threads import limit_spinning
from triform.cli.tokenizer import tokenizer
from triform.cli.train import train
from triform.cli.usage import describe_url, describe_usage_error
from triform.cli.vectors import vectors
from triform.errors import RunInterruptedError, TriformError
from triform.formatting import echo
from triform.interrupts import EXIT_INTERRUPTED, signals_as_ctrl_c

# The texts of the RuntimeErrors that torch raises when the computer has too little memory for a tensor.
OUT_OF_MEMORY_PATTERN = re.compile(
    "allocate memory|not enough memory|bad_alloc|size calculation overflowed|multiplication overflow"
)
FIRST_PROCESS_SECONDS = 5.0  # in which the first process on a machine prints an error that all processes have
SHARED_COMMANDS = (
    "train",
    "pretrain",
    "distill",
    "predict",
    "evaluate",
    "compare",
    "search",
)  # with torchrun, or with their own message
COMMANDS: dict[str, tuple[Any, ...]] = {
    "Train and use models": (train, pretrain, distill, predict, evaluate, explain, studio, serve, convert),
    "Inspect models and data": (settings, config, params, check, audit),
    "Run experiments": (compare, search),
    "Prepare data": (data, tokenizer, vectors),
    "Try out the installation": (demo, doctor),
}


class RootGroup(HelpGroup):
    """The commands of `triform` in the order of `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, heading by heading."""
        commands = [command for commands in COMMANDS.values() for command in commands]
        return [
            str(command.info.name) if isinstance(command, typer.Typer) else command.__name__ for command in commands
        ]


app = typer.Typer(
    name="triform",
    cls=RootGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for heading, commands in COMMANDS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=heading)
        else:
            app.command(cls=HelpCommand, rich_help_panel=heading)(command)


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"triform {__version__}")
        raise typer.Exit


@app.callback()
def root_options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train and use Transformers that classify, generate or translate text.

    triform train writes a run folder, which is all that predict, evaluate and explain need. To see the options of a
    command, write triform COMMAND --help.

    Examples:
        triform train classify --data reviews.csv --out runs/reviews
        triform predict runs/reviews "A wonderful film."
    """
    command = context.invoked_subcommand
    is_torchrun = os.environ.keys() >= {"WORLD_SIZE", "RANK", "LOCAL_RANK"}  # clusters may set some of them
    if is_torchrun and command not in SHARED_COMMANDS:
        from triform.world import refuse_several_processes

        refuse_several_processes(f"triform {command}")


def main(app: typer.Typer = app, name: str = "triform") -> None:
    """Run a command. An error that the user can fix is printed as one line on standard error.

    Args:
        app: The commands.
        name: How they are started.
    """
    # Importing torch creates 250,000 objects that are never freed. Searching them for garbage would take time.
    gc.set_threshold(50_000)
    atexit.register(skip_last_collection)
    limit_spinning()
    arguments = sys.argv[1:]
    try:
        with signals_as_ctrl_c(), completion_in_bash():
            code = app(arguments, prog_name=name, standalone_mode=False) or 0
        if code == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this exit code
            fail("interrupted", code)
        sys.exit(code)
    except TriformError as error:
        code = EXIT_INTERRUPTED if isinstance(error, RunInterruptedError) else 2
        if error.is_reported:
            sys.exit(code)
        fail(describe_url(str(error), arguments), code)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        location = f"{error.filename}: " if error.filename else ""
        fail(f"{location}{error.strerror or error}", 2)
    except Exception as error:
        if problem := describe_resource_error(error):
            fail(problem, 2)
        if not hasattr(error, "format_message"):  # only click's exceptions have this method
            raise
        fail(describe_usage_error(error, arguments, typer.main.get_command(app), name), 2)


def skip_last_collection() -> None:
    """Keep Python from collecting the objects of torch when it exits, which takes 0.4 seconds.

    triton reports each of its objects that is not collected as a leak, so where it is loaded, all are collected.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def describe_resource_error(error: Exception) -> str:
    """Describe an error caused by sizes rather than by a bug. Returns "" for any other error."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
        return f"the device is out of memory ({reason}); use fewer or shorter texts, or --device cpu"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and OUT_OF_MEMORY_PATTERN.search(reason)):
        return f"this computer is out of memory ({reason}); use shorter texts, smaller batches or a smaller model"
    if isinstance(error, RecursionError):
        return f"a file or a setting is nested too deeply ({reason})"
    if isinstance(error, OverflowError):
        return f"a number in a file or a setting is too large to compute with ({reason})"
    return ""


def fail(problem: str, code: int) -> None:
    """End the command with one line on standard error.

    If all processes of torchrun fail in the same way, only the first one on each machine prints the line: torchrun
    ends the others while they wait.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        if code == EXIT_INTERRUPTED:
            sys.exit(code)
        time.sleep(FIRST_PROCESS_SECONDS)
        problem = f"rank {os.environ.get('RANK', '')}: {problem}"
    echo(f"triform: {' '.join(problem.split(chr(10)))}", err=True)
    sys.exit(code)
