"""A study from its file to its report: every variant with every seed, whatever is already there kept."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from triform.data.readers import TextPair, fingerprint
from triform.errors import DivergedError, RunInterruptedError, format_notice
from triform.evaluation.metrics import bleu_statistics, compute_translation_metrics
from triform.experiments.plan import VALIDATION_SET, Study, StudyVariant, read_study
from triform.experiments.results import StudyResult, collect_results, failure_reason
from triform.experiments.seeds import train_seed_list
from triform.experiments.study_folder import JsonDict, MetricsCache, StudyFolder
from triform.experiments.study_page import write_study_page
from triform.experiments.study_tables import write_tables
from triform.formatting import print_message
from triform.io.locks import folder_lock
from triform.launch import RunOptions
from triform.run import Run, load
from triform.tasks.leaks import training_file_warnings
from triform.tasks.translate import QUICK_PAIRS
from triform.training.run_folder import RunFolder


def compare(
    study: str | Path | Mapping[str, Any],
    *,
    seeds: int = 0,
    out: str | Path = "",
    device: str = "auto",
    quiet: bool = False,
    progress: TextIO | None = None,
) -> StudyResult:
    """Train every variant of a study with every seed, and say which differences are real.

    `study` is a TOML file, or a mapping of the same form. What OUT already holds is not done again, so that an
    interrupted study goes on where it stopped. Leaves study.md, study.csv, study.json and study.html in OUT.
    """
    plan = read_study(study, seeds)
    study_folder = StudyFolder(Path(out or Path("runs") / plan.name))
    options = RunOptions(device=device, quiet=quiet, progress=progress)
    with folder_lock(study_folder.path, "comparing") as notice:
        if notice and not quiet:
            print_message(notice, progress)
        study_folder.register_plan(plan)
        if not quiet:
            for warning in _training_file_warnings(plan):
                print_message(format_notice(warning), progress)
        try:
            for variant in plan.variants:
                _train_variant(study_folder, plan, variant, options)
            for variant in plan.variants:
                _evaluate_variant(study_folder, plan, variant, options)
        except (RunInterruptedError, KeyboardInterrupt):
            resume_command = _resume_command(study, seeds, study_folder, options)
            raise RunInterruptedError(f"stopped, what was done is kept; go on with: {resume_command}") from None
        result = collect_results(plan, study_folder)
        write_tables(result)
        write_study_page(result)
    return result


def _training_file_warnings(plan: Study) -> list[str]:
    """Warnings about test files that are training files, known before anything is trained."""
    warnings: dict[str, None] = {}
    for variant in plan.variants:
        files = (str(variant.settings.get(f"data.{name}", "")) for name in ("train", "source", "target"))
        train_fingerprints = [fingerprint(file) for file in files if file]
        warnings |= dict.fromkeys(
            notice
            for test_file in plan.test_files.values()
            for notice in training_file_warnings(test_file, train_fingerprints)
        )
    return list(warnings)


def _resume_command(
    study: str | Path | Mapping[str, Any], seeds: int, study_folder: StudyFolder, options: RunOptions
) -> str:
    study_file = "STUDY" if isinstance(study, Mapping) else shlex.quote(str(study))
    arguments = [f"--out {shlex.quote(str(study_folder.path))}"]
    arguments += [f"--seeds {seeds}"] if seeds else []
    arguments += [f"--device {options.device}"] if options.device != "auto" else []
    return f"triform compare {study_file} {' '.join(arguments)}"


def _run_folders(study_folder: StudyFolder, plan: Study, variant: StudyVariant) -> list[RunFolder]:
    return [RunFolder(study_folder.path / variant.name / f"seed-{seed}") for seed in plan.seeds]


def _train_variant(study_folder: StudyFolder, plan: Study, variant: StudyVariant, options: RunOptions) -> None:
    """The seeds that are not done; one that has diverged before would diverge again."""
    folders = _run_folders(study_folder, plan, variant)
    pending_seeds = [
        seed
        for seed, folder in zip(plan.seeds, folders, strict=True)
        if not failure_reason(folder) and not (folder.config_file.exists() and folder.is_complete())
    ]
    if not pending_seeds:
        return
    if not options.quiet:
        position = plan.variants.index(variant) + 1
        print_message(f"variant {variant.name}, {position} of {len(plan.variants)}:", options.progress)
    out, start_time = study_folder.path / variant.name, time.monotonic()
    resume = any((out / f"seed-{seed}" / "config.toml").exists() for seed in pending_seeds)
    try:
        train_seed_list(out, variant.settings, pending_seeds, replace(options, out=str(out), resume=resume))
    except DivergedError as error:
        if not options.quiet:
            print_message(f"{variant.name}: {error}", options.progress)
    finally:
        study_folder.add_training_seconds(variant.name, time.monotonic() - start_time)


# -- scores after training


def _evaluate_variant(study_folder: StudyFolder, plan: Study, variant: StudyVariant, options: RunOptions) -> None:
    """Evaluate each run on what it was not yet evaluated on."""
    eval_sets = dict(plan.test_files)
    if plan.metric == "bleu":
        eval_sets[VALIDATION_SET] = ""  # once more, to have each sentence's share of it
    is_announced = options.quiet
    for folder in _run_folders(study_folder, plan, variant):
        cache = MetricsCache(folder)
        if failure_reason(folder):
            continue
        pending_sets = {
            name: test_file
            for name, test_file in eval_sets.items()
            if not cache.get(name, test_file, plan.metric, plan.task)
        }
        if pending_sets and not is_announced:
            print_message(f"scoring {variant.name} on {', '.join(pending_sets)}", options.progress)
            is_announced = True
        if pending_sets:
            _evaluate_run(folder, plan, pending_sets, options.device)


def _evaluate_run(folder: RunFolder, plan: Study, eval_sets: Mapping[str, str], device: str) -> None:
    run = load(folder.path, device=device)
    for name, test_file in eval_sets.items():
        entry = _bleu_entry(run, test_file) if plan.metric == "bleu" else _metrics_entry(run, test_file)
        if entry:
            MetricsCache(folder).add(name, test_file, plan.task, entry)


def _metrics_entry(run: Run, test_file: str) -> JsonDict:
    metrics, notices = run.evaluate_with_notices(test_file, {})
    return {"scores": metrics, "notices": notices}


def _bleu_entry(run: Run, test_file: str) -> JsonDict | None:
    """BLEU with what each sentence adds to it; validation as during training: greedy, its first few hundred."""
    notices = run.training_file_notices(test_file) if test_file else []
    data: Any = run.task.load_dataset(test_file, notices) if test_file else run.task.load_validation_dataset([])
    if data is None:
        return None
    pairs: list[TextPair] = list(data.raw_pairs if test_file else data.raw_pairs[:QUICK_PAIRS])
    decode_settings: JsonDict = {} if test_file else {"strategy": "greedy"}
    hypotheses = [
        prediction.output for prediction in run.predict([pair.source for pair in pairs], **decode_settings)
    ]
    references = [pair.target for pair in pairs]
    metrics = {
        name: value
        for name, value in compute_translation_metrics(hypotheses, references).items()
        if math.isfinite(value)
    }
    sentence_stats = bleu_statistics(hypotheses, references).astype(int).tolist()
    return {"scores": metrics, "notices": notices, "bleu": sentence_stats}
