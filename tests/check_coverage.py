"""List the files of the package of which the tests run too few lines: `check_coverage.py COVERAGE_JSON`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

MIN_PERCENT = 85.0
# Files that need hardware which the machines that run the tests do not have, with what tests them there.
EXEMPT = {
    "triform/nn/kernels/cuda_graph.py": "captures work of a GPU; tests/test_cuda.py replays it there",
}


def find_low_files(report: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[tuple[float, str]]:
    """Return the files below the limit, lowest first, with the percentage of their lines that were run."""
    percentages = [
        (entry["summary"]["percent_covered"], path.partition("src/")[2]) for path, entry in report["files"].items()
    ]
    return sorted(item for item in percentages if item[0] < MIN_PERCENT and item[1] not in EXEMPT)


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(f"{report['totals']['percent_covered']:.1f} % of the lines of {len(report['files'])} files were run")
    low_files = find_low_files(report)
    for percent, path in low_files:
        print(f"{percent:5.1f} %  {path}")
    if low_files:
        sys.exit(f"{len(low_files)} files are below {MIN_PERCENT:g} %: test them, or remove what nothing needs")


if __name__ == "__main__":
    main()
