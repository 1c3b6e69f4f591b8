"""The report of a run: whole, honest, harmless and small, whatever the run folder holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triform.errors import DataError
from triform.evaluation.details import details_to_dict
from triform.evaluation.label_details import Mistake, build_label_details
from triform.reporting.charts import Chart, Curve, Point, downsample, linear_scale, log_scale, render_chart, smooth
from triform.reporting.run_history import read_history
from triform.reporting.run_report import write_report
from triform.reporting.scoreboard import ScoreboardRow, write_scoreboard

VOID_TAGS = {"meta", "link", "br", "hr", "img", "input"}

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


class ParsedPage(HTMLParser):
    """Reads a page, checks that every tag is closed in order, and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open_tags, f"never closed: {self.open_tags}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags and data.strip():
            self.texts.append((self.open_tags[-1], data))

    def charts(self) -> list[dict[str, Any]]:
        return [json.loads(attrs["data-chart"] or "") for _, attrs in self.tags if "data-chart" in attrs]

    def stat_cards(self) -> dict[str, tuple[str, ...]]:
        """Each tile's name, with its value and its note."""
        cards: dict[str, tuple[str, ...]] = {}
        name = ""
        for tag, text in self.texts:
            if tag == "dt":
                name = text
            elif tag == "dd":
                cards[name] = (*cards.get(name, ()), text)
        return cards


def run_events(*, steps: int = 300) -> Events:
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
    text = report(run_events())
    page = ParsedPage(text)
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
    assert ParsedPage(report(run_events())).stat_cards() == {
        "Best accuracy": ("95.00 %", "at step 300"),
        "Steps": ("300", "of 300"),
        "Parameters": ("576,467", "vocabulary of 263"),
        "Time": ("1 min 01 s", "training"),
        "Tokens per second": ("51,150", "median"),
        "Device": ("cpu", "fp32"),
    }


def test_nothing_is_loaded_from_anywhere(report: Callable[..., str], tmp_path: Path) -> None:
    scoreboard = write_scoreboard(tmp_path / "index.html", [make_scoreboard_row(tmp_path)])
    for text in [report(run_events()), scoreboard.read_text(encoding="utf-8")]:
        assert not re.search(r"https?://|url\(|@import|src=", text)
        page = ParsedPage(text)
        assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
        policy = next(a["content"] or "" for t, a in page.tags if t == "meta" and "http-equiv" in a)
        assert policy.startswith("default-src 'none'")


def test_markup_in_samples_settings_and_names_stays_text(report: Callable[..., str]) -> None:
    markup = "<script>alert(1)</script>\"'><img src=x>"
    lines = run_events()
    lines[0] = START | {"task": markup, "device": markup, "version": markup, "metric": markup, "max_steps": markup}
    lines += [{"event": "notice", "text": markup}, {"event": "valid", "step": 300, markup: 0.5}]
    lines += [{"event": "sample", "step": 300, "input": markup, "output": markup, "expected": markup}]
    lines += [{"event": "test", "name": markup, "scores": {markup: 0.5}}]
    page = ParsedPage(report(lines, config=CONFIG + f"'<script>alert(2)</script>' = '''{markup}'''\n"))
    assert [tag for tag, _ in page.tags].count("script") == 1  # our own
    assert not any(tag == "img" for tag, _ in page.tags)
    assert sum(markup in data for _, data in page.texts) >= 8


def make_details_event(text: str) -> dict[str, Any]:
    mistake = Mistake(line=7, text=text, expected=text, predicted="b", probability=0.975, expected_probability=0.01)
    details = build_label_details([text, "b"], np.array([[3, 1], [0, 4]]), [mistake])
    return {"event": "details", "step": 300, "details": details_to_dict(details)}


def test_where_the_model_is_wrong_is_shown_as_text(report: Callable[..., str]) -> None:
    markup = "<img src=x onerror=alert(1)>"
    page = ParsedPage(report([*run_events(), make_details_event(markup)]))
    cells = [data for tag, data in page.texts if tag in ("td", "th", "div")]
    assert cells.count(markup) == 5  # twice in the matrix, in the metrics, as a label and as a text
    assert "img" not in {tag for tag, _ in page.tags}
    for expected in ("97.50 %", "75.00 %", "80.00 %", "3", "4"):  # probability, recall, precision, counts
        assert expected in cells
    assert "The best weights on 8 of 1,000 validation examples." in [data for _, data in page.texts]


