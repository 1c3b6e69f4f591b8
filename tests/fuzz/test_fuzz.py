"""A hundred bad inputs in a process of their own; `make fuzz` tries many more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_fuzz.py")


@pytest.mark.skipif(sys.platform == "win32", reason="limits of time and memory are POSIX")
def test_no_bad_input_ends_in_a_traceback_hangs_or_takes_all_memory() -> None:
    command = [sys.executable, str(SCRIPT), "--inputs", "120", "--seed", "17"]
    completed = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-2000:]
    summary = completed.stdout.splitlines()[-1]
    match = re.match(r"([\d,]+) inputs .* 0 tracebacks, 0 not one line, 0 hangs, 0 over memory", summary)
    assert match, summary
    assert int(match[1].replace(",", "")) >= 90
