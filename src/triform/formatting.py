"""Format metrics, texts and tables for people, and print them.

Metrics are shown in percent, from 0 to 100, or as plain numbers. Files and JSON keep them as they are computed:
fractions of 1, and BLEU from 0 to 100. Texts, labels and paths come from files that are not trusted, so
control characters in them are escaped before they reach a terminal.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from triform.errors import ConfigError
from triform.notebook import message_stream

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class MetricInfo:
    """The label and the unit of a metric, and whether higher is better."""

    label: str
    higher_is_better: bool = True
    is_fraction: bool = False  # stored as a fraction of 1, shown in percent
    is_out_of_100: bool = False  # stored and shown from 0 to 100
    difference_unit: str = ""

    @property
    def unit(self) -> str:
        """The unit of a difference between two values."""
        return self.difference_unit or (f"{self.label} points" if self.is_fraction else self.label)

    @property
    def scale(self) -> float:
        """The factor by which a stored value is multiplied for display."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def percent_sign(self) -> str:
        """The text that follows a displayed value."""
        return " %" if self.is_fraction else ""


# Every metric that Triform computes. Files and JSON keep the values as they are stored.
METRICS = {
    "accuracy": MetricInfo("accuracy", is_fraction=True),
    "f1": MetricInfo("F1", is_fraction=True),
    "macro_f1": MetricInfo("F1", is_fraction=True),
    "exact_match": MetricInfo("exact match", is_fraction=True, difference_unit="exact-match points"),
    "token_accuracy": MetricInfo("token accuracy", is_fraction=True),
    "token_accuracy_with_padding": MetricInfo("token accuracy with padding", is_fraction=True),
    "loss": MetricInfo("loss", higher_is_better=False, difference_unit="nats"),
    "training loss": MetricInfo("training loss", higher_is_better=False, difference_unit="nats"),
    "perplexity": MetricInfo("perplexity", higher_is_better=False),
    "bits_per_byte": MetricInfo("bits per byte", higher_is_better=False),
    "bleu": MetricInfo("BLEU", is_out_of_100=True),
    "chrf": MetricInfo("chrF", is_out_of_100=True),
    "sentence_bleu": MetricInfo("sentence BLEU", is_out_of_100=True),
    "tokenised_bleu": MetricInfo("tokenised BLEU", is_out_of_100=True),
}

MAX_NAME_WIDTH = 40  # longer cells in the first column of a table are wrapped
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # all except tab and line feed


def escape_control_characters(text: str) -> str:
    """Return the text with control characters written as escapes (\\x1b), so that they have no effect."""
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
    """Print a line for the user to a stream, with control characters escaped.

    The default is standard error, and in a notebook standard output.

    If the stream cannot be written to, for example because its terminal was closed, the line is dropped.
    """
    stream = stream or message_stream()
    with suppress(OSError):
        _print(escape_control_characters(text), stream)
        stream.flush()


def _print(text: str, stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def print_table(rows: Sequence[Sequence[str]], align: str = "l") -> None:
    """Print a table to standard output; on a terminal, its first row is bold and long cells are wrapped to fit.

    Args:
        rows: The cells of each row, all rows of one length; the first row holds the headings.
        align: A letter for each column, `l` for left or `r` for right; columns without a letter are aligned right.
    """
    if not sys.stdout.isatty():
        echo(format_table(rows, align))
        return
    from rich.console import Console

    console = Console()
    with console.capture() as capture:
        console.print(_build_table(rows, align))
    _print(capture.get().rstrip("\n"), sys.stdout)


def format_table(rows: Sequence[Sequence[str]], align: str = "l") -> str:
    """Return a table as plain text, with one line for each row and two spaces between columns.

    >>> print(format_table([["set", "rows"], ["train", "1,200"], ["test", "80"]]))
    set     rows
    train  1,200
    test      80
    """
    from rich.console import Console

    width = sum(2 * max(map(len, cells)) + 2 for cells in zip(*rows, strict=True))  # some characters are two wide
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(_build_table(rows, align))
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def _build_table(rows: Sequence[Sequence[str]], align: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), pad_edge=False)
    for index, letter in enumerate(align.ljust(len(rows[0]), "r")):
        # Names in the first column are not wrapped, because users copy them.
        is_name = index == 0 and all(" " not in row[0] and len(row[0]) <= MAX_NAME_WIDTH for row in rows)
        table.add_column(justify="left" if letter == "l" else "right", overflow="fold", no_wrap=is_name)
    for index, row in enumerate(rows):
        table.add_row(*(Text(escape_control_characters(cell)) for cell in row), style="" if index else "bold")
    return table


