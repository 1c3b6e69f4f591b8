"""Studies, run: paired, kept, gone on with, and honest about what failed."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triform.config import Config
from triform.config.settings import build_config
from triform.errors import CheckpointError, ConfigError, DivergedError, RunInterruptedError
from triform.evaluation.statistics import PairedDifference, bootstrap_bleu, describe_p_value, paired_test
from triform.experiments import engine
from triform.experiments.engine import PersistentTimer
from triform.experiments.seeds import train_seeds
from triform.experiments.study import runner
from triform.experiments.study.plan import TASK_METRICS, read_study
from triform.experiments.study.results import StudyResult, _seed_caveat
from triform.experiments.study.tables import print_study, to_markdown
from triform.run import load
from triform.tasks import TASKS
from triform.training.trainer import Trainer

StudySpec = dict[str, Any]
RunStudy = Callable[..., StudyResult]


def to_text(result: StudyResult) -> str:
    """What `triform compare` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_study(result)
    return out.getvalue()


def model_mtimes(out: Path) -> dict[str, int]:
    return {str(file.relative_to(out)): file.stat().st_mtime_ns for file in out.glob("*/seed-*/model.safetensors")}


def test_a_study_leaves_runs_and_tables(workdir: Path, spec: StudySpec, run_study: RunStudy) -> None:
    result = run_study(spec | {"tests": {"more": "more.tsv"}}, out="out")
    assert result.eval_sets == ("validation", "more")
    with (workdir / "out" / "study.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["variant"], row["seed"], row["status"]) for row in rows] == [
        (variant, seed, "ok") for variant in ("plain", "narrow") for seed in "012"
    ]
    for row in rows:
        run = load(row["folder"], device="cpu", precision="fp32")
        assert float(row["accuracy more"]) == pytest.approx(run.evaluate("more.tsv")["accuracy"])
        assert float(row["accuracy validation"]) == pytest.approx(run.progress()["best"]["accuracy"])  # type: ignore[index]
    stored = json.loads((workdir / "out" / "study.json").read_text(encoding="utf-8"))
    (pair,) = stored["pairs"]  # on the test file; validation had a say in what is tested
    values = {
        name: [float(csv_row["accuracy more"]) for csv_row in rows if csv_row["variant"] == name]
        for name in ("plain", "narrow")
    }
    expected = paired_test(values["plain"], values["narrow"])
    assert (pair["difference"], pair["p"]) == pytest.approx((expected.mean, expected.p))
    assert (workdir / "out" / "study.md").read_text(encoding="utf-8") == to_markdown(result)
    assert "too few seeds to tell" in to_text(result) or "no difference" in to_text(result)
    assert re.search(r"^more +plain +3 +\d+\.\d\d % +\d+\.\d\d % ", to_text(result), re.MULTILINE)
    assert "\n± is half of a 95 % interval.\n" in to_text(result)
    assert "Differences are in percentage points." in to_markdown(result)


