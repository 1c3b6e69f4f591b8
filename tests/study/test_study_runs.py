"""Studies, run: paired, kept, gone on with, and honest about what failed."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triform.config import Config
from triform.errors import CheckpointError, ConfigError, DivergedError, InterruptedRun
from triform.run import load
from triform.seeds import train_seeds
from triform.settings import build
from triform.stats import Difference, bootstrap_bleu, paired, show_p
from triform.study import runner
from triform.study.plan import METRICS, read_study
from triform.study.results import Outcome, _only_these
from triform.study.tables import as_text, markdown
from triform.tasks import TASKS
from triform.training import population
from triform.training.population import Limit

Tree = dict[str, Any]
Run = Callable[..., Outcome]


def stamps(out: Path) -> dict[str, int]:
    return {str(file.relative_to(out)): file.stat().st_mtime_ns for file in out.glob("*/seed-*/model.safetensors")}


def test_a_study_leaves_runs_and_tables(place: Path, tree: Tree, study: Run) -> None:
    outcome = study(tree | {"tests": {"more": "more.tsv"}}, out="out")
    assert outcome.sets == ("validation", "more")
    with (place / "out" / "study.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["variant"], row["seed"], row["status"]) for row in rows] == [
        (variant, seed, "ok") for variant in ("plain", "narrow") for seed in "012"
    ]
    for row in rows:
        run = load(row["folder"], device="cpu", precision="fp32")
        assert float(row["accuracy more"]) == pytest.approx(run.evaluate("more.tsv")["accuracy"])
        assert float(row["accuracy validation"]) == pytest.approx(run.progress()["best"]["accuracy"])  # type: ignore[index]
    stored = json.loads((place / "out" / "study.json").read_text(encoding="utf-8"))
    (pair,) = stored["pairs"]  # on the test file; validation had a say in what is tested
    values = {
        name: [float(r["accuracy more"]) for r in rows if r["variant"] == name] for name in ("plain", "narrow")
    }
    wanted = paired(values["plain"], values["narrow"])
    assert (pair["difference"], pair["p"]) == pytest.approx((wanted.mean, wanted.p))
    assert (place / "out" / "study.md").read_text(encoding="utf-8") == markdown(outcome)
    assert "too few seeds to tell" in as_text(outcome) or "no difference at all" in as_text(outcome)
    assert re.search(r"^more +plain +3 +\d+\.\d\d % +\d+\.\d\d % ", as_text(outcome), re.MULTILINE)
    assert "\n± is half of a 95 % interval.\n" in as_text(outcome)
    assert "Differences are in percentage points." in markdown(outcome)


def test_a_test_file_with_the_content_of_the_training_file_is_told(place: Path, tree: Tree, study: Run) -> None:
    (place / "copy.tsv").write_bytes((place / "rows.tsv").read_bytes())
    tree["tests"] = {"more": "more.tsv", "copy": "copy.tsv"}
    progress = io.StringIO()
    outcome = study(tree, out="out", seeds=2, quiet=False, progress=progress)
    assert progress.getvalue().startswith(f"warning: {place / 'copy.tsv'}: has the same content as the training")
    told = [note for note in outcome.notes if "same content as the training data" in note]
    says = "what it scores is memory and says nothing about new text; score another file"
    assert told == [f"{place / 'copy.tsv'}: has the same content as the training data: {says}"]
    assert f"\nwarning: {told[0]}\n" in as_text(outcome)
    page = (place / "out" / "study.html").read_text(encoding="utf-8")
    warnings = page.partition('<section class="notices warnings">')[2].partition("</section>")[0]
    assert "same content as the training data" in warnings


def test_a_test_pair_of_files_that_was_trained_on_is_told(place: Path, tree: Tree, study: Run) -> None:
    tree |= {"task": "translate", "tests": {"same": "a.en,a.fr", "turned": "a.fr,a.en", "half": "a.en,b.fr"}}
    tree["common"]["data.train"] = "a.en,a.fr"
    (place / "b.fr").write_text((place / "a.fr").read_text(encoding="utf-8").title(), encoding="utf-8")
    outcome = study(tree, out="out", seeds=1)
    told = [note for note in outcome.notes if "same content as the training data" in note]
    assert [note.partition(": ")[0] for note in told] == [f"{place / 'a.en'},{place / 'a.fr'}"]


def test_a_variants_runs_are_what_train_seeds_gives(place: Path, tree: Tree, study: Run) -> None:
    outcome = study(tree, out="out")
    alone = train_seeds(
        "classify", 3, data="rows.tsv", out="alone", device="cpu", quiet=True, tokenizer={"kind": "word"},
        model=tree["common"]["model"] | {"window": 2}, train=tree["common"]["train"],
    )  # fmt: skip
    found = [each.scores["validation"] for each in outcome.of("narrow")]
    assert found == pytest.approx(list(alone.values))


def prepared(config: Config, folder: Path) -> Any:
    return TASKS[config.task].prepare(config, folder)


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_a_pair_shares_its_initial_weights_and_its_batches(place: Path, tree: Tree, task: str) -> None:
    files = {"classify": "rows.tsv", "generate": "text.txt", "translate": "a.en,a.fr"}
    tree |= {"task": task}
    tree["common"]["data.train"] = files[task]
    tree["common"]["data.max_len"] = 8
    tree["variants"] = {"plain": {}, "narrow": {"model.window": 2}, "wide": {"model.d_ff": 48}}
    for seed in (0, 5):
        configs = [build(variant.asked | {"seed": seed}) for variant in read_study(tree).variants]
        plain, narrow, wide = (prepared(config, place) for config in configs)
        weights = [dict(each.task.model.named_parameters()) for each in (plain, narrow)]
        assert weights[0].keys() == weights[1].keys()
        assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
        samplers = [each.train.sampler(each.task.config.train, seed) for each in (plain, narrow, wide)]
        for _ in range(30):
            drawn = [sampler.next().tolist() for sampler in samplers]
            assert drawn[0] == drawn[1] == drawn[2]
    other = prepared(replace(configs[0], seed=6), place)
    assert not all(p.equal(weights[0][name]) for name, p in other.task.model.named_parameters())


def test_what_is_done_is_not_done_again(place: Path, tree: Tree, study: Run) -> None:
    first = study(tree, out="out", seeds=2)
    before = stamps(place / "out")
    again = study(tree, out="out", seeds=2)
    assert stamps(place / "out") == before
    assert [each.scores for each in again.results] == [each.scores for each in first.results]
    tree["variants"]["third"] = {"model.d_ff": 16}
    more = study(tree, out="out", seeds=3)
    after = stamps(place / "out")
    assert len(after) == 9
    assert all(after[name] == stamp for name, stamp in before.items())
    assert len(more.comparisons) == 3
    assert [each.scores for each in more.results if each.seed < 2][:4] == [each.scores for each in first.results]


def test_an_interrupted_study_goes_on_where_it_stopped(
    place: Path, tree: Tree, study: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = study(tree, out="whole")
    real, stop_at = population.Population._between, 4

    def between(self: population.Population, members: Any) -> None:
        real(self, members)
        if self.members[0].task.config.model.window == 2 and self.members[0].progress.step == stop_at:
            self.stop()

    monkeypatch.setattr(population.Population, "_between", between)
    monkeypatch.setitem(population.LIMITS, "cpu", Limit(math.inf, math.inf))
    with pytest.raises(InterruptedRun, match="go on with: triform compare STUDY --out out --device cpu"):
        study(tree, out="out")
    before = stamps(place / "out")
    assert not (place / "out" / "study.md").exists()
    monkeypatch.setattr(population.Population, "_between", real)
    outcome = study(tree, out="out")
    after = stamps(place / "out")
    assert all(after[name] == stamp for name, stamp in before.items() if name.startswith("plain"))
    assert [each.scores for each in outcome.results] == [each.scores for each in wanted.results]


def test_a_study_that_changed_is_not_mixed_with_the_old_one(place: Path, tree: Tree, study: Run) -> None:
    study(tree, out="out", seeds=1)
    for change in ({"model.window": 3}, {}):
        tree["variants"]["narrow"] = change
        width = change.get("model.window", -1)
        with pytest.raises(ConfigError, match=rf"narrow: model.window: {width} \(the stored runs have 2\)"):
            study(tree, out="out", seeds=1)
    tree["variants"]["narrow"] = {"model.window": 2}
    rows = place / "rows.tsv"
    rows.write_text(rows.read_text(encoding="utf-8") + "one more\tshort\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"plain: data.train: rows.tsv \(\w+\) \(the stored runs have rows.tsv"):
        study(tree, out="out", seeds=1)


def test_a_study_keeps_out_of_folders_that_are_not_its_own(place: Path, tree: Tree, study: Run) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not the folder of a study"):
        study(tree, out="mine")
    (place / "out").mkdir()
    (place / "out" / "plan.json").write_text('{"task": "classify", "variants": {"plain": 3}}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="is damaged"):
        study(tree, out="out")


def test_a_changed_test_file_is_scored_again(place: Path, tree: Tree, study: Run) -> None:
    tree["tests"] = {"more": "more.tsv"}
    study(tree, out="out", seeds=1)
    (place / "more.tsv").write_text("amber\tlong\nbirch\tshort\n", encoding="utf-8")
    outcome = study(tree, out="out", seeds=1)
    for each in outcome.results:
        wanted = load(each.folder, device="cpu", precision="fp32").evaluate("more.tsv")["accuracy"]
        assert each.scores["more"] == pytest.approx(wanted)


@pytest.mark.parametrize("limit", [0.0, math.inf], ids=["one by one", "together"])
def test_a_failed_variant_is_reported_and_the_rest_goes_on(
    place: Path, tree: Tree, study: Run, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    monkeypatch.setitem(population.LIMITS, "cpu", Limit(limit, limit))
    wild = {"train.optimizer": "sgd", "train.lr": 1e30, "train.clip_norm": 0.0}
    tree["variants"] = {"wild": wild, "plain": {}, "narrow": {"model.window": 2}}
    outcome = study(tree, out="out", seeds=2)
    assert [bool(each.failure) for each in outcome.results] == [True, True, False, False, False, False]
    assert [(each.first, each.second) for each in outcome.comparisons] == [("plain", "narrow")]
    said = as_text(outcome)
    assert "wild, seeds 0, 1: failed: the loss is not finite" in said
    assert "where there is none, not at all" in said
    assert "validation  wild     0" in said
    page = (place / "out" / "study.html").read_text(encoding="utf-8")
    assert "2 failed" in page
    tree["variants"] = {"wild": wild, "wilder": wild}
    with pytest.raises(DivergedError, match="every run of the study failed"):
        study(tree, out="other", seeds=1)


def test_a_pair_is_compared_over_the_seeds_that_both_have(place: Path, tree: Tree, study: Run) -> None:
    whole = study(tree, out="out")
    metrics = place / "out" / "narrow" / "seed-1" / "metrics.jsonl"
    with metrics.open("a", encoding="utf-8") as file:
        file.write('{"event": "diverged", "step": 4, "text": "the loss is not finite at step 4"}\n')
    outcome = study(tree, out="out")
    assert outcome.comparisons[0].difference.pairs == 2
    kept = [whole.of(name)[seed].scores["validation"] for name in ("plain", "narrow") for seed in (0, 2)]
    assert outcome.comparisons[0].difference.mean == pytest.approx(np.mean(kept[2:]) - np.mean(kept[:2]))
    assert any("narrow, seed 1: failed" in note for note in outcome.notes)


def test_ctrl_c_while_scoring_says_how_to_go_on(
    place: Path, tree: Tree, study: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    tree["tests"] = {"more": "more.tsv"}
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_evaluated", leave)
        with pytest.raises(
            InterruptedRun, match="what was done is kept; go on with: triform compare STUDY --out out"
        ):
            study(tree, out="out", seeds=1)
    before = stamps(place / "out")
    assert study(tree, out="out", seeds=1).sets == ("validation", "more")
    assert stamps(place / "out") == before


def test_what_was_cut_of_a_test_file_is_said_once(place: Path, tree: Tree, study: Run) -> None:
    tree["common"]["data.max_len"] = 4
    outcome = study(tree | {"tests": {"more": "more.tsv"}}, out="out", seeds=2)
    cut = [note for note in outcome.notes if "were cut at data.max_len=4" in note]
    assert len(cut) == 1
    assert cut[0] in as_text(outcome)


def test_validation_rows_that_leak_are_said_once(place: Path, tree: Tree, study: Run) -> None:
    tree["common"]["data.valid"] = "more.tsv"
    outcome = study(tree, out="out", seeds=2)
    (leak,) = [note for note in outcome.notes if "what they score is memory" in note]
    assert "more.tsv: 15 of 15 rows (100.0 %) are in the training data too" in leak
    assert leak in as_text(outcome)


def test_one_seed_runs_and_says_that_there_is_no_interval(place: Path, tree: Tree, study: Run) -> None:
    tree["variants"]["third"] = {"train.lr": 0.01}  # three pairs, so that more seeds are needed than for one
    said = as_text(study(tree, out="out", seeds=1))
    assert "warning: one seed each: there is no interval" in said
    assert "give seeds = 7 or more" in said
    assert "one seed: no interval and no test" in said or "no difference" in said
    assert "nan" not in said
    assert "inf" not in said
    assert json.loads((place / "out" / "study.json").read_text(encoding="utf-8"))["pairs"][0]["low"] is None


def test_where_nothing_is_held_out_the_training_loss_is_compared_and_that_is_said(
    place: Path, tree: Tree, study: Run
) -> None:
    tree["common"]["data.valid_fraction"] = 0.0
    outcome = study(tree, out="out", seeds=2)
    assert (outcome.metric, outcome.sets) == ("training loss", ("training",))
    assert "nothing was held out" in as_text(outcome)
    tested = study(tree | {"tests": {"more": "more.tsv"}}, out="out", seeds=2)
    assert (tested.metric, tested.sets) == ("accuracy", ("more",))


def test_bleu_is_compared_over_sentences(place: Path, tree: Tree, study: Run) -> None:
    tree |= {"task": "translate", "tests": {"all": "a.en,a.fr"}}
    tree["common"] |= {"data.train": "a.en,a.fr", "data.max_len": 12, "tokenizer.lowercase": True}
    tree["common"]["train"] |= {"max_steps": 60, "eval_every": 30, "lr": 0.02}
    outcome = study(tree, out="out", seeds=2)
    for each in outcome.results:
        run = load(each.folder, device="cpu", precision="fp32")
        assert each.scores["all"] == pytest.approx(run.evaluate("a.en,a.fr")["bleu"])
        assert each.scores["validation"] == pytest.approx(run.progress()["best"]["bleu"])  # type: ignore[index]
        assert each.sentences["all"].shape == (60, 10)
    shares = [np.stack([each.sentences["all"] for each in outcome.of(name)]) for name in ("plain", "narrow")]
    (found,) = outcome.comparisons
    assert found.difference == bootstrap_bleu(*shares)
    assert found.over_seeds is not None
    assert found.over_seeds.pairs == 2
    assert "paired bootstrap over 60 sentences" in markdown(outcome)
    assert f"; over seeds {show_p(found.over_seeds.p)}" in found.verdict


def test_a_difference_over_sentences_is_not_said_of_other_seeds() -> None:
    """Two seeds whose spread is as large as the difference, which so many sentences make clear."""
    sentences = Difference(2, -1.2, -2.3, -0.1, 0.01, 1e-4, "paired bootstrap over 500 sentences")
    seeds = paired([12.9, 11.9], [10.2, 12.2])
    assert _only_these(sentences, seeds, 0.01) == "; over seeds p = 1: other seeds may turn it round"
    assert _only_these(sentences, paired([1.0] * 6, [2.0] * 6), 0.01) == "; over seeds p = 0.031"
    assert _only_these(sentences, seeds, 0.3) == "; over seeds p = 1"
    assert _only_these(sentences, None, 0.01) == ", of these two trained models"
    assert _only_these(seeds, None, 0.01) == ""


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_every_metric_that_a_study_may_name_is_one_the_task_gives(place: Path, tree: Tree, task: str) -> None:
    files = {"classify": "rows.tsv", "generate": "text.txt", "translate": "a.en,a.fr"}
    tree["common"] |= {"data.train": files[task], "data.max_len": 8, "tokenizer.kind": "char"}
    made = prepared(build(read_study(tree | {"task": task}).variants[0].asked), place)
    assert set(METRICS[task]) <= made.task.evaluate(made.valid, quick=True).keys()  # type: ignore[index]


def test_time_is_kept_over_commands(place: Path, tree: Tree, study: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(runner.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(runner, "train_these", lambda *_: None)
    kept = runner.Kept(place / "out")
    kept.path.mkdir()
    plan = read_study(tree)
    kept.claim(plan)
    for _ in range(2):
        runner._train(kept, plan, plan.variants[0], runner.Options())
    assert kept.seconds("plain") == 20.0
    assert kept.seconds("narrow") == 0.0
