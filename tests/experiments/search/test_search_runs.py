"""Searches, run: sampled, pruned, refused, resumed, compared, and blind to test data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import triform
from triform.errors import ConfigError, DivergedError, RunInterruptedError
from triform.experiments import engine
from triform.experiments.search import runner, trial_run
from triform.experiments.search.results import SearchResult, search_to_markdown
from triform.experiments.search.space import read_space
from triform.experiments.search.trial_queue import MAX_STARTS, STARTS, TrialQueue
from triform.run import load

WriteSpace = Callable[..., Path]


def run_search(path: Path, **options: Any) -> SearchResult:
    return runner.search(path, **{"out": "out", "device": "cpu", "quiet": True, **options})


def values(result: SearchResult) -> list[tuple[object, ...]]:
    return [(*trial.settings.values(), trial.value) for trial in result.trials]


def test_the_value_of_a_trial_is_the_mean_of_the_best_validation_of_its_seeds(write_space: WriteSpace) -> None:
    result = run_search(write_space(("trials = 4", "trials = 2")), seeds=2)
    for trial in result.trials:
        runs = [load(f"out/trials/trial-{trial.number:04d}/seed-{seed}", device="cpu") for seed in (0, 1)]
        assert trial.seed_values == tuple(run.progress()["best"]["accuracy"] for run in runs)
        assert trial.value == pytest.approx(sum(trial.seed_values) / 2)
    assert result.best is not None
    assert result.best.value == max(trial.value or 0 for trial in result.trials)


def test_the_same_search_draws_the_same_settings_and_a_longer_one_keeps_its_trials(write_space: WriteSpace) -> None:
    path = write_space()
    first, longer = run_search(path, trials=2), run_search(path, trials=3)
    assert values(longer)[:2] == values(first)
    assert values(run_search(path, trials=3, out="again")) == values(longer)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_choose_conditional_settings_only_where_they_apply(write_space: WriteSpace, sampler: str) -> None:
    searched = """
