"""The report of `triform plan`, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from math import isinf
from typing import Any

from triform.analysis.training_plan import ENGINES, TrainingPlan
from triform.formatting import echo, format_duration, print_table

DAY = 86_400
ENGINE_TEXTS = {
    "ddp": "DDP: every GPU holds the whole model",
    "fsdp": "FSDP: every GPU holds a part of the model",
}


def print_plan(plan: TrainingPlan, gpu: str) -> None:
    """Print the model, the memory of a GPU, the time of a step, the duration, and checkpoints and failures."""
    model, cluster = plan.config.model, plan.cluster
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes:,} nodes"
    echo(f"{plan.model.n_params:,} parameters: {model.n_layers} layers of width {model.d_model:,}")
    echo(f"{cluster.gpus:,} {gpu} GPUs in {nodes}. {_describe_engine(plan)}")
    for rows in (_memory_rows(plan), _step_rows(plan), _run_rows(plan), _failure_rows(plan)):
        echo()
        print_table(rows)


def _describe_engine(plan: TrainingPlan) -> str:
    verb = "fits" if plan.fits["ddp"] else "does not fit"
    return f"The model {verb} one GPU. This plan uses {ENGINE_TEXTS[plan.engine]}."


def _memory_rows(plan: TrainingPlan) -> list[tuple[str, ...]]:
    names = list(dict.fromkeys(name for engine in ENGINES for name, _ in plan.memory[engine].items))
    names.sort(key=lambda name: name == "activations")  # the last row
    sizes = {engine: dict(plan.memory[engine].items) for engine in ENGINES}
    rows: list[tuple[str, ...]] = [("memory of a GPU", "DDP", "FSDP")]
    rows += [(f"  {name}", *(_format_size(sizes[engine].get(name, 0)) for engine in ENGINES)) for name in names]
    rows.append(("  total", *(_format_size(plan.memory[engine].total) for engine in ENGINES)))
    available = f"of {_format_size(plan.cluster.memory_bytes)}, less a fifth"
    rows.append((f"  fits ({available})", *("yes" if plan.fits[engine] else "no" for engine in ENGINES)))
    return rows


def _step_rows(plan: TrainingPlan) -> list[tuple[str, ...]]:
    step, batch, workload = plan.step, plan.batch, plan.workload
    parts = "1 micro-batch" if batch.micro_batches == 1 else f"{batch.micro_batches} micro-batches"
    return [
        ("one step", ""),
        ("  tokens of all GPUs", f"{plan.tokens_per_step:,}"),
        ("  texts of a GPU", f"{parts} of {workload.batch_size} × {workload.length:,} tokens"),
        ("  computation", format_duration(step.computation)),
        ("  bytes that a GPU sends", _format_size(step.bytes_moved)),
        ("  communication", format_duration(step.communication)),
        ("  of which delays the step", format_duration(step.waiting)),
        ("  total", format_duration(step.total)),
    ]


def _run_rows(plan: TrainingPlan) -> list[tuple[str, ...]]:
    return [
        ("the whole run", ""),
        ("  tokens per second", f"{plan.tokens_per_second:,.0f}"),
        ("  tokens per second and GPU", f"{plan.tokens_per_second / plan.cluster.gpus:,.0f}"),
        ("  model FLOP utilisation", f"{100 * plan.model_flop_utilisation:.1f} %"),
        ("  efficiency compared with one node", f"{100 * plan.scaling_efficiency:.1f} %"),
        ("  training tokens", f"{plan.training_tokens:,}"),
        ("  steps", f"{plan.n_steps:,}"),
        ("  duration without failures", _format_long_time(plan.training_seconds)),
        ("  expected duration", _format_long_time(plan.expected_seconds)),
        ("  GPU hours", f"{plan.cluster.gpus * plan.expected_seconds / 3_600:,.0f}"),
    ]


def _failure_rows(plan: TrainingPlan) -> list[tuple[str, ...]]:
    checkpoints = plan.checkpoints
    lost = "all of it" if isinf(checkpoints.slowdown) else f"{100 * (1 - 1 / checkpoints.slowdown):.2f} %"
    return [
        ("checkpoints and failures", ""),
        ("  size of a checkpoint", _format_size(checkpoints.size)),
        ("  time to write it in the background", format_duration(checkpoints.write_seconds)),
        ("  training waits for", format_duration(checkpoints.pause_seconds)),
        ("  time between checkpoints", _format_long_time(checkpoints.interval)),
        ("  time between failures", _format_long_time(checkpoints.mtbf)),
        ("  a failure costs", _format_long_time(checkpoints.loss_per_failure)),
        ("  expected failures", f"{plan.expected_seconds / checkpoints.mtbf:,.1f}"),
        ("  time lost to checkpoints and failures", lost),
    ]


def plan_to_dict(plan: TrainingPlan) -> dict[str, Any]:
    """Return the plan with all its inputs and results, in bytes and seconds."""
    model, checkpoints = plan.config.model, plan.checkpoints
    return {
        "model": asdict(plan.model) | {"n_layers": model.n_layers, "d_model": model.d_model},
        "cluster": asdict(plan.cluster) | {"nodes": plan.cluster.nodes},
        "parallel": plan.engine,
        "memory": {
            engine: {
                "items": dict(plan.memory[engine].items),
                "total": plan.memory[engine].total,
                "fits": plan.fits[engine],
            }
            for engine in ENGINES
        },
        "batch": {
            "tokens_per_step": plan.tokens_per_step,
            "micro_batches": plan.batch.micro_batches,
            "texts_per_micro_batch": plan.workload.batch_size,
            "length": plan.workload.length,
            "precision": plan.workload.precision,
        },
        "step": asdict(plan.step) | {"total": plan.step.total},
        "tokens_per_second": plan.tokens_per_second,
        "model_flop_utilisation": plan.model_flop_utilisation,
        "scaling_efficiency": plan.scaling_efficiency,
        "training_tokens": plan.training_tokens,
        "n_steps": plan.n_steps,
        "training_seconds": plan.training_seconds,
        "expected_seconds": plan.expected_seconds,
        "checkpoints": asdict(checkpoints) | {"slowdown": checkpoints.slowdown},
    }


def _format_size(count: float) -> str:
    """Format bytes in powers of ten, as data sheets of GPUs and links do."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1_000, units[1:]
    return f"{count:,.0f} B" if units[0] == "B" else f"{count:,.1f} {units[0]}"


def _format_long_time(seconds: float) -> str:
    if isinf(seconds):
        return "never"
    return f"{seconds / DAY:,.1f} days" if seconds >= 2 * DAY else format_duration(seconds)
