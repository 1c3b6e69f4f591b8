"""`triform`: the commands put together, and errors turned into one line and an exit code.

Exit codes: 0 good, 1 a check failed, 2 the user's input was wrong, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from typing import Annotated

import typer

from triform import __version__
from triform.cli.audit import audit
from triform.cli.check import check
from triform.cli.compare import compare
from triform.cli.config import config
from triform.cli.convert import convert
from triform.cli.data import data
from triform.cli.demo import demo
from triform.cli.doctor import doctor
from triform.cli.evaluate import evaluate
from triform.cli.explain import explain
from triform.cli.params import params
from triform.cli.predict import predict
from triform.cli.reproduce import reproduce
from triform.cli.settings import settings
from triform.cli.tokenizer import tokenizer
from triform.cli.train import train
from triform.cli.usage import describe_url, describe_usage_error
from triform.cli.vectors import vectors
from triform.errors import RunInterruptedError, TriformError
from triform.formatting import echo
from triform.interrupts import EXIT_INTERRUPTED, signals_as_ctrl_c

# What torch says in a RuntimeError when the computer has less memory than a tensor needs.
OUT_OF_MEMORY_PATTERN = re.compile(
    "allocate memory|not enough memory|bad_alloc|size calculation overflowed|multiplication overflow"
)
app = typer.Typer(
    name="triform",
    help="One Transformer in three forms: classify, generate and translate text.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo,
    train,
    predict,
    evaluate,
    compare,
    explain,
    check,
    audit,
    params,
    settings,
    reproduce,
    doctor,
):
    app.command()(command)
for name, group in (
    ("config", config),
    ("data", data),
    ("convert", convert),
    ("tokenizer", tokenizer),
    ("vectors", vectors),
):
    app.add_typer(group, name=name)


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"triform {__version__}")
        raise typer.Exit


@app.callback()
def root_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One Transformer in three forms: classify, generate and translate text."""


def main() -> None:
    """Run a command. An error that the user can fix is printed as one line on standard error."""
    gc.set_threshold(50_000)  # torch comes as 250,000 objects that stay: looking through them takes time
    atexit.register(gc.freeze)  # and none of them need be looked through to leave
    arguments = sys.argv[1:] or ["--help"]
    try:
        with signals_as_ctrl_c():
            code = app(arguments, prog_name="triform", standalone_mode=False) or 0
        if code == EXIT_INTERRUPTED:  # what typer makes of Ctrl-C, without a word
            fail("interrupted", code)
        sys.exit(code)
    except RunInterruptedError as error:
        fail(str(error), EXIT_INTERRUPTED)
    except TriformError as error:
        fail(describe_url(str(error), arguments), 2)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        location = f"{error.filename}: " if error.filename else ""
        fail(f"{location}{error.strerror or error}", 2)
    except Exception as error:
        if problem := describe_resource_error(error):
            fail(problem, 2)
        if not hasattr(error, "format_message"):  # only the command line's own errors have one
            raise
        problem = describe_usage_error(error)
        fail(f"{problem}{'' if problem.endswith('?') else '.'} See triform --help", 2)


def describe_resource_error(error: Exception) -> str:
    """Describe an error caused by sizes rather than by a bug. Returns "" for any other error."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
        return f"the memory of the device is full ({reason}); give fewer or shorter texts, or --device cpu"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and OUT_OF_MEMORY_PATTERN.search(reason)):
        return (
            f"the memory of this computer is full ({reason}); use shorter texts, smaller batches or a smaller model"
        )
    if isinstance(error, RecursionError):
        return f"a file or a setting is nested too deeply ({reason})"
    if isinstance(error, OverflowError):
        return f"a number in a file or a setting is too large to compute with ({reason})"
    return ""


def fail(problem: str, code: int) -> None:
    """End the command with one line on standard error."""
    echo(f"triform: {' '.join(problem.split(chr(10)))}", err=True)
    sys.exit(code)