model.kind = ["transformer", "gru"]
model.positions = { choices = ["learned", "rotary"], when = { model.kind = "transformer" } }
train.betas = [[0.9, 0.98], [0.9, 0.999]]
model.dropout = { low = 0.0, high = 0.4, step = 0.2 }
"""
    changes = ("n_heads = 2, ", ""), ("trials = 4", f'trials = 5\nsampler = "{sampler}"')
    path = write_space(*changes, extra=searched)
    for trial in run_search(path).trials:
        assert trial.state == "complete", trial.reason
        assert ("model.positions" in trial.settings) == (trial.settings["model.kind"] == "transformer")
        assert trial.settings["train.betas"] in ((0.9, 0.98), (0.9, 0.999))
        assert trial.settings["model.dropout"] in (0.0, 0.2, 0.4)
        config = load(f"out/trials/trial-{trial.number:04d}/seed-0", device="cpu").config
        assert (config.model.kind, config.train.lr) == (trial.settings["model.kind"], trial.settings["train.lr"])


def test_a_grid_tries_every_combination_once(write_space: WriteSpace) -> None:
    grid = "train.lr = [0.001, 0.01]\nmodel.n_layers = { low = 1, high = 3, step = 2 }"
    path = write_space(
        ("train.lr = { low = 1e-4, high = 1e-1, log = true }", grid), ("trials = 4", 'sampler = "grid"')
    )
    result = run_search(path)
    assert sorted(tuple(trial.settings.values()) for trial in result.trials) == [
        (rate, layers) for rate in (0.001, 0.01) for layers in (1, 3)
    ]
    assert len(run_search(path).trials) == 4


def test_settings_outside_the_budget_are_refused_without_training_and_counted(write_space: WriteSpace) -> None:
    searched = "model.d_model = [8, 64]\nmodel.n_heads = [2, 3]\n[constraints]\nmax_parameters = 5_000\n"
    result = run_search(write_space(extra=searched))
    assert result.counts["tried"] == result.counts["complete"] == 4
    refused = [trial for trial in result.trials if trial.state == "refused"]
    assert result.counts["refused"] == len(refused) > 0
    assert any("parameters exceed max_parameters = 5,000" in trial.reason for trial in refused)
    assert any("n_heads" in trial.reason for trial in refused)  # 3 heads do not divide the width
    for trial in refused:
        assert not list(Path("out/trials").glob(f"trial-{trial.number:04d}/seed-*"))
    assert (
        f"4 settings tried (4 complete, 0 pruned, 0 failed); {len(refused)} settings refused"
        in search_to_markdown(result)
    )


def test_a_search_whose_settings_are_all_refused_says_why(write_space: WriteSpace) -> None:
    with pytest.raises(ConfigError, match=r"all 100 settings were refused; the first reason: [\d,]+ parameters"):
        run_search(write_space(extra="[constraints]\nmax_parameters = 10\n"))


def test_successive_halving_stops_trials_by_their_validations(write_space: WriteSpace) -> None:
    path = write_space(("trials = 4", 'trials = 6\nmetric = "loss"'), extra="[pruning]\nfactor = 2\n")
    result = run_search(path)
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert pruned
    assert result.counts["pruned"] == len(pruned)
    assert all(1 <= len(trial.validations) <= 2 and trial.value is None for trial in pruned)
    for trial in result.trials:
        log = Path(f"out/trials/trial-{trial.number:04d}/seed-0/metrics.jsonl").read_text(encoding="utf-8")
        assert log.count('"event": "valid"') == len(trial.validations)
        assert ('"event": "end"' in log) == (trial.state == "complete")


def test_a_diverged_trial_fails_and_the_search_continues(
    write_space: WriteSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_seed_list = engine.train_seed_list

    def diverge_once(out: Path, *arguments: Any, **options: Any) -> Any:
        result = train_seed_list(out, *arguments, **options)
        if out.name == "trial-0001":
            with (out / "seed-0" / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write('{"event": "diverged", "text": "the loss is not finite"}\n')
            raise DivergedError("the loss is not finite")
        return result

    monkeypatch.setattr(engine, "train_seed_list", diverge_once)
    result = run_search(write_space())
    assert [trial.state for trial in result.trials] == ["complete", "failed", "complete", "complete"]
    assert result.trials[1].reason == "the loss is not finite"


def test_an_interrupted_search_names_its_command_and_continues(
    write_space: WriteSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, train_variant = write_space(), trial_run.train_variant

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise RunInterruptedError("stopped")

    monkeypatch.setattr(trial_run, "train_variant", interrupt)
    for _ in range(MAX_STARTS + 1):  # an interruption does not count against a trial
        with pytest.raises(RunInterruptedError, match=r"to resume, run: triform search \S+ --out out --device cpu"):
            run_search(path)
    monkeypatch.setattr(trial_run, "train_variant", train_variant)
    assert [trial.state for trial in run_search(path).trials] == ["complete"] * 4


def test_a_trial_that_ends_its_workers_is_given_up(write_space: WriteSpace) -> None:
    path = write_space()
    queue = TrialQueue(read_space(path), Path("out"), "")
    for expected in range(1, MAX_STARTS + 1):
        with queue.claim() as claimed:
            assert claimed is not None
            assert (claimed.trial.number, claimed.starts) == (0, expected)
            assert claimed.trial.user_attrs[STARTS] == expected
    result = run_search(path)
    assert [trial.state for trial in result.trials] == ["failed", "complete", "complete", "complete"]
    assert result.trials[0].reason == "its worker ended 3 times without a result"


def test_the_best_setting_is_compared_with_the_default_over_new_seeds_and_trained_by_its_file(
    write_space: WriteSpace,
) -> None:
    path = write_space(("final_seeds = 0", "final_seeds = 2"), ("trials = 4", "trials = 2"))
    result = run_search(path)
    assert result.best is not None
    assert result.comparison is not None
    assert result.comparison.study.seeds == (1, 2)  # the search used seed 0
    assert [variant.name for variant in result.comparison.study.variants] == [
        "default",
        f"trial-{result.best.number}",
    ]
    assert result.comparison.eval_sets == ("validation",)
    assert result.comparison.comparisons[0].verdict
    written = json.loads(Path("out/search.json").read_text(encoding="utf-8"))
    assert written["comparison"]["pairs"][0]["verdict"] == result.comparison.comparisons[0].verdict
    assert written["space"]["space.train.lr"] == "0.0001 to 0.1, logarithmic"
    assert "## small-comparison" in Path("out/search.md").read_text(encoding="utf-8")
    run = triform.train("classify", config="out/best.toml", out="best", device="cpu", quiet=True)
    assert run.config.train.lr == result.best.settings["train.lr"]
    assert runner.train_command(result) == "triform train classify --config out/best.toml --out out/best"


READ_FILES = """
import sys
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
from triform.experiments.search.runner import search
search("space.toml", out="out", trials=1, device="cpu", quiet=True)
print("rows.tsv", any(path.endswith("rows.tsv") for path in opened))
print("test.tsv", any("test.tsv" in path for path in opened))
"""


def test_a_search_reads_the_training_file_and_never_the_test_file(workdir: Path, write_space: WriteSpace) -> None:
    write_space()
    command = [sys.executable, "-c", READ_FILES]
    output = subprocess.run(command, cwd=workdir, check=True, capture_output=True, text=True).stdout
    assert output.splitlines() == ["rows.tsv True", "test.tsv False"]
