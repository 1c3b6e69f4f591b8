"""How metrics and texts are shown to people, everywhere alike.

Metrics are shown in percent, from 0 to 100, or as plain numbers. Files and JSON keep them as they are computed:
fractions of 1, and BLEU from 0 to 100. Texts, labels and paths come from files that others made, so control
characters in them never reach a terminal.
"""

from __future__ import annotations

import math
import re
import sys
from contextlib import suppress
from typing import TextIO

PERCENT_METRICS = ("accuracy", "f1", "macro_f1", "exact_match", "token_accuracy")  # stored as fractions of 1
HUNDRED_POINT_METRICS = ("bleu", "chrf", "sentence_bleu")  # stored from 0 to 100 already
METRIC_LABELS = {"f1": "F1", "macro_f1": "F1", "bleu": "BLEU", "chrf": "chrF", "sentence_bleu": "sentence BLEU"}

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # all but tab and line end


def escape_control_characters(text: str) -> str:
    """The text with control characters written as escapes (\\x1b), so that it cannot change a terminal."""
    return CONTROL_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a line to standard output, or with `err` a message to standard error.

    Control characters are escaped on a terminal. In files and pipes, standard output holds the text exactly, except
    for characters that the encoding of the stream does not have.
    """
    if err:
        print_message(text)
    else:
        _print(escape_control_characters(text) if sys.stdout.isatty() else text, sys.stdout)


def print_message(text: str, stream: TextIO | None = None) -> None:
    """Print a line for the user to a stream, by default standard error, with control characters escaped.

    Where nobody can read it, as on a terminal that was closed, the line is dropped: work goes on without it.
    """
    stream = stream or sys.stderr
    with suppress(OSError):
        _print(escape_control_characters(text), stream)
        stream.flush()


def _print(text: str, stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def metric_label(name: str) -> str:
    """A metric's name as it is written in a sentence."""
    return METRIC_LABELS.get(name, name.replace("_", " "))


def metric_scale(name: str) -> tuple[float, str]:
    """What a metric is multiplied by to be shown, and the unit that follows it.

    A name may have a prefix, such as "best accuracy" or "test.accuracy".
    """
    return (100.0, " %") if _base_name(name) in PERCENT_METRICS else (1.0, "")


def has_percent_scale(name: str) -> bool:
    """Whether a metric is shown on a scale from 0 to 100, always with two decimals."""
    return _base_name(name) in (*PERCENT_METRICS, *HUNDRED_POINT_METRICS)


def format_metric(name: str, value: float) -> str:
    """A metric as people read it: fractions in percent, BLEU from 0 to 100, counts as whole numbers.

    >>> format_metric("accuracy", 0.9325), format_metric("bleu", 4.5), format_metric("rows", 1200)
    ('93.25 %', '4.50', '1,200')
    """
    scale, unit = metric_scale(name)
    is_count = math.isfinite(value) and value == int(value) and _base_name(name) not in HUNDRED_POINT_METRICS
    if is_count and not unit:
        return f"{int(value):,}"
    return f"{scale * value:,.{_decimals(name, value)}f}{unit}"


def format_mean(name: str, mean: float, half_width: float) -> str:
    """The mean of several runs, ± half of its 95 % interval where that is known.

    >>> format_mean("accuracy", 0.9325, 0.012)
    '93.25 ± 1.20 %'
    """
    if not math.isfinite(half_width):
        return format_metric(name, mean)
    scale, unit = metric_scale(name)
    decimals = _decimals(name, mean)
    return f"{scale * mean:,.{decimals}f} ± {scale * half_width:,.{decimals}f}{unit}"


def format_range(name: str, low: float, high: float) -> str:
    """Both ends of an interval, such as `92.05 to 94.45 %`."""
    scale, unit = metric_scale(name)
    decimals = _decimals(name, max(abs(low), abs(high)))
    return f"{scale * low:,.{decimals}f} to {scale * high:,.{decimals}f}{unit}"


def _base_name(name: str) -> str:
    return re.split(r"[ .]", name)[-1]


def _decimals(name: str, value: float) -> int:
    return 2 if has_percent_scale(name) or abs(value) >= 10 else 4
