"""Measure the studio with many runs and with long runs: the list of runs, and the curves of one run.

A small run is trained, and its files are copied into many folders. The metrics of the long run have one line for
each step and a validation every 5,000 steps.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path

from starlette.testclient import TestClient

import triform
from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform.io.run_layout import CONFIG_FILE, METRICS_FILE, MODEL_FILE
from triform.serving import ServerOptions, create_app

STEPS_PER_VALIDATION = 5_000


def write_runs(run: Path, folder: Path, count: int) -> None:
    """Copy the files that a list of runs reads into many folders."""
    for index in range(count):
        copy = folder / f"run-{index:04d}"
        copy.mkdir(parents=True)
        for name in (CONFIG_FILE, METRICS_FILE, MODEL_FILE):
            shutil.copyfile(run / name, copy / name)


def write_long_metrics(path: Path, n_steps: int) -> None:
    """Write the metrics of a run with a line for each step."""
    start = {"event": "start", "task": "classify", "metric": "accuracy", "max_steps": n_steps}
    details = {"lr": 0.0098, "tokens_per_s": 2419.556, "step_ms": 13.845, "real_share": 0.93, "grad_norm": 9.398}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(start) + "\n")
        for step in range(1, n_steps + 1):
            loss = 0.5 + math.exp(-10 * step / n_steps)
            file.write(
                json.dumps({"event": "train", "step": step, "loss": loss, **details, "seconds": step}) + "\n"
            )
            if step % STEPS_PER_VALIDATION == 0:
                file.write(json.dumps({"event": "valid", "step": step, "loss": loss, "accuracy": 1 - loss}) + "\n")


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("studio", parse_options(__doc__, arguments))
    n_runs, n_steps, repeats = (5, 20_000, 1) if report.smoke else (1_000, 1_000_000, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = {"d_model": 16, "n_heads": 2, "n_layers": 1}
        triform.train("classify", out=folder / "run", device="cpu", quiet=True, train={"max_steps": 3}, model=small)
        write_runs(folder / "run", folder / "runs", n_runs)
        shutil.copytree(folder / "run", folder / "long" / "long")
        write_long_metrics(folder / "long" / "long" / METRICS_FILE, n_steps)
        app = create_app(ServerOptions(folder=folder / "runs", page=True))
        client = TestClient(app, base_url="http://127.0.0.1")
        long_app = create_app(ServerOptions(folder=folder / "long", page=True))
        long_client = TestClient(long_app, base_url="http://127.0.0.1")

        def list_new_runs() -> object:
            app.state.server.run_list.forget_others(())
            return client.get("/api/runs").content

        contestants = {"triform, first": list_new_runs, "triform, again": lambda: client.get("/api/runs").content}
        report.measure(f"list of {n_runs:,} runs", contestants, repeats)
        events = long_client.get("/api/runs/long/metrics").json()["events"]
        curves = {"triform": lambda: long_client.get("/api/runs/long/metrics").content}
        report.measure(f"curves of {n_steps:,} lines", curves, repeats)
        n_validations = sum(event["event"] == "valid" for event in events)
        size = (folder / "long" / "long" / METRICS_FILE).stat().st_size
        report.add_figures("the long file", megabytes=size / 1e6, points=len(events), validations=n_validations)
    report.write()


if __name__ == "__main__":
    main()
