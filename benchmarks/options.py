"""Options that all benchmarks share. This module does not import torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class RenamedOption(argparse.Action):
    """End with one line that gives the new name of an option."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        parser.exit(2, f"no such option {option}; it is called {self.const} now.\n")


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options `--smoke` and `--json`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="use small sizes, to see that the benchmark works")
    parser.add_argument("--quick", action=RenamedOption, nargs=0, const="--smoke", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


def default_device() -> str:
    """Return "cuda" if there is a GPU, otherwise "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def parse_options(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of a benchmark that has only the common ones and `--device`."""
    parser = build_parser(description)
    parser.add_argument("--device", default=default_device(), help="cpu or cuda; by default cuda if there is a GPU")
    return parser.parse_args(arguments)
