"""`triform evaluate`: compute metrics on one or several sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import (
    AdapterOption,
    DeviceOption,
    JsonOption,
    NoVerifyOption,
    PrecisionOption,
    RunArgument,
    SetOption,
    load_run,
    parse_decode_settings,
    print_json,
    print_metrics_table,
    print_precision_note,
)
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.evaluation.baselines import BaselineMetrics
    from triform.run import Run


def evaluate(
    run: RunArgument,
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
    set_: SetOption = None,
    json_: JsonOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    adapter: AdapterOption = "",
    no_verify: NoVerifyOption = False,
) -> None:
    """Score a run on data it has not seen; without --data, on its own held-out set."""
    from triform.errors import ConfigError, format_notice

    if bool(source) != bool(target):
        raise ConfigError("--source and --target go together: give both or neither")
    sets = parse_named_sets([*(data or []), *([f"{source},{target}"] if source else [])])
    decode = parse_decode_settings(set_)
    loaded_run = load_run(run, device=device, precision=precision, adapter=adapter, no_verify=no_verify)
    if source and loaded_run.config.task != "translate":
        raise ConfigError(f"--source and --target are for translate; {loaded_run.config.task} reads --data")
    sets = sets or ({"test": loaded_run.test_set()} if loaded_run.test_set() else {"valid": ""})
    metrics = {}
    baseline_tables: dict[str, BaselineMetrics] = {}
    for name, path in sets.items():
        metrics[name], notices = loaded_run.evaluate_with_notices(path, decode, stride=stride)
        for notice in notices:
            echo(format_notice(notice, info_prefix="note: "), err=True)
        if baselines:
            baseline_tables[name] = loaded_run.baselines(path)
    print_precision_note(loaded_run)
    if json_:
        print_json({"run": str(run), **_evaluation_to_dict(loaded_run, metrics, baseline_tables, stride)})
        return
    print_metrics_table(metrics, baseline_tables)
    if stride:
        echo(f"windows of {loaded_run.config.data.max_len} tokens, {stride} apart")
    if loaded_run.config.task == "translate":
        echo(f"bleu: {_bleu_signature()}")


def _evaluation_to_dict(
    run: Run,
    metrics: Mapping[str, Mapping[str, float]],
    baseline_tables: Mapping[str, BaselineMetrics],
    stride: int,
) -> dict[str, object]:
    """Return the evaluation as `--json` prints it."""
    task = run.config.task
    content: dict[str, object] = {"task": task, "precision": run.precision}
    if task == "generate":
        content["stride"] = stride or run.config.data.max_len
    content["sets"] = metrics
    if baseline_tables:
        content["baselines"] = {name: baselines_to_dict(table) for name, table in baseline_tables.items()}
    if task == "translate":
        content["bleu_signature"] = _bleu_signature()
    return content


def baselines_to_dict(table: BaselineMetrics) -> dict[str, Mapping[str, float | str]]:
    """For programs: the scores of each baseline, or the reason why it has none."""
    reasons = {name: {"reason": reason} for name, reason in table.reasons.items()}
    return {**table, **reasons}


def parse_named_sets(arguments: list[str], option: str = "--data") -> dict[str, str]:
    """`NAME=F` under its name, a plain `F` under its file name."""
    from triform.errors import ConfigError

    sets: dict[str, str] = {}
    for argument in arguments:
        name, separator, path = argument.partition("=")
        if not separator or Path(argument).exists():
            name, path = Path(argument.partition(",")[0]).name, argument
        if not path:
            raise ConfigError(f"{option} {argument!r} names no file; write {option} NAME=FILE")
        if name in sets:
            raise ConfigError(f"two sets are called {name!r}; name them apart with {option} NAME=FILE")
        sets[name] = path
    return sets


def _bleu_signature() -> str:
    from triform.evaluation.metrics import bleu_signature

    return bleu_signature()
