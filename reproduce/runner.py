"""Run a reference system: train and evaluate its variants, and write the result to `results/NAME.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reproduce.baselines import evaluate_system_baselines
from reproduce.data import ExperimentData, base_model_path
from reproduce.evaluation import system_evaluation
from reproduce.examples import capture_attention, generate_samples
from reproduce.leaks import count_leaks
from reproduce.options import ReproduceOptions
from reproduce.result_file import (
    ExperimentResult,
    empty_result,
    loss_curves,
    read_result,
    upsert_variant,
    validation_curve,
    validation_rows,
    write_result,
)
from reproduce.smoke import SMOKE_SEEDS, smoke_settings
from reproduce.system import ReferenceSystem, SystemVariant
from reproduce.translation import compare_translations, read_examples
from triform.config.settings import Settings, merge_settings
from triform.data.files import content_sha256
from triform.device import resolve_device
from triform.errors import ConfigError, DataError
from triform.evaluation.metrics import bleu_signature
from triform.experiments.engine import (
    SeedResult,
    VariantResult,
    VariantSpec,
    experiment_folder,
    name_resume_command,
    run_variants,
    settings_hash,
    to_json_value,
)
from triform.experiments.search.record import environment_info
from triform.experiments.seed_results import collect_results
from triform.formatting import print_message
from triform.io.ensembles import join_run_paths
from triform.io.events import read_events
from triform.launch import resolve_settings
from triform.run import Run

NO_EARLY_STOPPING: Settings = {"train.patience": 0}  # unless a variant sets a patience


@dataclass(frozen=True, kw_only=True)
class PreparedVariant:
    """A variant with the values to train it and to describe it in the result file."""

    variant: SystemVariant
    spec: VariantSpec
    shown_settings: Settings  # without files, because their location differs between machines
    vectors: Settings  # the digest of the word vectors


def reproduce(system: ReferenceSystem, options: ReproduceOptions) -> ExperimentResult:
    """Run a system. Runs that were trained before with the same settings are not trained again.

    Returns:
        The content of the result file.
    """
    device = resolve_device(options.device)
    variants = _available_variants(system, options)
    folder = options.experiment_folder(system.name)
    command = options.command(system.name, with_paths=True)
    with (
        name_resume_command(command),
        experiment_folder(folder, f"reproducing {system.name}", options.run_options),
    ):
        data = ExperimentData.prepare(system, options.data, folder / "data", smoke=options.smoke)
        result = _load_or_create_result(data, options)
        prepared = [_prepare_variant(variant, data, options, folder) for variant in variants]
        variant_results = (
            variant_result
            for entry in prepared
            for variant_result in run_variants(
                [entry.spec], system_evaluation(data, entry.variant), options.run_options
            )
        )
        finished = []
        for entry, variant_result in zip(prepared, variant_results, strict=True):
            if variant_result.failure:
                result["failures"][entry.variant.name] = variant_result.failure
            else:
                described = _describe_variant(entry, variant_result, system, options)
                described["made"] = environment_info(device, options.command(system.name))
                upsert_variant(result, described, [variant.name for variant in system.variants])
                finished.append(variant_result)
            write_result(options.results_folder, result)
        if system.compared_group:
            test_path = data.eval_files()["test"]
            comparisons = compare_translations(system, result, finished, test_path)
            result["comparisons"] = comparisons or result.get("comparisons", [])
            write_result(options.results_folder, result)
        return result


def _available_variants(system: ReferenceSystem, options: ReproduceOptions) -> list[SystemVariant]:
    """Return the variants to run. Those whose published model or whose ensemble is missing are skipped.

    Raises:
        ConfigError: One seed makes none of the variants.
        DataError: No variant has its published model.
    """
    variants = system.select_variants(options.variant)
    if options.seeds == 1 and not options.smoke:  # a smoke run has its own number of seeds
        ensembles = [variant.name for variant in variants if system.needs_ensemble(variant)]
        if len(ensembles) == len(variants):
            raise ConfigError(f"--seeds 1: {ensembles[0]} needs an ensemble, which needs at least 2 seeds")
        for name in ensembles:
            print_message(f"{system.name}, {name}: skipped, because one seed makes no ensemble (--seeds 1)")
        variants = [variant for variant in variants if variant.name not in ensembles]
    missing_paths = {
        variant.name: path
        for variant in variants
        if variant.init_from and not (path := base_model_path(system, variant, options.data)).exists()
    }
    if variants and len(missing_paths) == len(variants):
        raise DataError(
            f"the base model of {system.name} is missing; put its Hugging Face folder there "
            "(config.json, the files of the tokenizer and model.safetensors)",
            path=next(iter(missing_paths.values())),
        )
    for name, path in missing_paths.items():
        print_message(f"{system.name}, {name}: skipped, because its base model is not at {path}")
    return [variant for variant in variants if variant.name not in missing_paths]


def _load_or_create_result(data: ExperimentData, options: ReproduceOptions) -> ExperimentResult:
    """Return the result of earlier calls if the data is the same. Leaks and baselines are computed once."""
    system, checksums = data.system, data.checksums()
    result = read_result(options.results_folder, system.name)
    if result is None or result["data"] != checksums:
        result = empty_result(system.name, smoke=options.smoke)
        result["data"] = checksums
        result["leaks"] = count_leaks(data)
    if not result["baselines"] and not result["unfit"]:
        result["baselines"], result["unfit"] = evaluate_system_baselines(data)
    for eval_set, leak in result["leaks"].items():
        if leak["seen"]:
            leak_text = f"{leak['seen']} of the {leak['rows']} texts of {eval_set}"
            print_message(f"{system.name}: {leak_text} are also in the training file")
    if system.task == "translate":
        result["signature"] = bleu_signature()
    if system.n_examples:
        result["examples"] = read_examples(system, data.eval_files()["test"])
    return result


def _prepare_variant(
    variant: SystemVariant, data: ExperimentData, options: ReproduceOptions, folder: Path
) -> PreparedVariant:
    """Resolve the settings of a variant, which determine the folder of its runs."""
    if variant.ensemble_of:
        return _prepare_ensemble(variant, data, options, folder)
    file_settings, teacher = data.settings(variant), None
    if variant.distill_from:
        teacher = _prepare_variant(data.system.find_variant(variant.distill_from), data, options, folder).spec
        teacher_path = join_run_paths([member.path.absolute() for member in teacher.members(0)])
        file_settings["train.distill_from"] = str(teacher_path)
    settings = merge_settings(variant.settings, file_settings)
    n_seeds = options.seeds or variant.seeds if variant.trained else 1
    if options.smoke:
        settings, n_seeds = merge_settings(settings, smoke_settings(settings)), min(n_seeds, SMOKE_SEEDS)
    resolved = resolve_settings(data.system.task, "", None, merge_settings(NO_EARLY_STOPPING, settings))
    vectors = _vectors_digest(str(settings.get("train.embeddings", "")))
    # The imported model is named after the files of the published one, so another model gets another folder.
    base: Settings = {"train.init_from": resolved["train.init_from"]} if variant.init_from else {}
    out = folder / f"{variant.name}-{settings_hash(merge_settings(settings, vectors, base))}"
    seeds_text = f"{n_seeds} seed{'s' if n_seeds > 1 else ''} in {out}"
    return PreparedVariant(
        variant=variant,
        spec=VariantSpec(
            name=variant.name,
            settings=resolved,
            seeds=range(n_seeds),
            folder=out,
            title=f"{data.system.name}, {variant.name}: {variant.description}; {seeds_text}",
            trained=variant.trained,
            teacher=teacher,
        ),
        shown_settings={name: value for name, value in settings.items() if name not in file_settings},
        vectors=vectors,
    )


def _prepare_ensemble(
    variant: SystemVariant, data: ExperimentData, options: ReproduceOptions, folder: Path
) -> PreparedVariant:
    """Return a variant whose seeds are ensembles of runs of another variant. No run is in two of them.

    With `--seeds`, they combine as many runs as there are, and no further runs are trained for them.
    """
    base = _prepare_variant(data.system.find_variant(variant.ensemble_of), data, options, folder)
    n_ensembles, size = variant.seeds, variant.ensemble_size
    if options.seeds:
        size = min(size, options.seeds)
        n_ensembles = options.seeds // size
    if size < variant.ensemble_size:
        variant = replace(variant, description=f"{variant.description}, here of {size} (--seeds {options.seeds})")
    if options.smoke:
        n_ensembles, size = 1, SMOKE_SEEDS
    members = replace(base.spec, seeds=range(n_ensembles * size))
    out = base.spec.folder.with_name(f"{variant.name}-of-{base.spec.folder.name}")
    spec = replace(base.spec, name=variant.name, seeds=range(n_ensembles), folder=out)
    return replace(base, variant=variant, spec=replace(spec, ensemble_of=members, ensemble_size=size))


def _describe_variant(
    prepared: PreparedVariant, variant_result: VariantResult, system: ReferenceSystem, options: ReproduceOptions
) -> dict[str, Any]:
    """Return the entry of a variant in the result file. Samples, map and curves are from the first seed."""
    runs, first_folder = variant_result.runs, variant_result.runs[0].folder
    is_ensemble = bool(prepared.spec.ensemble_of)
    run = runs[0].load(options.device)
    events = read_events(first_folder.metrics_file)
    validation = collect_results(first_folder.path.parent, [seed_run.folder for seed_run in runs])
    has_map = bool(system.attention_example) and not is_ensemble
    vectors = {"vectors": prepared.vectors | {"matched": _matched_vectors_notice(events)}}
    return {
        "name": prepared.variant.name,
        "setting": prepared.variant.group,
        "about": prepared.variant.description,
        "settings": {name: to_json_value(value) for name, value in prepared.shown_settings.items()},
        "parameters": sum(parameter.numel() for parameter in run.task.model.parameters()),
        "trained_in": events[0]["precision"],
        "scored_in": next(iter(runs[0].evaluations.values()))["precision"],
        "vocabulary": run.config.tokenizer.vocab_size,
        **(vectors if prepared.vectors else {}),
        "seconds": round(variant_result.seconds, 2),
        "held_out": {"metric": validation.metric, "values": [] if is_ensemble else list(validation.values)},
        "curves": loss_curves(events),
        "progress": validation_rows(events, ("loss", *run.task.shown_metrics), run.config.data.valid_name),
        "samples": generate_samples(run, system.prompts, smoke=options.smoke),
        "map": capture_attention(run, system.attention_example) if has_map else None,
        **({"translations": _entries_with(runs[0], "examples")} if system.n_examples else {}),
        "runs": [_describe_run(seed_run, run, system) for seed_run in runs],
    }


def _describe_run(seed_run: SeedResult, first_run: Run, system: ReferenceSystem) -> dict[str, Any]:
    described = {
        "seed": seed_run.seed,
        "steps": seed_run.progress()["step"],
        "scores": _entries_with(seed_run, "scores"),
    }
    if system.word_length_bins:
        described["by_length"] = _entries_with(seed_run, "by_length")
    if system.compared_group:
        events, valid_name = read_events(seed_run.folder.metrics_file), first_run.config.data.valid_name
        described["validations"] = validation_curve(events, first_run.task.metric, valid_name)
    return described


def _entries_with(seed_run: SeedResult, key: str) -> dict[str, Any]:
    """Return one part of the evaluations of a run, by the name of the set."""
    return {name: entry[key] for name, entry in seed_run.evaluations.items() if key in entry}


def _vectors_digest(path: str) -> Settings:
    """Return a digest that identifies word vectors by content instead of location."""
    return {"train.embeddings": content_sha256(path)} if path else {}


def _matched_vectors_notice(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the notice about the number of words with a vector, without the path of the vectors."""
    notices = (event["text"] for event in events if event["event"] == "notice")
    return next((text.rpartition(": ")[2] for text in notices if "have a vector" in text), "")
