"""`triform predict`: a label, a continuation or a translation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from triform.cli.options import Adapter, Device, Json, Precision, RunPath, Set, decode_settings, print_json


def predict(
    run: RunPath,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to read.")] = None,
    input_: Annotated[str, typer.Option("--input", metavar="F", help="A file of texts, one a line, or - .")] = "",
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="For sampling; default the run's.")] = None,
    json_: Json = False,
    device: Device = "auto",
    precision: Precision = "auto",
    adapter: Adapter = "",
) -> None:
    """Ask a trained run: text in, answer out."""
    from triform.run import load

    given = [*(texts or []), *lines_of(input_)]
    if not given:
        from triform.errors import DataError

        raise DataError("nothing to predict: give TEXT, --input FILE, or --input - for standard input")
    decode = decode_settings(set_)
    opened = load(run, device=device, precision=precision, adapter=adapter)
    made = opened.predict(given, seed=seed, **decode)
    if cut := sum(one.cut for one in made):
        read = f"only the first {opened.config.data.max_len} tokens were read"
        typer.echo(f"note: {cut} of {len(made)} texts were too long: {read}", err=True)
    if json_:
        print_json(
            [{name: value for name, value in asdict(one).items() if value not in (None, False)} for one in made]
        )
        return
    for one in made:
        if one.probabilities is None:
            typer.echo(one.input * (opened.config.task == "generate") + one.output)
        else:
            shares = sorted(one.probabilities.items(), key=lambda item: -item[1])
            typer.echo(f"{one.output}\t" + "  ".join(f"{label} {100 * share:.1f} %" for label, share in shares))


def _standard_input() -> Iterator[str]:
    from triform.errors import DataError

    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError("is not UTF-8", path="standard input", line=number) from None


def lines_of(name: str) -> list[str]:
    """The lines of a file, or of standard input where it is called -."""
    if not name:
        return []
    if name == "-":
        return list(_standard_input())
    from triform.data.readers import read_lines

    return [text for _, text in read_lines(name)]
