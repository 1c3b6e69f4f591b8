"""Published speeds of training on up to 128 GPUs, compared with the estimates of `triform plan`.

Nothing is measured. The table of docs/scaling.md is the output of this command. Two constants are calibrated: the
utilisation of a GPU on the first row of each series, and the overlap on one pair of rows. All other rows are
predictions.
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.options import build_parser
from triform.analysis.cluster import DEFAULT_OVERLAP, GPUS, Cluster
from triform.analysis.device_memory import Engine
from triform.analysis.step_time import DeviceBatch, ModelSize, estimate_step_time

DATA_FILE = Path(__file__).with_name("published.toml")
OVERLAP_SERIES = "torchtitan with torch.compile"  # the second row of this series calibrates the overlap


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published speed in tokens per second and GPU, and the planned one."""

    series: str
    source: str
    gpu: str
    engine: str
    model: str
    gpus: int
    batch: str
    published: float
    planned: float
    note: str

    @property
    def error(self) -> float:
        """The relative error of the planned speed."""
        return self.planned / self.published - 1


def compare_all(overlap: float = DEFAULT_OVERLAP) -> list[Comparison]:
    """Return all published rows with the planned speeds."""
    data = tomllib.loads(DATA_FILE.read_text(encoding="utf-8"))
    utilisations: dict[str, float] = {}
    comparisons = []
    for series in data["series"]:
        rows = [_read_row(data["models"], series, row, overlap) for row in series["rows"]]
        calibrating_series = series.get("calibrated_by", series["name"])
        if calibrating_series == series["name"]:
            utilisations[series["name"]] = calibrate_utilisation(series["engine"], *rows[0])
        for index, (model, batch, cluster, published) in enumerate(rows):
            cluster = replace(cluster, utilisation=utilisations[calibrating_series])
            step = estimate_step_time(series["engine"], model, batch, cluster)
            is_calibrated = index == 0 and calibrating_series == series["name"]
            row = series["rows"][index]
            comparisons.append(
                Comparison(
                    series=series["name"],
                    source=series["source"],
                    gpu=series["gpu"],
                    engine=series["engine"],
                    model=row["model"],
                    gpus=row["gpus"],
                    batch=f"{batch.micro_batches} × {row['texts']} × {row['length']:,}",
                    published=published,
                    planned=batch.tokens / step.total,
                    note=_describe_calibration(series["name"], index, is_calibrated),
                )
            )
    return comparisons


def _read_row(
    models: dict[str, Any], series: dict[str, Any], row: dict[str, Any], overlap: float
) -> tuple[ModelSize, DeviceBatch, Cluster, float]:
    """Return the model, the batch of a GPU, the cluster and the published tokens per second and GPU."""
    sizes, gpu = models[row["model"]], GPUS[series["gpu"].lower()]
    # Six operations for each multiplied parameter, and twelve for each pair of tokens, layer and channel.
    flops = sizes.get("flops_per_token") or 6 * (sizes["n_params"] - sizes["lookup_params"]) + 12 * (
        sizes["n_layers"] * row["length"] * sizes["d_model"]
    )
    model = ModelSize(
        n_params=sizes["n_params"],
        n_trainable=sizes["n_params"],
        n_blocks=sizes["n_layers"],
        flops_per_token=flops,
    )
    micro_batches = row.get("micro_batches", 1)
    batch = DeviceBatch(
        tokens=micro_batches * row["texts"] * row["length"],
        micro_batches=micro_batches,
        element_bytes=series.get("element_bytes", 2),
        gradient_bytes=series.get("gradient_bytes", 4),
    )
    cluster = Cluster(
        gpus=row["gpus"],
        gpus_per_node=min(row["gpus"], series.get("gpus_per_node", 8)),
        memory_bytes=gpu.memory_bytes,
        peak_flops=gpu.peak_flops["bf16"],
        utilisation=1.0,
        node_bandwidth=gpu.node_bandwidth,
        network_bandwidth=series.get("network_bandwidth", gpu.network_bandwidth),
        overlap=overlap,
    )
    published = row.get("tokens_per_second") or batch.tokens / row["step_seconds"]
    return model, batch, cluster, published


def calibrate_utilisation(
    engine: Engine, model: ModelSize, batch: DeviceBatch, cluster: Cluster, published: float
) -> float:
    """Return the utilisation with which the planned speed equals the published one, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        step = estimate_step_time(engine, model, batch, replace(cluster, utilisation=middle))
        low, high = (low, middle) if batch.tokens / step.total > published else (middle, high)
    return low


def calibrate_overlap() -> float:
    """Return the overlap with which the second row of `OVERLAP_SERIES` is predicted without error, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        row = [row for row in compare_all(middle) if row.series == OVERLAP_SERIES][1]
        low, high = (middle, high) if row.error < 0 else (low, middle)
    return low


def _describe_calibration(series: str, index: int, is_calibrated: bool) -> str:
    if is_calibrated:
        return "calibrates the utilisation"
    return "calibrates the overlap" if series == OVERLAP_SERIES and index == 1 else ""


def format_markdown(comparisons: Sequence[Comparison]) -> str:
    """Return the comparison as a Markdown table, followed by the sources. Calibrating rows have no error."""
    sources = list(dict.fromkeys(row.source for row in comparisons))
    lines = [
        "| source | model | GPUs | tokens of a GPU | published | planned | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in comparisons:
        error = row.note or f"{100 * row.error:+.1f} %"
        lines.append(
            f"| {row.series} [{sources.index(row.source) + 1}] | {row.model} | {row.gpus} × {row.gpu}, "
            f"{row.engine.upper()} | {row.batch} | {row.published:,.0f} | {row.planned:,.0f} | {error} |"
        )
    lines += ["", *(f"{number}. {source}" for number, source in enumerate(sources, start=1))]
    return "\n".join(lines)


def summarise(comparisons: Sequence[Comparison]) -> str:
    """Return the median and the largest error of the predictions in one sentence."""
    errors = [abs(row.error) for row in comparisons if not row.note]
    return (
        f"The {len(errors)} predictions have a median error of {100 * statistics.median(errors):.1f} %; "
        f"the largest error is {100 * max(errors):.1f} %."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and a summary of the errors."""
    parser = build_parser(__doc__)
    parser.add_argument("--device", help="ignored; nothing is measured")
    options = parser.parse_args(arguments)
    comparisons = compare_all()
    print(format_markdown(comparisons))
    print(f"\n{summarise(comparisons)}")
    print(f"The overlap is {DEFAULT_OVERLAP}; exactly {calibrate_overlap():.3f} predicts its row without error.")
    if options.json:
        rows = [{**vars(row), "error": row.error} for row in comparisons]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
