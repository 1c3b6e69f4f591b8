"""From data to outcome: every variant trained with its seeds, scored once, and written down."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from triform.config.settings import Settings, merge_settings
from triform.data.files import content_sha256
from triform.errors import ConfigError, DivergedError, RunInterruptedError
from triform.evaluation.metrics import bleu_signature
from triform.experiments.reproduce import outcome as outcomes
from triform.experiments.reproduce.beside import evaluate_system_baselines
from triform.experiments.reproduce.data import ExperimentData
from triform.experiments.reproduce.outcome import ExperimentResult
from triform.experiments.reproduce.scoring import evaluate_run
from triform.experiments.reproduce.system import ReferenceSystem, SystemVariant
from triform.experiments.seeds import SeedResults, train_seeds
from triform.formatting import print_message
from triform.io.files import write_text
from triform.io.locks import folder_lock
from triform.launch import RunOptions
from triform.run import Run, load, resolve_device
from triform.training.run_folder import RunFolder

if TYPE_CHECKING:
    import torch

MAX_ATTENTION_HEADS = 4  # where a layer has more heads, their mean is recorded
STACK_BY_TASK = {"classify": "encoder", "generate": "decoder", "translate": "cross"}
SMOKE_STEPS, SMOKE_SEEDS, SMOKE_NEW_TOKENS = 4, 2, 20


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """How to run a system."""

    data: str = ""  # folder of sets; empty: where `triform data get` puts them
    variant: str = "both"
    seeds: int = 0  # 0: as many as each variant asks for
    out: Path = Path("runs/reproduce")
    results: Path = Path("results")  # of quick runs: `quick` in it
    device: str = "auto"
    smoke: bool = False

    def __post_init__(self) -> None:
        if self.variant not in ("as-reported", "best", "both"):
            raise ConfigError(f"--variant {self.variant} is not known; choose from as-reported, best, both")

    @property
    def results_folder(self) -> Path:
        """Where outcomes go: those of quick runs apart, so that none replaces a result."""
        return self.results / "quick" if self.smoke else self.results

    def command(self, system: ReferenceSystem, *, with_paths: bool = False) -> str:
        return self.command_for(system.name, with_paths=with_paths)

    def command_for(self, name: str, *, with_paths: bool = False) -> str:
        """What repeats this; where things are is said only when the `whole` is asked for."""
        variant_option = "" if self.variant == "both" else f" --variant {self.variant}"
        seeds_option = f" --seeds {self.seeds}" if self.seeds else ""
        command = f"triform reproduce {name}{variant_option}{seeds_option}{' --smoke' if self.smoke else ''}"
        if not with_paths:
            return command
        data_option = f" --data {shlex.quote(self.data)}" if self.data else ""
        device_option = "" if self.device == "auto" else f" --device {self.device}"
        path_options = [f" --{option} {shlex.quote(str(getattr(self, option)))}" for option in ("out", "results")]
        return f"{command}{data_option}{''.join(path_options)}{device_option}"


# Systems are trained to their last step unless they say otherwise.
NO_EARLY_STOPPING: Settings = {"train.patience": 0}


def reproduce(system: ReferenceSystem, options: ReproduceOptions) -> ExperimentResult:
    """Run a system; what was trained before under the same settings is not trained again."""
    device = resolve_device(options.device)
    folder = options.out / (f"{system.name}-quick" if options.smoke else system.name)
    with folder_lock(folder, f"reproducing {system.name}") as notice:
        if notice:
            print_message(notice)
        return _run_system(system, options, folder, device)


def _run_system(
    system: ReferenceSystem, options: ReproduceOptions, folder: Path, device: torch.device
) -> ExperimentResult:
    data = ExperimentData.prepare(system, options.data, folder / "data", smoke=options.smoke)
    result = _load_or_create_result(system, options, data)
    if system.task == "translate":
        result["signature"] = bleu_signature()
    for variant in system.select_variants(options.variant):
        if variant.init_from and not data.init_from_path(variant).exists():
            missing_path = data.init_from_path(variant)
            print_message(f"{system.name}, {variant.name}: left out: its base model is not at {missing_path}")
            continue
        try:
            variant_result = run_variant(variant, data, options, folder)
        except (RunInterruptedError, KeyboardInterrupt):  # while training, or while scoring
            resume_command = options.command(system, with_paths=True)
            raise RunInterruptedError(f"stopped; what was saved is kept; go on with: {resume_command}") from None
        except DivergedError as error:  # told in the table, and the others go on
            result["failures"][variant.name] = str(error)
            print_message(f"{system.name}, {variant.name}: {error}")
        else:
            variant_result["made"] = outcomes.environment_info(device, options.command(system))
            outcomes.upsert_variant(result, variant_result, [declared.name for declared in system.variants])
        outcomes.write_result(options.results_folder, result)
    return result


def _load_or_create_result(
    system: ReferenceSystem, options: ReproduceOptions, data: ExperimentData
) -> ExperimentResult:
    """What earlier calls left, if it was of the same data; leaks and baselines are looked at once."""
    checksums = {name: content_sha256(str(path)) for name, path in data.files.items()}
    result = outcomes.read_result(options.results_folder, system.name)
    if result is None or result["data"] != checksums:
        result = outcomes.empty_result(system.name, smoke=options.smoke)
        result["data"] = checksums
        result["leaks"] = data.count_leaks()
    if not result["baselines"] and not result["unfit"]:
        result["baselines"], result["unfit"] = evaluate_system_baselines(data)
    for eval_set, leak in result["leaks"].items():
        if leak["seen"]:
            leak_text = f"{leak['seen']} of the {leak['rows']} texts of {eval_set}"
            print_message(f"{system.name}: {leak_text} are also in the training file")
    return result


def run_variant(
    variant: SystemVariant, data: ExperimentData, options: ReproduceOptions, folder: Path
) -> dict[str, Any]:
    """Train a variant's seeds, or go on where they stopped, and score each of them."""
    system = data.system
    file_settings = data.settings(variant)  # of files: different for everybody, so not told
    settings = merge_settings(variant.settings, file_settings)
    n_seeds = options.seeds or variant.seeds
    if options.smoke:
        settings, n_seeds = merge_settings(settings, smoke_settings(settings)), min(n_seeds, SMOKE_SEEDS)
    vectors_digest = _vectors_digest(str(settings.get("train.embeddings", "")))
    out = folder / f"{variant.name}-{settings_hash(merge_settings(settings, vectors_digest))}"
    resume = any((out / f"seed-{seed}" / "config.toml").exists() for seed in range(n_seeds))
    print_message(
        f"{system.name}, {variant.name}: {variant.description}; {n_seeds} seed{'s' if n_seeds > 1 else ''} in {out}"
    )
    train_options = RunOptions(out=str(out), resume=resume, device=options.device)
    timer = PersistentTimer(out / "seconds.json")
    with timer:
        seed_runs = train_seeds(
            system.task,
            n_seeds,
            options=train_options,
            **merge_settings(NO_EARLY_STOPPING, settings),  # type: ignore[arg-type]
        )
    eval_files = data.eval_files()
    runs = [
        _evaluate_seed(run_folder, seed, eval_files, options) for seed, run_folder in enumerate(seed_runs.folders)
    ]
    samples = generate_samples(seed_runs.folders[0], system.prompts, options)
    attention = (
        capture_attention(load(seed_runs.folders[0], device=options.device), system.attention_example)
        if system.attention_example
        else None
    )
    events = outcomes.read_events(RunFolder(seed_runs.folders[0]).metrics_file)
    return {
        "name": variant.name,
        "setting": variant.group,
        "about": variant.description,
        "settings": {name: _to_json_value(value) for name, value in settings.items() if name not in file_settings},
        "parameters": runs[0].pop("parameters"),
        "trained_in": events[0]["precision"],
        "scored_in": runs[0].pop("precision"),
        "vocabulary": RunFolder(seed_runs.folders[0]).read_config().tokenizer.vocab_size,
        **({"vectors": vectors_digest | {"matched": _matched_vectors_notice(events)}} if vectors_digest else {}),
        "seconds": round(timer.total_seconds, 2),
        "held_out": _validation_summary(seed_runs),
        "curves": outcomes.loss_curves(events),
        "samples": samples,
        "map": attention,
        "runs": [{name: run[name] for name in ("seed", "steps", "scores")} for run in runs],
    }


