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

from triform.data.files import digest
from triform.errors import ConfigError, DivergedError, InterruptedRun
from triform.formatting import print_message
from triform.io.files import write_text
from triform.io.locks import locked
from triform.launch import Options
from triform.metrics import bleu_signature
from triform.reproduce import outcome as outcomes
from triform.reproduce.beside import baselines
from triform.reproduce.maps import looked
from triform.reproduce.material import Material
from triform.reproduce.outcome import Outcome
from triform.reproduce.score import score
from triform.reproduce.system import System, Variant
from triform.run import load, pick_device
from triform.seeds import Seeds, train_seeds
from triform.settings import Settings, overlay
from triform.training.folder import RunFolder

if TYPE_CHECKING:
    import torch

QUICK_STEPS, QUICK_SEEDS, QUICK_CHARACTERS = 4, 2, 20


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How to run a system."""

    data: str = ""  # folder of sets; empty: where `triform data get` puts them
    setting: str = "both"
    seeds: int = 0  # 0: as many as each variant asks for
    out: Path = Path("runs/reproduce")
    results: Path = Path("results")  # of quick runs: `quick` in it
    device: str = "auto"
    quick: bool = False

    def __post_init__(self) -> None:
        if self.setting not in ("as-reported", "best", "both"):
            raise ConfigError(f"--setting {self.setting} is not known; choose from as-reported, best, both")

    @property
    def kept(self) -> Path:
        """Where outcomes go: those of quick runs apart, so that none replaces a result."""
        return self.results / "quick" if self.quick else self.results

    def command(self, system: System, *, whole: bool = False) -> str:
        return self.command_of(system.name, whole=whole)

    def command_of(self, name: str, *, whole: bool = False) -> str:
        """What repeats this; where things are is said only when the `whole` is asked for."""
        setting = "" if self.setting == "both" else f" --setting {self.setting}"
        seeds = f" --seeds {self.seeds}" if self.seeds else ""
        command = f"triform reproduce {name}{setting}{seeds}{' --quick' if self.quick else ''}"
        if not whole:
            return command
        data = f" --data {shlex.quote(self.data)}" if self.data else ""
        device = "" if self.device == "auto" else f" --device {self.device}"
        places = [f" --{place} {shlex.quote(str(getattr(self, place)))}" for place in ("out", "results")]
        return f"{command}{data}{''.join(places)}{device}"


# Systems are trained to their last step unless they say otherwise.
NO_EARLY_STOPPING: Settings = {"train.patience": 0}


def reproduce(system: System, asked: Asked) -> Outcome:
    """Run a system; what was trained before under the same settings is not trained again."""
    device = pick_device(asked.device)
    place = asked.out / (f"{system.name}-quick" if asked.quick else system.name)
    with locked(place, f"reproducing {system.name}") as notice:
        if notice:
            print_message(notice)
        return _reproduce(system, asked, place, device)


def _reproduce(system: System, asked: Asked, place: Path, device: torch.device) -> Outcome:
    material = Material.gather(system, asked.data, place / "data", quick=asked.quick)
    outcome = _begun(system, asked, material)
    if system.task == "translate":
        outcome["signature"] = bleu_signature()
    for variant in system.chosen(asked.setting):
        if variant.base and not material.base(variant).exists():
            print_message(
                f"{system.name}, {variant.name}: left out, since it begins with {material.base(variant)}: not there"
            )
            continue
        try:
            found = run_variant(variant, material, asked, place)
        except (InterruptedRun, KeyboardInterrupt):  # while training, or while scoring
            again = asked.command(system, whole=True)
            raise InterruptedRun(f"stopped; what was saved is kept; go on with: {again}") from None
        except DivergedError as error:  # told in the table, and the others go on
            outcome["failures"][variant.name] = str(error)
            print_message(f"{system.name}, {variant.name}: {error}")
        else:
            found["made"] = outcomes.circumstances(device, asked.command(system))
            outcomes.put(outcome, found, [each.name for each in system.variants])
        outcomes.write(asked.kept, outcome)
    return outcome


def _begun(system: System, asked: Asked, material: Material) -> Outcome:
    """What earlier calls left, if it was of the same data; leaks and baselines are looked at once."""
    sums = {name: digest(str(path)) for name, path in material.files.items()}
    outcome = outcomes.read(asked.kept, system.name)
    if outcome is None or outcome["data"] != sums:
        outcome = outcomes.blank(system.name, quick=asked.quick)
        outcome["data"] = sums
        outcome["leaks"] = material.leaks()
    if not outcome["baselines"] and not outcome["unfit"]:
        outcome["baselines"], outcome["unfit"] = baselines(material)
    for test, leak in outcome["leaks"].items():
        if leak["seen"]:
            print_message(
                f"{system.name}: {leak['seen']} of the {leak['rows']} texts of {test} are also in the training file"
            )
    return outcome


def run_variant(variant: Variant, material: Material, asked: Asked, place: Path) -> dict[str, Any]:
    """Train a variant's seeds, or go on where they stopped, and score each of them."""
    system = material.system
    places = material.settings(variant)  # of files: different for everybody, so not told
    settings = overlay(variant.settings, places)
    seeds = asked.seeds or variant.seeds
    if asked.quick:
        settings, seeds = overlay(settings, quick_settings(settings)), min(seeds, QUICK_SEEDS)
    vectors = _about_vectors(str(settings.get("train.embeddings", "")))
    out = place / f"{variant.name}-{mark(overlay(settings, vectors))}"
    begun = any((out / f"seed-{seed}" / "config.toml").exists() for seed in range(seeds))
    print_message(
        f"{system.name}, {variant.name}: {variant.about}; {seeds} seed{'s' if seeds > 1 else ''} in {out}"
    )
    options = Options(out=str(out), resume=begun, device=asked.device)
    clock = Clock(out / "seconds.json")
    with clock:
        made = train_seeds(system.task, seeds, options=options, **overlay(NO_EARLY_STOPPING, settings))  # type: ignore[arg-type]
    tests = material.tests()
    runs = [_scored(folder, seed, tests, asked) for seed, folder in enumerate(made.folders)]
    samples = written(made.folders[0], system.prompts, asked)
    seen = looked(load(made.folders[0], device=asked.device), system.look) if system.look else None
    heard = outcomes.events(RunFolder(made.folders[0]).metrics_file)
    return {
        "name": variant.name,
        "setting": variant.setting,
        "about": variant.about,
        "settings": {name: _plain(value) for name, value in settings.items() if name not in places},
        "parameters": runs[0].pop("parameters"),
        "trained_in": heard[0]["precision"],
        "scored_in": runs[0].pop("precision"),
        "vocabulary": RunFolder(made.folders[0]).read_config().tokenizer.vocab_size,
        **({"vectors": vectors | {"matched": _matched(heard)}} if vectors else {}),
        "seconds": round(clock.total, 2),
        "held_out": _held_out(made),
        "curves": outcomes.curves(heard),
        "samples": samples,
        "map": seen,
        "runs": [{name: run[name] for name in ("seed", "steps", "scores")} for run in runs],
    }


