"""`triform doctor`: report versions, devices and attention kernels, and check that they work."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from triform.cli.options import JsonOption, print_json
from triform.cli.threads import describe_waiting
from triform.formatting import echo, print_table

PACKAGES = (
    *("torch", "numpy", "tokenizers", "safetensors", "scikit-learn", "scipy", "sacrebleu", "typer", "rich"),
    *("msgspec", "starlette", "uvicorn", "httptools"),
)
OPTIONAL_PACKAGES = {  # the packages of each extra
    "arrow": ("pyarrow",),
    "export": ("ctranslate2", "onnx", "onnxscript"),
    "hf": ("huggingface_hub",),
    "plot": ("matplotlib",),
    "search": ("optuna",),
    "sentencepiece": ("sentencepiece",),
    "track": ("alembic", "mlflow-skinny", "sqlalchemy", "tensorboard", "trackio", "wandb"),
    "vectors": ("gensim",),
}


DEVICE_LABELS = {
    "auto": "device for auto",
    "cpu_threads": "CPU threads",
    "cpu_waiting": "threads that wait",
    "cpu_bf16": "fast bf16 on the CPU",
    "cpu_int8": "int8 on the CPU",
    "cuda": "CUDA devices",
    "mps": "MPS (Apple GPU)",
    "cuda_bf16": "bf16 on CUDA",
}


def doctor(json_: JsonOption = False) -> None:
    """Report versions, devices and kernels, and check that they work.

    The exit code is 1 if a package is missing or a kernel gives wrong results.

    Examples:
        triform doctor
        triform doctor --json
    """
    report: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    report["packages"] = {name: _package_version(name) for name in PACKAGES}
    report["extras"] = {
        extra: {name: _package_version(name) for name in names} for extra, names in OPTIONAL_PACKAGES.items()
    }
    problems = [f"{name} is not installed" for name, version in report["packages"].items() if version is None]
    for name, inspect in (
        ("devices", _inspect_devices),
        ("attention", _inspect_attention),
        ("products", _inspect_products),
        ("disk", _inspect_disk),
    ):
        try:
            report[name] = inspect()
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    report["problems"] = problems
    if json_:
        print_json(report)
    else:
        _print_report(report)
    if problems:
        raise typer.Exit(1)


def _package_version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _inspect_devices() -> dict[str, Any]:
    import torch

    from triform.device import resolve_device
    from triform.nn.kernels.int8 import int8_unavailable_reason
    from triform.nn.kernels.precision import has_bf16

    cpu = torch.device("cpu")
    devices: dict[str, Any] = {
        "auto": str(resolve_device("auto")),
        "cpu_threads": torch.get_num_threads(),
        "cpu_waiting": describe_waiting(),
        "cpu_bf16": has_bf16(cpu),
        "cpu_int8": not int8_unavailable_reason(),
        "cuda": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "mps": torch.backends.mps.is_available(),
    }
    if devices["cuda"]:
        devices["cuda_bf16"] = torch.cuda.is_bf16_supported()
    return devices


def _inspect_attention() -> dict[str, str]:
    """Return the kernel that is selected for each kind of attention, and why.

    Each kernel is compared with the reference implementation on a small example, so that a broken build of torch is
    noticed before training.
    """
    import torch

    from triform.config import ModelConfig
    from triform.device import resolve_device
    from triform.nn.attention import ScoreFunction, naive_attention
    from triform.nn.kernels.dispatch import select_kernel
    from triform.nn.kernels.packing import PackedMask
    from triform.nn.masks import causal_mask, full_mask, window_mask
    from triform.nn.positions import build_relative_position
    from triform.nn.scores import SCORES

    device = resolve_device("auto")
    model_config = ModelConfig(d_model=64, n_heads=2)
    cases = {
        "full or causal attention": (causal_mask, model_config),
        "attention in a window of 128 tokens": (causal_mask & window_mask(128), model_config),
        "attention on packed rows": (PackedMask([256] * 8, [256] * 8), model_config),
        "attention with positions=t5 or alibi": (full_mask, replace(model_config, positions="alibi")),
        "attention with attention_score=additive": (causal_mask, replace(model_config, attention_score="additive")),
        "attention with positions=relative": (causal_mask, replace(model_config, positions="relative")),
    }
    kernels = {}
    for dtype in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
        qkv = [torch.randn(1, 2, 2048, 32, device=device, dtype=dtype) for _ in range(3)]
        for name, (mask, config) in cases.items():
            # Additive attention is slow, so it is checked on fewer tokens.
            q, k, v = (x[:, :, :256] if config.attention_score == "additive" else x for x in qkv)
            score_fn = ScoreFunction(
                SCORES[config.attention_score](config), build_relative_position(config, 2048, causal=True)
            ).to(device, dtype)
            with torch.inference_mode():
                choice = select_kernel(q, k, mask, score_fn, 0.0)
                outputs = [kernel(q, k, v, mask, score_fn, 0.0) for kernel in (choice.kernel, naive_attention)]
                error = (outputs[0] - outputs[1]).float().abs().max().item()
            if error > (1e-3 if dtype == torch.float32 else 5e-2):
                raise RuntimeError(
                    f"{choice.name} ({name}): differs from the reference implementation by {error:.1e}"
                )
            label = f"{name}, bf16" if dtype == torch.bfloat16 else name
            kernels[label] = f"{choice.name}: {choice.reason} (largest difference from the reference: {error:.0e})"
    return kernels


def _inspect_products() -> dict[str, str]:
    """Return the product that a CPU uses for each number of rows, compared with `F.linear` on an example."""
    import torch
    from torch import nn

    from triform.nn.kernels.cpu_linear import CpuLinear, has_onednn

    layer = nn.Linear(512, 512)
    fast = CpuLinear(layer, can_pack=has_onednn())
    products = {}
    with torch.inference_mode():
        for n_rows in (1, 16, 1024):
            x = torch.randn(n_rows, 512)
            product = fast.select_product(x).value
            error = (fast(x) - layer(x)).abs().max().item()
            if error > 1e-3:
                raise RuntimeError(f"{product} ({n_rows} rows): differs from the plain product by {error:.1e}")
            products[f"fp32 product of {n_rows:,} row{'s' * (n_rows > 1)} on the CPU"] = product
    return products


def _inspect_disk() -> dict[str, float]:
    return {"free_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1)}


def _print_report(report: dict[str, Any]) -> None:
    rows: list[tuple[str, str]] = [("item", "found"), ("python", report["python"]), ("system", report["system"])]
    rows += [(name, version or "not installed") for name, version in report["packages"].items()]
    for extra, packages in report["extras"].items():
        versions = (
            f"{name} {version}" if version else f"{name} not installed" for name, version in packages.items()
        )
        rows.append((f"extra {extra}", ", ".join(versions)))
    rows += [_format_device_row(name, value) for name, value in report.get("devices", {}).items()]
    rows += [("free disk space", f"{report['disk']['free_gb']} GB")] if "disk" in report else []
    rows += [*report.get("attention", {}).items(), *report.get("products", {}).items()]
    print_table(rows, align="ll")
    for problem in report["problems"]:
        echo(f"problem: {problem}", err=True)
    if not report["problems"]:
        echo("no problems found")


def _format_device_row(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif isinstance(value, list):
        value = ", ".join(value) or "none"
    return DEVICE_LABELS[name], str(value)
