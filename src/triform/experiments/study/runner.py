"""Run a study from its file to its report: `triform compare`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from triform.data.readers import TextPair, fingerprint
from triform.errors import format_notice
from triform.evaluation.metrics import bleu_statistics, compute_translation_metrics
from triform.experiments.engine import (
    Evaluation,
    JsonDict,
    VariantSpec,
    experiment_folder,
    name_resume_command,
    share_variants,
)
from triform.experiments.study.page import write_study_page
from triform.experiments.study.plan import VALIDATION_SET, Study, read_study
from triform.experiments.study.plan_file import register_plan
from triform.experiments.study.results import StudyResult, collect_results
from triform.experiments.study.tables import write_tables
from triform.formatting import print_message
from triform.launch import RunOptions
from triform.run import Run
from triform.tasks.leaks import training_file_warnings
from triform.tasks.translate import QUICK_PAIRS


def compare(
    study: str | Path | Mapping[str, Any],
    *,
    seeds: int = 0,
    out: str | Path = "",
    by_seed: bool = False,
    device: str = "auto",
    quiet: bool = False,
    progress: TextIO | None = None,
    on_start: Callable[[], None] | None = None,
) -> StudyResult:
    """Train every variant of a study with every seed, and test which differences are real.

    Finished runs in the output folder are not repeated, so an interrupted study resumes. The results are written to
    `study.md`, `study.csv`, `study.json` and `study.html` in this folder. Several processes, also on
    several machines, share the work if they use the same output folder.

    Args:
        study: A TOML file, or a mapping of the same form.
        seeds: Number of seeds, instead of the number in the study.
        out: Output folder; the default is `runs/NAME`.
        by_seed: Share single runs with other processes. Otherwise they share variants.
        device: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Print no progress.
        progress: Stream for the progress output; the default is standard error.
        on_start: Called when the study is known to be valid, before anything is trained.

    Raises:
        ConfigError: The study is not valid, or has changed since its runs were trained.
        RunInterruptedError: The study was interrupted; the message names the command that resumes it.

    Example:
        >>> from pathlib import Path
        >>> import triform
        >>> _ = Path("rows.tsv").write_text("a good film\\tyes\\na bad film\\tno\\n" * 20)
        >>> study = {
        ...     "task": "classify",
        ...     "common": {"data": {"train": "rows.tsv"}, "train": {"max_steps": 2}, "model": {"d_model": 16}},
        ...     "variants": {"one": {"model": {"n_layers": 1}}, "two": {"model": {"n_layers": 2}}},
        ... }
        >>> result = triform.compare(study, seeds=2, out="study", device="cpu", quiet=True)
        >>> sorted(path.name for path in Path("study").glob("study.*"))
        ['study.csv', 'study.html', 'study.json', 'study.md']
    """
    plan = read_study(study, seeds)
    folder = Path(out or Path("runs") / plan.name)
    options = RunOptions(device=device, quiet=quiet, progress=progress)
    with name_resume_command(_resume_command(study, seeds, folder, options)):
        return run_study(plan, folder, options, by_seed=by_seed, on_start=on_start)


def run_study(
    plan: Study,
    folder: Path,
    options: RunOptions,
    *,
    by_seed: bool,
    on_start: Callable[[], None] | None = None,
) -> StudyResult:
    """Run a study that has been read, together with other processes that run it in the same folder."""
    with experiment_folder(folder, "preparing a study", options, wait=True):
        register_plan(folder, plan)
    if on_start:
        on_start()
    if not options.quiet:
        for warning in _training_file_warnings(plan):
            print_message(format_notice(warning), options.progress)
    variants = share_variants(_variant_specs(plan, folder), _study_evaluation(plan), options, by_seed=by_seed)
    result = collect_results(plan, folder, variants)
    with experiment_folder(folder, "writing the tables of a study", options, wait=True):
        write_tables(result)
        write_study_page(result)
    return result


def _training_file_warnings(plan: Study) -> list[str]:
    """Return warnings about test files that are also training files, before anything is trained."""
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


def _resume_command(study: str | Path | Mapping[str, Any], seeds: int, folder: Path, options: RunOptions) -> str:
    study_file = "STUDY" if isinstance(study, Mapping) else shlex.quote(str(study))
    arguments = [f"--out {shlex.quote(str(folder))}"]
    arguments += [f"--seeds {seeds}"] if seeds else []
    arguments += [f"--device {options.device}"] if options.device != "auto" else []
    return f"triform compare {study_file} {' '.join(arguments)}"


def _variant_specs(plan: Study, folder: Path) -> list[VariantSpec]:
    return [
        VariantSpec(
            name=variant.name,
            settings=variant.settings,
            seeds=plan.seeds,
            folder=folder / variant.name,
            title=f"variant {variant.name}, {position} of {len(plan.variants)}:",
        )
        for position, variant in enumerate(plan.variants, 1)
    ]


def _study_evaluation(plan: Study) -> Evaluation:
    """Return the evaluation of a study: all metrics on the test files, and for BLEU statistics of each sentence."""
    if plan.metric != "bleu":
        return Evaluation(eval_sets=plan.test_files, evaluate=_metrics_entry, metric=plan.metric)
    eval_sets = {**plan.test_files, VALIDATION_SET: ""}
    return Evaluation(eval_sets=eval_sets, evaluate=_bleu_entry, metric=plan.metric)


def _metrics_entry(run: Run, eval_set: str, test_file: str) -> JsonDict:
    metrics, notices = run.evaluate_with_notices(test_file, {})
    return {"scores": metrics, "notices": notices}


def _bleu_entry(run: Run, eval_set: str, test_file: str) -> JsonDict | None:
    """Compute BLEU and its statistics for each sentence. As in training, few validation rows are translated."""
    notices = run.training_file_notices(test_file) if test_file else []
    data: Any = (
        run.task.data.load_dataset(test_file, notices) if test_file else run.task.data.load_validation_dataset([])
    )
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