def _vectors_digest(path: str) -> Settings:
    """What word vectors are, rather than where they lie."""
    return {"train.embeddings": content_sha256(path)} if path else {}


def _matched_vectors_notice(events: Sequence[Mapping[str, Any]]) -> str:
    """What the run said of its vectors, without their place."""
    notices = (event["text"] for event in events if event["event"] == "notice")
    return next((text.rpartition(": ")[2] for text in notices if "have a vector" in text), "")


def _validation_summary(seed_runs: SeedResults) -> dict[str, Any]:
    return {"metric": seed_runs.metric, "values": list(seed_runs.values)}


def _evaluate_seed(
    folder: Path, seed: int, eval_files: dict[str, str], options: ReproduceOptions
) -> dict[str, Any]:
    """One seed on all sets, in the numbers the weights are kept in."""
    run = load(folder, device=options.device)
    return {
        "seed": seed,
        "steps": run.progress()["step"],
        "scores": evaluate_run(run, eval_files),
        "parameters": sum(parameter.numel() for parameter in run.task.model.parameters()),
        "precision": run.precision,
    }


def generate_samples(
    folder: Path, prompts: Sequence[tuple[str, int]], options: ReproduceOptions
) -> list[dict[str, str]]:
    """What the first seed goes on with after each prompt."""
    if not prompts:
        return []
    run = load(folder, device=options.device)
    max_new_tokens = SMOKE_NEW_TOKENS if options.smoke else max(length for _, length in prompts)
    texts = [
        run.predict([prompt], max_new_tokens=min(max_new_tokens, length))[0].output for prompt, length in prompts
    ]
    return [{"input": prompt, "output": text} for (prompt, _), text in zip(prompts, texts, strict=True)]


