"""As many parameters and as much time: the width of an LSTM, and the steps a model takes in so many seconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from triform.config import Config, Sizes
from triform.models.budget import budget
from triform.reproduce.why.parts import WIDTHS
from triform.settings import Settings, build


def sizes_of(config: Config) -> Sizes:
    """What a settled run says of its data; both languages of a translation share their vocabulary here."""
    labels = len(config.data.labels)
    return Sizes(vocab_size=config.tokenizer.vocab_size, max_len=config.data.max_len, n_labels=labels)


def parameters(settings: Settings, sizes: Sizes) -> int:
    return budget(build(settings), sizes).total


def equal_width(settings: Settings, sizes: Sizes, wanted: int) -> int:
    """The `model.d_model` with which these settings come nearest to so many parameters."""

    def count(width: int) -> int:
        return parameters({**settings, "model.d_model": width}, sizes)

    place = bisect_left(WIDTHS, wanted, key=count)
    return min(WIDTHS[max(0, place - 1) : place + 1], key=lambda width: abs(count(width) - wanted))


def steps_per_second(heard: Sequence[Mapping[str, Any]]) -> float:
    """The rate of the second half of a run, when shapes of batches are known: the median of what was logged."""
    times = [float(event["step_ms"]) for event in heard if event["event"] == "train"]
    return 1_000 / median(times[len(times) // 2 :])


def seconds_of(heard: Sequence[Mapping[str, Any]]) -> float:
    """How long a run learned: what was logged of its steps, without validation and without saving."""
    total, before = 0.0, 0
    for event in heard:
        if event["event"] == "train":
            total += (event["step"] - before) * float(event["step_ms"]) / 1_000
            before = event["step"]
    return total
