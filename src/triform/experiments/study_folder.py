"""What a study keeps between commands, so that it goes on where it stopped and never mixes two studies.

OUT/plan.json holds the settings that each variant's runs were made with. Beside a run, tests.json holds its scores
on the test files, and for translations what each sentence adds to BLEU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triform.config import TaskName
from triform.config.settings import Settings, build_config, flatten_config
from triform.data.files import BUILTIN_PREFIX
from triform.data.readers import fingerprint
from triform.errors import CheckpointError, ConfigError
from triform.experiments.plan import Study
from triform.launch import DATA_FILE_SETTINGS
from triform.training.run_folder import RunFolder, damaged_error, write_run_text

JsonDict = dict[str, Any]


class StudyFolder:
    """The folder of a study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_file = path / "plan.json"

    def register_plan(self, study: Study) -> None:
        """Make sure that what is here was made by this study, and write down what will be."""
        if self.path.is_dir() and not self.plan_file.exists() and any(self.path.glob("[!.]*")):
            raise CheckpointError(f"{self.path}: exists and is not the folder of a study; choose another --out")
        stored_plan = self._read_plan() if self.plan_file.exists() else {"task": study.task, "variants": {}}
        changes = (
            []
            if stored_plan["task"] == study.task
            else [f"task: {study.task} (the stored runs have {stored_plan['task']})"]
        )
        variants: JsonDict = dict(stored_plan["variants"])
        for variant in study.variants:
            current = json.loads(json.dumps(_comparable_settings(variant.settings)))
            stored = variants.get(variant.name)
            if stored and self.started_runs(variant.name):
                changes += [
                    f"{variant.name}: {change}" for change in _describe_changes(stored["settings"], current)
                ]
            variants[variant.name] = {"settings": current, "seconds": stored["seconds"] if stored else 0.0}
        if changes:
            raise ConfigError(
                f"{self.path}: the study has changed since these runs were made: {'; '.join(changes)}. "
                "Choose another --out, or remove the folder"
            )
        self._write_plan({"name": study.name, "task": study.task, "variants": variants})

    def started_runs(self, variant: str) -> list[Path]:
        """The runs of a variant that have begun."""
        return sorted(file.parent for file in (self.path / variant).glob("seed-*/config.toml"))

    def training_seconds(self, variant: str) -> float:
        """How long this variant has been trained, all seeds together."""
        return float(self._read_plan()["variants"][variant]["seconds"])

    def add_training_seconds(self, variant: str, seconds: float) -> None:
        plan = self._read_plan()
        plan["variants"][variant]["seconds"] += seconds
        self._write_plan(plan)

    def _read_plan(self) -> JsonDict:
        try:
            plan: JsonDict = json.loads(self.plan_file.read_text(encoding="utf-8"))
            if any("settings" not in entry or "seconds" not in entry for entry in plan["variants"].values()):
                raise ValueError("a variant without settings")
            return plan | {"task": str(plan["task"])}
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.plan_file}: is damaged ({error}); restore it, or remove the folder"
            ) from None

    def _write_plan(self, plan: JsonDict) -> None:
        write_run_text(self.plan_file, json.dumps(plan, ensure_ascii=False, indent=1) + "\n")


def _comparable_settings(settings: Settings) -> JsonDict:
    """Every setting but the seed, and of the data what is in it rather than where it lies."""
    resolved: JsonDict = {
        name: value for name, value in flatten_config(build_config(settings)).items() if name != "seed"
    }
    return resolved | {name: describe_file(str(resolved[name])) for name in DATA_FILE_SETTINGS if resolved[name]}


def describe_file(path: str) -> str:
    """A file's name and its content in short; built-in sets have no content that could change."""
    return path if path.startswith(BUILTIN_PREFIX) else f"{Path(path).name} ({fingerprint(path)})"


def _describe_changes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """A setting that another version of Triform knew, or did not, is no change."""
    return [
        f"{name}: {value} (the stored runs have {stored[name]})"
        for name, value in current.items()
        if name in stored and stored[name] != value
    ]


class MetricsCache:
    """Scores of one run on test files; made again when the file or the model has changed."""

    __test__ = False  # to pytest

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path / "tests.json"

    def get(self, eval_set: str, test_file: str, metric: str, task: TaskName) -> JsonDict | None:
        """What is known of a set under this name, if it is this set and has this score."""
        entry: JsonDict = self._read_entries().get(eval_set, {})
        is_current = entry.get("of") == self._cache_key(test_file, task) and metric in entry["scores"]
        return entry if is_current else None

    def add(self, eval_set: str, test_file: str, task: TaskName, entry: JsonDict) -> None:
        entries = self._read_entries() | {eval_set: {"of": self._cache_key(test_file, task), **entry}}
        write_run_text(self.path, json.dumps(entries, ensure_ascii=False) + "\n")

    def _cache_key(self, test_file: str, task: TaskName) -> list[Any]:
        paths = test_file.split(",") if task == "translate" else [test_file]
        return [*(describe_file(path) for path in paths if path), self.folder.model_file.stat().st_mtime_ns]

    def _read_entries(self) -> JsonDict:
        if not self.path.exists():
            return {}
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged_error(self.path, error) from None
        return entries if isinstance(entries, dict) else {}
