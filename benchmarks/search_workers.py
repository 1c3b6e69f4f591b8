"""Trials per hour of a search with two workers, compared with one worker. Each worker has one core and one thread.

    python -m benchmarks.search_workers [--smoke] [--json FILE] [--trials 12]

The workers of a measurement start together and run the same command. The rate of a worker is the number of its
trials divided by the time from the start of its first trial to the end of its last one. The rates are added.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.options import build_parser
from triform.experiments.search.space import read_space
from triform.experiments.search.trial_queue import WORKER, TrialQueue

SPACE = """
name = "workers"
task = "classify"
sampler = "random"
final_seeds = 0
[common]
data.train = "builtin:reviews"
model = {{ d_model = 64, n_layers = 2, n_heads = 4 }}
train = {{ max_steps = {steps}, batch_size = 16, eval_every = {steps} }}
[space]
train.lr = {{ low = 1e-4, high = 1e-2, log = true }}
"""


def pin_to_core(core: int) -> None:
    """Let this process run on one core only."""
    os.sched_setaffinity(0, {core})


def measure(space: Path, out: Path, workers: int, trials: int) -> float:
    """Return the trials per hour of a search."""
    command = [sys.executable, "-m", "triform", "search", str(space), "--out", str(out), "--device", "cpu"]
    command += ["--trials", str(trials), "--quiet"]
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, preexec_fn=partial(pin_to_core, cores[index])
        )
        for index in range(workers)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("a worker ended with an error")
    times = defaultdict(list)
    for trial in TrialQueue(read_space(space, trials=trials), out, "").trials():
        assert trial.datetime_start is not None
        assert trial.datetime_complete is not None
        times[trial.user_attrs[WORKER]].append((trial.datetime_start, trial.datetime_complete))
    rates = [
        len(spans) / (max(end for _, end in spans) - min(start for start, _ in spans)).total_seconds()
        for spans in times.values()
    ]
    return 3600 * sum(rates)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--trials", type=int, default=12, help="trials of each worker")
    options = parser.parse_args(arguments)
    trials, steps = (1, 2) if options.smoke else (options.trials, 150)
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two workers need two cores")
    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder) / "space.toml"
        space.write_text(SPACE.format(steps=steps), encoding="utf-8")
        rates = {n: measure(space, Path(folder) / f"workers-{n}", n, n * trials) for n in (1, 2)}
    ratio = rates[2] / rates[1]
    print(f"1 worker:  {rates[1]:.0f} trials per hour")
    print(f"2 workers: {rates[2]:.0f} trials per hour, {ratio:.2f} times as many")
    if options.json:
        result = {"trials_per_hour": rates, "ratio": ratio, "trials": trials, "machine": platform.platform()}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
