"""List the benchmarks, or run them.

python -m benchmarks                                       list the benchmarks
python -m benchmarks NAME [--smoke] [--json F] [--device D]
python -m benchmarks all  [--smoke] [--json FOLDER] [--device D]
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from benchmarks.options import build_parser

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"


def find_benchmarks() -> dict[str, str]:
    """Return the name and the summary line of each module in this folder that has a `main`."""
    summaries = {}
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            summaries[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return summaries


def run_all(arguments: list[str]) -> int:
    """Run each benchmark in a separate process, and return how many failed."""
    parser = build_parser("Run all benchmarks, each in a separate process.")
    parser.set_defaults(json=RESULTS)
    parser.add_argument("--device", default="", help="cpu or cuda; by default cuda if there is a GPU")
    options = parser.parse_args(arguments)
    forwarded = ["--smoke"] * options.smoke + (["--device", options.device] if options.device else [])
    failed = []
    for name, summary in find_benchmarks().items():
        print(f"\n== {name}: {summary}", flush=True)
        json_option = ["--json", str(options.json / f"{name}.json")]
        completed = subprocess.run(
            [sys.executable, "-m", "benchmarks", name, *forwarded, *json_option], check=False
        )
        failed += [name] * (completed.returncode != 0)
    print(f"\nfigures as JSON: {options.json}/")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def main(arguments: list[str]) -> int:
    known_benchmarks = find_benchmarks()
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in ("", "-h", "--help"):
        for known_name, summary in known_benchmarks.items():
            print(f"{known_name:<16} {summary}")
        print(f"{'all':<16} Run all benchmarks, each in a separate process.")
        return 0
    if name == "all":
        return run_all(rest)
    if name not in known_benchmarks:
        print(f"there is no benchmark {name!r}; choose from {', '.join(known_benchmarks)}, all", file=sys.stderr)
        return 2
    importlib.import_module(f"benchmarks.{name}").main(rest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
