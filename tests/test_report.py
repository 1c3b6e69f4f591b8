"""The report of a run: whole, honest, harmless and small, whatever the run folder holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from triform.charts import Chart, Curve, Point, draw, linear_scale, log_scale, smooth, thin
from triform.errors import DataError
from triform.report import ScoreRow, read_history, write_report, write_scoreboard

VOID = {"meta", "link", "br", "hr", "img", "input"}

START = {
    "event": "start",
    "task": "classify",
    "parameters": 576467,
    "device": "cpu",
    "precision": "fp32",
    "train_examples": 6000,
    "valid_examples": 1000,
    "vocab_size": 263,
    "max_steps": 300,
    "version": "9.8.7",
    "time": "2026-11-15T08:00:00",
    "metric": "accuracy",
    "higher_is_better": True,
}
CONFIG = '[model]\nd_model = 128\nnote = "<script>alert(1)</script>"\ntied = true\n[train]\nlr = 0.001\n'

Events = list[dict[str, Any]]


class Page(HTMLParser):
    """Reads a page, checks that every tag is closed in order, and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], data))

    def charts(self) -> list[dict[str, Any]]:
        return [json.loads(attrs["data-chart"] or "") for _, attrs in self.seen if "data-chart" in attrs]

    def tiles(self) -> dict[str, tuple[str, ...]]:
        """Each tile's name, with its value and its note."""
        found: dict[str, tuple[str, ...]] = {}
        name = ""
        for tag, text in self.texts:
            if tag == "dt":
                name = text
            elif tag == "dd":
                found[name] = (*found.get(name, ()), text)
        return found


def events(*, steps: int = 300) -> Events:
    """A plausible run, from its start to its end."""
    lines: Events = [START, {"event": "notice", "text": "12 of 6000 texts were cut"}]
    for step in range(10, steps + 1, 10):
        speed = 51000.0 + step
        lines.append({"event": "train", "step": step, "loss": 100 / step, "lr": 1e-3, "grad_norm": 0.8})
        lines[-1] |= {"tokens_per_s": speed, "seconds": step / 5, "epoch": step / 200}
        if step % 100 == 0:
            accuracy = 0.8 + step / 2000
            lines.append({"event": "valid", "step": step, "loss": 0.5, "accuracy": accuracy, "f1": 0.7})
            lines.append({"event": "best", "step": step, "metric": "accuracy", "value": accuracy})
            lines.append({"event": "sample", "step": step, "input": f"in {step}", "output": "o", "expected": "x"})
    lines.append({"event": "test", "name": "held out", "scores": {"loss": 0.125, "accuracy": 0.8765}})
    lines.append({"event": "end", "step": 300, "reason": "max_steps", "seconds": 61.2})
    lines[-1] |= {"best_step": 300, "best": 0.95}
    return lines


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., str]:
    def write(lines: Events, *, config: str | None = CONFIG, tail: str = "") -> str:
        folder = tmp_path / "first-try"
        folder.mkdir(exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text + tail, encoding="utf-8")
        if config is not None:
            (folder / "config.toml").write_text(config, encoding="utf-8")
        path = write_report(folder)
        assert path == folder / "report.html"
        assert {file.name for file in folder.iterdir()} <= {"metrics.jsonl", "config.toml", "report.html"}
        return path.read_text(encoding="utf-8")

    return write


def test_the_page_is_well_formed_and_says_everything(report: Callable[..., str]) -> None:
    text = report(events())
    page = Page(text)
    words = " ".join(data for _, data in page.texts)
    for expected in ["classify", "first-try", "Finished", "12 of 6000 texts were cut", "held out", "87.65 %"]:
        assert expected in words
    for expected in ["Samples at step 300", "in 300", "d_model", "128", "true", "Triform 9.8.7"]:
        assert expected in words
    assert "in 200" not in words  # only the last step's samples
    assert "triform train classify --config config.toml" in words
    titles = [data.strip() for tag, data in page.texts if tag == "h3"]
    assert titles[:3] == ["Loss", "Accuracy", "F1"]
    assert {"Learning rate", "Gradient norm", "Tokens per second"} <= set(titles)