@pytest.mark.parametrize("details", [None, 3, {}, {"rows": "many"}, {"confusion": "x"}, {"macro": {"f1": "?"}}])
def test_damaged_details_are_left_out(report: Callable[..., str], details: Any) -> None:
    complete = make_details_event("a")["details"]
    damaged = {**complete, **details} if isinstance(details, dict) and len(details) == 1 else details
    text = report([*run_events(), {"event": "details", "step": 300, "details": damaged}])
    assert "Where the model is wrong" not in text
    ParsedPage(text)


def test_a_run_that_is_still_going_has_a_report(report: Callable[..., str]) -> None:
    page = ParsedPage(
        report([line for line in run_events() if line["event"] in ("start", "train") and line.get("step", 0) <= 50])
    )
    assert ("span", "Running") in page.texts
    cards = page.stat_cards()
    assert cards["Best accuracy"] == ("–", "not validated yet")
    assert cards["Steps"] == ("50", "of 300")
    assert cards["Time"] == ("10 s", "so far")
    assert ("progress", {"max": "300", "value": "50"}) in page.tags


@pytest.mark.parametrize("count", [0, 1])
def test_a_run_that_has_barely_begun_has_a_report(report: Callable[..., str], count: int) -> None:
    page = ParsedPage(report(run_events()[:count], config=None))
    assert page.charts() == []
    assert any("config.toml is missing or cannot be read" in data for _, data in page.texts)


def test_a_first_logged_step_is_drawn_as_a_dot(report: Callable[..., str]) -> None:
    page = ParsedPage(report(run_events()[:3]))
    assert any(tag == "circle" for tag, _ in page.tags)


def test_a_cut_last_line_is_passed_over(report: Callable[..., str]) -> None:
    complete = report(run_events())
    assert report(run_events(), tail='{"event": "train", "step": 31') == complete


def test_damaged_lines_in_the_middle_are_counted(report: Callable[..., str]) -> None:
    text = report(run_events(), tail='{"event": "tr{"event": "resume"}\n[1]\n{"event": ["x"]}\n{"event": "new"}\n')
    assert "This page skips 3 damaged lines of metrics.jsonl." in text


def test_values_that_are_not_numbers_are_skipped(report: Callable[..., str]) -> None:
    lines = run_events()
    lines += [
        {"event": "train", "step": 301 + i, "loss": bad, "lr": bad, "tokens_per_s": bad, "seconds": bad}
        for i, bad in enumerate([None, math.nan, math.inf, -math.inf, "0.5", True])
    ]
    lines += [{"event": "valid", "step": 305, "loss": None, "accuracy": None}]
    page = ParsedPage(report(lines))
    for chart in page.charts():
        for _, _, _, points in chart["curves"]:
            assert all(step <= 300 and math.isfinite(value) for step, value in points)
    assert not any(re.search(r"nan|inf\b", attrs.get("d") or "") for tag, attrs in page.tags if tag == "path")


def test_the_curves_hold_the_values_of_the_metrics(report: Callable[..., str]) -> None:
    loss, accuracy = ParsedPage(report(run_events())).charts()[:2]
    raw, valid = loss["curves"][0][3], loss["curves"][2][3]
    assert raw == [[step, float(f"{100 / step:.5g}")] for step in range(10, 301, 10)]
    assert valid == [[100, 0.5], [200, 0.5], [300, 0.5]]
    assert accuracy["curves"][0][3] == [[100, 0.85], [200, 0.9], [300, 0.95]]


def test_steps_done_again_after_a_resume_count_once(report: Callable[..., str]) -> None:
    first = [line for line in run_events() if line.get("step", 0) <= 200]
    repeated = [line for line in run_events() if line.get("step", 0) > 120 and line["event"] != "start"]
    text = report([*first, {"event": "resume", "step": 120}, *repeated])
    raw = ParsedPage(text).charts()[0]["curves"][0][3]
    assert [step for step, _ in raw] == list(range(10, 301, 10))
    assert ">resumed</text>" in text


def test_a_resumed_run_is_running_again(report: Callable[..., str]) -> None:
    assert ("span", "Running") in ParsedPage(report([*run_events(), {"event": "resume", "step": 300}])).texts


def test_the_best_of_a_loss_is_the_lowest_even_when_nobody_says_so(report: Callable[..., str]) -> None:
    losses = [{"event": "valid", "step": step, "loss": loss} for step, loss in [(1, 0.5), (2, 0.25), (3, 0.75)]]
    assert (
        ParsedPage(report([{"event": "start", "task": "generate"}, *losses])).stat_cards()["Best loss"][0]
        == "0.2500"
    )


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
    assert all(len(points) <= 600 for chart in ParsedPage(text).charts() for *_, points in chart["curves"])


def test_a_folder_without_metrics_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        read_history(tmp_path)


