"""Start a command as a process that outlives the server, and find it again by its number and its start time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from triform.errors import CheckpointError
from triform.io.files import open_regular

LOG_TAIL_BYTES = 8_192
ERROR_PREFIX = "triform: "  # of the one line that a command prints before it ends with an error


def start_detached(arguments: Sequence[str], log_file: Path) -> subprocess.Popen[bytes]:
    """Start `triform ARGUMENTS` in a separate session, so that signals to the server do not reach it."""
    with open_regular(log_file, "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "triform", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def read_process_start(pid: int) -> str:
    """Return when a process started, as the system writes it, or "" if no such process runs.

    The number of a process that has ended is given to a new one, which has another start time.
    """
    try:
        if Path("/proc/self/stat").exists():
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            fields = text.rpartition(")")[2].split()
            state, start = fields[0], fields[19]
        else:
            command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
            output = subprocess.run(command, capture_output=True, text=True).stdout
            state, _, start = output.strip().partition(" ")
    except (OSError, IndexError):  # there is no such process, or no `ps`, as on Windows
        return ""
    return "" if state.startswith("Z") else start.strip()


def describe_exit(exit_code: int, log: str) -> str:
    """Return why a command failed: the line that it printed, or the signal that ended it."""
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = str(-exit_code)
        return f"the process was ended by the signal {name}"
    return find_error_line(log) or f"the command ended with exit code {exit_code}; see its log"


def find_error_line(log: str) -> str:
    """Return the last error in the log of a command, or ""."""
    lines = [line.removeprefix(ERROR_PREFIX) for line in log.split("\n") if line.startswith(ERROR_PREFIX)]
    return lines[-1] if lines else ""


def read_log_tail(path: Path) -> str:
    """Return the last lines of a log, or "" if there is none."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            offset = file.seek(max(0, size - LOG_TAIL_BYTES))
            text = str(file.read().decode(errors="replace"))
    except (OSError, CheckpointError):
        return ""
    return text.partition("\n")[2] if offset else text
