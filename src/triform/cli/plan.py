"""`triform plan`: estimate memory, speed and duration of a training run on many GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from triform.cli.completion import complete_from
from triform.cli.help import option
from triform.cli.model_argument import (
    ConfigOption,
    LabelsOption,
    ModelArguments,
    PresetOption,
    TaskOption,
    resolve_model,
)
from triform.cli.options import JsonOption, SetOption, print_json
from triform.cli.quantities import parse_bytes, parse_count, parse_duration, parse_flops, parse_speed
from triform.errors import ConfigError

if TYPE_CHECKING:
    from triform.analysis.cluster import Cluster, Gpu
    from triform.analysis.cost_model import Workload
    from triform.analysis.device_memory import Engine
    from triform.analysis.failures import Reliability
    from triform.config import Config, DataSizes

MODEL, CLUSTER, BATCH, RELIABILITY = "Model", "GPUs and links", "Training", "Checkpoints and failures"
DEFAULT_VOCAB_SIZE, DEFAULT_LENGTH = 32_000, 2_048
DEFAULT_BATCH_TOKENS = 1 << 22

ParamsOption = Annotated[
    str,
    option(
        MODEL,
        "COUNT",
        "Number of parameters, for example 7B or 350M. A language model of about this size is planned.",
    ),
]
VocabSizeOption = Annotated[
    int | None,
    option(
        MODEL,
        "N",
        "Number of tokens in the vocabulary. With --params, the default is 32000.",
        minimum=1,
        show_default=False,
    ),
]
GpusOption = Annotated[int, option(CLUSTER, "N", "Number of GPUs.", minimum=1)]
GpuOption = Annotated[
    str,
    option(
        CLUSTER,
        "NAME",
        "Kind of GPU: H200, H100 or A100. It sets the defaults of the options below.",
        complete=complete_from(("H200", "H100", "A100")),
    ),
]
GpusPerNodeOption = Annotated[
    int, option(CLUSTER, "N", "Number of GPUs in a node. A smaller number of GPUs is one node.", minimum=1)
]
GpuMemoryOption = Annotated[str, option(CLUSTER, "SIZE", "Memory of a GPU, for example 80GB.")]
PeakOption = Annotated[
    str, option(CLUSTER, "SPEED", "Peak speed of a GPU in dense matrix products, for example 989TFLOP/s.")
]
UtilisationOption = Annotated[
    float | None,
    option(
        CLUSTER,
        "SHARE",
        "Share of the peak that one GPU reaches alone, from 0 to 1. The default is 0.4.",
        show_default=False,
    ),
]
TokensPerSecondOption = Annotated[
    str,
    option(
        CLUSTER,
        "COUNT",
        "Training tokens per second that you measured with this model on one GPU. It replaces --utilisation.",
    ),
]
NodeLinkOption = Annotated[
    str,
    option(
        CLUSTER,
        "SPEED",
        "Speed at which a GPU sends to others in its node, for example 370GB/s.",
        name="--node-link",
    ),
]
NetworkLinkOption = Annotated[
    str,
    option(
        CLUSTER,
        "SPEED",
        "Speed between nodes for each GPU, for example 400Gb/s or 50GB/s.",
        name="--network-link",
    ),
]
OverlapOption = Annotated[
    float, option(CLUSTER, "SHARE", "Share of the communication that costs no time, from 0 to 1.")
]
ParallelOption = Annotated[
    str,
    option(
        BATCH,
        "NAME",
        "How to train: ddp, fsdp or auto, which is ddp if the model fits a GPU.",
        complete=complete_from(("auto", "ddp", "fsdp")),
    ),
]
BatchTokensOption = Annotated[
    str,
    option(
        BATCH,
        "COUNT",
        "Tokens of all GPUs in a step. The default is that of the settings, or else 4,194,304 or one text for each "
        "GPU, whichever is more.",
    ),
]
LengthOption = Annotated[
    int | None,
    option(
        BATCH,
        "N",
        "Tokens in each text. The default is the maximum length of the settings; with --params, 2048.",
        minimum=1,
        show_default=False,
    ),
]
PrecisionOption = Annotated[
    str,
    option(BATCH, "NAME", "Precision of training: bf16 or fp32.", complete=complete_from(("bf16", "fp32"))),
]
TokensOption = Annotated[
    str, option(BATCH, "COUNT", "Tokens to train on, for example 2T. The default is 20 for each parameter.")
]
CheckpointSpeedOption = Annotated[
    str,
    option(RELIABILITY, "SPEED", "Speed at which all GPUs together write a checkpoint to the storage."),
]
CheckpointIntervalOption = Annotated[
    str,
    option(
        RELIABILITY,
        "TIME",
        "Time between two checkpoints, for example 30min. The default is the interval that costs the least time.",
    ),
]
MtbfOption = Annotated[
    str, option(RELIABILITY, "TIME", "Mean time between failures of one GPU.", name="--gpu-mtbf")
]
RestartOption = Annotated[str, option(RELIABILITY, "TIME", "Time from a failure until training continues.")]


def plan(
    gpus: GpusOption,
    params: ParamsOption = "",
    vocab_size: VocabSizeOption = None,
    preset: PresetOption = "",
    config: ConfigOption = None,
    task: TaskOption = "",
    set_: SetOption = None,
    labels: LabelsOption = 0,
    gpu: GpuOption = "H200",
    gpus_per_node: GpusPerNodeOption = 8,
    gpu_memory: GpuMemoryOption = "",
    peak_flops: PeakOption = "",
    utilisation: UtilisationOption = None,
    tokens_per_second: TokensPerSecondOption = "",
    node_link: NodeLinkOption = "",
    network_link: NetworkLinkOption = "",
    overlap: OverlapOption = 0.25,
    parallel: ParallelOption = "auto",
    batch_tokens: BatchTokensOption = "",
    length: LengthOption = None,
    precision: PrecisionOption = "bf16",
    tokens: TokensOption = "",
    checkpoint_speed: CheckpointSpeedOption = "5GB/s",
    checkpoint_interval: CheckpointIntervalOption = "",
    gpu_mtbf: MtbfOption = "50000h",
    restart_time: RestartOption = "10min",
    json_: JsonOption = False,
) -> None:
    """Estimate the memory, speed and duration of training on many GPUs.

    Nothing is trained and no GPU is needed. The page docs/scaling.md has the formula of each figure, and compares
    the estimates with published measurements.

    Examples:
        triform plan --params 7B --gpus 1024 --tokens 2T
        triform plan --preset gpt2-small --gpus 8 --gpu A100 --tokens-per-second 180k
    """
    from triform.analysis.training_plan import measure_model, plan_training
    from triform.reporting.plan_report import plan_to_dict, print_plan

    resolved, sizes = _resolve_model(params, vocab_size, length, preset, config, task, set_ or [], labels)
    cluster = _resolve_cluster(gpus, gpus_per_node, _find_gpu(gpu), precision, overlap)
    cluster = _apply_link_options(cluster, gpu_memory, peak_flops, node_link, network_link)
    workload = _resolve_workload(resolved, length or sizes.max_len, batch_tokens, gpus, precision)
    flops = measure_model(resolved, sizes, workload).flops_per_token
    cluster = _apply_measured_speed(cluster, flops, utilisation, tokens_per_second)
    reliability = _resolve_reliability(checkpoint_speed, checkpoint_interval, gpu_mtbf, restart_time)
    n_tokens = parse_count("--tokens", tokens) if tokens else 0
    engine = _resolve_engine(parallel)
    result = plan_training(
        resolved, sizes, workload, cluster, reliability=reliability, engine=engine, training_tokens=n_tokens
    )
    if json_:
        print_json(plan_to_dict(result))
    else:
        print_plan(result, _find_gpu(gpu).name)


def _resolve_model(
    params: str,
    vocab_size: int | None,
    length: int | None,
    preset: str,
    config: Path | None,
    task: str,
    assignments: list[str],
    labels: int,
) -> tuple[Config, DataSizes]:
    from triform.analysis.model_shape import build_config_of_size
    from triform.config.settings import parse_assignments

    if sum(map(bool, (params, preset, config))) != 1:
        raise ConfigError("name a model with exactly one of --params COUNT, --preset NAME and --config FILE")
    if params:
        if assignments or task:
            raise ConfigError("--params plans a language model with chosen settings; leave out --set and --task")
        count = parse_count("--params", params)
        return build_config_of_size(count, vocab_size or DEFAULT_VOCAB_SIZE, length or DEFAULT_LENGTH)
    settings = parse_assignments(assignments)
    if vocab_size:
        settings["tokenizer.vocab_size"] = vocab_size
    resolved, sizes = resolve_model(
        ModelArguments(run=None, preset=preset, config=config, task=task, settings=settings, labels=labels)
    )
    if length and length > sizes.max_len:
        raise ConfigError(f"--length {length}: the model reads at most {sizes.max_len} tokens")
    return resolved, sizes


def _find_gpu(name: str) -> Gpu:
    from triform.analysis.cluster import GPUS

    if name.lower() not in GPUS:
        known = ", ".join(gpu.name for gpu in GPUS.values())
        raise ConfigError(
            f"--gpu {name}: unknown; choose {known}. For another GPU, set --gpu-memory, --peak-flops, --node-link "
            "and --network-link."
        )
    return GPUS[name.lower()]


def _resolve_cluster(gpus: int, gpus_per_node: int, gpu: Gpu, precision: str, overlap: float) -> Cluster:
    from triform.analysis.cluster import DEFAULT_UTILISATION, Cluster

    if precision not in gpu.peak_flops:
        raise ConfigError(f"--precision {precision}: choose bf16 or fp32")
    if gpus > gpus_per_node and gpus % gpus_per_node:
        below = gpus - gpus % gpus_per_node
        raise ConfigError(
            f"--gpus {gpus}: not a multiple of the {gpus_per_node} GPUs of a node; write {below} or "
            f"{below + gpus_per_node}, or set --gpus-per-node"
        )
    return Cluster(
        gpus=gpus,
        gpus_per_node=min(gpus, gpus_per_node),
        memory_bytes=gpu.memory_bytes,
        peak_flops=gpu.peak_flops[precision],
        utilisation=DEFAULT_UTILISATION,
        node_bandwidth=gpu.node_bandwidth,
        network_bandwidth=gpu.network_bandwidth,
        overlap=_validate_share("--overlap", overlap, allow_zero=True),
    )


def _apply_link_options(
    cluster: Cluster, gpu_memory: str, peak_flops: str, node_link: str, network_link: str
) -> Cluster:
    if gpu_memory:
        cluster = replace(cluster, memory_bytes=parse_bytes("--gpu-memory", gpu_memory))
    if peak_flops:
        cluster = replace(cluster, peak_flops=parse_flops("--peak-flops", peak_flops))
    if node_link:
        cluster = replace(cluster, node_bandwidth=parse_speed("--node-link", node_link))
    if network_link:
        cluster = replace(cluster, network_bandwidth=parse_speed("--network-link", network_link))
    return cluster


def _apply_measured_speed(
    cluster: Cluster, flops_per_token: float, utilisation: float | None, tokens_per_second: str
) -> Cluster:
    if tokens_per_second and utilisation is not None:
        raise ConfigError("--tokens-per-second replaces --utilisation; leave one of them out")
    if tokens_per_second:
        utilisation = parse_count("--tokens-per-second", tokens_per_second) * flops_per_token / cluster.peak_flops
        if utilisation > 1:
            raise ConfigError(
                f"--tokens-per-second {tokens_per_second}: needs {utilisation:.1f} times the peak speed of the GPU"
            )
    if utilisation is None:
        return cluster
    return replace(cluster, utilisation=_validate_share("--utilisation", utilisation))


def _resolve_workload(config: Config, length: int, batch_tokens: str, gpus: int, precision: str) -> Workload:
    """Return the texts of one GPU in one step."""
    from triform.analysis.cost_model import Workload
    from triform.analysis.training_plan import count_text_tokens

    train = config.train
    text_tokens = count_text_tokens(config, length)
    per_step = train.grad_accumulation * (train.batch_tokens or train.batch_size * text_tokens)
    total = per_step or max(DEFAULT_BATCH_TOKENS, gpus * text_tokens)
    if batch_tokens:
        total = parse_count("--batch-tokens", batch_tokens)
    if total < gpus * text_tokens:
        raise ConfigError(
            f"a batch of {total:,} tokens has fewer texts than there are GPUs; {gpus:,} texts of {text_tokens:,} "
            f"tokens need --batch-tokens {gpus * text_tokens} or more"
        )
    return Workload(
        batch_size=round(total / (gpus * text_tokens)),
        length=length,
        optimizer=train.optimizer,
        momentum=train.momentum,
        precision="bf16" if precision == "bf16" else "fp32",
    )


def _resolve_reliability(speed: str, interval: str, mtbf: str, restart: str) -> Reliability:
    from triform.analysis.failures import Reliability

    return Reliability(
        device_mtbf=parse_duration("--gpu-mtbf", mtbf),
        storage_bandwidth=parse_speed("--checkpoint-speed", speed),
        restart_seconds=parse_duration("--restart-time", restart),
        interval=parse_duration("--checkpoint-interval", interval) if interval else 0.0,
    )


def _resolve_engine(name: str) -> Engine | None:
    engines: dict[str, Engine | None] = {"auto": None, "ddp": "ddp", "fsdp": "fsdp"}
    if name not in engines:
        raise ConfigError(f"--parallel {name}: choose auto, ddp or fsdp")
    return engines[name]


def _validate_share(option_name: str, value: float, *, allow_zero: bool = False) -> float:
    if not (0 <= value <= 1 if allow_zero else 0 < value <= 1):
        raise ConfigError(f"{option_name} {value:g}: must be {'from' if allow_zero else 'above'} 0 to 1")
    return value
