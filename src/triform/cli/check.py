"""`triform check`: sanity checks of a trained run or of a model built from settings."""

from __future__ import annotations

from dataclasses import asdict, replace

import typer

from triform.cli.model_argument import (
    ConfigOption,
    LabelsOption,
    MaxLenOption,
    ModelArguments,
    OptionalRunArgument,
    PresetOption,
    TaskOption,
    VocabSizeOption,
    resolve_model,
)
from triform.cli.options import JsonOption, NoVerifyOption, SetOption, load_run, print_json
from triform.formatting import echo, print_table

STATUS_TEXT = {True: "passed", False: "FAILED", None: "skipped"}


def check(
    run: OptionalRunArgument = None,
    preset: PresetOption = "",
    config: ConfigOption = None,
    task: TaskOption = "",
    set_: SetOption = None,
    vocab_size: VocabSizeOption = 0,
    max_len: MaxLenOption = 0,
    labels: LabelsOption = 0,
    no_verify: NoVerifyOption = False,
    json_: JsonOption = False,
) -> None:
    """Run sanity checks on a model, trained or built from settings.

    The checks verify, for example, that no token reads later tokens through a causal mask, that padding does not
    change the result, and that every parameter receives a gradient. The exit code is 1 if a check fails.

    Examples:
        triform check runs/reviews
        triform check --preset tiny --task generate --vocab-size 500 --max-len 64
    """
    from triform.config.settings import parse_assignments
    from triform.errors import ConfigError

    settings = parse_assignments(set_ or [])
    settings |= {"data.max_len": max_len} if max_len else {}
    settings |= {"tokenizer.vocab_size": vocab_size} if vocab_size else {}
    if run and (settings or labels):
        raise ConfigError(
            "a run is checked with its own settings; leave out --set, --vocab-size, --max-len and --labels"
        )
    arguments = ModelArguments(run=run, preset=preset, config=config, task=task, settings=settings, labels=labels)
    resolved_config, sizes = resolve_model(replace(arguments, no_verify=no_verify))

    from triform.explain.checks import check_model
    from triform.explain.probes import build_untrained_model
    from triform.tasks.pretraining import refuse_pretraining

    refuse_pretraining(resolved_config, "a check")
    loaded_run = load_run(run, device="cpu", precision="fp32", no_verify=no_verify) if run else None
    model = loaded_run.task.model if loaded_run else build_untrained_model(resolved_config, sizes)
    results = list(check_model(resolved_config, sizes, model))
    n_failed = sum(result.good is False for result in results)
    if json_:
        print_json({"good": not n_failed, "checks": [asdict(result) for result in results]})
    else:
        rows = [[STATUS_TEXT[result.good], result.name, result.detail] for result in results]
        print_table([["result", "check", "detail"], *rows], align="lll")
        echo(f"{n_failed} of {len(results)} checks failed" if n_failed else "all checks passed")
    if n_failed:
        raise typer.Exit(1)