def test_every_number_in_the_tiles_is_the_one_in_the_metrics(report: Callable[..., str]) -> None:
    assert Page(report(events())).tiles() == {
        "Best accuracy": ("95.00 %", "at step 300"),
        "Steps": ("300", "of 300"),
        "Parameters": ("576,467", "vocabulary of 263"),
        "Time": ("1 m 01 s", "training"),
        "Tokens per second": ("51,150", "median"),
        "Device": ("cpu", "fp32"),
    }


def test_nothing_is_loaded_from_anywhere(report: Callable[..., str], tmp_path: Path) -> None:
    board = write_scoreboard(tmp_path / "index.html", [row(tmp_path)])
    for text in [report(events()), board.read_text(encoding="utf-8")]:
        assert not re.search(r"https?://|url\(|@import|src=", text)
        page = Page(text)
        assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in page.seen}
        policy = next(a["content"] or "" for t, a in page.seen if t == "meta" and "http-equiv" in a)
        assert policy.startswith("default-src 'none'")


def test_markup_in_samples_settings_and_names_stays_text(report: Callable[..., str]) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x>"
    lines = events()
    lines[0] = START | {"task": evil, "device": evil, "version": evil, "metric": evil, "max_steps": evil}
    lines += [{"event": "notice", "text": evil}, {"event": "valid", "step": 300, evil: 0.5}]
    lines += [{"event": "sample", "step": 300, "input": evil, "output": evil, "expected": evil}]
    lines += [{"event": "test", "name": evil, "scores": {evil: 0.5}}]
    page = Page(report(lines, config=CONFIG + f"'<script>alert(2)</script>' = '''{evil}'''\n"))
    assert [tag for tag, _ in page.seen].count("script") == 1  # our own
    assert not any(tag == "img" for tag, _ in page.seen)
    assert sum(evil in data for _, data in page.texts) >= 8


def test_a_run_that_is_still_going_has_a_report(report: Callable[..., str]) -> None:
    page = Page(
        report([line for line in events() if line["event"] in ("start", "train") and line.get("step", 0) <= 50])
    )
    assert ("span", "Running") in page.texts
    tiles = page.tiles()
    assert tiles["Best accuracy"] == ("–", "not validated yet")
    assert tiles["Steps"] == ("50", "of 300")
    assert tiles["Time"] == ("10.0 s", "so far")
    assert ("progress", {"max": "300", "value": "50"}) in page.seen


@pytest.mark.parametrize("count", [0, 1])
def test_a_run_that_has_barely_begun_has_a_report(report: Callable[..., str], count: int) -> None:
    page = Page(report(events()[:count], config=None))
    assert page.charts() == []
    assert any("no readable config.toml" in data for _, data in page.texts)


def test_a_first_logged_step_is_drawn_as_a_dot(report: Callable[..., str]) -> None:
    page = Page(report(events()[:3]))
    assert any(tag == "circle" for tag, _ in page.seen)


def test_a_cut_last_line_is_passed_over(report: Callable[..., str]) -> None:
    whole = report(events())
    assert report(events(), tail='{"event": "train", "step": 31') == whole


def test_damaged_lines_in_the_middle_are_counted(report: Callable[..., str]) -> None:
    text = report(events(), tail='{"event": "tr{"event": "resume"}\n[1]\n{"event": ["x"]}\n{"event": "new"}\n')
    assert "This page leaves out 1 damaged line of metrics.jsonl." in text


def test_values_that_are_not_numbers_are_skipped(report: Callable[..., str]) -> None:
    lines = events()
    lines += [
        {"event": "train", "step": 301 + i, "loss": bad, "lr": bad, "tokens_per_s": bad, "seconds": bad}
        for i, bad in enumerate([None, math.nan, math.inf, -math.inf, "0.5", True])
    ]
    lines += [{"event": "valid", "step": 305, "loss": None, "accuracy": None}]
    page = Page(report(lines))
    for chart in page.charts():
        for _, _, _, points in chart["curves"]:
            assert all(step <= 300 and math.isfinite(value) for step, value in points)
    assert not any(re.search(r"nan|inf\b", attrs.get("d") or "") for tag, attrs in page.seen if tag == "path")


