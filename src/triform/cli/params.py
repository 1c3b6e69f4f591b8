"""`triform params`: count the parameters of a model and estimate its memory and FLOPs, without building it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from triform.cli.completion import complete_from
from triform.cli.help import option
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

WORKLOAD = "Workload"


BatchSizeOption = Annotated[
    int,
    option(
        WORKLOAD,
        "N",
        "Number of texts in a batch. The default is that of the settings, or 16.",
        show_default=False,
    ),
]
LengthOption = Annotated[
    int,
    option(WORKLOAD, "N", "Number of tokens in a text. The default is the maximum length.", show_default=False),
]
OptimizerOption = Annotated[
    str,
    option(
        WORKLOAD,
        "NAME",
        "Optimizer: adam, adamw, muon or sgd. The default is that of the settings.",
        complete=complete_from(("adam", "adamw", "muon", "sgd")),
    ),
]
PrecisionOption = Annotated[
    str,
    option(
        WORKLOAD,
        "NAME",
        "Precision of training: fp32 or bf16. The default is that of the settings, or fp32.",
        complete=complete_from(("fp32", "bf16")),
    ),
]
DeviceOption = Annotated[
    str,
    option(
        WORKLOAD,
        "DEVICE",
        "Device to estimate the memory for: cuda or cpu.",
        complete=complete_from(("cuda", "cpu")),
        name="--device",
    ),
]

DevicesOption = Annotated[
    int,
    option(WORKLOAD, "N", "Also estimate the memory of each of N devices that train together.", show_default=False),
]
DeviceSpeedOption = Annotated[
    str,
    option(
        WORKLOAD,
        "SPEED",
        "Speed that a device reaches, for example 400TFLOP/s, for an estimate of the time of a step.",
    ),
]
DeviceMemoryOption = Annotated[
    str,
    option(WORKLOAD, "SIZE", "Memory of a device, for example 80GB. The default is that of the first GPU here."),
]


def params(
    run: OptionalRunArgument = None,
    preset: PresetOption = "",
    config: ConfigOption = None,
    task: TaskOption = "",
    set_: SetOption = None,
    vocab_size: VocabSizeOption = 0,
    max_len: MaxLenOption = 0,
    labels: LabelsOption = 0,
    batch_size: BatchSizeOption = 0,
    length: LengthOption = 0,
    optimizer: OptimizerOption = "",
    precision: PrecisionOption = "",
    device: DeviceOption = "cuda",
    devices: DevicesOption = 0,
    device_memory: DeviceMemoryOption = "",
    device_speed: DeviceSpeedOption = "",
    no_verify: NoVerifyOption = False,
    json_: JsonOption = False,
) -> None:
    """Count the parameters of a model and estimate memory and FLOPs.

    The table lists each component with the formula for its parameters. The model is not built.

    Examples:
        triform params --preset gpt2-small
        triform params --preset gpt2-small --devices 8 --device-memory 80GB --device-speed 400TFLOP/s
    """
    from triform.analysis.costs import estimate_costs
    from triform.analysis.parameters import count_parameters
    from triform.analysis.reported_counts import is_published_model, reconcile_counts
    from triform.config.settings import parse_assignments
    from triform.reporting.parameter_report import print_device_memory, print_report, report_to_dict

    _validate_non_negative(
        vocab_size=vocab_size, max_len=max_len, labels=labels, batch_size=batch_size, length=length, devices=devices
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
    workload = _build_workload(resolved_config, sizes, length, device)
    costs = estimate_costs(resolved_config, sizes, workload)
    per_device = _estimate_devices(resolved_config, sizes, workload, devices, device_memory, device_speed)
    steps = reconcile_counts(param_budget) if is_published_model(resolved_config, sizes) else ()
    if json_:
        print_json(report_to_dict(arguments.name, resolved_config, param_budget, costs, steps) | per_device)
        return
    print_report(arguments.name, param_budget, costs, steps)
    if per_device:
        print_device_memory(per_device["devices"])


def _estimate_devices(
    config: Config, sizes: DataSizes, workload: Workload, devices: int, device_memory: str, device_speed: str
) -> dict[str, Any]:
    """Return the memory of each device with DDP and FSDP, and the time in which they compute a step.

    If the memory of a device is known, so is what `train.parallel=auto` chooses. The time has no communication in
    it: the step takes at least as long.
    """
    if not devices:
        for name, value in (("--device-memory", device_memory), ("--device-speed", device_speed)):
            if value:
                raise ConfigError(f"{name} needs --devices N, the number of devices that train together")
        return {}
    import torch

    from triform.analysis.costs import estimate_costs
    from triform.analysis.device_memory import choose_engine, estimate_device_memory
    from triform.cli.quantities import parse_bytes, parse_flops

    memory_bytes = parse_bytes("--device-memory", device_memory) if device_memory else 0
    if not memory_bytes and torch.cuda.is_available():
        memory_bytes = torch.cuda.get_device_properties(0).total_memory
    part = replace(workload, batch_size=-(-workload.batch_size // devices))
    estimates = [estimate_device_memory(engine, config, sizes, part, devices) for engine in ("ddp", "fsdp")]
    speed = parse_flops("--device-speed", device_speed) if device_speed else 0.0
    # a backward pass costs two forward passes
    step_flops = 3 * part.batch_size * estimate_costs(config, sizes, part).forward_flops
    return {
        "devices": {
            "number": devices,
            "batch_size": part.batch_size,
            **{memory.engine: dict(memory.items) | {"total": memory.total} for memory in estimates},
            "memory": memory_bytes or None,
            "auto": choose_engine(estimates[0], memory_bytes) if memory_bytes else None,
            "step_flops": step_flops,
            "step_seconds": step_flops / speed if speed else None,
        }
    }


def _validate_non_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: must not be negative")


def _build_workload(config: Config, sizes: DataSizes, length: int, device: str) -> Workload:
    from triform.analysis.capacity import build_workload

    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device}: memory is estimated only for cuda or cpu")
    if length > sizes.max_len:
        raise ConfigError(
            f"--length {length}: the model reads at most {sizes.max_len} tokens; change that with --max-len"
        )
    return build_workload(
        config,
        length or sizes.max_len,
        bf16=config.train.precision == "bf16",
        gpu=device == "cuda",
        **_count_trainable(config, sizes),
    )


def _count_trainable(config: Config, sizes: DataSizes) -> dict[str, int]:
    """Return how many parameters are trained, if some are frozen. The model for this has no weights in memory."""
    if config.train.freeze_layers < 0 and not config.train.lora_rank:
        return {}
    import torch

    from triform.explain.probes import build_untrained_model
    from triform.training.freezing import count_trainable, freeze_parameters

    with torch.device("meta"):
        model = build_untrained_model(config, sizes)
        freeze_parameters(model, config)
    return count_trainable(model)._asdict()
