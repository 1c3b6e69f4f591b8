"""`triform doctor`: what this machine offers and whether Triform can work here."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from triform.cli.options import Json, print_json
from triform.formatting import echo

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
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    import torch

    from triform.nn.precision import has_bf16
    from triform.nn.quantize import trouble
    from triform.run import pick_device

    cpu = torch.device("cpu")
    devices: dict[str, Any] = {
        "auto": str(pick_device("auto")),
        "cpu_threads": torch.get_num_threads(),
        "cpu_bf16": has_bf16(cpu),
        "cpu_int8": not trouble(),
        "cuda": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "mps": torch.backends.mps.is_available(),
    }
    if devices["cuda"]:
        devices["cuda_bf16"] = torch.cuda.is_bf16_supported()
    return devices


def _attention() -> dict[str, str]:
    """Which kernel computes what here, and why; each is compared with the formula on a small example.

    A broken build shows here, not in a loss curve.
    """
    import torch

    from triform.config import ModelConfig
    from triform.nn.choice import choose
    from triform.nn.kernels import Matching, explicit
    from triform.nn.masks import Together, causal, everything, window
    from triform.nn.positions import relation
    from triform.nn.scores import SCORES
    from triform.run import pick_device

    device = pick_device("auto")
    plain = ModelConfig(d_model=64, n_heads=2)
    cases = {
        "every token, or every earlier one": (causal, plain),
        "a window of 128 in 2048 tokens": (causal & window(128), plain),
        "rows packed without padding": (Together([256] * 8, [256] * 8), plain),
        "positions=t5 or alibi": (everything, replace(plain, positions="alibi")),
        "score=additive": (causal, replace(plain, score="additive")),
        "positions=relative": (causal, replace(plain, positions="relative")),
    }
    found = {}
    for kind in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
        whole = [torch.randn(1, 2, 2048, 32, device=device, dtype=kind) for _ in range(3)]
        for name, (rule, config) in cases.items():
            q, k, v = (x[:, :, :256] if config.score == "additive" else x for x in whole)  # it takes its time
            matching = Matching(SCORES[config.score](config), relation(config, 2048, causal=True)).to(device, kind)
            with torch.inference_mode():
                choice = choose(q, k, rule, matching, 0.0)
                answers = [each(q, k, v, rule, matching, 0.0) for each in (choice.kernel, explicit)]
                off = (answers[0] - answers[1]).float().abs().max().item()
            if off > (1e-3 if kind == torch.float32 else 5e-2):
                raise RuntimeError(f"{choice.name}, {name}: differs from the formula by {off:.1e}")
            said = f"{name}, bf16" if kind == torch.bfloat16 else name
            found[said] = f"{choice.name}: {choice.why} (equal to the formula within {off:.0e})"
    return found


def _disk() -> dict[str, float]:
    return {"free_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1)}


def _show(found: dict[str, Any]) -> None:
    rows: list[tuple[str, str]] = [("python", found["python"]), ("system", found["system"])]
    rows += [(name, have or "missing") for name, have in found["packages"].items()]
    rows += [(name, _pairs(found[name])) for name in ("devices", "disk") if name in found]
    rows += [("attention", f"{name} -> {choice}") for name, choice in found.get("attention", {}).items()]
    for name, text in rows:
        echo(f"{name:<12} {text}")
    for problem in found["problems"]:
        echo(f"problem      {problem}", err=True)
    if not found["problems"]:
        echo("all good")


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
