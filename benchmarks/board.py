"""What all benchmarks share: the device, the board on which figures appear, and the JSON they end up in."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Timing, Work, race

OWN = "triform"  # a contestant whose name begins so is ours


def options_of(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def asked(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked of a benchmark that has no others."""
    return options_of(description).parse_args(arguments)


def machine(device: torch.device) -> dict[str, Any]:
    """Where and when: without these a figure says nothing."""
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


def verdict(ratio: float) -> str:
    """How many times as fast as a peer we are; slower is said."""
    return f"{ratio:.2f}×" + (": slower" if ratio < 1 else "")


class Board:
    """Figures of one benchmark: shown as they come, written down at the end."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.path, self.quick = name, options.json, options.quick
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        self.where = machine(self.device)
        self.rows: list[dict[str, Any]] = []
        torch.manual_seed(0)
        place = self.where["gpu"] or f"{self.where['cpu']}, {self.where['threads']} threads"
        print(f"{name}: {place}, torch {torch.__version__}, {self.where['date']}")

    def race(
        self, what: str, who: Mapping[str, Work], repeats: int, *, units: float = 0, unit: str = ""
    ) -> dict[str, Timing]:
        """Let contestants take turns at the same work, of so many units."""
        timings = race(who, repeats, self.device)
        self.add(what, timings, units=units, unit=unit)
        return timings

    def add(self, what: str, timings: Mapping[str, Timing], *, units: float = 0, unit: str = "") -> None:
        ours = {name: timing.median for name, timing in timings.items() if name.startswith(OWN)}
        for name, timing in timings.items():
            ratios = {own: timing.median / median for own, median in ours.items() if own != name}
            rate = {f"{unit}_per_s": units / timing.median * 1e3} if units else {}
            said = [f"{value:,.1f} {unit}/s" for value in rate.values()]
            said += [] if self.cuda else [f"cpu {timing.cpu:,.1f} ms"]
            said += [] if timing.memory != timing.memory else [f"{timing.memory:,.0f} MiB"]
            if name not in ours:
                said += [f"{own} {verdict(ratio)}" for own, ratio in ratios.items()]
            self.rows.append({"what": what, "who": name, **asdict(timing), **rate, "ratios": ratios})
            print(f"{what:<44} {name:<32} {timing!s:<36} {'  '.join(said)}", flush=True)

    def note(self, what: str, **figures: Any) -> None:
        """Figures that are not times: answers compared, scores, memory."""
        self.rows.append({"what": what, **figures})
        shown = "  ".join(f"{name} {_short(value)}" for name, value in figures.items())
        print(f"{what:<44} {shown}", flush=True)

    def skip(self, peer: str, why: str) -> None:
        self.note(f"{peer} is left out", why=why)

    def write(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            found = {"name": self.name, **self.where, "quick": self.quick, "rows": _plain(self.rows)}
            self.path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value
