"""Numbers for people: one style everywhere, whatever a metric is called."""

from __future__ import annotations

import errno
import io
import math
import re

import pytest

from triform.formatting import (
    format_duration,
    format_mean,
    format_metric,
    format_range,
    metric_label,
    print_message,
    print_table,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000347, "0.35 ms"),
        (0.0935, "94 ms"),
        (0.99999, "1.0 s"),
        (8.34, "8.3 s"),
        (9.97, "10 s"),
        (59.7, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_a_duration_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("accuracy", 0.9325, "93.25 %"),
        ("best accuracy", 1.0, "100.00 %"),
        ("test.macro_f1", 0.5, "50.00 %"),
        ("exact_match", 0.0, "0.00 %"),
        ("bleu", 4.5, "4.50"),
        ("chrf", 30.0, "30.00"),
        ("sentence_bleu", 0.0, "0.00"),
        ("loss", 0.12345, "0.1235"),
        ("training loss", 12.345, "12.35"),
        ("perplexity", 12345.678, "12,345.68"),
        ("rows", 1200, "1,200"),
    ],
)
def test_fractions_are_percent_and_bleu_is_from_0_to_100(name: str, value: float, expected: str) -> None:
    assert format_metric(name, value) == expected


def test_a_mean_is_shown_with_half_of_its_interval_and_one_unit() -> None:
    assert format_mean("accuracy", 0.9325, 0.012) == "93.25 ± 1.20 %"
    assert format_mean("loss", 1.5, 0.25) == "1.5000 ± 0.2500"
    assert format_mean("bleu", 5.0, 1.0) == "5.00 ± 1.00"
    assert format_range("accuracy", 0.92, 0.945) == "92.00 to 94.50 %"


def test_a_mean_of_one_run_has_nothing_after_it() -> None:
    assert format_mean("accuracy", 0.9325, math.inf) == "93.25 %"


def test_names_are_written_as_the_field_writes_them() -> None:
    assert [metric_label(name) for name in ("bleu", "f1", "bits_per_byte")] == ["BLEU", "F1", "bits per byte"]


class ClosedTerminal(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_message_that_nobody_can_read_stops_nothing() -> None:
    print_message("the terminal was closed", ClosedTerminal())
    print_message("a \x1b[2J label", out := io.StringIO())
    assert out.getvalue() == "a \\x1b[2J label\n"


def test_names_in_the_first_column_stay_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "50")
    words = "a sentence that is longer than the terminal is wide, and is wrapped in its column"
    print_table([["name", "title", "about"], ["word-vectors-speeches", words, words]], align="lll")
    assert "word-vectors-speeches" in screen.getvalue()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= 50
    assert sorted(" ".join(lines[1:]).split()) == sorted(["word-vectors-speeches", *words.split(), *words.split()])
