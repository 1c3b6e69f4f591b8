"""Store the plan of a study in `OUT/plan.json`, so that different studies are never mixed in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triform.config.merging import DATA_FILE_SETTINGS
from triform.config.settings import Settings, build_config, flatten_config
from triform.errors import CheckpointError, ConfigError
from triform.experiments.engine import JsonDict, describe_file
from triform.experiments.study.plan import Study
from triform.io.errors import write_run_text
from triform.io.files import refuse_special_files
from triform.io.run_layout import CONFIG_FILE


def register_plan(folder: Path, study: Study) -> None:
    """Check that the runs in the folder are those of this study, and store the settings of its variants.

    Raises:
        CheckpointError: The folder contains something else, or its plan is damaged.
        ConfigError: Settings of a variant differ from those its runs were trained with.
    """
    for path in (folder, *(folder / variant.name for variant in study.variants)):
        refuse_special_files(path, not_links="*")
    plan_file = folder / "plan.json"
    if folder.is_dir() and not plan_file.exists() and any(folder.glob("[!.]*")):
        raise CheckpointError(f"{folder}: this folder does not contain a study; choose another --out")
    stored_plan = _read_plan(plan_file) if plan_file.exists() else {"task": study.task, "variants": {}}
    changes = (
        []
        if stored_plan["task"] == study.task
        else [f"task: {study.task} (the stored runs have {stored_plan['task']})"]
    )
    variants: JsonDict = dict(stored_plan["variants"])
    for variant in study.variants:
        current = json.loads(json.dumps(_comparable_settings(variant.settings)))
        stored = variants.get(variant.name)
        if stored and any((folder / variant.name).glob(f"seed-*/{CONFIG_FILE}")):
            changes += [f"{variant.name}: {change}" for change in _describe_changes(stored["settings"], current)]
        variants[variant.name] = {"settings": current}
    if changes:
        raise ConfigError(
            f"{folder}: the study has changed since these runs were made: {'; '.join(changes)}. "
            "Choose another --out, or remove the folder"
        )
    plan = {"name": study.name, "task": study.task, "variants": variants}
    write_run_text(plan_file, json.dumps(plan, ensure_ascii=False, indent=1) + "\n")


def _read_plan(plan_file: Path) -> JsonDict:
    try:
        plan: JsonDict = json.loads(plan_file.read_text(encoding="utf-8"))
        if any("settings" not in entry for entry in plan["variants"].values()):
            raise ValueError("a variant without settings")
        return plan | {"task": str(plan["task"])}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{plan_file}: the file is damaged ({error}); restore it, or remove the folder"
        ) from None


def _comparable_settings(settings: Settings) -> JsonDict:
    """Return all settings except the seed, with data files described by content instead of location."""
    resolved: JsonDict = {
        name: value for name, value in flatten_config(build_config(settings)).items() if name != "seed"
    }
    return resolved | {name: describe_file(str(resolved[name])) for name in DATA_FILE_SETTINGS if resolved[name]}


def _describe_changes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ. A setting that only one version of Triform knows is not a change."""
    return [
        f"{name}: {value} (the stored runs have {stored[name]})"
        for name, value in current.items()
        if name in stored and stored[name] != value
    ]