def metric_info(name: str) -> MetricInfo:
    """Look up a metric by its name.

    Raises:
        ConfigError: The metric is unknown.
    """
    if name not in METRICS:
        raise ConfigError(f"{name!r} is not a known metric; choose one of {', '.join(METRICS)}")
    return METRICS[name]


def format_duration(seconds: float) -> str:
    """Format a duration in readable units, with two or three significant digits.

    >>> [format_duration(seconds) for seconds in (0.00035, 0.094, 8.34, 12.4, 185, 7800)]
    ['0.35 ms', '94 ms', '8.3 s', '12 s', '3 min 05 s', '2 h 10 min']
    """
    if seconds < 0.0095:
        return f"{1e3 * seconds:.2f} ms"
    if seconds < 0.9995:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rounded_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rounded_seconds:02d} s" if minutes else f"{rounded_seconds} s"


def metric_label(name: str) -> str:
    """Return the name of a metric for use in a sentence."""
    return METRICS[name].label if name in METRICS else name.replace("_", " ")


def metric_title(name: str) -> str:
    """Return the name of a metric as a heading. Names with capitals, such as BLEU and chrF, are kept."""
    label = metric_label(name)
    return label if label != label.lower() else label.capitalize()


def direction_label(metric: str) -> str:
    """Return whether a higher or a lower value of a metric is better."""
    return "higher is better" if metric_info(metric).higher_is_better else "lower is better"


def metric_scale(name: str) -> tuple[float, str]:
    """Return the factor by which a metric is multiplied for display, and the unit that follows it.

    A name may have a prefix, such as "best accuracy" or "test.accuracy".
    """
    info = _find_metric(name)
    return info.scale, info.percent_sign


def has_percent_scale(name: str) -> bool:
    """Return whether a metric is shown on a scale from 0 to 100, with two decimals."""
    info = _find_metric(name)
    return info.is_fraction or info.is_out_of_100


def format_metric(name: str, value: float) -> str:
    """Format a metric for display: fractions in percent, BLEU from 0 to 100, counts as whole numbers.

    >>> format_metric("accuracy", 0.9325), format_metric("bleu", 4.5), format_metric("rows", 1200)
    ('93.25 %', '4.50', '1,200')
    """
    scale, unit = metric_scale(name)
    if math.isfinite(value) and value == int(value) and not has_percent_scale(name):
        return f"{int(value):,}"
    return f"{scale * value:,.{_decimals(name, value)}f}{unit}"


def format_mean(name: str, mean: float, half_width: float) -> str:
    """Format the mean of several runs, with ± half of its 95 % interval if that is finite.

    >>> format_mean("accuracy", 0.9325, 0.012)
    '93.25 ± 1.20 %'
    """
    if not math.isfinite(half_width):
        return format_metric(name, mean)
    scale, unit = metric_scale(name)
    decimals = _decimals(name, mean)
    return f"{scale * mean:,.{decimals}f} ± {scale * half_width:,.{decimals}f}{unit}"


def format_range(name: str, low: float, high: float) -> str:
    """Format an interval, such as `92.05 to 94.45 %`."""
    scale, unit = metric_scale(name)
    decimals = _decimals(name, max(abs(low), abs(high)))
    return f"{scale * low:,.{decimals}f} to {scale * high:,.{decimals}f}{unit}"


def _find_metric(name: str) -> MetricInfo:
    """Look up a metric whose name may have a prefix. An unknown metric is shown without scaling."""
    return METRICS.get(re.split(r"[ .]", name)[-1], MetricInfo(name))


def _decimals(name: str, value: float) -> int:
    return 2 if has_percent_scale(name) or abs(value) >= 10 else 4