def test_the_curves_hold_the_values_of_the_metrics(report: Callable[..., str]) -> None:
    loss, accuracy = Page(report(events())).charts()[:2]
    raw, valid = loss["curves"][0][3], loss["curves"][2][3]
    assert raw == [[step, float(f"{100 / step:.5g}")] for step in range(10, 301, 10)]
    assert valid == [[100, 0.5], [200, 0.5], [300, 0.5]]
    assert accuracy["curves"][0][3] == [[100, 0.85], [200, 0.9], [300, 0.95]]


def test_steps_done_again_after_a_resume_count_once(report: Callable[..., str]) -> None:
    first = [line for line in events() if line.get("step", 0) <= 200]
    again = [line for line in events() if line.get("step", 0) > 120 and line["event"] != "start"]
    text = report([*first, {"event": "resume", "step": 120}, *again])
    raw = Page(text).charts()[0]["curves"][0][3]
    assert [step for step, _ in raw] == list(range(10, 301, 10))
    assert ">resumed</text>" in text


def test_a_resumed_run_is_running_again(report: Callable[..., str]) -> None:
    assert ("span", "Running") in Page(report([*events(), {"event": "resume", "step": 300}])).texts


def test_the_best_of_a_loss_is_the_lowest_even_when_nobody_says_so(report: Callable[..., str]) -> None:
    losses = [{"event": "valid", "step": step, "loss": loss} for step, loss in [(1, 0.5), (2, 0.25), (3, 0.75)]]
    assert Page(report([{"event": "start", "task": "generate"}, *losses])).tiles()["Best loss"][0] == "0.2500"


def test_a_very_long_run_stays_below_300_kilobytes(report: Callable[..., str]) -> None:
    lines: Events = [START]
    for step in range(1, 100_001):
        wave = 1 + 0.3 * math.sin(step * 12.9898)
        lines.append({"event": "train", "step": step, "loss": wave * 3e4 / (step + 5e3), "lr": wave * 1e-3})
        lines[-1] |= {"grad_norm": wave, "tokens_per_s": 5e4 * wave, "seconds": step / 7}
        if step % 50 == 0:
            lines.append({"event": "valid", "step": step, "loss": wave, "accuracy": wave / 2, "f1": wave / 3})
            lines[-1] |= {"bleu": wave, "chrf": wave, "exact_match": wave, "token_accuracy": wave}
    text = report(lines)
    assert len(text.encode()) < 300_000
    assert all(len(points) <= 600 for chart in Page(text).charts() for *_, points in chart["curves"])


def test_a_folder_without_metrics_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        read_history(tmp_path)


def test_thinning_keeps_the_ends_and_every_spike() -> None:
    points: list[Point] = [(float(i), 1.0) for i in range(10_000)]
    points[1234], points[8765] = (1234.0, 99.0), (8765.0, -99.0)
    kept = thin(points)
    assert len(kept) <= 600
    assert {points[0], points[1234], points[8765], points[-1]} <= set(kept)
    assert kept == sorted(kept)
    assert thin(points[:600]) == points[:600]


def test_smoothing_leaves_a_straight_start_where_it_was() -> None:
    line: list[Point] = [(float(i), 2.0 * i) for i in range(200)]
    for smoothed, true in zip(smooth(line)[:190], line[:190], strict=True):
        assert smoothed == pytest.approx(true)
    assert smooth([]) == []


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.42, 0.98), (3e-6, 9e-4), (-5, 12345), (7, 7), (0, 0)])
def test_round_ticks_cover_the_values(low: float, high: float) -> None:
    scale = linear_scale(low, high)
    values = [value for value, _ in scale.ticks]
    assert scale.low <= low
    assert high <= scale.high
    assert 2 <= len(values) <= 8
    assert len({label for _, label in scale.ticks}) == len(values)
    assert (values[0], values[-1]) == pytest.approx((scale.low, scale.high))


@pytest.mark.parametrize(("low", "high"), [(0.05, 1.2), (1e-9, 1e9), (3, 300)])
def test_a_log_scale_puts_equal_ratios_at_equal_distances(low: float, high: float) -> None:
    scale = log_scale(low, high)
    assert scale.at(low * 2) - scale.at(low) == pytest.approx(scale.at(high) - scale.at(high / 2))
    assert 2 <= len(scale.ticks) <= 6
    assert all(scale.low <= value <= scale.high for value, _ in scale.ticks)


