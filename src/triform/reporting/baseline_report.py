"""Compare a run with the baseline of its task, and say what to try if the run is worse."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, TextIO

from triform.config import Config
from triform.errors import TriformError
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.result import BaselineResult
from triform.formatting import METRICS, format_metric, metric_label, print_message
from triform.reporting.pages import render_section
from triform.reporting.run_history import Event, RunHistory, is_finite, read_history

MAX_SUGGESTIONS = 3
OVERFITTING_RATIO = 1.05  # of the last validation loss to the lowest one
MIXTURE_GAIN = 0.99  # of the perplexity of a mixture to that of its n-grams; above it, a mixture is not suggested
FEW_ROWS = 10_000  # rows or pairs; fewer are too few to learn a language from them
FEW_TOKENS = 2_000_000  # of a text
EXAMPLE_BIGRAM_BUCKETS = 20_000


def report_baseline(
    folder: Path, config: Config, measure: Callable[[], BaselineResult], stream: TextIO | None
) -> dict[str, Any]:
    """Print how a finished run compares with its baseline, and return the fields of its event.

    Args:
        folder: The run folder.
        config: The settings of the run.
        measure: Returns the baseline.
        stream: Where to print; None: standard error.
    """
    try:
        event = build_baseline_event(read_history(folder), config, folder, measure())
    except (TriformError, LookupError, ValueError, MemoryError) as error:  # the run is finished in any case
        event = {"reason": str(error) or "there is too little memory"}
    for line in (format_comparison(event), *(f"suggestion: {text}" for text in event.get("suggestions", ()))):
        print_message(line, stream)
    return event


def build_baseline_event(
    history: RunHistory, config: Config, folder: Path, baseline: BaselineResult
) -> dict[str, Any]:
    """Return the fields of the event that compares the best weights of a run with a baseline.

    Args:
        history: The events of the run.
        config: Its settings.
        folder: Its folder, for commands.
        baseline: The baseline on the validation data.
    """
    metric, best = history.metric, history.best()
    if best is None:
        raise BaselineError("the run was not validated")
    step, value = best
    baseline_value = float(baseline.metrics[metric])
    is_higher_better = metric not in METRICS or METRICS[metric].higher_is_better
    is_worse = value < baseline_value if is_higher_better else value > baseline_value
    n_valid = next(baseline.metrics[name] for name in ("rows", "pairs", "tokens") if name in baseline.metrics)
    return {
        "step": int(step),
        "method": baseline.name,
        "metric": metric,
        "value": value,
        "baseline": baseline_value,
        **({"mixed": baseline.mixed} if baseline.mixed is not None else {}),
        "verdict": "worse" if is_worse else "better" if value != baseline_value else "equal",
        "n_train": baseline.n_train,
        "is_sample": baseline.is_sample,
        "n_valid": n_valid,
        "suggestions": suggest_changes(history, config, folder, baseline) if is_worse else [],
    }


def format_comparison(event: Event) -> str:
    """Return the comparison of a run with a baseline as a sentence without a full stop."""
    if "reason" in event:
        return f"no baseline: {event['reason']}"
    metric, value, baseline = event["metric"], event["value"], event["baseline"]
    relation = {"worse": "worse than", "better": "better than", "equal": "equal to"}[event["verdict"]]
    unit = {"accuracy": "texts", "bleu": "pairs"}.get(metric, "tokens")
    text = (
        f"{metric_label(metric)} {format_metric(metric, value)} is {relation} "
        f"the {format_metric(metric, baseline)} of {event['method']}, on {event['n_valid']:,} validation {unit}"
    )
    if event["is_sample"]:
        text += f"; the baseline was fitted on {event['n_train']:,} {unit} of the training data"
    if "mixed" in event:
        text += f"; a mixture of both (--mix ngram) has {format_metric(metric, event['mixed'])}"
    margin = error_margin(value, baseline, event["n_valid"]) if metric == "accuracy" else 0.0
    if abs(value - baseline) < margin:
        text += f"; with so few {unit}, differences up to {100 * margin:.1f} points can be chance"
    return text


def error_margin(first: float, second: float, n: int) -> float:
    """Return how far two accuracies on `n` rows can differ by chance, in 95 % of cases, if the models are equal.

    The mistakes of both models are taken to be independent. On the same rows they often coincide, which makes the
    margin smaller, so this is a cautious one.
    """
    return 1.96 * math.sqrt((first * (1 - first) + second * (1 - second)) / max(1, n))


def suggest_changes(history: RunHistory, config: Config, folder: Path, baseline: BaselineResult) -> list[str]:
    """Return what to try if a run is worse than its baseline, most promising first, from what the run shows."""
    task, suggestions = config.task, list[str]()
    if baseline.mixed is not None and baseline.mixed < MIXTURE_GAIN * baseline.metrics[history.metric]:
        command = f"triform evaluate {shlex.quote(str(folder))} --mix ngram"
        suggestions.append(f"evaluate the model mixed with the n-grams: {command}")
    if is_still_improving(history):
        train = config.train
        length = f"--epochs {2 * train.epochs:g}" if train.epochs else f"--max-steps {2 * train.max_steps}"
        command = f"triform train {task} --out {shlex.quote(str(folder))} --resume {length}"
        suggestions.append(f"the last validation was the best one, so train for longer: {command}")
    elif rise := find_rise(history):
        suggestions += [f"{rise}, so the model overfits: {remedy}" for remedy in overfitting_remedies(config)]
    if task == "classify" and not config.model.bigram_buckets and baseline.name.endswith("pairs"):
        suggestions.append(
            f"let the model read pairs of words: --set model.bigram_buckets={EXAMPLE_BIGRAM_BUCKETS}"
        )
    n_train = history.start.get("train_examples")
    limit = FEW_TOKENS if task == "generate" else FEW_ROWS
    if is_finite(n_train) and n_train < limit and not config.train.init_from:
        unit = history.start.get("unit", "examples")
        suggestions.append(
            f"{n_train:,.0f} {unit} are few to learn a language from: start from a trained model with --from RUN, "
            "or from a published one with --from hub:OWNER/NAME"
        )
    if not suggestions:
        suggestions.append(
            "try other learning rates and sizes, such as --lr "
            f"{config.train.lr / 3:.2g} or --preset small; triform search finds good settings"
        )
    return suggestions[:MAX_SUGGESTIONS]


def is_still_improving(history: RunHistory) -> bool:
    """Return whether a run has taken all its steps and its last validation was the best one."""
    end, losses, best = history.end or {}, history.curve("valid", "loss"), history.best()
    if end.get("reason") != "max_steps" or len(losses) < 2 or best is None:
        return False
    return best[0] == losses[-1][0] and losses[-1][1] == min(loss for _, loss in losses)


def find_rise(history: RunHistory) -> str:
    """Return that the validation loss has risen again after its lowest value, or an empty string."""
    losses = history.curve("valid", "loss")
    if not losses:
        return ""
    step, lowest = min(losses, key=lambda point: point[1])
    last = losses[-1][1]
    if last <= OVERFITTING_RATIO * lowest:
        return ""
    return f"the validation loss rose from {lowest:.3f} at step {step:.0f} to {last:.3f}"


def overfitting_remedies(config: Config) -> list[str]:
    """Return options that make a model overfit less, other than those that it already has."""
    model, remedies = config.model, []
    if model.dropout < 0.5:
        remedies.append(f"more dropout, --set model.dropout={0.3 if model.dropout < 0.3 else 0.5}")
    if model.d_model > 64 and not config.train.init_from:
        remedies.append("a smaller model, --preset tiny")
    if model.dropout and not (config.train.r_drop or config.train.distill_from):
        remedies.append("R-Drop, --set train.r_drop=1")
    return [" or ".join(remedies[:2])] if remedies else []


def render_comparison(history: RunHistory) -> str:
    """Return the section of the report that compares the run with a baseline; empty if it was not compared."""
    try:
        event = history.events["baseline"][-1]
        text, suggestions = format_comparison(event), list(event.get("suggestions", []))
    except (LookupError, TypeError, ValueError):  # not compared, or a damaged line
        return ""
    items = "".join(f"<li>{escape(str(item))}</li>" for item in suggestions)
    advice = f"<p>To improve it:</p><ul>{items}</ul>" if items else ""
    return render_section("Baseline", f"<p>{escape(text[:1].upper() + text[1:])}.</p>{advice}")