def capture_attention(run: Run, text: str) -> dict[str, Any]:
    """The most telling attention map of a text for the task, with rounded weights of shape (L, H, T, S)."""
    attention_map = next(
        candidate for candidate in run.explain(text).maps if candidate.name == STACK_BY_TASK[run.config.task]
    )
    weights = (
        attention_map.weights if attention_map.n_heads <= MAX_ATTENTION_HEADS else attention_map.average()[:, None]
    )
    return {
        "stack": attention_map.name,
        "heads": "each" if attention_map.n_heads <= MAX_ATTENTION_HEADS else "mean",
        "queries": list(attention_map.queries),
        "keys": list(attention_map.keys),
        "weights": np.round(weights.astype(np.float64), 3).tolist(),
    }


class PersistentTimer:
    """Seconds spent on something, added up over calls; kept in a file, since a call may be interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total_seconds = float(json.loads(path.read_text())) if path.exists() else 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *exc_info: object) -> None:
        self.total_seconds += time.perf_counter() - self.start
        if self.path.parent.is_dir():
            write_text(self.path, json.dumps(self.total_seconds))


def smoke_settings(settings: Settings) -> Settings:
    """So small and short that every step of the way is taken, and nothing is learned."""
    n_heads = settings.get("model.n_heads", 2)
    assert isinstance(n_heads, int)
    model_settings: Settings = {"model.d_model": 8 * n_heads, "model.d_ff": 32, "model.n_layers": 1}
    if "train.embeddings" in settings:
        del model_settings["model.d_model"]  # vectors say how wide
    overrides: Settings = {
        "data.max_len": 24,
        **({} if "train.init_from" in settings else model_settings),
        "train.max_steps": SMOKE_STEPS,
        "train.eval_every": 2,
        "train.log_every": 1,
        "train.warmup_steps": 1,
    }
    if settings.get("tokenizer.kind") == "bpe":
        overrides["tokenizer.vocab_size"] = 300
    return overrides


def settings_hash(settings: Settings) -> str:
    """Other settings, another folder."""
    serialised = json.dumps({name: _to_json_value(value) for name, value in sorted(settings.items())})
    return hashlib.sha256(serialised.encode()).hexdigest()[:8]


def _to_json_value(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
