"""`triform params`: count the parameters of a model and estimate what it costs, without building it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.model_argument import (
    ConfigOption,
    LabelsOption,
    MaxLenOption,
    ModelArguments,
    OptionalRunArgument,
    PresetOption,
    TaskOption,
    VocabSizeOption,
    resolve_model,
)
from triform.cli.options import JsonOption, NoVerifyOption, SetOption, print_json
from triform.errors import ConfigError

if TYPE_CHECKING:
    from triform.analysis.costs import Workload
    from triform.config import Config, DataSizes
    from triform.config.settings import Settings


def params(
    run: OptionalRunArgument = None,
    preset: PresetOption = "",
    config: ConfigOption = None,
    task: TaskOption = "",
    set_: SetOption = None,
    vocab_size: VocabSizeOption = 0,
    max_len: MaxLenOption = 0,
    labels: LabelsOption = 0,
    batch_size: Annotated[
        int,
        typer.Option(metavar="N", show_default=False, help="Texts per batch; the default is the settings' or 16."),
    ] = 0,
    length: Annotated[
        int, typer.Option(metavar="N", show_default=False, help="Tokens per text; the default is max_len.")
    ] = 0,
    optimizer: Annotated[str, typer.Option(help="adam, adamw or sgd; the default is the settings'.")] = "",
    precision: Annotated[str, typer.Option(help="fp32 or bf16; the default is the settings' or fp32.")] = "",
    device: Annotated[str, typer.Option(help="The device to estimate memory for: cuda or cpu.")] = "cuda",
    json_: JsonOption = False,
    no_verify: NoVerifyOption = False,
) -> None:
    """Count a model's parameters by component, with formulas, and estimate its memory and FLOPs."""
    from triform.analysis.costs import estimate_costs
    from triform.analysis.parameters import count_parameters
    from triform.analysis.reported_counts import is_published_model, reconcile_counts
    from triform.config.settings import parse_assignments
    from triform.reporting.parameter_report import print_report, report_to_dict

    _validate_non_negative(
        vocab_size=vocab_size, max_len=max_len, labels=labels, batch_size=batch_size, length=length
    )
    settings = parse_assignments(set_ or [])
    option_settings: Settings = {
        "data.max_len": max_len,
        "tokenizer.vocab_size": vocab_size,
        "train.batch_size": batch_size,
        "train.optimizer": optimizer,
        "train.precision": precision,
    }
    settings |= {name: value for name, value in option_settings.items() if value}
    arguments = ModelArguments(run=run, preset=preset, config=config, task=task, settings=settings, labels=labels)
    arguments = replace(arguments, no_verify=no_verify)
    resolved_config, sizes = resolve_model(arguments)
    param_budget = count_parameters(resolved_config, sizes)
    costs = estimate_costs(resolved_config, sizes, _build_workload(resolved_config, sizes, length, device))
    steps = reconcile_counts(param_budget) if is_published_model(resolved_config, sizes) else ()
    if json_:
        print_json(report_to_dict(arguments.name, resolved_config, param_budget, costs, steps))
        return
    print_report(arguments.name, param_budget, costs, steps)


def _validate_non_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"--{name.replace('_', '-')} {value} must not be below 0")


def _build_workload(config: Config, sizes: DataSizes, length: int, device: str) -> Workload:
    from triform.analysis.capacity import build_workload

    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device}: memory is counted for cuda or cpu")
    if length > sizes.max_len:
        raise ConfigError(f"--length {length} is more than the model reads at once, {sizes.max_len}: see --max-len")
    return build_workload(
        config,
        length or sizes.max_len,
        bf16=config.train.precision == "bf16",
        gpu=device == "cuda",
        **_count_trainable(config, sizes),
    )


def _count_trainable(config: Config, sizes: DataSizes) -> dict[str, int]:
    """How many parameters are trained, if not all of them are; counted in a model without weights."""
    if config.train.freeze_layers < 0 and not config.train.lora_rank:
        return {}
    import torch

    from triform.explain.probes import build_untrained_model
    from triform.training.freezing import count_trainable, freeze_parameters

    with torch.device("meta"):
        model = build_untrained_model(config, sizes)
        freeze_parameters(model, config)
    return count_trainable(model)._asdict()
