"""Results of reference systems, as `results/NAME.json` holds them, with made-up figures."""

from __future__ import annotations

from typing import Any

from reproduce.result_file import empty_result

ENVIRONMENT = {
    "device": "cpu, slow",
    "torch": "2.13",
    "triform": "0.1.0",
    "python": "3.12",
    "date": "2026-01-02",
    "command": "python -m reproduce speeches-lm",
}


def make_variant_result(name: str, group: str, runs: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "setting": group,
        "about": "",
        "settings": {},
        "parameters": 855_890,
        "seconds": 83.4,
        "trained_in": "fp32",
        "scored_in": "fp32",
        "vocabulary": 5698,
        "made": ENVIRONMENT,
        "curves": {"train": [[1, 8.5], [500, 5.0]]},
        "runs": [{"seed": seed, "steps": 500, "scores": metrics} for seed, metrics in enumerate(runs)],
        **fields,
    }


def make_result(system: str, *variants: dict[str, Any], smoke: bool = False) -> dict[str, Any]:
    return {**empty_result(system, smoke=smoke), "variants": list(variants)}