def test_thinning_keeps_the_ends_and_every_spike() -> None:
    points: list[Point] = [(float(i), 1.0) for i in range(10_000)]
    points[1234], points[8765] = (1234.0, 99.0), (8765.0, -99.0)
    downsampled = downsample(points)
    assert len(downsampled) <= 600
    assert {points[0], points[1234], points[8765], points[-1]} <= set(downsampled)
    assert downsampled == sorted(downsampled)
    assert downsample(points[:600]) == points[:600]


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
    assert scale.position(low * 2) - scale.position(low) == pytest.approx(
        scale.position(high) - scale.position(high / 2)
    )
    assert 2 <= len(scale.ticks) <= 6
    assert all(scale.low <= value <= scale.high for value, _ in scale.ticks)


def test_a_loss_that_falls_far_is_drawn_on_a_log_scale() -> None:
    def render_loss(last: float) -> str:
        return render_chart(
            Chart(title="Loss", curves=[Curve(name="train", points=[(1, 5.0), (9, last)])], last_step=9)
        )

    assert "log scale" in render_loss(0.05)
    assert "log scale" not in render_loss(1.0)
    assert "log scale" not in render_loss(0.0)


def make_scoreboard_row(folder: Path, **changes: Any) -> ScoreboardRow:
    run = folder / "runs" / "a b"
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in run_events()), encoding="utf-8")
    values: dict[str, Any] = {"task": "classify", "summary": "Tells <b> from <i>", "metric": "accuracy"}
    values |= {
        "score": 0.98,
        "target": 0.95,
        "seconds": 61.2,
        "report": run / "report.html",
    }
    return ScoreboardRow(**values | changes)


def test_the_scoreboard_shows_each_task_and_links_to_its_report(tmp_path: Path) -> None:
    rows = [
        make_scoreboard_row(tmp_path),
        make_scoreboard_row(tmp_path, metric="bits_per_byte", score=2.5, target=2.0),
    ]
    page = ParsedPage(write_scoreboard(tmp_path / "index.html", rows).read_text(encoding="utf-8"))
    words = [data for _, data in page.texts]
    for expected in ["1 of 2", "Tells <b> from <i>", "98.00 %", "≥ 95.00 %", "✓ yes", "✗ no", "≤ 2", "1 min 01 s"]:
        assert expected in words
    assert [attrs["href"] for tag, attrs in page.tags if tag == "a"] == ["runs/a%20b/report.html"] * 4


def test_the_scoreboard_shows_curves_and_samples_of_every_run(tmp_path: Path) -> None:
    page = ParsedPage(
        write_scoreboard(
            tmp_path / "index.html", [make_scoreboard_row(tmp_path), make_scoreboard_row(tmp_path)]
        ).read_text("utf-8")
    )
    titles = [data.strip() for tag, data in page.texts if tag == "h3"]
    assert titles == ["Loss", "Accuracy"] * 2
    assert page.charts()[1]["curves"][0][3] == [[100, 0.85], [200, 0.9], [300, 0.95]]
    assert [data for _, data in page.texts].count("in 300") == 2


def test_warnings_and_facts_are_different_boxes(report: Callable[..., str]) -> None:
    lines = run_events()
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
    lines_without_notices = [line for line in run_events() if line["event"] != "notice"]
    assert '<section class="notices' not in report(lines_without_notices)


@pytest.mark.parametrize("accuracy", [0.0, 0.9833, 1.0])
def test_the_axis_of_a_percentage_ends_at_100(report: Callable[..., str], accuracy: float) -> None:
    valid_events = [{"event": "valid", "step": step, "loss": 0.5, "accuracy": accuracy} for step in (1, 2, 3)]
    chart = ParsedPage(report([START, *valid_events])).charts()[1]
    assert 0 <= chart["low"] < chart["high"] <= 1


def test_fractions_are_drawn_in_percent(report: Callable[..., str]) -> None:
    text = report(run_events())
    accuracy = ParsedPage(text).charts()[1]
    assert (accuracy["times"], accuracy["unit"]) == (100, " %")
    assert "valid: from 85.00 % at step 100 to 95.00 % at step 300" in text
    assert '">86 %</text>' in text


@pytest.mark.parametrize(
    ("score", "metric", "reached"),
    [
        (0.95, "accuracy", True),
        (0.94, "accuracy", False),
        (0.95, "bits_per_byte", True),
        (0.96, "bits_per_byte", False),
        (math.nan, "accuracy", False),
        (math.nan, "bits_per_byte", False),
    ],
)
def test_a_target_is_reached_from_the_right_side(tmp_path: Path, score: float, metric: str, reached: bool) -> None:
    assert make_scoreboard_row(tmp_path, score=score, metric=metric).reached is reached
