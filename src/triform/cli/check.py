"""`triform check`: the sanity checks, on a trained run or on settings alone."""

from __future__ import annotations

from dataclasses import asdict, replace

import typer

from triform.cli.options import Json, NoVerify, Set, open_run, print_json
from triform.cli.subject import (
    Asked,
    ConfigFile,
    Labels,
    MaxLen,
    Preset,
    Subject,
    TaskOption,
    VocabSize,
    settled,
)
from triform.formatting import echo

MARKS = {True: "good", False: "FAILED", None: "-"}


def check(
    run: Subject = None,
    preset: Preset = "",
    config: ConfigFile = None,
    task: TaskOption = "",
    set_: Set = None,
    vocab_size: VocabSize = 0,
    max_len: MaxLen = 0,
    labels: Labels = 0,
    json_: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Check that a model does what its settings say: the future unseen, padding inert, gradients everywhere ..."""
    from triform.errors import ConfigError
    from triform.settings import parse_assignments

    settings = parse_assignments(set_ or [])
    settings |= {"data.max_len": max_len} if max_len else {}
    settings |= {"tokenizer.vocab_size": vocab_size} if vocab_size else {}
    if run and (settings or labels):
        raise ConfigError(
            "a run is checked as it was trained: leave out --set, --vocab-size, --max-len and --labels"
        )
    asked = Asked(run=run, preset=preset, config=config, task=task, settings=settings, labels=labels)
    full, sizes = settled(replace(asked, no_verify=no_verify))

    from triform.explain.checks import check_model
    from triform.explain.trial import fresh_model

    opened = open_run(run, device="cpu", precision="fp32", no_verify=no_verify) if run else None
    model = opened.task.model if opened else fresh_model(full, sizes)
    findings = []
    for finding in check_model(full, sizes, model):
        findings.append(finding)
        if not json_:
            echo(f"{MARKS[finding.good]:<8}{finding.name:<42}{finding.detail}")
    failed = sum(finding.good is False for finding in findings)
    if json_:
        print_json({"good": not failed, "checks": [asdict(finding) for finding in findings]})
    else:
        echo(f"{failed} of {len(findings)} checks failed" if failed else "all good")
    if failed:
        raise typer.Exit(1)
