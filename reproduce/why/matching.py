"""Match the number of parameters by choosing the width of a model, and measure its speed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from triform.analysis.parameters import count_parameters
from triform.config import Config, DataSizes
from triform.config.settings import Settings, build_config

LSTM_WIDTHS = range(8, 4_096, 2)


def sizes_from_config(config: Config) -> DataSizes:
    """Return the data sizes of a run. Both languages of a translation share a vocabulary here."""
    n_labels = len(config.data.labels)
    return DataSizes(vocab_size=config.tokenizer.vocab_size, max_len=config.data.max_len, n_labels=n_labels)


def total_parameters(settings: Settings, sizes: DataSizes) -> int:
    """Return the number of parameters of the model that these settings build."""
    return count_parameters(build_config(settings), sizes).total


def match_width(settings: Settings, sizes: DataSizes, target: int) -> int:
    """Return the `model.d_model` with which these settings are closest to a number of parameters."""

    def count_at(width: int) -> int:
        return total_parameters({**settings, "model.d_model": width}, sizes)

    index = bisect_left(LSTM_WIDTHS, target, key=count_at)
    return min(LSTM_WIDTHS[max(0, index - 1) : index + 1], key=lambda width: abs(count_at(width) - target))


def steps_per_second(events: Sequence[Mapping[str, Any]]) -> float:
    """Return the median speed in the second half of a run, when every batch shape has occurred before."""
    step_times = [float(event["step_ms"]) for event in events if event["event"] == "train"]
    return 1_000 / median(step_times[len(step_times) // 2 :])


def training_seconds(events: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds spent on training steps, without validation and checkpoints."""
    total, previous_step = 0.0, 0
    for event in events:
        if event["event"] == "train":
            total += (event["step"] - previous_step) * float(event["step_ms"]) / 1_000
            previous_step = event["step"]
    return total
