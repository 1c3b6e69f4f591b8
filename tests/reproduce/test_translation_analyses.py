"""Analyses of translations: which set is best, metrics by length, padding, examples and failures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce.length_bins import LengthBins
from reproduce.loss_curves import render_validation_curves
from reproduce.options import ReproduceOptions
from reproduce.result_file import ExperimentResult
from reproduce.runner import reproduce
from reproduce.system import ReferenceSystem
from reproduce.systems import get_system, parse_system, read_declaration
from reproduce.tables import format_section
from reproduce.translation import example_indices
from reproduce.translation_tables import failure_verdicts, padding_remark, ranking_verdicts
from result_cases import make_result, make_variant_result

from triform.data.readers import read_aligned
from triform.errors import ConfigError
from triform.evaluation.metrics import bleu_statistics, compute_translation_metrics
from triform.evaluation.statistics import PairedDifference, bootstrap_bleu
from triform.experiments.engine import EvaluationCache
from triform.run import Run, load
from triform.training.run_folder import RunFolder

TED = get_system("ted-en-fr")
BEAM = "test beam 5"


@dataclass(frozen=True)
class Smoke:
    """Two sets with two seeds each, and where they are."""

    system: ReferenceSystem
    result: ExperimentResult
    runs: dict[str, list[Run]]
    test_path: str


@pytest.fixture(scope="module")
def smoke(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Smoke:
    """The first and the third set, with bins that the made-up sentences fill."""
    folder = tmp_path_factory.mktemp("smoke")
    system = replace(
        TED, variants=(TED.variants[0], TED.variants[2]), word_length_bins=LengthBins((6, 9)), n_examples=3
    )
    options = ReproduceOptions(
        data=str(data), out=folder / "runs", results=folder / "results", device="cpu", smoke=True, seeds=2
    )
    result = reproduce(system, options)
    root = folder / "runs" / "ted-en-fr-smoke"
    runs = {
        name: [load(path, device="cpu") for path in sorted(root.glob(f"{name}-*/seed-*"))]
        for name in ("set-1", "set-3")
    }
    return Smoke(system, result, runs, ",".join(str(root / "data" / f"test.{side}") for side in ("en", "fr")))


def test_bins_hold_all_test_sentences_and_score_as_if_they_were_files(smoke: Smoke) -> None:
    pairs = list(read_aligned(*smoke.test_path.split(",")))
    long_pairs = [pair for pair in pairs if len(pair.source.split()) > 9]
    assert 0 < len(long_pairs) < len(pairs)
    for variant in smoke.result["variants"]:
        for run, stored in zip(smoke.runs[variant["name"]], variant["runs"], strict=True):
            for eval_set in ("test", "test greedy", BEAM):
                assert sum(entry["pairs"] for entry in stored["by_length"][eval_set].values()) == len(pairs)
            outputs = [p.output for p in run.predict([pair.source for pair in long_pairs], strategy="greedy")]
            expected = compute_translation_metrics(outputs, [pair.target for pair in long_pairs])["bleu"]
            assert stored["by_length"]["test greedy"]["10 or more"]["bleu"] == pytest.approx(expected)


def test_the_loss_of_a_bin_is_that_of_its_lines(smoke: Smoke, tmp_path: Path) -> None:
    pairs = [pair for pair in read_aligned(*smoke.test_path.split(",")) if len(pair.source.split()) <= 6]
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(f"{getattr(pair, side)}\n" for pair in pairs))
    metrics = smoke.runs["set-1"][0].evaluate(f"{tmp_path}/source,{tmp_path}/target")
    stored = smoke.result["variants"][0]["runs"][0]["by_length"]["test"]["1 to 6"]
    assert stored["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert stored["token_accuracy_with_padding"] == pytest.approx(metrics["token_accuracy_with_padding"])


def test_every_set_translates_the_same_sentences_in_both_ways(smoke: Smoke) -> None:
    pairs = list(read_aligned(*smoke.test_path.split(",")))
    examples = [pairs[index] for index in example_indices(len(pairs), 3)]
    assert smoke.result["examples"] == [{"source": pair.source, "reference": pair.target} for pair in examples]
    sources = [pair.source for pair in examples]
    for variant in smoke.result["variants"]:
        run = smoke.runs[variant["name"]][0]
        assert variant["translations"] == {
            "test greedy": [prediction.output for prediction in run.predict(sources, strategy="greedy")],
            BEAM: [prediction.output for prediction in run.predict(sources, beam_size=5)],
        }
    page = format_section(smoke.system, smoke.result)
    assert page.count("\nset-3, greedy:") == 3
    assert f"```\nsource:        {sources[0]}\nreference:     {examples[0].target}\nset-1, greedy:" in page


def test_examples_are_evenly_spaced_and_never_repeated() -> None:
    assert example_indices(100, 4) == [12, 37, 62, 87]
    assert example_indices(2, 10) == [0, 1]
    assert example_indices(1_305, 0) == []


def test_variants_are_compared_over_the_test_sentences(smoke: Smoke) -> None:
    pairs = list(read_aligned(*smoke.test_path.split(",")))
    long_rows = [index for index, pair in enumerate(pairs) if len(pair.source.split()) > 9]
    counts = {
        name: np.stack(
            [
                bleu_statistics(
                    [p.output for p in run.predict([pair.source for pair in pairs], beam_size=5)],
                    [pair.target for pair in pairs],
                )
                for run in runs
            ]
        )
        for name, runs in smoke.runs.items()
    }
    overall, long_sentences = smoke.result["comparisons"]
    assert overall["sentences"] == "all"
    assert {overall["first"], overall["second"]} == {"set-1", "set-3"}
    expected = bootstrap_bleu(counts[overall["first"]], counts[overall["second"]])
    assert PairedDifference(**overall["difference"]) == expected
    assert (long_sentences["first"], long_sentences["second"]) == ("set-1", "set-3")
    assert long_sentences["sentences"] == "10 or more"
    expected = bootstrap_bleu(counts["set-1"][:, long_rows], counts["set-3"][:, long_rows])
    assert PairedDifference(**long_sentences["difference"]) == expected


def test_the_best_variant_is_chosen_by_validation(smoke: Smoke) -> None:
    means = {entry["name"]: sum(entry["held_out"]["values"]) for entry in smoke.result["variants"]}
    assert smoke.result["comparisons"][0]["second"] == max(means, key=lambda name: means[name])


def test_every_seed_keeps_its_validations_by_epoch(smoke: Smoke) -> None:
    for variant in smoke.result["variants"]:
        for run in variant["runs"]:
            epochs = [epoch for epoch, _ in run["validations"]]
            assert len(epochs) == 2, "a smoke run is validated after steps 2 and 4"
            assert epochs[1] == pytest.approx(2 * epochs[0], abs=0.002)


def test_the_other_half_keeps_the_comparisons(smoke: Smoke, data: Path, tmp_path: Path) -> None:
    folder = smoke.runs["set-1"][0].path.parents[3]
    options = ReproduceOptions(
        data=str(data), out=tmp_path / "runs", results=folder / "results", device="cpu", smoke=True, seeds=1
    )
    best = replace(TED.find_variant("best"), settings=TED.find_variant("best").settings | {"train.r_drop": 0.0})
    result = reproduce(
        replace(smoke.system, variants=(*smoke.system.variants, best)), replace(options, variant="best")
    )
    assert result["comparisons"] == smoke.result["comparisons"]


def test_evaluations_keep_the_counts_of_each_sentence(smoke: Smoke) -> None:
    folder = RunFolder(smoke.runs["set-1"][0].path)
    entry = EvaluationCache(folder.path / "tests.json", [folder], "translate").get(BEAM, smoke.test_path)
    assert entry is not None
    assert np.array(entry["bleu"]).shape == (12, 10)


def make_difference(mean: float, half_width: float, p: float) -> dict[str, Any]:
    floor, test = 1e-4, "paired bootstrap over 1,305 sentences"
    return PairedDifference(3, mean, mean - half_width, mean + half_width, p, floor, test)._asdict()


def make_set(name: str, valid: float, bleu: float) -> dict[str, Any]:
    runs = [{BEAM: {"bleu": bleu + n / 10}} for n in (-1, 0, 1)]
    held_out = {"metric": "bleu", "values": [valid] * 3}
    return make_variant_result(name, "as-reported", runs, held_out=held_out)


def test_the_page_says_which_set_is_best_and_whether_it_is_real() -> None:
    result = make_result("ted-en-fr", *(make_set(f"set-{n}", 20.0 - abs(2 - n), 20.0 + n) for n in (1, 2, 3)))
    result["comparisons"] = [
        {"first": "set-1", "second": "set-2", "sentences": "all", "difference": make_difference(1.0, 0.4, 0.001)},
        {"first": "set-3", "second": "set-2", "sentences": "all", "difference": make_difference(-1.0, 1.5, 0.4)},
        {
            "first": "set-1",
            "second": "set-3",
            "sentences": "41 or more",
            "difference": make_difference(2, 0.5, 0.001),
        },
    ]
    lines = ranking_verdicts(TED, result)
    assert lines[0].startswith("set-2 is best by validation BLEU: set-2 20.00 ± 0.00, set-1 19.00")
    assert lines[1].startswith(
        "On the test set, set-2 is not shown to be better than set-3; sacreBLEU, beam 5: set-3"
    )
    assert lines[2] == (
        "Is set-2 better than set-1? sacreBLEU, beam 5: set-2 is better by 1.0 ± 0.4 BLEU (corrected p = 0.003); "
        "over 3 seeds, the difference is 1.0 ± 0.0 BLEU"
    )
    assert "no evidence of a difference" in lines[3]
    assert "Compared with set-1, 41 or more words, sacreBLEU, beam 5: set-3 is better by 2.0 ± 0.5" in lines[4]
    assert "their intervals say nothing about other seeds" in format_section(TED, result)
    del result["comparisons"][1]
    assert "set-2 is better than all others" in ranking_verdicts(TED, result)[1]


def test_a_result_without_the_analyses_still_has_a_page() -> None:
    page = format_section(TED, make_result("ted-en-fr", make_set("set-1", 20.0, 20.0)))
    for words in ("best by validation", "By sentence length", "Example translations", "Share of padding"):
        assert words not in page


def test_the_share_of_padding_is_measured() -> None:
    # 40 of 100 tokens are right; with 300 paddings, 340 of 400 are, and 300 of 400 are padding
    scores = {"train": {"token_accuracy": 0.4, "token_accuracy_with_padding": 0.85}, BEAM: {"bleu": 1.0}}
    result = make_result("ted-en-fr", make_variant_result("set-1", "as-reported", [scores]))
    assert padding_remark(TED, result).endswith("in shuffled batches of 16: 75.0 % in train.")


def test_padding_is_mentioned_only_if_an_accuracy_that_counts_it_is_shown() -> None:
    scores = {"1 to 16": {"token_accuracy": 0.4, "token_accuracy_with_padding": 0.85}}
    result = make_result("positions-translate", make_variant_result("none", "best", [scores]))
    assert padding_remark(get_system("positions-translate"), result) == ""


def test_a_failed_training_is_recognised_by_its_accuracy() -> None:
    system = get_system("ted-set4-failure")
    variants = [
        make_variant_result(name, "best", [{"valid": {"token_accuracy": accuracy}}])
        for name, accuracy in (("set-4", 0.27), ("post-norm-1e-3", 0.034))
    ]
    result = make_result("ted-set4-failure", *variants) | {"failures": {"high-rate": "the loss is not finite"}}
    lines = failure_verdicts(system, result)
    assert lines[0].startswith("set-4 does not fail as reported; ")
    assert lines[1].startswith("post-norm-1e-3 **fails as reported**; ")
    assert lines[1].endswith("3.40 %")
    assert lines[2:] == ["high-rate diverges"]


def test_bleu_over_epochs_is_drawn_as_the_mean_of_the_seeds() -> None:
    variants = [make_set("set-1", 20.0, 20.0), make_set("set-2", 20.0, 20.0), make_set("best", 20.0, 20.0)]
    variants[2]["setting"] = "best"
    for variant in variants:
        for run in variant["runs"]:
            run["validations"] = [[1.0, 2.0], [2.0, 10.0 + run["seed"]]]
    result = make_result("ted-en-fr", *variants)
    svg = render_validation_curves(result, "BLEU", "as-reported")
    assert svg.count("<polyline") == 2
    assert "set-1: 11" in svg
    assert "best" not in svg
    assert render_validation_curves(result, "BLEU", "") == ""


def test_analyses_of_translations_need_translations() -> None:
    declaration = read_declaration("speeches-lm") | {"word_length_bins": [10]}
    with pytest.raises(ConfigError, match=r"speeches-lm: 'word_length_bins' needs task = \"translate\""):
        parse_system(declaration, "speeches-lm")