def test_a_test_file_with_the_content_of_the_training_file_is_told(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    (workdir / "copy.tsv").write_bytes((workdir / "rows.tsv").read_bytes())
    spec["tests"] = {"more": "more.tsv", "copy": "copy.tsv"}
    progress = io.StringIO()
    result = run_study(spec, out="out", seeds=2, quiet=False, progress=progress)
    assert progress.getvalue().startswith(f"warning: {workdir / 'copy.tsv'} has the same content as the training")
    leak_notes = [note for note in result.notes if "same content as the training data" in note]
    explanation = "a metric on it measures memorisation and says nothing about new text: evaluate on another file"
    assert leak_notes == [f"{workdir / 'copy.tsv'} has the same content as the training data; {explanation}"]
    assert f"\nwarning: {leak_notes[0]}\n" in to_text(result)
    page = (workdir / "out" / "study.html").read_text(encoding="utf-8")
    warnings = page.partition('<section class="notices warnings">')[2].partition("</section>")[0]
    assert "same content as the training data" in warnings


def test_a_test_pair_of_files_that_was_trained_on_is_told(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    spec |= {"task": "translate", "tests": {"same": "a.en,a.fr", "turned": "a.fr,a.en", "half": "a.en,b.fr"}}
    spec["common"]["data.train"] = "a.en,a.fr"
    (workdir / "b.fr").write_text((workdir / "a.fr").read_text(encoding="utf-8").title(), encoding="utf-8")
    result = run_study(spec, out="out", seeds=1)
    leak_notes = [note for note in result.notes if "same content as the training data" in note]
    assert [note.partition(" has the same")[0] for note in leak_notes] == [f"{workdir / 'a.en'},{workdir / 'a.fr'}"]


def test_a_variants_runs_are_what_train_seeds_gives(workdir: Path, spec: StudySpec, run_study: RunStudy) -> None:
    result = run_study(spec, out="out")
    seed_runs = train_seeds(
        "classify", 3, data="rows.tsv", out="alone", device="cpu", quiet=True, tokenizer={"kind": "word"},
        model=spec["common"]["model"] | {"window": 2}, train=spec["common"]["train"],
    )  # fmt: skip
    metric_values = [run.metric_values["validation"] for run in result.runs_of("narrow")]
    assert metric_values == pytest.approx(list(seed_runs.values))


def prepare_task(config: Config, folder: Path) -> Any:
    return TASKS[config.task].prepare(config, folder)


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_a_pair_shares_its_initial_weights_and_its_batches(workdir: Path, spec: StudySpec, task: str) -> None:
    files = {"classify": "rows.tsv", "generate": "text.txt", "translate": "a.en,a.fr"}
    spec |= {"task": task}
    spec["common"]["data.train"] = files[task]
    spec["common"]["data.max_len"] = 8
    spec["variants"] = {"plain": {}, "narrow": {"model.window": 2}, "wide": {"model.d_ff": 48}}
    for seed in (0, 5):
        configs = [build_config(variant.settings | {"seed": seed}) for variant in read_study(spec).variants]
        plain, narrow, wide = (prepare_task(config, workdir) for config in configs)
        weights = [dict(item.task.model.named_parameters()) for item in (plain, narrow)]
        assert weights[0].keys() == weights[1].keys()
        assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
        samplers = [item.train.sampler(item.task.config.train, seed) for item in (plain, narrow, wide)]
        for _ in range(30):
            batches = [sampler.next_batch().tolist() for sampler in samplers]
            assert batches[0] == batches[1] == batches[2]
    other = prepare_task(replace(configs[0], seed=6), workdir)
    assert not all(parameter.equal(weights[0][name]) for name, parameter in other.task.model.named_parameters())


def test_what_is_done_is_not_done_again(workdir: Path, spec: StudySpec, run_study: RunStudy) -> None:
    first = run_study(spec, out="out", seeds=2)
    before = model_mtimes(workdir / "out")
    second = run_study(spec, out="out", seeds=2)
    assert model_mtimes(workdir / "out") == before
    assert [run.metric_values for run in second.runs] == [run.metric_values for run in first.runs]
    spec["variants"]["third"] = {"model.d_ff": 16}
    more = run_study(spec, out="out", seeds=3)
    after = model_mtimes(workdir / "out")
    assert len(after) == 9
    assert all(after[name] == mtime for name, mtime in before.items())
    assert len(more.comparisons) == 3
    assert [run.metric_values for run in more.runs if run.seed < 2][:4] == [run.metric_values for run in first.runs]


def test_an_interrupted_study_goes_on_where_it_stopped(
    workdir: Path, spec: StudySpec, run_study: RunStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_study(spec, out="whole")
    original, stop_at = Trainer.after_step, 4

    def stop_after(self: Trainer) -> None:
        original(self)
        if self.task.config.model.window == 2 and self.progress.step == stop_at:
            self.stop()

    monkeypatch.setattr(Trainer, "after_step", stop_after)
    with pytest.raises(RunInterruptedError, match="to resume, run: triform compare STUDY --out out --device cpu"):
        run_study(spec, out="out")
    before = model_mtimes(workdir / "out")
    assert not (workdir / "out" / "study.md").exists()
    monkeypatch.setattr(Trainer, "after_step", original)
    result = run_study(spec, out="out")
    after = model_mtimes(workdir / "out")
    assert all(after[name] == mtime for name, mtime in before.items() if name.startswith("plain"))
    assert [run.metric_values for run in result.runs] == [run.metric_values for run in expected.runs]


def test_a_study_that_changed_is_not_mixed_with_the_old_one(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    run_study(spec, out="out", seeds=1)
    for change in ({"model.window": 3}, {}):
        spec["variants"]["narrow"] = change
        width = change.get("model.window", -1)
        with pytest.raises(ConfigError, match=rf"narrow: model.window: {width} \(the stored runs have 2\)"):
            run_study(spec, out="out", seeds=1)
    spec["variants"]["narrow"] = {"model.window": 2}
    rows = workdir / "rows.tsv"
    rows.write_text(rows.read_text(encoding="utf-8") + "one more\tshort\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"plain: data.train: rows.tsv \(\w+\) \(the stored runs have rows.tsv"):
        run_study(spec, out="out", seeds=1)


def test_a_study_keeps_out_of_folders_that_are_not_its_own(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    (workdir / "mine").mkdir()
    (workdir / "mine" / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(CheckpointError, match="does not contain a study"):
        run_study(spec, out="mine")
    (workdir / "out").mkdir()
    (workdir / "out" / "plan.json").write_text('{"task": "classify", "variants": {"plain": 3}}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="is damaged"):
        run_study(spec, out="out")


def test_a_changed_test_file_is_scored_again(workdir: Path, spec: StudySpec, run_study: RunStudy) -> None:
    spec["tests"] = {"more": "more.tsv"}
    run_study(spec, out="out", seeds=1)
    (workdir / "more.tsv").write_text("amber\tlong\nbirch\tshort\n", encoding="utf-8")
    result = run_study(spec, out="out", seeds=1)
    for run in result.runs:
        expected = load(run.folder, device="cpu", precision="fp32").evaluate("more.tsv")["accuracy"]
        assert run.metric_values["more"] == pytest.approx(expected)


def test_a_failed_variant_is_reported_and_the_rest_goes_on(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    diverging = {"train.optimizer": "sgd", "train.lr": 1e30, "train.clip_norm": 0.0}
    spec["variants"] = {"wild": diverging, "plain": {}, "narrow": {"model.window": 2}}
    result = run_study(spec, out="out", seeds=2)
    assert [bool(item.failure) for item in result.runs] == [True, True, False, False, False, False]
    assert [(item.first, item.second) for item in result.comparisons] == [("plain", "narrow")]
    text = to_text(result)
    assert "wild, seeds 0, 1: failed: the loss is not finite" in text
    assert "compared only over the seeds that both have" in text
    assert "validation  wild     0" in text
    page = (workdir / "out" / "study.html").read_text(encoding="utf-8")
    assert "2 failed" in page
    spec["variants"] = {"wild": diverging, "wilder": diverging}
    with pytest.raises(DivergedError, match="every run of the study failed"):
        run_study(spec, out="other", seeds=1)


def test_a_pair_is_compared_over_the_seeds_that_both_have(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    full_result = run_study(spec, out="out")
    metrics = workdir / "out" / "narrow" / "seed-1" / "metrics.jsonl"
    with metrics.open("a", encoding="utf-8") as file:
        file.write('{"event": "diverged", "step": 4, "text": "the loss\u2028is not finite at step 4"}\n')
    result = run_study(spec, out="out")
    assert result.comparisons[0].difference.pairs == 2
    metric_values = [
        full_result.runs_of(name)[seed].metric_values["validation"]
        for name in ("plain", "narrow")
        for seed in (0, 2)
    ]
    assert result.comparisons[0].difference.mean == pytest.approx(
        np.mean(metric_values[2:]) - np.mean(metric_values[:2])
    )
    assert any("narrow, seed 1: failed" in note for note in result.notes)


def test_ctrl_c_while_scoring_says_how_to_go_on(
    workdir: Path, spec: StudySpec, run_study: RunStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    spec["tests"] = {"more": "more.tsv"}
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_metrics_entry", interrupt)
        with pytest.raises(
            RunInterruptedError, match="finished work is kept; to resume, run: triform compare STUDY --out out"
        ):
            run_study(spec, out="out", seeds=1)
    before = model_mtimes(workdir / "out")
    assert before.keys() == {"plain/seed-0/model.safetensors"}
    assert run_study(spec, out="out", seeds=1).eval_sets == ("validation", "more")
    assert before.items() <= model_mtimes(workdir / "out").items()


def test_what_was_cut_of_a_test_file_is_said_once(workdir: Path, spec: StudySpec, run_study: RunStudy) -> None:
    spec["common"]["data.max_len"] = 4
    result = run_study(spec | {"tests": {"more": "more.tsv"}}, out="out", seeds=2)
    cut = [note for note in result.notes if "were truncated to 4 tokens" in note]
    assert len(cut) == 1
    assert cut[0] in to_text(result)


def test_validation_rows_that_leak_are_said_once(workdir: Path, spec: StudySpec, run_study: RunStudy) -> None:
    spec["common"]["data.valid"] = "more.tsv"
    result = run_study(spec, out="out", seeds=2)
    (leak,) = [note for note in result.notes if "a metric on them measures memorisation" in note]
    assert "more.tsv: 15 of 15 rows (100.0 %) also occur in the training data" in leak
    assert leak in to_text(result)


def test_one_seed_runs_and_says_that_there_is_no_interval(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    spec["variants"]["third"] = {"train.lr": 0.01}  # three pairs, so that more seeds are needed than for one
    text = to_text(run_study(spec, out="out", seeds=1))
    assert "warning: with one seed there is no interval" in text
    assert "set seeds = 7 or more" in text
    assert "one seed gives no interval and no test" in text or "no difference" in text
    assert "nan" not in text
    assert "inf" not in text
    assert json.loads((workdir / "out" / "study.json").read_text(encoding="utf-8"))["pairs"][0]["low"] is None


def test_where_nothing_is_held_out_the_training_loss_is_compared_and_that_is_said(
    workdir: Path, spec: StudySpec, run_study: RunStudy
) -> None:
    spec["common"]["data.valid_fraction"] = 0.0
    result = run_study(spec, out="out", seeds=2)
    assert (result.metric, result.eval_sets) == ("training loss", ("training",))
    assert "there is no validation data" in to_text(result)
    tested = run_study(spec | {"tests": {"more": "more.tsv"}}, out="out", seeds=2)
    assert (tested.metric, tested.eval_sets) == ("accuracy", ("more",))


def test_bleu_is_compared_over_sentences(workdir: Path, spec: StudySpec, run_study: RunStudy) -> None:
    spec |= {"task": "translate", "tests": {"all": "a.en,a.fr"}}
    spec["common"] |= {"data.train": "a.en,a.fr", "data.max_len": 12, "tokenizer.lowercase": True}
    spec["common"]["train"] |= {"max_steps": 60, "eval_every": 30, "lr": 0.02}
    result = run_study(spec, out="out", seeds=2)
    for item in result.runs:
        run = load(item.folder, device="cpu", precision="fp32")
        assert item.metric_values["all"] == pytest.approx(run.evaluate("a.en,a.fr")["bleu"])
        assert item.metric_values["validation"] == pytest.approx(run.progress()["best"]["bleu"])  # type: ignore[index]
        assert item.sentence_stats["all"].shape == (60, 10)
    sentence_stats = [
        np.stack([item.sentence_stats["all"] for item in result.runs_of(name)]) for name in ("plain", "narrow")
    ]
    (comparison,) = result.comparisons
    assert comparison.difference == bootstrap_bleu(*sentence_stats)
    assert comparison.over_seeds is not None
    assert comparison.over_seeds.pairs == 2
    assert "paired bootstrap over 60 sentences" in to_markdown(result)
    assert f"; over seeds {describe_p_value(comparison.over_seeds.p)}" in comparison.verdict


def test_a_difference_over_sentences_is_not_said_of_other_seeds() -> None:
    """Two seeds whose spread is as large as the difference, which so many sentences make clear."""
    sentences = PairedDifference(2, -1.2, -2.3, -0.1, 0.01, 1e-4, "paired bootstrap over 500 sentences")
    seeds = paired_test([12.9, 11.9], [10.2, 12.2])
    assert _seed_caveat(sentences, seeds, 0.01) == "; over seeds p = 1: other seeds may reverse it"
    assert _seed_caveat(sentences, paired_test([1.0] * 6, [2.0] * 6), 0.01) == "; over seeds p = 0.031"
    assert _seed_caveat(sentences, seeds, 0.3) == "; over seeds p = 1"
    assert _seed_caveat(sentences, None, 0.01) == ", of these two trained models"
    assert _seed_caveat(seeds, None, 0.01) == ""


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_every_metric_that_a_study_may_name_is_one_the_task_gives(
    workdir: Path, spec: StudySpec, task: str
) -> None:
    files = {"classify": "rows.tsv", "generate": "text.txt", "translate": "a.en,a.fr"}
    spec["common"] |= {"data.train": files[task], "data.max_len": 8, "tokenizer.kind": "char"}
    prepared_task = prepare_task(build_config(read_study(spec | {"task": task}).variants[0].settings), workdir)
    assert set(TASK_METRICS[task]) <= prepared_task.task.evaluator.evaluate(prepared_task.valid, quick=True).keys()  # type: ignore[index]


def test_training_time_is_summed_over_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(engine.time, "perf_counter", lambda: float(next(clock)))
    for expected in (10.0, 20.0):
        timer = PersistentTimer(tmp_path / "seconds.json")
        with timer:
            pass
        assert timer.total_seconds == expected
    assert PersistentTimer(tmp_path / "other.json").total_seconds == 0.0
