"""Lists the benchmarks and runs them.

python -m benchmarks                                       what there is
python -m benchmarks NAME [--quick] [--json F] [--device D]
python -m benchmarks all  [--quick] [--json FOLDER] [--device D]
"""

from __future__ import annotations

import argparse
import ast
import importlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def benchmarks() -> dict[str, str]:
    """Each module here that has a `main`, with the first line of what it says about itself."""
    found = {}
    for path in sorted(HERE.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run_all(arguments: list[str]) -> int:
    """Each in a process of its own, so that one cannot spoil another; how many failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks all")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that they run")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FOLDER", help="where the figures go")
    parser.add_argument("--device", default="", help="cpu or cuda; default what is there")
    asked = parser.parse_args(arguments)
    passed_on = ["--quick"] * asked.quick + (["--device", asked.device] if asked.device else [])
    failed = []
    for name, line in benchmarks().items():
        print(f"\n== {name}: {line}", flush=True)
        target = ["--json", str(asked.json / f"{name}.json")]
        done = subprocess.run([sys.executable, "-m", "benchmarks", name, *passed_on, *target], check=False)
        failed += [name] * (done.returncode != 0)
    print(f"\nfigures as JSON: {asked.json}/")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def main(arguments: list[str]) -> int:
    there = benchmarks()
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in ("", "-h", "--help"):
        for known, line in there.items():
            print(f"{known:<16} {line}")
        print(f"{'all':<16} Every one of these, each in a process of its own.")
        return 0
    if name == "all":
        return run_all(rest)
    if name not in there:
        print(f"there is no benchmark {name!r}; known are {', '.join(there)}, all", file=sys.stderr)
        return 2
    importlib.import_module(f"benchmarks.{name}").main(rest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
