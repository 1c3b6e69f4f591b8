"""A study from its file to its report: every variant with every seed, whatever is already there kept."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from triform.data.readers import Pair, fingerprint
from triform.errors import DivergedError, InterruptedRun, show_notice
from triform.formatting import print_message
from triform.io.locks import locked
from triform.launch import Options
from triform.metrics import bleu_statistics, translation_scores
from triform.run import Run, load
from triform.seeds import train_these
from triform.study.kept import Json, Kept, TestScores
from triform.study.page import write_page
from triform.study.plan import VALIDATION, Study, Variant, read_study
from triform.study.results import Outcome, failure_of, judge
from triform.study.tables import write_tables
from triform.tasks.leaks import training_file_notices
from triform.tasks.translate import QUICK_PAIRS
from triform.training.folder import RunFolder


def compare(
    study: str | Path | Mapping[str, Any],
    *,
    seeds: int = 0,
    out: str | Path = "",
    device: str = "auto",
    quiet: bool = False,
    progress: TextIO | None = None,
) -> Outcome:
    """Train every variant of a study with every seed, and say which differences are real.

    `study` is a TOML file, or a mapping of the same form. What OUT already holds is not done again, so that an
    interrupted study goes on where it stopped. Leaves study.md, study.csv, study.json and study.html in OUT.
    """
    plan = read_study(study, seeds)
    kept = Kept(Path(out or Path("runs") / plan.name))
    options = Options(device=device, quiet=quiet, progress=progress)
    with locked(kept.path, "comparing") as notice:
        if notice and not quiet:
            print_message(notice, progress)
        kept.claim(plan)
        if not quiet:
            for warning in _tests_trained_on(plan):
                print_message(show_notice(warning), progress)
        try:
            for variant in plan.variants:
                _train(kept, plan, variant, options)
            for variant in plan.variants:
                _score(kept, plan, variant, options)
        except (InterruptedRun, KeyboardInterrupt):
            again = _command(study, seeds, kept, options)
            raise InterruptedRun(f"stopped, what was done is kept; go on with: {again}") from None
        outcome = judge(plan, kept)
        write_tables(outcome)
        write_page(outcome)
    return outcome


def _tests_trained_on(plan: Study) -> list[str]:
    """Warnings about test files that are training files, known before anything is trained."""
    found: dict[str, None] = {}
    for variant in plan.variants:
        files = (str(variant.asked.get(f"data.{name}", "")) for name in ("train", "source", "target"))
        trained_on = [fingerprint(file) for file in files if file]
        found |= dict.fromkeys(
            notice for test in plan.tests.values() for notice in training_file_notices(test, trained_on)
        )
    return list(found)


def _command(study: str | Path | Mapping[str, Any], seeds: int, kept: Kept, options: Options) -> str:
    file = "STUDY" if isinstance(study, Mapping) else shlex.quote(str(study))
    said = [f"--out {shlex.quote(str(kept.path))}"]
    said += [f"--seeds {seeds}"] if seeds else []
    said += [f"--device {options.device}"] if options.device != "auto" else []
    return f"triform compare {file} {' '.join(said)}"


def _folders(kept: Kept, plan: Study, variant: Variant) -> list[RunFolder]:
    return [RunFolder(kept.path / variant.name / f"seed-{seed}") for seed in plan.seeds]


def _train(kept: Kept, plan: Study, variant: Variant, options: Options) -> None:
    """The seeds that are not done; one that has diverged before would diverge again."""
    folders = _folders(kept, plan, variant)
    todo = [
        seed
        for seed, folder in zip(plan.seeds, folders, strict=True)
        if not failure_of(folder) and not (folder.config_file.exists() and folder.complete())
    ]
    if not todo:
        return
    if not options.quiet:
        number = plan.variants.index(variant) + 1
        print_message(f"variant {variant.name}, {number} of {len(plan.variants)}:", options.progress)
    out, began = kept.path / variant.name, time.monotonic()
    begun = any((out / f"seed-{seed}" / "config.toml").exists() for seed in todo)
    try:
        train_these(out, variant.asked, todo, replace(options, out=str(out), resume=begun))
    except DivergedError as failure:
        if not options.quiet:
            print_message(f"{variant.name}: {failure}", options.progress)
    finally:
        kept.add_seconds(variant.name, time.monotonic() - began)


# -- scores after training


def _score(kept: Kept, plan: Study, variant: Variant, options: Options) -> None:
    """Evaluate each run on what it was not yet evaluated on."""
    sets = dict(plan.tests)
    if plan.metric == "bleu":
        sets[VALIDATION] = ""  # once more, to have each sentence's share of it
    told = options.quiet
    for folder in _folders(kept, plan, variant):
        known = TestScores(folder)
        if failure_of(folder):
            continue
        todo = {name: test for name, test in sets.items() if not known.find(name, test, plan.metric, plan.task)}
        if todo and not told:
            print_message(f"scoring {variant.name} on {', '.join(todo)}", options.progress)
            told = True
        if todo:
            _evaluate(folder, plan, todo, options.device)


def _evaluate(folder: RunFolder, plan: Study, sets: Mapping[str, str], device: str) -> None:
    run = load(folder.path, device=device)
    for name, test in sets.items():
        entry = _translated(run, test) if plan.metric == "bleu" else _evaluated(run, test)
        if entry:
            TestScores(folder).add(name, test, plan.task, entry)


def _evaluated(run: Run, test: str) -> Json:
    scores, notices = run.evaluate_with_notices(test, {})
    return {"scores": scores, "notices": notices}


def _translated(run: Run, test: str) -> Json | None:
    """BLEU with what each sentence adds to it; validation as during training: greedy, its first few hundred."""
    notices = run.training_file_notices(test) if test else []
    data: Any = run.task.read(test, notices) if test else run.task.held_out([])
    if data is None:
        return None
    pairs: list[Pair] = list(data.texts if test else data.texts[:QUICK_PAIRS])
    how: Json = {} if test else {"strategy": "greedy"}
    written = [made.output for made in run.predict([pair.source for pair in pairs], **how)]
    wanted = [pair.target for pair in pairs]
    scores = {name: value for name, value in translation_scores(written, wanted).items() if math.isfinite(value)}
    shares = bleu_statistics(written, wanted).astype(int).tolist()
    return {"scores": scores, "notices": notices, "bleu": shares}
