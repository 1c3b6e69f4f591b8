"""Options of `python -m reproduce`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from triform.launch import RunOptions


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Options for running a reference system.

    Args:
        data: Folder of datasets; "" for the folder of `triform data get`.
        variant: The group of variants to run, `as-reported`, `best` or `both`, or the name of one variant.
        seeds: Number of seeds for each variant; 0 for the number in the declaration of the variant.
        out: Folder for the runs.
        results: Folder for the result files.
        device: `auto`, `cpu`, `cuda` or `mps`.
        smoke: Train tiny models for a few steps, to check that everything works.
    """

    data: str = ""
    variant: str = "both"
    seeds: int = 0
    out: Path = Path("runs/reproduce")
    results: Path = Path("reproduce/results")
    device: str = "auto"
    smoke: bool = False

    @property
    def results_folder(self) -> Path:
        """The folder of the result files. Smoke runs use a separate folder and do not replace results."""
        return self.results / "smoke" if self.smoke else self.results

    @property
    def run_options(self) -> RunOptions:
        """Return the options of the training runs."""
        return RunOptions(device=self.device)

    def experiment_folder(self, name: str) -> Path:
        """Return the folder of the runs of a system."""
        return self.out / (f"{name}-smoke" if self.smoke else name)

    def command(self, name: str, *, with_paths: bool = False) -> str:
        """Return the command that repeats this experiment, optionally with its data, run and result folders."""
        variant_option = "" if self.variant == "both" else f" --variant {self.variant}"
        seeds_option = f" --seeds {self.seeds}" if self.seeds else ""
        command = f"python -m reproduce {name}{variant_option}{seeds_option}{' --smoke' if self.smoke else ''}"
        if not with_paths:
            return command
        data_option = f" --data {shlex.quote(self.data)}" if self.data else ""
        device_option = "" if self.device == "auto" else f" --device {self.device}"
        path_options = [f" --{option} {shlex.quote(str(getattr(self, option)))}" for option in ("out", "results")]
        return f"{command}{data_option}{''.join(path_options)}{device_option}"
