"""`triform params`: how many parameters a model has and what it costs, without building it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triform.cli.options import Json, NoVerify, Set, print_json
from triform.cli.subject import Asked, ConfigFile, Labels, MaxLen, Preset, Subject, TaskOption, VocabSize, settled
from triform.errors import ConfigError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.config import Config, Sizes
    from triform.explain.costs import Costs, Item, Use, Work
    from triform.explain.reconcile import Step
    from triform.models.budget import Budget, Line, Part
    from triform.settings import Settings


def params(
    run: Subject = None,
    preset: Preset = "",
    config: ConfigFile = None,
    task: TaskOption = "",
    set_: Set = None,
    vocab_size: VocabSize = 0,
    max_len: MaxLen = 0,
    labels: Labels = 0,
    batch_size: Annotated[
        int, typer.Option(metavar="N", show_default=False, help="Texts at once; default the settings', or 16.")
    ] = 0,
    length: Annotated[
        int, typer.Option(metavar="N", show_default=False, help="Tokens a text; default max_len.")
    ] = 0,
    optimizer: Annotated[str, typer.Option(help="adam, adamw or sgd; default the settings'.")] = "",
    precision: Annotated[str, typer.Option(help="fp32 or bf16; default the settings', or fp32.")] = "",
    device: Annotated[str, typer.Option(help="cuda or cpu: where it is to run.")] = "cuda",
    json_: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Count a model's parameters by component, with formulas; its memory and its operations beside them."""
    from triform.explain.costs import costs
    from triform.explain.reconcile import applies, reconcile
    from triform.models.budget import budget
    from triform.settings import parse_assignments

    _not_negative(vocab_size=vocab_size, max_len=max_len, labels=labels, batch_size=batch_size, length=length)
    settings = parse_assignments(set_ or [])
    given: Settings = {
        "data.max_len": max_len,
        "tokenizer.vocab_size": vocab_size,
        "train.batch_size": batch_size,
        "train.optimizer": optimizer,
        "train.precision": precision,
    }
    settings |= {name: value for name, value in given.items() if value}
    asked = Asked(run=run, preset=preset, config=config, task=task, settings=settings, labels=labels)
    asked = replace(asked, no_verify=no_verify)
    full, sizes = settled(asked)
    counted = budget(full, sizes)
    cost = costs(full, sizes, _use(full, sizes, length, device, **_learning(full, sizes)))
    steps = reconcile(counted) if applies(full, sizes) else ()
    if json_:
        print_json(_plain(asked.name, full, counted, cost, steps))
        return
    echo("\n\n".join(_pages(asked.name, counted, cost, steps)))


