"""Report the figures of a benchmark: print them as they are measured, and write them as JSON."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import TimedFn, Timing, time_in_turns

OWN_PREFIX = "triform"  # names of Triform's contestants start with this


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return the machine, processor, GPU, torch version and date."""
    return {
        "machine": platform.node(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else None,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def format_ratio(ratio: float) -> str:
    """Format how many times as fast as a peer Triform is, and mark a ratio below 1 as slower."""
    return f"{ratio:.2f}×" + (": slower" if ratio < 1 else "")


class BenchmarkReport:
    """The figures of one benchmark, printed as they are measured and written to a file at the end."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.path, self.smoke = name, options.json, options.smoke
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        self.environment = describe_machine(self.device)
        self.rows: list[dict[str, Any]] = []
        torch.manual_seed(0)
        device_text = self.environment["gpu"] or f"{self.environment['cpu']}, {self.environment['threads']} threads"
        print(f"{name}: {device_text}, torch {torch.__version__}, {self.environment['date']}")

    def measure(
        self,
        title: str,
        contestants: Mapping[str, TimedFn],
        repeats: int,
        *,
        units: float = 0,
        unit: str = "",
        timed_last: Collection[str] = (),
    ) -> dict[str, Timing]:
        """Time contestants in turns at the same work, which consists of `units`.

        Those in `timed_last` slow down the others for the rest of the process. They take turns after all others.
        """
        is_last = {name: name in timed_last for name in contestants}
        timings = {}
        for group in (False, True):
            members = {name: run for name, run in contestants.items() if is_last[name] is group}
            timings.update(time_in_turns(members, repeats, self.device))
        self.add_timings(title, timings, units=units, unit=unit)
        return timings

    def add_timings(self, title: str, timings: Mapping[str, Timing], *, units: float = 0, unit: str = "") -> None:
        own_medians = {name: timing.median for name, timing in timings.items() if name.startswith(OWN_PREFIX)}
        for name, timing in timings.items():
            ratios = {
                own_name: timing.median / median for own_name, median in own_medians.items() if own_name != name
            }
            rate = {f"{unit}_per_s": units / timing.median * 1e3} if units else {}
            details = [f"{value:,.1f} {unit}/s" for value in rate.values()]
            details += [] if self.cuda else [f"cpu {timing.cpu:,.1f} ms"]
            details += [] if timing.memory != timing.memory else [f"{timing.memory:,.0f} MiB"]
            if name not in own_medians:
                details += [f"{own_name} {format_ratio(ratio)}" for own_name, ratio in ratios.items()]
            self.rows.append({"what": title, "who": name, **asdict(timing), **rate, "ratios": ratios})
            print(f"{title:<44} {name:<32} {timing!s:<36} {'  '.join(details)}", flush=True)

    def add_figures(self, title: str, **figures: Any) -> None:
        """Add figures that are not times, such as agreement, metrics and memory."""
        self.rows.append({"what": title, **figures})
        figures_text = "  ".join(f"{name} {_format_value(value)}" for name, value in figures.items())
        print(f"{title:<44} {figures_text}", flush=True)

    def add_skipped(self, peer: str, reason: str) -> None:
        self.add_figures(f"{peer} is skipped", why=reason)

    def write(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = {"name": self.name, **self.environment, "smoke": self.smoke, "rows": _replace_nan(self.rows)}
            self.path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _replace_nan(value: Any) -> Any:
    """Replace NaN by None, because JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _replace_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_replace_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value