def _about_vectors(path: str) -> Settings:
    """What word vectors are, rather than where they lie."""
    return {"train.embeddings": digest(path)} if path else {}


def _matched(heard: Sequence[Mapping[str, Any]]) -> str:
    """What the run said of its vectors, without their place."""
    told = (event["text"] for event in heard if event["event"] == "notice")
    return next((text.rpartition(": ")[2] for text in told if "have a vector" in text), "")


def _held_out(made: Seeds) -> dict[str, Any]:
    return {"metric": made.metric, "values": list(made.values)}


def _scored(folder: Path, seed: int, tests: dict[str, str], asked: Asked) -> dict[str, Any]:
    """One seed on all sets, in the numbers the weights are kept in."""
    run = load(folder, device=asked.device)
    return {
        "seed": seed,
        "steps": run.progress()["step"],
        "scores": score(run, tests),
        "parameters": sum(each.numel() for each in run.task.model.parameters()),
        "precision": run.precision,
    }


def written(folder: Path, prompts: Sequence[tuple[str, int]], asked: Asked) -> list[dict[str, str]]:
    """What the first seed goes on with after each prompt."""
    if not prompts:
        return []
    run = load(folder, device=asked.device)
    most = QUICK_CHARACTERS if asked.quick else max(length for _, length in prompts)
    texts = [run.predict([prompt], max_new_tokens=min(most, length))[0].output for prompt, length in prompts]
    return [{"input": prompt, "output": text} for (prompt, _), text in zip(prompts, texts, strict=True)]


class Clock:
    """Seconds spent on something, added up over calls; kept in a file, since a call may be interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total = float(json.loads(path.read_text())) if path.exists() else 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *problem: object) -> None:
        self.total += time.perf_counter() - self.start
        if self.path.parent.is_dir():
            write_text(self.path, json.dumps(self.total))


def quick_settings(settings: Settings) -> Settings:
    """So small and short that every step of the way is taken, and nothing is learned."""
    heads = settings.get("model.n_heads", 2)
    assert isinstance(heads, int)
    shape: Settings = {"model.d_model": 8 * heads, "model.d_ff": 32, "model.n_layers": 1}
    if "train.embeddings" in settings:
        del shape["model.d_model"]  # vectors say how wide
    small: Settings = {
        "data.max_len": 24,
        **({} if "train.base" in settings else shape),
        "train.max_steps": QUICK_STEPS,
        "train.eval_every": 2,
        "train.log_every": 1,
        "train.warmup_steps": 1,
    }
    if settings.get("tokenizer.kind") == "bpe":
        small["tokenizer.vocab_size"] = 300
    return small


def mark(settings: Settings) -> str:
    """Other settings, another folder."""
    told = json.dumps({name: _plain(value) for name, value in sorted(settings.items())})
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
