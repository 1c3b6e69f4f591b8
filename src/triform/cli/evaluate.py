"""`triform evaluate`: scores on one or several named sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import (
    Adapter,
    Device,
    Json,
    NoVerify,
    Precision,
    RunPath,
    Set,
    decode_settings,
    open_run,
    print_json,
    print_scores,
    say_precision,
)
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.baselines import Table


def evaluate(
    run: RunPath,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]F", help="A file to evaluate on; for translate also SOURCE,TARGET. Repeatable."
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="For translate: a file with one sentence per line.")] = "",
    target: Annotated[str, typer.Option(help="For translate: a file with their translations.")] = "",
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also evaluate baselines that need no Transformer.")
    ] = False,
    stride: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="For generate: begin a window every N tokens."),
    ] = 0,
    set_: Set = None,
    json_: Json = False,
    device: Device = "auto",
    precision: Precision = "auto",
    adapter: Adapter = "",
    no_verify: NoVerify = False,
) -> None:
    """Score a run on data it has not seen; without --data, on its own held-out set."""
    from triform.errors import ConfigError, show_notice

    if bool(source) != bool(target):
        raise ConfigError("--source and --target go together: give both or neither")
    sets = named_sets([*(data or []), *([f"{source},{target}"] if source else [])])
    decode = decode_settings(set_)
    opened = open_run(run, device=device, precision=precision, adapter=adapter, no_verify=no_verify)
    if source and opened.config.task != "translate":
        raise ConfigError(f"--source and --target are for translate; {opened.config.task} reads --data")
    sets = sets or ({"test": opened.test_set()} if opened.test_set() else {"valid": ""})
    found = {}
    beside: dict[str, Table] = {}
    for name, path in sets.items():
        found[name], notices = opened.evaluate_with_notices(path, decode, stride=stride)
        for notice in notices:
            echo(show_notice(notice, fact="note: "), err=True)
        if baselines:
            beside[name] = opened.baselines(path)
    say_precision(opened)
    if json_:
        extra: dict[str, object] = (
            {"baselines": {name: told(table) for name, table in beside.items()}} if beside else {}
        )
        extra |= {"bleu_signature": _signature()} if opened.config.task == "translate" else {}
        how: dict[str, object] = {"run": str(run), "task": opened.config.task, "precision": opened.precision}
        how |= {"stride": stride or opened.config.data.max_len} if opened.config.task == "generate" else {}
        print_json({**how, "sets": found, **extra})
        return
    print_scores(found, beside)
    if stride:
        echo(f"windows of {opened.config.data.max_len} tokens, {stride} apart")
    if opened.config.task == "translate":
        echo(f"bleu: {_signature()}")


def told(table: Table) -> dict[str, Mapping[str, float | str]]:
    """For programs: the scores of each baseline, or the reason why it has none."""
    reasons = {name: {"reason": reason} for name, reason in table.reasons.items()}
    return {**table, **reasons}


def named_sets(arguments: list[str], option: str = "--data") -> dict[str, str]:
    """`NAME=F` under its name, a plain `F` under its file name."""
    from triform.errors import ConfigError

    sets: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name, path = Path(argument.partition(",")[0]).name, argument
        if not path:
            raise ConfigError(f"{option} {argument!r} names no file; write {option} NAME=FILE")
        if name in sets:
            raise ConfigError(f"two sets are called {name!r}; name them apart with {option} NAME=FILE")
        sets[name] = path
    return sets


def _signature() -> str:
    from triform.metrics import bleu_signature

    return bleu_signature()
