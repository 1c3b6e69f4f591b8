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
from triform.data.files import BUILTIN
from triform.data.readers import fingerprint
from triform.errors import CheckpointError, ConfigError
from triform.launch import FILES
from triform.settings import Settings, build, flatten
from triform.study.plan import Study
from triform.training.folder import RunFolder, damaged, write_text

Json = dict[str, Any]


class Kept:
    """The folder of a study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_file = path / "plan.json"

    def claim(self, study: Study) -> None:
        """Make sure that what is here was made by this study, and write down what will be."""
        if self.path.is_dir() and not self.plan_file.exists() and any(self.path.glob("[!.]*")):
            raise CheckpointError(f"{self.path}: exists and is not the folder of a study; choose another --out")
        before = self._read() if self.plan_file.exists() else {"task": study.task, "variants": {}}
        changes = (
            [] if before["task"] == study.task else [f"task: {study.task} (the stored runs have {before['task']})"]
        )
        made: Json = dict(before["variants"])
        for variant in study.variants:
            now = json.loads(json.dumps(_settings(variant.asked)))
            stored = made.get(variant.name)
            if stored and self.runs(variant.name):
                changes += [f"{variant.name}: {text}" for text in _changes(stored["settings"], now)]
            made[variant.name] = {"settings": now, "seconds": stored["seconds"] if stored else 0.0}
        if changes:
            raise ConfigError(
                f"{self.path}: the study has changed since these runs were made: {'; '.join(changes)}. "
                "Choose another --out, or remove the folder"
            )
        self._write({"name": study.name, "task": study.task, "variants": made})

    def runs(self, variant: str) -> list[Path]:
        """The runs of a variant that have begun."""
        return sorted(file.parent for file in (self.path / variant).glob("seed-*/config.toml"))

    def seconds(self, variant: str) -> float:
        """How long this variant has been trained, all seeds together."""
        return float(self._read()["variants"][variant]["seconds"])

    def add_seconds(self, variant: str, seconds: float) -> None:
        plan = self._read()
        plan["variants"][variant]["seconds"] += seconds
        self._write(plan)

    def _read(self) -> Json:
        try:
            plan: Json = json.loads(self.plan_file.read_text(encoding="utf-8"))
            if any("settings" not in made or "seconds" not in made for made in plan["variants"].values()):
                raise ValueError("a variant without settings")
            return plan | {"task": str(plan["task"])}
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.plan_file}: is damaged ({error}); restore it, or remove the folder"
            ) from None

    def _write(self, plan: Json) -> None:
        write_text(self.plan_file, json.dumps(plan, ensure_ascii=False, indent=1) + "\n")


def _settings(asked: Settings) -> Json:
    """Every setting but the seed, and of the data what is in it rather than where it lies."""
    have: Json = {name: value for name, value in flatten(build(asked)).items() if name != "seed"}
    return have | {name: content(str(have[name])) for name in FILES if have[name]}


def content(name: str) -> str:
    """A file's name and its content in short; built-in sets have no content that could change."""
    return name if name.startswith(BUILTIN) else f"{Path(name).name} ({fingerprint(name)})"


def _changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A setting that another version of Triform knew, or did not, is no change."""
    return [
        f"{name}: {value} (the stored runs have {stored[name]})"
        for name, value in now.items()
        if name in stored and stored[name] != value
    ]


class TestScores:
    """Scores of one run on test files; made again when the file or the model has changed."""

    __test__ = False  # to pytest

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.file = folder.path / "tests.json"

    def find(self, name: str, test: str, metric: str, task: TaskName) -> Json | None:
        """What is known of a set under this name, if it is this set and has this score."""
        entry: Json = self._read().get(name, {})
        known = entry.get("of") == self._of(test, task) and metric in entry["scores"]
        return entry if known else None

    def add(self, name: str, test: str, task: TaskName, entry: Json) -> None:
        every = self._read() | {name: {"of": self._of(test, task), **entry}}
        write_text(self.file, json.dumps(every, ensure_ascii=False) + "\n")

    def _of(self, test: str, task: TaskName) -> list[Any]:
        parts = test.split(",") if task == "translate" else [test]
        return [*(content(part) for part in parts if part), self.folder.model_file.stat().st_mtime_ns]

    def _read(self) -> Json:
        if not self.file.exists():
            return {}
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged(self.file, error) from None
        return found if isinstance(found, dict) else {}
