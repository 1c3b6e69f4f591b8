"""Validate the content of a checkpoint, so that a malformed one gives a one-line error and not a traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Check = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_mapping_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_metrics_or_none(value: Any) -> bool:
    return value is None or (_is_mapping_of(_is_number)(value) and "loss" in value)


PROGRESS_CHECKS: dict[str, Check] = {
    "step": _is_count,
    "best": _is_metrics_or_none,
    "best_step": _is_count,
    "stale": _is_count,
    "lowest_loss": _is_number,
    "seconds": _is_number,
    "finished": _is_text,
    "validation_due": _is_bool,
    "compiled": _is_bool,
}
# Missing from older checkpoints.
PROGRESS_DEFAULTS = {"lowest_loss": 0.0, "validation_due": False, "compiled": False}
STATE_CHECKS: dict[str, Check] = {
    "progress": _is_mapping,
    "sampler": _is_mapping_of(_is_count),
    "schedule": _is_mapping_of(_is_number),
    "callbacks": _is_mapping_of(_is_mapping),
    "window": _is_mapping,
    "metadata": _is_mapping_of(_is_mapping),
    "finished": _is_text,
}
WINDOW_CHECKS: dict[str, Check] = {"losses": _is_list_of(_is_number)}


def find_state_problem(state: Any) -> str:
    """Return the problem with the content of a state.json; empty if there is none."""
    if not _is_mapping(state):
        return "expected the state of a checkpoint"
    return (
        _find_problem(state, STATE_CHECKS, "")
        or _find_problem(PROGRESS_DEFAULTS | state["progress"], PROGRESS_CHECKS, "progress.")
        or _find_problem(state["window"], WINDOW_CHECKS, "window.")
    )


def _find_problem(values: dict[str, Any], checks: dict[str, Check], prefix: str) -> str:
    for name, check in checks.items():
        if name not in values:
            return f"{prefix}{name} is missing"
        if not check(values[name]):
            return f"{prefix}{name} is malformed"
    return ""


def validate_optimizer_state(moments: dict[int, dict[str, Tensor]], parameters: Sequence[Tensor]) -> None:
    """Check that each tensor of an optimizer's state has a parameter with the same shape.

    torch would notice a mismatch only at the next step.

    Args:
        moments: The state by the number of the parameter.
        parameters: The parameters, in the order of the optimizer.

    Raises:
        ValueError: A tensor has no parameter, or another shape.
    """
    for index, values in moments.items():
        if not 0 <= index < len(parameters):
            raise ValueError(f"optimizer.{index} has no parameter")
        for name, value in values.items():
            if value.ndim and value.shape != parameters[index].shape:
                raise ValueError(f"optimizer.{index}.{name} does not have the shape of its parameter")
