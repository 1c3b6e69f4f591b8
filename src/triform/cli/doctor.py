"""`triform doctor`: what this machine offers and whether Triform can work here."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer

from triform.cli.options import Json, print_json

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "typer", "rich")


def doctor(json_: Json = False) -> None:
    """Say what was found: versions, devices, kernels, room on the disk; exit code 1 if something is wrong."""
    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    found["packages"] = {name: _version(name) for name in PACKAGES}
    problems = [f"{name} is not installed" for name, have in found["packages"].items() if have is None]
    for name, look in (("devices", _devices), ("attention", _attention), ("disk", _disk)):
        try:
            found[name] = look()
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    found["problems"] = problems
    if json_:
        print_json(found)
    else:
        _show(found)
    if problems:
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    import torch

    from triform.run import pick_device

    devices: dict[str, Any] = {
        "auto": str(pick_device("auto")),
        "cpu_threads": torch.get_num_threads(),
        "cuda": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "mps": torch.backends.mps.is_available(),
    }
    if devices["cuda"]:
        devices["cuda_bf16"] = torch.cuda.is_bf16_supported()
    return devices


def _attention() -> dict[str, str]:
    """Run both kernels on a small example and compare: a broken build shows here, not in a loss curve."""
    import torch

    from triform.config import ModelConfig
    from triform.nn.kernels import explicit, fused
    from triform.nn.masks import causal
    from triform.nn.scores import ScaledDot
    from triform.run import pick_device

    score = ScaledDot(ModelConfig(d_model=64, n_heads=2))
    device = pick_device("auto")
    q, k, v = (torch.randn(2, 2, 16, 32, device=device) for _ in range(3))
    difference = (explicit(q, k, v, causal, score, 0.0) - fused(q, k, v, causal, score, 0.0)).abs().max().item()
    if difference > 1e-3:
        raise RuntimeError(f"fused attention differs from the formula by {difference:.1e}")
    return {
        "kernel": "fused",
        "why": "fastest here, and equal to the formula",
        "difference": f"{difference:.1e}",
    }


def _disk() -> dict[str, float]:
    return {"free_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1)}


def _show(found: dict[str, Any]) -> None:
    rows: list[tuple[str, str]] = [("python", found["python"]), ("system", found["system"])]
    rows += [(name, have or "missing") for name, have in found["packages"].items()]
    shown: dict[str, Callable[[Any], str]] = {"devices": _pairs, "attention": _pairs, "disk": _pairs}
    rows += [(name, show(found[name])) for name, show in shown.items() if name in found]
    for name, text in rows:
        typer.echo(f"{name:<12} {text}")
    for problem in found["problems"]:
        typer.echo(f"problem      {problem}", err=True)
    if not found["problems"]:
        typer.echo("all good")


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
