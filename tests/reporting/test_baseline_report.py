"""The comparison with a baseline: its sentence, and suggestions that follow from the events of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triform.config import Config
from triform.config.settings import build_config
from triform.evaluation.baselines.result import BaselineResult
from triform.reporting.baseline_report import build_baseline_event, format_comparison, render_comparison
from triform.reporting.run_history import RunHistory, build_history

FOLDER = Path("runs/a b")


def history(losses: list[float], best: int, **end: Any) -> RunHistory:
    """A classifier that was validated every 10 steps, and was best at the validation `best`."""
    events: list[dict[str, Any]] = [
        {"event": "start", "task": "classify", "metric": "accuracy", "train_examples": 20_000, "unit": "texts"},
        *({"event": "valid", "step": 10 * n, "loss": loss} for n, loss in enumerate(losses, 1)),
        {"event": "end", "reason": "max_steps", "best": 0.7, "best_step": 10 * best, **end},
    ]
    return build_history("run", events)


def baseline(
    accuracy: float, name: str = "TF-IDF logistic regression on words", rows: int = 1000
) -> BaselineResult:
    return BaselineResult(name=name, metrics={"accuracy": accuracy, "rows": rows}, n_train=20_000)


def config(**settings: Any) -> Config:
    values = {name.replace("__", "."): value for name, value in settings.items()}
    return build_config({"task": "classify", "model.d_model": 128, "train.epochs": 4.0, "train.lr": 1e-3, **values})


def suggestions(run: RunHistory, settings: Config, name: str = "x") -> list[str]:
    event = build_baseline_event(run, settings, FOLDER, baseline(0.8, name))
    return list(event["suggestions"])


def test_a_better_run_gets_no_suggestions() -> None:
    event = build_baseline_event(history([0.9, 0.8], 2), config(), FOLDER, baseline(0.6))
    assert event["verdict"] == "better"
    assert event["suggestions"] == []
    assert format_comparison(event) == (
        "accuracy 70.00 % is better than the 60.00 % of TF-IDF logistic regression on words, "
        "on 1,000 validation texts"
    )


def test_a_run_that_was_still_improving_is_trained_for_longer() -> None:
    command = "triform train classify --out 'runs/a b' --resume --epochs 8"
    assert suggestions(history([0.9, 0.8], 2), config()) == [
        f"the last validation was the best one, so train for longer: {command}"
    ]
    by_steps = config(train__max_steps=30, train__epochs=0.0)
    assert suggestions(history([0.9, 0.8], 2), by_steps)[0].endswith("--max-steps 60")


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({}, "more dropout, --set model.dropout=0.3 or a smaller model, --preset tiny"),
        ({"model__dropout": 0.4}, "more dropout, --set model.dropout=0.5 or a smaller model, --preset tiny"),
        ({"model__dropout": 0.5, "model__d_model": 64}, "R-Drop, --set train.r_drop=1"),
    ],
)
def test_a_run_that_overfits_gets_regularisation(settings: dict[str, Any], remedy: str) -> None:
    assert suggestions(history([0.5, 0.6, 0.9], 2, reason="patience"), config(**settings)) == [
        f"the validation loss rose from 0.500 at step 10 to 0.900, so the model overfits: {remedy}"
    ]


def test_pairs_of_words_are_suggested_if_they_make_the_baseline_better() -> None:
    run = history([0.9, 0.8, 0.81], 2)
    assert suggestions(run, config(), "words and pairs") == [
        "let the model read pairs of words: --set model.bigram_buckets=20000"
    ]
    assert suggestions(run, config(model__bigram_buckets=8), "words and pairs")[0].startswith("try other learning")


def test_a_mixture_with_the_baseline_is_mentioned() -> None:
    result = replace(baseline(0.8), mixed=0.9)
    text = format_comparison(build_baseline_event(history([1.0], 1), config(), FOLDER, result))
    assert text.endswith("on 1,000 validation texts; a mixture of both (--mix ngram) has 90.00 %")


@pytest.mark.parametrize(("mixed", "is_suggested"), [(30.0, True), (39.9, False), (None, False)])
def test_a_mixture_is_suggested_if_it_is_better_than_the_n_grams(mixed: float | None, is_suggested: bool) -> None:
    run = build_history(
        "run",
        [
            {"event": "start", "task": "generate", "metric": "perplexity", "train_examples": 5_000_000},
            {"event": "valid", "step": 10, "loss": 4.0},
            {"event": "end", "reason": "max_steps", "best": 54.6, "best_step": 10},
        ],
    )
    metrics = {"perplexity": 40.0, "tokens": 1000}
    result = BaselineResult(name="a 5-gram model", metrics=metrics, n_train=20_000, mixed=mixed)
    event = build_baseline_event(run, config(task="generate"), FOLDER, result)
    command = "triform evaluate 'runs/a b' --mix ngram"
    assert any(command in suggestion for suggestion in event["suggestions"]) == is_suggested


def test_few_rows_and_a_sample_are_mentioned() -> None:
    result = BaselineResult(name="x", metrics={"accuracy": 0.71, "rows": 50}, n_train=1_200, is_sample=True)
    text = format_comparison(build_baseline_event(history([1.0], 1), config(), FOLDER, result))
    assert text.endswith(
        "on 50 validation texts; the baseline was fitted on 1,200 texts of the training data; "
        "with so few texts, differences up to 17.9 points can be chance"
    )


@pytest.mark.parametrize("event", [{}, {"metric": "accuracy"}, {"metric": "accuracy", "value": "x", "verdict": 1}])
def test_a_damaged_event_is_left_out_of_the_report(event: dict[str, Any]) -> None:
    assert render_comparison(build_history("run", [{"event": "baseline", **event}])) == ""


def test_a_student_is_not_advised_to_use_r_drop() -> None:
    overfitted = history([0.5, 0.9], 1)
    settings: dict[str, Any] = {"model__dropout": 0.5, "model__d_model": 64}
    assert "R-Drop" in suggestions(overfitted, config(**settings))[0]
    assert not any(
        "R-Drop" in text for text in suggestions(overfitted, config(**settings, train__distill_from="t"))
    )
