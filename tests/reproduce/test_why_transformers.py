"""The study of LSTM and Transformer: equal in parameters and time, run from data to table on made-up sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from reproduce.options import ReproduceOptions
from reproduce.page import render_pages
from reproduce.result_file import read_result, write_result
from reproduce.systems import WHY_TRANSFORMERS
from reproduce.why import runner
from reproduce.why.comparison import ComparisonTask, load_comparison_tasks
from reproduce.why.matching import (
    match_width,
    steps_per_second,
    total_parameters,
    training_seconds,
)
from reproduce.why.runner import PARAMETER_TOLERANCE, best_learning_rate, why_transformers
from reproduce.why.tables import comparison_verdicts, format_section

from triform.config import DataSizes
from triform.config.settings import Settings, build_config
from triform.errors import ConfigError, DivergedError, RunInterruptedError
from triform.experiments import engine
from triform.launch import RunOptions
from triform.training.trainer import Trainer

SPEECHES, SHAKESPEARE, TED = load_comparison_tasks()
LEARNING_RATES = SPEECHES.lr_grid
REAL_SIZES = {
    "speeches": DataSizes(vocab_size=4_100, max_len=64, n_labels=3),
    "shakespeare": DataSizes(vocab_size=69, max_len=256),
    "ted": DataSizes(vocab_size=6_000, max_len=96),
}


@pytest.mark.parametrize("part", load_comparison_tasks(), ids=lambda part: part.name)
def test_an_lstm_can_have_as_many_parameters_as_the_transformer(part: ComparisonTask) -> None:
    sizes, task = REAL_SIZES[part.name], {"task": part.system.task}
    transformer, lstm = part.variants
    settings = {**transformer.settings, **task}
    settings.setdefault("model.d_ff", 4 * settings["model.d_model"])
    target = total_parameters(settings, sizes)
    assert lstm.match_parameters == transformer.name
    lstm_settings = {**lstm.settings, **task}
    lstm_settings["model.d_model"] = match_width(lstm_settings, sizes, target)
    assert abs(total_parameters(lstm_settings, sizes) - target) <= PARAMETER_TOLERANCE * target
    assert build_config(lstm_settings).model.kind == "lstm"


def test_lengths_fall_into_bins_that_cover_all_of_them() -> None:
    assert SPEECHES.length_bins.names == ("1 to 10", "11 to 20", "21 to 30", "31 or more")
    groups = SPEECHES.length_bins.group((1, 10, 11, 30, 31, 400))
    assert groups == {"1 to 10": [0, 1], "11 to 20": [2], "21 to 30": [3], "31 or more": [4, 5]}
    assert SHAKESPEARE.length_bins.names[-1] == "129 to 256"  # a window has no more
    assert SHAKESPEARE.length_bins.group([256]) == {"129 to 256": [0]}


def test_the_rate_is_that_of_the_second_half_and_all_learning_is_timed() -> None:
    events = [{"event": "train", "step": 5 * (n + 1), "step_ms": ms} for n, ms in enumerate((90, 50, 20, 10, 20))]
    events.insert(2, {"event": "valid", "step": 10, "loss": 1.0})
    assert steps_per_second(events) == pytest.approx(50.0)
    assert training_seconds(events) == pytest.approx(5 * 0.190)


@pytest.fixture(scope="module")
def smoke_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ReproduceOptions, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("why")
    options = ReproduceOptions(
        data=str(data), out=folder / "runs", results=folder / "results", device="cpu", smoke=True
    )
    return options, why_transformers(options)


def test_every_part_is_run_and_told(smoke_run: tuple[ReproduceOptions, dict[str, Any]]) -> None:
    options, result = smoke_run
    assert list(result["parts"]) == [comparison.name for comparison in load_comparison_tasks()]
    assert read_result(options.results_folder, WHY_TRANSFORMERS) == json.loads(json.dumps(result))
    for comparison in load_comparison_tasks():
        task_result = result["parts"][comparison.name]
        assert [variant_result["name"] for variant_result in task_result["variants"]] == ["transformer", "lstm"]
        for variant_result in task_result["variants"]:
            assert [run["seed"] for run in variant_result["runs"]] == [0, 1]
            for run in variant_result["runs"]:
                assert comparison.compared_column.rpartition(".")[0] in run["scores"]
                assert run["seconds"] > 0
                assert run["epochs"] > 0
                assert any(name in run["scores"] for name in comparison.length_bins.names)
            assert [trial["rate"] for trial in variant_result["tries"]] == list(LEARNING_RATES[:2])
            assert (
                variant_result["settings"]["train.lr"]
                == min(variant_result["tries"], key=lambda trial: trial["loss"])["rate"]
            )
    metrics = result["parts"]["speeches"]["variants"][0]["runs"][0]["scores"]
    assert metrics["test"]["rows"] == 12
    assert metrics["unseen"]["rows"] == 4
    page = format_section(result)
    assert "This was a smoke run" in page
    for comparison in (SPEECHES, SHAKESPEARE, TED):
        assert f"### {comparison.title}" in page
    assert page.count("**lstm**") == 9
    assert "| held-out loss by `train.lr` | 0.001 | 0.002 |" in page
    assert "This was a smoke run" in render_pages(options.results_folder)[f"results/{WHY_TRANSFORMERS}.md"]


def test_what_judges_does_not_choose_the_rate(
    smoke_run: tuple[ReproduceOptions, dict[str, Any]], data: Path
) -> None:
    text = "".join((data / "tinyshakespeare" / "input.txt").read_text().splitlines(keepends=True)[:400])
    [train_file] = (smoke_run[0].out / f"{WHY_TRANSFORMERS}-smoke" / "shakespeare" / "data").glob("learned.txt")
    assert train_file.read_text() == text[: int(0.9 * len(text))]
    for run in (smoke_run[0].out / f"{WHY_TRANSFORMERS}-smoke" / "ted").glob("try-*/seed-0/config.toml"):
        config_text = run.read_text()
        assert "valid_fraction = 0.1" in config_text
        assert 'valid_source = ""' in config_text


def test_the_rate_is_that_of_the_lowest_loss_and_a_model_may_diverge_at_some() -> None:
    assert (
        best_learning_rate([{"rate": 1e-3, "loss": 2.0}, {"rate": 2e-3, "loss": 1.5}, {"rate": 4e-3, "loss": 1.5}])
        == 2e-3
    )
    assert best_learning_rate([{"rate": 1e-3, "loss": 2.0}, {"rate": 2e-3, "loss": None}]) == 1e-3
    with pytest.raises(DivergedError, match="every learning rate"):
        best_learning_rate([{"rate": 1e-3, "loss": None}])


def test_a_rate_at_which_a_model_diverges_is_told_and_not_taken(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_seed_list = engine.train_seed_list

    def diverge_or_train(out: Path, settings: Settings, seeds: Sequence[int], options: RunOptions) -> object:
        if settings.get("train.lr") == LEARNING_RATES[0]:
            (out / "seed-0").mkdir(parents=True)
            event = {"event": "diverged", "step": 3, "text": "the loss is not finite at step 3"}
            (out / "seed-0" / "metrics.jsonl").write_text(json.dumps(event))
            raise DivergedError("seed-0 of 1 diverged: the loss is not finite at step 3")
        return train_seed_list(out, settings, seeds, options)

    monkeypatch.setattr(engine, "train_seed_list", diverge_or_train)
    monkeypatch.setattr(runner, "load_comparison_tasks", lambda: (SPEECHES,))
    options = ReproduceOptions(
        data=str(data), out=tmp_path / "runs", results=tmp_path, device="cpu", smoke=True, seeds=1
    )
    result = why_transformers(options)
    assert [
        variant_result["settings"]["train.lr"] for variant_result in result["parts"]["speeches"]["variants"]
    ] == [LEARNING_RATES[1]] * 2
    assert capsys.readouterr().err.count("not finite at step 3") == 2
    assert format_section(result).count("| diverged | **") == 2


def test_a_second_call_trains_nothing_again(
    smoke_run: tuple[ReproduceOptions, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, result = smoke_run

    def fail(self: Trainer) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "fit", fail)
    second_result = why_transformers(options)
    assert {name: task_result["variants"] for name, task_result in second_result["parts"].items()} == {
        name: task_result["variants"] for name, task_result in result["parts"].items()
    }


def test_a_stopped_study_says_how_it_goes_on(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ReproduceOptions(data=str(data), out=tmp_path / "runs", results=tmp_path, device="cpu", smoke=True)
    after_step = Trainer.after_step

    def stop_after_step(self: Trainer) -> None:
        after_step(self)
        self.stop()

    monkeypatch.setattr(Trainer, "after_step", stop_after_step)
    with pytest.raises(
        RunInterruptedError, match=f"to resume, run: python -m reproduce {WHY_TRANSFORMERS} --smoke --data"
    ):
        why_transformers(options)


def test_it_has_no_other_settings_and_says_when_it_was_not_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--variant best"):
        why_transformers(ReproduceOptions(variant="best"))
    assert f"Not run yet: `python -m reproduce {WHY_TRANSFORMERS}`" in format_section(None)
    assert (
        f"Not run yet: `python -m reproduce {WHY_TRANSFORMERS}`"
        in render_pages(tmp_path)[f"results/{WHY_TRANSFORMERS}.md"]
    )


def test_a_part_that_waits_is_told_of(smoke_run: tuple[ReproduceOptions, dict[str, Any]]) -> None:
    result = smoke_run[1]
    finished = {name: task_result for name, task_result in result["parts"].items() if name != TED.name}
    page = format_section(result | {"parts": finished})
    assert f"### {TED.title}\n\nNot run yet" in page
    assert page.count("Not run yet") == 1


def test_remarks_stay_with_the_figures_they_are_on(
    smoke_run: tuple[ReproduceOptions, dict[str, Any]],
) -> None:
    options, result = smoke_run
    assert "Of these figures." in format_section(result | {"notes": ["Of these figures."]})
    write_result(options.results_folder, result | {"notes": ["Of these figures."]})
    assert "notes" not in why_transformers(options)


def test_the_verdict_is_paired_by_seed_and_corrected_for_all_parts() -> None:
    def make_task_result(column: str, first: float, second: float) -> dict[str, Any]:
        eval_set, _, metric = column.rpartition(".")
        return {
            "variants": [
                {"runs": [{"seed": n, "scores": {eval_set: {metric: base + 0.01 * n}}} for n in range(8)]}
                for base in (first, second)
            ]
        }

    finished = [
        (TED, make_task_result("test.bleu", 20.0, 12.0)),
        (SHAKESPEARE, make_task_result("windows.loss", 1.6, 1.5)),
    ]
    bleu, loss = comparison_verdicts(finished)
    assert "transformer is better by 8.00" in bleu
    assert "lstm is better by" in loss
    assert "corrected" in bleu