def _not_negative(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise ConfigError(f"--{name.replace('_', '-')} {number} must not be below 0")


def _learning(config: Config, sizes: Sizes) -> dict[str, int]:
    """Where not everything learns, how much does: of a model that is built without its numbers."""
    if config.train.freeze < 0 and not config.train.lora_rank:
        return {}
    import torch

    from triform.explain.trial import fresh_model
    from triform.training.layers import learning, limit_learning

    with torch.device("meta"):
        model = fresh_model(config, sizes)
        limit_learning(model, config)
    return learning(model)._asdict()


def _use(config: Config, sizes: Sizes, length: int, device: str, **learning: int) -> Use:
    from triform.explain.costs import Use

    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device}: memory is counted for cuda or cpu")
    train = config.train
    if length > sizes.max_len:
        raise ConfigError(f"--length {length} is more than the model reads at once, {sizes.max_len}: see --max-len")
    length = length or sizes.max_len
    return Use(
        batch_size=train.batch_size or max(1, train.batch_tokens // length) * bool(train.batch_tokens) or 16,
        length=length,
        optimizer=train.optimizer,
        momentum=train.momentum,
        precision="bf16" if train.precision == "bf16" else "fp32",
        gpu=device == "cuda",
        **learning,
    )


Rows = list[tuple[str, ...]]


def _pages(name: str, counted: Budget, cost: Costs, steps: Sequence[Step]) -> list[str]:
    pages = [
        f"{name}: {counted.form}, {counted.total:,} parameters\n\n" + _letters(counted),
        _components(counted, cost.use),
        _memory(cost),
        _work(cost),
    ]
    return [*pages, _reconciliation(steps)] if steps else pages


def _table(rows: Rows, left: int) -> str:
    """Columns of text to the left, then columns of numbers; notes after the last one are not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left or column == len(row) - 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _letters(counted: Budget) -> str:
    rows: Rows = [(f"  {letter.sign}", f"{letter.value:,}", letter.meaning) for letter in counted.letters]
    return _table(rows, left=1)


def _components(counted: Budget, use: Use) -> str:
    rows: Rows = [("component", "formula", "in numbers", "each", "times", "total", "share", "")]
    for part in counted.parts:
        name = f"{part.name}, {part.layers} layers" if part.layers > 1 else part.name
        each = f"{part.per_layer:,}" if part.layers > 1 else ""
        times = f"{part.layers}" if part.layers > 1 else ""
        rows.append((name, "", "", each, times, f"{part.total:,}", _share(part.total, counted.total), ""))
        rows += [_component(part, line, counted.total) for line in part.lines]
    note = f"sharing saves {counted.shared:,}" if counted.shared else ""
    name = "all, every one trained" if use.learns is None else "all"
    rows.append((name, "", "", "", "", f"{counted.total:,}", "100.0 %", note))
    if use.adapters:
        rows.append(("adapters beside them", "", "", "", "", f"{use.adapters:,}", "", "added to them at the end"))
    if use.learns is not None:
        rows.append(("what learns", "", "", "", "", f"{use.learns:,}", _share(use.learns, counted.total), ""))
    return _table(rows, left=3)


def _component(part: Part, line: Line, total: int) -> tuple[str, ...]:
    if line.tied:
        return f"  {line.name}", line.formula, line.numbers, f"{line.each:,}", "", "shared", "", line.note
    if not line.formula:
        return f"  {line.name}", "", "", "", "", "0", "", line.note
    count = part.layers * line.total
    times = f"{line.times * part.layers}" if line.times * part.layers > 1 else ""
    return (
        *(f"  {line.name}", line.formula, line.numbers, f"{line.each:,}"),
        *(times, f"{count:,}", _share(count, total), line.note),
    )


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %"


def _memory(cost: Costs) -> str:
    use = cost.use
    place = "a GPU" if use.gpu else "a CPU"
    how = f"{use.precision}, a batch of {use.batch_size} × {use.length} tokens, on {place}"
    head = ("", "formula", "numbers", "bytes each", "memory", "")
    training: Rows = [head, *map(_memory_row, cost.training)]
    note = "as if all learned" if use.learns is not None else ""
    training += [("  activations", "", "", "", _bytes(cost.activation_bytes), note)]
    training += [_memory_row(item, "    ") for item in cost.activations]
    training += [("together", "", "", "", _bytes(cost.training_bytes), "")]
    using: Rows = [head, *map(_memory_row, cost.inference)]
    using += [(f"    for {name}", "", "", "", f"{size:,} B", "") for name, size in cost.cache_per_token]
    using += [("together", "", "", "", _bytes(cost.inference_bytes), "")]
    shown = [
        f"memory to train: {how}",
        _table(training, left=2),
        "",
        f"memory to use it: {how}",
        _table(using, left=2),
    ]
    return "\n".join([*shown, "", ESTIMATE])


ESTIMATE = (
    "B texts of T tokens (S of a source), no padding. Activations are what autograd keeps for the\n"
    "backward pass; passing buffers of kernels and torch itself come on top: leave a fifth of the memory free."
)


def _memory_row(item: Item, indent: str = "  ") -> tuple[str, ...]:
    return indent + item.name, item.formula, f"{item.count:,}", f"{item.bytes_each}", _bytes(item.total), item.note


def _bytes(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{count:,} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def _work(cost: Costs) -> str:
    length = cost.use.length
    rows: Rows = [("operations forward", "formula for one", "for one", "", "for a text", "")]
    rows += [_work_row(work) for work in cost.work]
    for kind, count in cost.per_token.items():
        rows.append((f"a {kind}", "", _operations(count), "", "", f"{_operations(3 * count)} in training"))
    rows.append((f"a text of {length} tokens, every key read", "", "", "", _operations(cost.forward), ""))
    rows.append(("a text, only what masks leave", "", "", "", _operations(cost.forward_needed), ""))
    note = "3 × forward"
    rows.append((f"a training step of {cost.use.batch_size} texts", "", "", "", _operations(cost.step), note))
    return _table(rows, left=2) + f"\n\n{COUNTED}"


COUNTED = (
    "Matrix products only, two operations for a multiplication with its addition; backward costs twice forward.\n"
    "Attention counts as if every token read every token; what masks and windows leave is said beside it."
)


def _work_row(work: Work) -> tuple[str, ...]:
    note = f"{_operations(work.needed)} after masks" if work.needed != work.total else ""
    each = _operations(work.each)
    return f"  {work.name}", work.formula, each, f"a {work.per}", _operations(work.total), note


def _operations(count: int) -> str:
    size, units = float(count), ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:,.0f} {units[0]}" if units[0] == "FLOP" else f"{size:,.2f} {units[0]}"


def _reconciliation(steps: Sequence[Step]) -> str:
    from triform.explain.reconcile import PUBLISHED

    rows: Rows = [("a published count for these sizes, and this one", "change", "sum", "")]
    rows += [(f"  {step.name}", f"{step.change:+,}", f"{step.sum:,}", step.why) for step in steps]
    rows.append(("this model, exactly", "", f"{steps[-1].sum:,}", f"published {PUBLISHED:,}"))
    return _table(rows, left=1) + f"\n\n{HEADS}"


HEADS = (
    "Attention's matrices do not grow with the number of heads: H heads of d / H each are d wide together, which\n"
    "makes 4·d·d weights for 1 head, for 8 or for 64."
)


def _plain(name: str, config: Config, counted: Budget, cost: Costs, steps: Sequence[Step]) -> dict[str, Any]:
    parts = [
        {
            **asdict(part),
            "per_layer": part.per_layer,
            "total": part.total,
            "lines": [{**asdict(line), "each": line.each, "total": line.total} for line in part.lines],
        }
        for part in counted.parts
    ]
    return {
        "name": name,
        "task": config.task,
        "form": counted.form,
        "parameters": counted.total,
        "trainable": counted.total if cost.use.learns is None else cost.use.learns,
        "adapters": cost.use.adapters,
        "shared": counted.shared,
        "letters": {letter.sign: letter.value for letter in counted.letters},
        "parts": parts,
        "use": asdict(cost.use),
        "memory": {
            "training_bytes": cost.training_bytes,
            "activation_bytes": cost.activation_bytes,
            "inference_bytes": cost.inference_bytes,
            "cache_bytes_per_token": dict(cost.cache_per_token),
            "training": [{**asdict(item), "total": item.total} for item in (*cost.training, *cost.activations)],
            "inference": [{**asdict(item), "total": item.total} for item in cost.inference],
        },
        "operations": {
            "forward_per_token": cost.per_token,
            "training_per_token": {kind: 3 * count for kind, count in cost.per_token.items()},
            "forward_per_text": cost.forward,
            "forward_per_text_needed": cost.forward_needed,
            "training_step": cost.step,
            "forward": [{**asdict(work), "total": work.total} for work in cost.work],
        },
        "reconciliation": [asdict(step) for step in steps],
    }
