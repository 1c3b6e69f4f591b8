"""Step time of 2 and 4 processes on this CPU, compared with the estimate of `triform plan`.

In turns, each group of processes measures a step without communication, an all-reduce of gloo, and a step with
DistributedDataParallel. The formulas of `triform plan` predict the third from the first two. Each process has one
thread. A process computes and communicates with the same core, so nothing overlaps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch.distributed import all_reduce, barrier, destroy_process_group, init_process_group
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.options import build_parser
from benchmarks.report import BenchmarkReport
from triform.analysis.cluster import Cluster
from triform.analysis.cost_model import Workload
from triform.analysis.model_shape import build_config_of_size
from triform.analysis.step_time import DeviceBatch, estimate_step_time
from triform.analysis.training_plan import measure_model
from triform.config import Config, DataSizes
from triform.explain.probes import build_untrained_model

N_PARAMS, VOCAB_SIZE, LENGTH, TEXTS = 5_000_000, 2_000, 128, 8
SMOKE_PARAMS = 300_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one process, predict several ones, and measure them; or be one of the processes."""
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", help="only cpu")
    parser.add_argument("--worker", type=Path, help="be one process of a group, and write the figures to this file")
    options = parser.parse_args(arguments)
    if options.worker:
        run_worker(options.worker, smoke=options.smoke)
        return
    options.device = "cpu"
    report = BenchmarkReport("scaling", options)
    single = launch(1, smoke=options.smoke)
    report.add_figures("1 process", step_seconds=single.local_step)
    for processes in (2,) if options.smoke else (2, 4):
        figures = launch(processes, smoke=options.smoke)
        predicted = predict_step(figures, processes, smoke=options.smoke)
        report.add_figures(
            f"{processes} processes",
            step_without_communication=figures.local_step,
            all_reduce_bandwidth=figures.bandwidth,
            predicted_seconds=predicted,
            measured_seconds=figures.ddp_step,
            error=predicted / figures.ddp_step - 1,
            throughput_ratio=processes * single.local_step / figures.ddp_step,
        )
    report.write()


class Figures(NamedTuple):
    """What a group of processes measured: seconds of steps, and bytes per second of an all-reduce."""

    local_step: float
    ddp_step: float
    bandwidth: float


def launch(processes: int, *, smoke: bool) -> Figures:
    """Start a group of processes, and return what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.txt"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += ["-m", "benchmarks.scaling", "--worker", str(path), *(["--smoke"] if smoke else [])]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        return Figures(*map(float, path.read_text(encoding="utf-8").split()))


def run_worker(path: Path, *, smoke: bool) -> None:
    """Measure steps and all-reduces together with the other processes of the group."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    init_process_group("gloo")
    processes = torch.distributed.get_world_size()
    model = DistributedDataParallel(build_untrained_model(*_build_config(smoke=smoke)))
    n_params = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(10, VOCAB_SIZE, (TEXTS, LENGTH + 1))
    payload = torch.zeros(n_params)

    def run_step() -> None:
        logits = model(tokens[:, :-1])
        cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def run_local_step() -> None:
        with model.no_sync():
            run_step()

    works = (run_local_step, run_step, lambda: all_reduce(payload))
    local_step, ddp_step, reduce_seconds = _time_in_turns(works, 3 if smoke else 15)
    if torch.distributed.get_rank() == 0:
        bandwidth = 2 * (processes - 1) / processes * 4 * n_params / reduce_seconds
        path.write_text(f"{local_step} {ddp_step} {bandwidth}", encoding="utf-8")
    barrier()
    destroy_process_group()


def predict_step(figures: Figures, processes: int, *, smoke: bool) -> float:
    """Return the seconds of a step that the formulas of `triform plan` predict."""
    config, sizes = _build_config(smoke=smoke)
    model = measure_model(config, sizes, Workload(batch_size=TEXTS, length=LENGTH, gpu=False))
    batch = DeviceBatch(tokens=TEXTS * LENGTH, micro_batches=1, element_bytes=4)
    cluster = Cluster(
        gpus=processes,
        gpus_per_node=processes,
        memory_bytes=1,
        peak_flops=batch.tokens * model.flops_per_token / figures.local_step,
        utilisation=1,
        node_bandwidth=figures.bandwidth,
        network_bandwidth=figures.bandwidth,
        overlap=0,
    )
    return estimate_step_time("ddp", model, batch, cluster).total


def _build_config(*, smoke: bool) -> tuple[Config, DataSizes]:
    return build_config_of_size(SMOKE_PARAMS if smoke else N_PARAMS, VOCAB_SIZE, LENGTH)


def _time_in_turns(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each work in all processes together, after two turns that are not timed."""
    seconds: list[list[float]] = [[] for _ in works]
    for turn in range(repeats + 2):
        for work, times in zip(works, seconds, strict=True):
            barrier()
            start = time.perf_counter()
            work()
            barrier()
            if turn >= 2:
                times.append(time.perf_counter() - start)
    return [median(times) for times in seconds]


if __name__ == "__main__":
    main()