def test_a_loss_that_falls_far_is_drawn_on_a_log_scale() -> None:
    def page(last: float) -> str:
        return draw(Chart(title="Loss", curves=[Curve(name="train", points=[(1, 5.0), (9, last)])], last_step=9))

    assert "log scale" in page(0.05)
    assert "log scale" not in page(1.0)
    assert "log scale" not in page(0.0)


def row(folder: Path, **changes: Any) -> ScoreRow:
    run = folder / "runs" / "a b"
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events()), encoding="utf-8")
    values: dict[str, Any] = {"task": "classify", "summary": "Tells <b> from <i>", "metric": "accuracy"}
    values |= {
        "score": 0.98,
        "target": 0.95,
        "seconds": 61.2,
        "report": run / "report.html",
    }
    return ScoreRow(**values | changes)


def test_the_scoreboard_shows_each_task_and_links_to_its_report(tmp_path: Path) -> None:
    rows = [
        row(tmp_path),
        row(tmp_path, metric="bits_per_byte", score=2.5, target=2.0, higher_is_better=False),
    ]
    page = Page(write_scoreboard(tmp_path / "index.html", rows).read_text(encoding="utf-8"))
    words = [data for _, data in page.texts]
    for expected in ["1 of 2", "Tells <b> from <i>", "98.00 %", "≥ 95.00 %", "✓ yes", "✗ no", "≤ 2", "1 m 01 s"]:
        assert expected in words
    assert [attrs["href"] for tag, attrs in page.seen if tag == "a"] == ["runs/a%20b/report.html"] * 4


def test_the_scoreboard_shows_curves_and_samples_of_every_run(tmp_path: Path) -> None:
    page = Page(write_scoreboard(tmp_path / "index.html", [row(tmp_path), row(tmp_path)]).read_text("utf-8"))
    titles = [data.strip() for tag, data in page.texts if tag == "h3"]
    assert titles == ["Loss", "Accuracy"] * 2
    assert page.charts()[1]["curves"][0][3] == [[100, 0.85], [200, 0.9], [300, 0.95]]
    assert [data for _, data in page.texts].count("in 300") == 2


def test_warnings_and_facts_are_different_boxes(report: Callable[..., str]) -> None:
    lines = events()
    lines[1:1] = [
        {"event": "notice", "level": "warning", "text": "most labels are alike"},
        {"event": "notice", "level": "info", "text": "6000 texts to train on"},
    ]
    text = report(lines)
    boxes = {
        title: re.findall("<li>(.*?)</li>", items)
        for title, items in re.findall(r'<section class="notices .*?"><h2>(.*?)</h2><ul>(.*?)</ul>', text)
    }
    assert boxes == {
        "Warnings": ["most labels are alike"],
        "About this run": ["6000 texts to train on", "12 of 6000 texts were cut"],  # the last has no level
    }
    without = [line for line in events() if line["event"] != "notice"]
    assert '<section class="notices' not in report(without)


@pytest.mark.parametrize("accuracy", [0.0, 0.9833, 1.0])
def test_the_axis_of_a_percentage_ends_at_100(report: Callable[..., str], accuracy: float) -> None:
    flat = [{"event": "valid", "step": step, "loss": 0.5, "accuracy": accuracy} for step in (1, 2, 3)]
    chart = Page(report([START, *flat])).charts()[1]
    assert 0 <= chart["low"] < chart["high"] <= 1


def test_fractions_are_drawn_in_percent(report: Callable[..., str]) -> None:
    text = report(events())
    accuracy = Page(text).charts()[1]
    assert (accuracy["times"], accuracy["unit"]) == (100, " %")
    assert "valid goes from 85.00 % at step 100 to 95.00 % at step 300" in text
    assert '">86 %</text>' in text


@pytest.mark.parametrize(
    ("score", "higher", "reached"),
    [
        (0.95, True, True),
        (0.94, True, False),
        (0.95, False, True),
        (0.96, False, False),
        (math.nan, True, False),
    ],
)
def test_a_target_is_reached_from_the_right_side(tmp_path: Path, score: float, higher: bool, reached: bool) -> None:
    assert row(tmp_path, score=score, higher_is_better=higher).reached is reached
