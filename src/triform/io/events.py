r"""Read the events of a run from `metrics.jsonl`.

Lines end at "\n" only. U+2028, U+0085 and other characters where `str.splitlines` would cut occur inside of events.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from triform.io.files import read_regular

Event = dict[str, Any]


def parse_event(line: bytes) -> Event | None:
    """Return the event on a line of metrics.jsonl, or None for a damaged or incomplete line."""
    try:
        event = msgspec.json.decode(line) if line.strip() else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def parse_events(content: bytes) -> tuple[list[Event], int]:
    """Return the events in the content of metrics.jsonl, and the number of damaged lines, which are skipped.

    A last line without its end is incomplete because the run is in progress or was killed. It is not counted.
    """
    *lines, last_line = content.split(b"\n")
    parsed = [parse_event(line) for line in lines if line.strip()]
    return [event for event in (*parsed, parse_event(last_line)) if event is not None], parsed.count(None)


def read_events(path: Path) -> list[Event]:
    """Return the events of a metrics.jsonl; none if there is no such file."""
    try:
        return parse_events(read_regular(path))[0]
    except FileNotFoundError:
        return []
