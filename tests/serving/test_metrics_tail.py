"""The tail of the metrics: every line of a short file, the shape of a long one, and what is added later."""

from __future__ import annotations

import io
import json
import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from triform.serving import ServerOptions, create_app, metrics_tail
from triform.serving.metrics_tail import MAX_OTHER_POINTS, MAX_POINTS, MetricsTail

Event = dict[str, Any]


def write_events(path: Path, events: list[Event], mode: str = "w") -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def loss_at(step: int) -> float:
    return 2 + 8 * math.exp(-step / 1000)


def make_events(n_steps: int, eval_every: int) -> list[Event]:
    events: list[Event] = [{"event": "start", "task": "generate", "max_steps": n_steps}]
    for step in range(1, n_steps + 1):
        events.append({"event": "train", "step": step, "loss": loss_at(step), "step_ms": 13.5, "seconds": step / 9})
        if step % eval_every == 0:
            events.append({"event": "valid", "step": step, "loss": loss_at(step)})
            events.append({"event": "monitor", "set": "train", "step": step, "loss": loss_at(step)})
    return [*events, {"event": "end", "step": n_steps, "reason": "max_steps"}]


def steps_of(events: list[Event], kind: str) -> list[int]:
    return [event["step"] for event in events if event["event"] == kind]


def test_a_short_file_is_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_events(path, make_events(50, 10))
    events = MetricsTail(path=path).read_history()
    assert steps_of(events, "train") == list(range(1, 51))
    assert steps_of(events, "valid") == steps_of(events, "monitor") == [10, 20, 30, 40, 50]
    assert (events[0]["event"], events[-1]["event"]) == ("start", "end")


def test_many_lines_are_thinned_and_spikes_remain(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    events = make_events(9000, 10)
    events[5000]["loss"] = 99.0
    write_events(path, events)
    thinned = MetricsTail(path=path).read_history()
    steps = steps_of(thinned, "train")
    assert len(steps) <= MAX_POINTS
    assert (steps[0], steps[-1]) == (1, 9000)
    assert max(event.get("loss", 0) for event in thinned) == 99.0
    validations = steps_of(thinned, "valid")
    assert len(validations) <= MAX_OTHER_POINTS + 1
    assert (validations[0], validations[-1]) == (10, 9000)


@pytest.mark.parametrize("eval_every", [7, 100, 2500])
def test_of_a_long_file_few_bytes_are_read_and_every_validation_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eval_every: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    write_events(path, make_events(40_000, eval_every))
    size = path.stat().st_size
    for name, value in {"MAX_COMPLETE_BYTES": 1000, "HEAD_BYTES": 4096, "TAIL_BYTES": 8192, "N_BLOCKS": 40}.items():
        monkeypatch.setattr(metrics_tail, name, value)
    monkeypatch.setattr(metrics_tail, "MAX_OTHER_POINTS", 30)
    n_read = 0

    class CountingFile(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal n_read
            content = super().read(size) or b""
            n_read += len(content)
            return content

    monkeypatch.setattr(Path, "open", lambda self, mode: CountingFile(str(self), mode))
    events = MetricsTail(path=path).read_history()
    validations = steps_of(events, "valid")
    gaps = {later - earlier for earlier, later in pairwise(validations)}
    assert len(validations) >= min(40_000 // eval_every, 15)
    assert max(gaps) <= max(eval_every, 40_000 / 15) * 1.5  # no part of the curve is missing
    assert all(event["loss"] == loss_at(event["step"]) for event in events if event["event"] in ("train", "valid"))
    assert steps_of(events, "end") == [40_000]
    if eval_every < 2500:
        assert n_read < size / 2


def test_new_lines_are_returned_once_and_an_incomplete_line_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path=path)
    assert tail.read_history() == []
    assert tail.read_new() == []
    write_events(path, [{"event": "start"}])
    assert tail.read_new() is None  # a file that appears is a new history
    assert tail.read_history() == [{"event": "start"}]
    with path.open("a", encoding="utf-8") as file:
        file.write('{"event": "train", "step": 1}\n{"event": "tr')
    assert tail.read_new() == [{"event": "train", "step": 1}]
    assert tail.read_new() == []
    with path.open("a", encoding="utf-8") as file:
        file.write('ain", "step": 2}\nnot json\n')
    assert tail.read_new() == [{"event": "train", "step": 2}]


def test_a_history_ends_before_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "start"}\n{"event": "end"', encoding="utf-8")
    tail = MetricsTail(path=path)
    assert tail.read_history() == [{"event": "start"}]
    with path.open("a", encoding="utf-8") as file:
        file.write("}\n")
    assert tail.read_new() == [{"event": "end"}]


@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_was_truncated_or_replaced_is_a_new_history(tmp_path: Path, grows: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    write_events(path, make_events(20, 5))
    tail = MetricsTail(path=path)
    tail.read_history()
    with path.open("r+b") as file:  # as a resume does
        file.truncate(400)
    if grows:
        write_events(path, make_events(40, 5), mode="a")
    assert tail.read_new() is None
    tail.read_history()
    write_events(tmp_path / "other", make_events(40, 5))
    (tmp_path / "other").replace(path)
    assert tail.read_new() is None
    path.unlink()
    assert tail.read_new() is None


def read_stream(text: str) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(block[0].removeprefix("event: "), json.loads(block[1].removeprefix("data: "))) for block in blocks]


def test_the_stream_sends_the_history_new_events_and_a_reset(
    tmp_path: Path, runs_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes between the polls of the stream: a line is added, then the file is rewritten."""
    folder = Path(shutil.copytree(runs_folder / "reviews", tmp_path / "runs" / "reviews"))
    metrics_file, polls = folder / "metrics.jsonl", 0
    app = create_app(ServerOptions(folder=tmp_path / "runs", page=True))
    server = app.state.server

    async def change_files() -> None:
        nonlocal polls
        polls += 1
        if polls == 1:
            write_events(metrics_file, [{"event": "train", "step": 14, "loss": 0.5}], mode="a")
        elif polls == 2:
            write_events(metrics_file, [{"event": "start", "time": "2026-11-16T10:00:00"}])
        else:
            server.stopping.set()

    monkeypatch.setattr("triform.serving.runs_api.wait_for_poll", lambda server: change_files())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get("/api/runs/reviews/metrics", headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    messages = read_stream(answer.text)
    assert [name for name, _ in messages] == ["history", "run", "run", "event", "run", "reset", "history"]
    contents = [content for _, content in messages]
    assert contents[0] == MetricsTail(path=runs_folder / "reviews" / "metrics.jsonl").read_history()
    assert (contents[2]["step"], contents[3]) == (14, {"event": "train", "step": 14, "loss": 0.5})
    assert contents[6] == [{"event": "start", "time": "2026-11-16T10:00:00"}]
