"""The report of `triform params`, as text and as JSON: parameters by component, memory and operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from triform.analysis.costs import Costs, FlopItem, MemoryItem, Workload
from triform.analysis.parameters import ParameterBudget, ParameterGroup, ParameterRow
from triform.analysis.reported_counts import PUBLISHED_COUNT, ReconciliationStep
from triform.config import Config
from triform.formatting import echo, print_table

TextRows = list[tuple[str, ...]]


class Section(NamedTuple):
    """A table of the report with a title above it and a remark below it. Both may be empty."""

    rows: TextRows
    align: str
    title: str = ""
    remark: str = ""


def print_report(
    name: str, param_budget: ParameterBudget, cost: Costs, steps: Sequence[ReconciliationStep]
) -> None:
    """Print symbols, parameters by component, memory, operations, and the difference from a published count."""
    sections = [
        _symbols_section(param_budget),
        _components_section(param_budget, cost.workload),
        *_memory_sections(cost),
        _flops_section(cost),
    ]
    if steps:
        sections.append(_reconciliation_section(steps))
    echo(f"{name}: {param_budget.form}, {param_budget.total:,} parameters")
    for section in sections:
        echo(f"\n{section.title}" if section.title else "")
        print_table(section.rows, section.align)
        if section.remark:
            echo(f"\n{section.remark}")


def print_device_memory(report: Mapping[str, Any]) -> None:
    """Print the memory of each of several devices that train together, and the time of a step."""
    names = list(dict.fromkeys([*report["ddp"], *report["fsdp"]]))
    names.sort(key=lambda name: name == "total")
    rows: TextRows = [("", "ddp", "fsdp")]
    rows += [
        (
            name,
            *(_format_bytes(report[engine][name]) if name in report[engine] else "" for engine in ("ddp", "fsdp")),
        )
        for name in names
    ]
    echo(f"\nmemory of each of {report['number']} devices, with {report['batch_size']} texts of the batch")
    print_table(rows, "lrr")
    if report["auto"]:
        echo(f"\nWith {_format_bytes(report['memory'])} a device, train.parallel=auto chooses {report['auto']}.")
    if report["step_seconds"]:
        milliseconds = f"{report['step_seconds'] * 1000:,.3g} ms"
        echo(f"\nA step takes each device at least {milliseconds}, without communication.")


def _symbols_section(param_budget: ParameterBudget) -> Section:
    symbols = [(symbol.name, f"{symbol.value:,}", symbol.meaning) for symbol in param_budget.symbols]
    return Section([("symbol", "value", "meaning"), *symbols], "lrl")


def _components_section(param_budget: ParameterBudget, workload: Workload) -> Section:
    rows: TextRows = [("component", "formula", "with values", "each", "times", "total", "share", "")]
    for group in param_budget.groups:
        name = f"{group.name}, {group.layers} layers" if group.layers > 1 else group.name
        per_layer = f"{group.per_layer:,}" if group.layers > 1 else ""
        n_layers = f"{group.layers}" if group.layers > 1 else ""
        share = _format_share(group.total, param_budget.total)
        rows.append((name, "", "", per_layer, n_layers, f"{group.total:,}", share, ""))
        rows += [_format_component_row(group, row, param_budget.total) for row in group.lines]
    note = f"sharing saves {param_budget.shared:,}" if param_budget.shared else ""
    name = "total, all trainable" if workload.trainable is None else "total"
    rows.append((name, "", "", "", "", f"{param_budget.total:,}", "100.0 %", note))
    if workload.adapters:
        rows.append(
            ("adapters", "", "", "", "", f"{workload.adapters:,}", "", "merged into the weights after training")
        )
    if workload.trainable is not None:
        share = _format_share(workload.trainable, param_budget.total)
        rows.append(("trainable", "", "", "", "", f"{workload.trainable:,}", share, ""))
    return Section(rows, "lllrrrrl")


def _format_component_row(group: ParameterGroup, row: ParameterRow, total: int) -> tuple[str, ...]:
    if row.tied:
        return f"  {row.name}", row.formula, row.numbers, f"{row.per_instance:,}", "", "shared", "", row.note
    if not row.formula:
        return f"  {row.name}", "", "", "", "", "0", "", row.note
    count = group.layers * row.total
    multiplier = f"{row.times * group.layers}" if row.times * group.layers > 1 else ""
    return (
        *(f"  {row.name}", row.formula, row.numbers, f"{row.per_instance:,}"),
        *(multiplier, f"{count:,}", _format_share(count, total), row.note),
    )


def _format_share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %"


def _memory_sections(cost: Costs) -> list[Section]:
    workload = cost.workload
    device_text = "a GPU" if workload.gpu else "a CPU"
    conditions = (
        f"{workload.precision}, a batch of {workload.batch_size} × {workload.length} tokens, on {device_text}"
    )
    header = ("", "formula", "elements", "bytes each", "memory", "")
    training: TextRows = [header, *map(_format_memory_row, cost.training)]
    note = "as if all parameters were trainable" if workload.trainable is not None else ""
    training += [("  activations", "", "", "", _format_bytes(cost.activation_bytes), note)]
    training += [_format_memory_row(item, "    ") for item in cost.activations]
    training += [("total", "", "", "", _format_bytes(cost.training_bytes), "")]
    inference: TextRows = [header, *map(_format_memory_row, cost.inference)]
    inference += [(f"    per {name}", "", "", "", f"{size:,} B", "") for name, size in cost.cache_per_token]
    inference += [("total", "", "", "", _format_bytes(cost.inference_bytes), "")]
    return [
        Section(training, "llrrrl", title=f"memory for training: {conditions}"),
        Section(inference, "llrrrl", title=f"memory for inference: {conditions}", remark=MEMORY_NOTE),
    ]


MEMORY_NOTE = (
    "The batch has B texts of T tokens (S in a source) without padding. Activations are the tensors that autograd\n"
    "saves for the backward pass. Temporary buffers and torch need more memory, so leave a fifth of it free."
)


def _format_memory_row(item: MemoryItem, indent: str = "  ") -> tuple[str, ...]:
    return (
        indent + item.name,
        item.formula,
        f"{item.count:,}",
        f"{item.bytes_each}",
        _format_bytes(item.total),
        item.note,
    )


def _format_bytes(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{count:,} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def _flops_section(cost: Costs) -> Section:
    length = cost.workload.length
    rows: TextRows = [("operations, forward pass", "formula per unit", "per unit", "unit", "per text", "")]
    rows += [_format_flops_row(flops) for flops in cost.flop_items]
    for kind, count in cost.flops_per_token.items():
        rows.append(
            (f"per {kind}", "", _format_operations(count), "", "", f"{_format_operations(3 * count)} in training")
        )
    rows.append(
        (f"text of {length} tokens, full attention", "", "", "", _format_operations(cost.forward_flops), "")
    )
    rows.append(("text, without masked keys", "", "", "", _format_operations(cost.needed_forward_flops), ""))
    step_name = f"training step of {cost.workload.batch_size} texts"
    rows.append((step_name, "", "", "", _format_operations(cost.step_flops), "3 × forward"))
    return Section(rows, "llrrrl", remark=FLOPS_NOTE)


FLOPS_NOTE = (
    "Only matrix products are counted, with two operations for each multiply-add. The backward pass costs twice\n"
    "the forward pass. Attention is counted in full; the last column shows the operations without masked keys."
)


def _format_flops_row(flops: FlopItem) -> tuple[str, ...]:
    note = f"{_format_operations(flops.needed)} without masked keys" if flops.needed != flops.total else ""
    per_unit = _format_operations(flops.per_unit)
    return f"  {flops.name}", flops.formula, per_unit, flops.per, _format_operations(flops.total), note


def _format_operations(count: int) -> str:
    size, units = float(count), ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:,.0f} {units[0]}" if units[0] == "FLOP" else f"{size:,.2f} {units[0]}"


def _reconciliation_section(steps: Sequence[ReconciliationStep]) -> Section:
    rows: TextRows = [("from a published count for these sizes to this one", "change", "sum", "reason")]
    rows += [(f"  {step.name}", f"{step.change:+,}", f"{step.sum:,}", step.why) for step in steps]
    rows.append(("this model", "", f"{steps[-1].sum:,}", f"published: {PUBLISHED_COUNT:,}"))
    return Section(rows, "lrrl", remark=HEADS_NOTE)


HEADS_NOTE = (
    "The number of heads does not change the size of attention: H heads of width d / H have a total width of d,\n"
    "which gives 4·d·d weights for 1 head, for 8 or for 64."
)


def report_to_dict(
    name: str, config: Config, param_budget: ParameterBudget, cost: Costs, steps: Sequence[ReconciliationStep]
) -> dict[str, Any]:
    """Return the report as the JSON object of `triform params --json`."""
    groups = [
        {
            **asdict(group),
            "per_layer": group.per_layer,
            "total": group.total,
            "lines": [{**asdict(row), "each": row.per_instance, "total": row.total} for row in group.lines],
        }
        for group in param_budget.groups
    ]
    return {
        "name": name,
        "task": config.task,
        "form": param_budget.form,
        "parameters": param_budget.total,
        "trainable": param_budget.total if cost.workload.trainable is None else cost.workload.trainable,
        "adapters": cost.workload.adapters,
        "shared": param_budget.shared,
        "letters": {symbol.name: symbol.value for symbol in param_budget.symbols},
        "parts": groups,
        "use": asdict(cost.workload),
        "memory": {
            "training_bytes": cost.training_bytes,
            "activation_bytes": cost.activation_bytes,
            "inference_bytes": cost.inference_bytes,
            "cache_bytes_per_token": dict(cost.cache_per_token),
            "training": [{**asdict(item), "total": item.total} for item in (*cost.training, *cost.activations)],
            "inference": [{**asdict(item), "total": item.total} for item in cost.inference],
        },
        "operations": {
            "forward_per_token": cost.flops_per_token,
            "training_per_token": {kind: 3 * count for kind, count in cost.flops_per_token.items()},
            "forward_per_text": cost.forward_flops,
            "forward_per_text_needed": cost.needed_forward_flops,
            "training_step": cost.step_flops,
            "forward": [{**asdict(flops), "total": flops.total} for flops in cost.flop_items],
        },
        "reconciliation": [asdict(step) for step in steps],
    }
