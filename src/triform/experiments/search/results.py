"""The result of a search: every trial with its state, the best setting, and its comparison with the default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triform.config.settings import Settings, format_setting, format_toml_value
from triform.experiments.engine import to_json_value
from triform.experiments.search.space import SearchSpace, trial_settings
from triform.experiments.search.trial_queue import REASON, REFUSED, SEED_VALUES, WORKER, TrialQueue
from triform.experiments.study.results import StudyResult
from triform.experiments.study.tables import print_study, to_dict, to_markdown
from triform.formatting import direction_label, echo, format_metric, metric_info, print_table
from triform.reporting.markdown import render_markdown_table

STATES = ("complete", "pruned", "failed", "refused")
MAX_SHOWN_TRIALS = 10  # on the terminal


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One setting: what became of it, and its validation metric.

    Args:
        number: The number of the trial.
        state: `complete`, `pruned`, `failed` or `refused`.
        settings: The searched settings.
        value: The metric, as a mean over the seeds; None if training did not end.
        seed_values: The metric of each seed.
        validations: The best metric of the first seed after each validation.
        reason: Why the setting failed or was refused.
        seconds: From the start of the trial to its end.
        worker: The process that finished it.
    """

    number: int
    state: str
    settings: Settings
    value: float | None
    seed_values: tuple[float, ...]
    validations: tuple[float, ...]
    reason: str
    seconds: float
    worker: str


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A finished search. `comparison` is None if `final_seeds` is 0 or no trial is complete."""

    space: SearchSpace
    path: Path
    trials: tuple[TrialResult, ...]
    best: TrialResult | None
    comparison: StudyResult | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many settings were tried, and how many ended in each state. Refused settings were not tried."""
        states = Counter(trial.state for trial in self.trials)
        return {"tried": len(self.trials) - states["refused"]} | {state: states[state] for state in STATES}

    def ranking(self) -> list[TrialResult]:
        """Return the trials from the best to the worst; those without a value come last."""
        sign = -1.0 if metric_info(self.space.metric).higher_is_better else 1.0
        return sorted(self.trials, key=lambda trial: (trial.value is None, sign * (trial.value or 0.0)))


def collect_trials(queue: TrialQueue) -> tuple[TrialResult, ...]:
    """Return the finished trials of a search."""
    from optuna.trial import TrialState

    names = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    results = []
    for trial in queue.trials():
        if trial.state not in names:
            continue
        refusal = str(trial.user_attrs.get(REFUSED, ""))
        results.append(
            TrialResult(
                number=trial.number,
                state="refused" if refusal else names[trial.state],
                settings=trial_settings(trial.params),
                value=trial.value if trial.state == TrialState.COMPLETE else None,
                seed_values=tuple(trial.user_attrs.get(SEED_VALUES, ())),
                validations=tuple(value for _, value in sorted(trial.intermediate_values.items())),
                reason=refusal or str(trial.user_attrs.get(REASON, "")),
                seconds=trial.duration.total_seconds() if trial.duration else 0.0,
                worker=str(trial.user_attrs.get(WORKER, "")),
            )
        )
    return tuple(results)


def best_trial(space: SearchSpace, trials: Sequence[TrialResult]) -> TrialResult | None:
    """Return the complete trial with the best value, the earliest one if several have it."""
    complete = [trial for trial in trials if trial.value is not None]
    best = max if metric_info(space.metric).higher_is_better else min
    return best(complete, key=lambda trial: trial.value or 0.0) if complete else None


def format_settings(settings: Settings) -> str:
    """Return settings as one line."""
    return ", ".join(f"{name}={_format_value(value)}" for name, value in settings.items())


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else format_setting(value)  # type: ignore[arg-type]


def describe_trial(trial: TrialResult, metric: str) -> str:
    """Return the result of a trial in words."""
    if trial.value is not None:
        return format_metric(metric, trial.value)
    if trial.state == "pruned":
        n_validations = len(trial.validations)
        return f"stopped after {n_validations} validation{'s' if n_validations > 1 else ''}"
    return f"{trial.state}: {trial.reason}"


def to_config_toml(settings: Settings) -> str:
    """Return complete settings as a file for `triform train --config`."""
    return "".join(f"{name} = {format_toml_value(value)}\n" for name, value in sorted(settings.items()))


# -- formats


def counts_line(result: SearchResult) -> str:
    """Return how many settings were tried, and what became of them."""
    counts = result.counts
    states = ", ".join(f"{counts[state]} {state}" for state in ("complete", "pruned", "failed"))
    return f"{counts['tried']} settings tried ({states}); {counts['refused']} settings refused without training"


def _title(result: SearchResult) -> str:
    space = result.space
    seeds = f"{len(space.seeds)} seed{'s' if len(space.seeds) > 1 else ''} for each setting"
    direction = direction_label(space.metric)
    return f"{space.task}, {space.metric} on validation data ({direction}), sampler {space.sampler}, {seeds}"


def _trial_rows(result: SearchResult, limit: int = 0) -> list[list[str]]:
    trials = result.ranking()[: limit or None]
    return [
        [str(trial.number), describe_trial(trial, result.space.metric), format_settings(trial.settings)]
        for trial in trials
    ]


def print_search(result: SearchResult) -> None:
    """Print the best trials, the comparison with the default setting, and the counts."""
    header = ["trial", result.space.metric, "settings"]
    echo(f"{result.space.name}: {_title(result)}\n")
    print_table([header, *_trial_rows(result, MAX_SHOWN_TRIALS)], align="rll")
    echo(f"\n{counts_line(result)}")
    if result.comparison:
        echo()
        print_study(result.comparison)


def search_to_markdown(result: SearchResult) -> str:
    """Return the result as Markdown."""
    header = ["trial", "settings", result.space.metric]
    rows = [[number, settings, value] for number, value, settings in _trial_rows(result)]
    searched = [[setting.name, setting.describe()] for setting in result.space.searched]
    parts = [
        f"# {result.space.name}",
        "",
        _title(result) + ".",
        "",
        counts_line(result) + ".",
        "",
        render_markdown_table(["setting", "values"], searched, n_text_columns=2),
        "",
        render_markdown_table(header, rows, n_text_columns=2),
    ]
    if result.comparison:
        parts += ["", to_markdown(result.comparison).replace("# ", "## ", 1)]
    return "\n".join([*parts, ""])


def search_to_dict(result: SearchResult) -> dict[str, object]:
    """Return the whole result for programs."""
    space = result.space
    return {
        "name": space.name,
        "task": space.task,
        "metric": space.metric,
        "higher_is_better": metric_info(space.metric).higher_is_better,
        "space": space.describe(),
        "seeds": list(space.seeds),
        "counts": result.counts,
        "trials": [_trial_to_dict(trial) for trial in result.trials],
        "best": _trial_to_dict(result.best) if result.best else None,
        "comparison": to_dict(result.comparison) if result.comparison else None,
    }


def _trial_to_dict(trial: TrialResult) -> dict[str, object]:
    return {
        "number": trial.number,
        "state": trial.state,
        "settings": {name: to_json_value(value) for name, value in trial.settings.items()},
        "value": trial.value,
        "seed_values": list(trial.seed_values),
        "validations": list(trial.validations),
        "reason": trial.reason or None,
        "seconds": trial.seconds,
        "worker": trial.worker,
    }
