"""Products of a decode step: a few rows with the weights of GPT-2's layers, by `F.linear` and its alternatives.

Other programs change the time of a product, but hardly its processor time. Beside the time, the report therefore
has the processor time of the busier thread, which is what the products would take on a quiet machine. The weights
are larger than the caches of a processor, as in decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform.nn.kernels.cpu_linear import onednn_product, use_cpu_products

WIDTH, LAYERS, VOCABULARY, REPEATS = 768, 6, 6_000, 8
ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
N_PARTS = 8
Multiply = Callable[[Tensor, Any], object]


def thread_times() -> dict[str, float]:
    """Return the processor time of each thread of this process in milliseconds; empty where it is not known."""
    tasks = Path("/proc/self/task")
    paths = list(tasks.iterdir()) if tasks.exists() else []
    return {path.name: int((path / "schedstat").read_text().split()[0]) / 1e6 for path in paths}


def measure(multiply_all: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return the shortest time of a call, and the least processor time of its busier thread, in milliseconds."""
    multiply_all()
    times, busier = [], []
    for _ in range(repeats):
        before, start = thread_times(), time.perf_counter()
        multiply_all()
        times.append((time.perf_counter() - start) * 1e3)
        busier.append(max((used - before.get(name, 0) for name, used in thread_times().items()), default=0.0))
    return {"best_ms": min(times), "busier_thread_ms": min(busier)}


def multiply_layers(multiply: Multiply, inputs: Sequence[Tensor], weights: Iterable[Any]) -> None:
    for x, weight in zip(inputs, weights, strict=True):
        multiply(x, weight)


def fp32_products(weights: Sequence[Tensor]) -> dict[str, tuple[Multiply, Iterable[Any]]]:
    """Return the products by name, each with the weights in the form that it takes."""
    layers = nn.Sequential(*(build_layer(weight) for weight in weights))
    use_cpu_products(layers)
    return {
        "triform": (lambda x, layer: layer(x), layers),
        "F.linear": (F.linear, weights),
        "oneDNN": (lambda x, weight: onednn_product(x, weight, None), weights),
        f"{N_PARTS} parts of the weights in a batch": (multiply_parts, weights),
    }


def build_layer(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer


def multiply_parts(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply parts of the weights by the transposed rows, in one batch of products that threads divide."""
    return torch.bmm(weight.view(N_PARTS, -1, weight.shape[1]), x.t().expand(N_PARTS, -1, -1))


def compare(report: BenchmarkReport) -> None:
    width, layers = (32, 1) if report.smoke else (WIDTH, LAYERS)
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * layers
    weights = [
        torch.randn(shape, dtype=torch.float32) for shape in [*shapes, (32 if report.smoke else VOCABULARY, width)]
    ]
    n_bytes = sum(4 * weight.numel() for weight in weights)
    large = torch.ones(n_bytes // 4, dtype=torch.float32)
    figures = measure(large.sum, 1 if report.smoke else REPEATS)
    report.add_figures("sum of as many numbers", gb_per_s=n_bytes / figures["best_ms"] / 1e6, **figures)
    for n_rows in ROWS:
        inputs = [torch.randn(n_rows, weight.shape[1], dtype=torch.float32) for weight in weights]
        for name, (multiply, forms) in fp32_products(weights).items():
            with torch.inference_mode():
                figures = measure(partial(multiply_layers, multiply, inputs, forms), 1 if report.smoke else REPEATS)
            report.add_figures(f"{n_rows} rows", who=name, **figures)


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("products", parse_options(__doc__, arguments))
    if report.cuda:
        report.add_skipped("products", "compared only on the CPU")
    else:
        compare(report)
    report.write()


if __name__ == "__main__":
    main()
