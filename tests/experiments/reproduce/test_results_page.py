"""The page of results: figures worked by hand, and the committed page made again from the committed outcomes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from triform.config.settings import SETTING_TYPES
from triform.errors import DataError
from triform.experiments.reproduce.page import render_pages, write_results_page
from triform.experiments.reproduce.result_file import empty_result, read_result, write_result
from triform.experiments.reproduce.system import MetricColumn
from triform.experiments.reproduce.systems import WHY_TRANSFORMERS, get_system, load_systems
from triform.experiments.reproduce.tables import (
    format_mean_interval,
    format_section,
    github_anchor,
    pairing_verdicts,
    summary_table,
    target_verdicts,
)

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "device": "cpu, slow",
    "torch": "2.13",
    "triform": "0.1.0",
    "python": "3.12",
    "date": "2026-01-02",
    "command": "triform reproduce speeches-lm",
}


def make_variant_result(name: str, group: str, runs: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "setting": group,
        "about": "",
        "settings": {},
        "parameters": 855_890,
        "seconds": 83.4,
        "trained_in": "fp32",
        "scored_in": "fp32",
        "vocabulary": 5698,
        "made": ENVIRONMENT,
        "curves": {"train": [[1, 8.5], [500, 5.0]]},
        "runs": [{"seed": seed, "steps": 500, "scores": metrics} for seed, metrics in enumerate(runs)],
        **fields,
    }


def perplexity_metrics(obama: float, wbush: float, hbush: float) -> dict[str, dict[str, float]]:
    values = {"obama": obama, "wbush": wbush, "hbush": hbush, "train": 160.0}
    return {name: {"perplexity": value} for name, value in values.items()}


def make_result(system: str, *variants: dict[str, Any], smoke: bool = False) -> dict[str, Any]:
    return {**empty_result(system, smoke=smoke), "variants": list(variants)}


def test_a_mean_comes_with_half_its_interval() -> None:
    column = MetricColumn(eval_set="test", metric="accuracy", title="", unit="percent")
    # 0.80 and 0.82: deviation 0.014142, t of one degree of freedom 12.706, so 12.706 * 0.01
    assert format_mean_interval(column, [0.80, 0.82]) == "81.00 ± 12.71 %"
    assert format_mean_interval(column, [0.80]) == "80.00 %"
    assert format_mean_interval(column, []) == "–"
    assert (
        format_mean_interval(MetricColumn(eval_set="t", metric="seconds", title="", unit="seconds"), [3.14159])
        == "3.14 s"
    )


def test_a_section_has_reported_and_own_figures_baselines_and_circumstances() -> None:
    runs = [perplexity_metrics(380.0, 480.0, 420.0), perplexity_metrics(382.0, 482.0, 422.0)]
    result = make_result("speeches-lm", make_variant_result("as-reported", "as-reported", runs))
    result["baselines"] = {"ngram": {"obama": {"perplexity": 240.5}}}
    result["unfit"] = {"other": "too little text"}
    page = format_section(get_system("speeches-lm"), result)
    assert "| *reported, as-reported* | 375.02 | 476.34 | 414.64 | 162.97 |" in page
    assert "| **as-reported** | 381.00 ± 12.71 | 481.00 ± 12.71 | 421.00 ± 12.71 | 160.00 ± 0.00 |" in page
    assert "| 855,890 | 2 | 1 min 23 s |" in page
    assert "| **best** | not run |" in page
    assert "| baseline: ngram | 240.50 |" in page
    assert "| baseline: other | not fitted: too little text |" in page
    assert "| as-reported | `triform reproduce speeches-lm` | cpu, slow | torch 2.13, Triform 0.1.0" in page


def test_what_a_model_writes_is_shown() -> None:
    samples = [{"input": "", "output": "\nKING:\nAy."}, {"input": "JULIET: ", "output": "Nay.\n"}]
    result = make_result(
        "shakespeare-char", make_variant_result("best", "best", [{"valid": {"loss": 1.44}}], samples=samples)
    )
    page = format_section(get_system("shakespeare-char"), result)
    assert "best goes on from nothing:\n\n```\nKING:\nAy.\n```" in page
    assert "best goes on after `JULIET: `:\n\n```\nJULIET: Nay.\n```" in page


def test_targets_are_judged_by_the_mean() -> None:
    system = get_system("speeches-lm")
    as_reported = make_variant_result("as-reported", "as-reported", [perplexity_metrics(380.0, 480.0, 500.0)])
    best = make_variant_result("best", "best", [perplexity_metrics(300.02, 381.0, 332.0)])
    verdicts = target_verdicts(system, make_result("speeches-lm", as_reported, best))
    assert [line.rpartition(": ")[2] for line in verdicts] == [
        *("reached", "reached", "**not reached**"),
        *("**not reached**", "reached", "**not reached**"),
    ]
    assert verdicts[0].startswith("as-reported, Obama, perplexity: 380.00; wanted 337.52 to 412.52 (within 10 %")


def test_a_mean_of_just_the_target_reaches_it() -> None:
    """22,750 of 25,000 are 91 %, though the mean of these five numbers is a hair below it."""
    accuracies = (0.9092, 0.9102, 0.9086, 0.9118, 0.9102)
    for offset, status in ((0.0, ": reached"), (1e-6, ": **not reached**")):
        runs = [{"test": {"accuracy": accuracy - offset}} for accuracy in accuracies]
        verdicts = target_verdicts(
            get_system("imdb-encoder"), make_result("imdb-encoder", make_variant_result("fine-tuned", "best", runs))
        )
        assert verdicts[0].endswith(status)


def test_the_best_must_be_so_much_above_all_that_were_reported() -> None:
    def translation_variant(name: str, setting: str, bleu: float) -> dict[str, Any]:
        return make_variant_result(name, setting, [{"test beam 5": {"bleu": bleu}}])

    sets = [translation_variant(f"set-{n}", "as-reported", 20.0 + n) for n in (1, 2, 3, 4)]
    low, high = (
        make_result("ted-en-fr", *sets, translation_variant("best", "best", bleu)) for bleu in (28.5, 29.0)
    )
    verdicts = [target_verdicts(get_system("ted-en-fr"), result)[1] for result in (low, high)]
    assert verdicts[0].endswith("wanted 5 above the best of set-1, set-2, set-3, set-4, 29.00: **not reached**")
    assert verdicts[1].endswith(": reached")
    incomplete = make_result("ted-en-fr", *sets[1:], translation_variant("best", "best", 40.0))
    assert target_verdicts(get_system("ted-en-fr"), incomplete)[1].endswith(": open, since set-1 was not run")


def test_paired_seeds_end_in_a_verdict() -> None:
    full = [perplexity_metrics(370.0 + n, 470.0 + n, 410.0 + n) for n in range(20)]
    window = [perplexity_metrics(360.0 + n + n % 2, 470.0 + n + (-1) ** n, 410.0 + n) for n in range(20)]
    result = make_result(
        "speeches-window",
        make_variant_result("full", "as-reported", full),
        make_variant_result("window-8", "as-reported", window),
    )
    verdicts = pairing_verdicts(get_system("speeches-window"), result)
    assert "window-8 better by 9.50 ± 0.24 perplexity, corrected p < 0.001" in verdicts[0]
    assert "no evidence of a difference" in verdicts[1]
    assert "no difference at all" in verdicts[2]
    assert len(verdicts) == 3, "the other pairing was not run"


def test_seeds_that_only_one_of_two_has_are_left_out() -> None:
    runs = [perplexity_metrics(370.0 + n, 470.0, 410.0) for n in range(9)]
    other = [perplexity_metrics(360.0 + n, 471.0, 410.0) for n in range(8)]
    result = make_result(
        "speeches-window",
        make_variant_result("full", "as-reported", runs),
        make_variant_result("window-8", "as-reported", other),
    )
    assert "window-8 better by 10 ± 0" in pairing_verdicts(get_system("speeches-window"), result)[0]
    result = make_result(
        "speeches-window",
        make_variant_result("full", "as-reported", runs),
        make_variant_result("window-8", "as-reported", other[:1]),
    )
    assert pairing_verdicts(get_system("speeches-window"), result) == []


def test_verdicts_are_corrected_for_all_that_were_looked_at() -> None:
    runs = [perplexity_metrics(370.0 + n, 470.0, 410.0) for n in range(8)]
    better = [perplexity_metrics(360.0 + n, 470.0, 410.0) for n in range(8)]
    names = ("full", "window-8", "full-converged", "window-8-converged")
    variants = [
        make_variant_result(name, "best", subset)
        for name, subset in zip(names, (runs, better, runs, better), strict=True)
    ]
    partial_result, full_result = (make_result("speeches-window", *subset) for subset in (variants[:2], variants))
    verdicts = [
        pairing_verdicts(get_system("speeches-window"), result)[0] for result in (partial_result, full_result)
    ]
    assert "p = 0.023" in verdicts[0], "3 times 2 / 2^8"
    assert "p = 0.047" in verdicts[1], "6 times"


def test_one_seed_and_leaks_are_told() -> None:
    result = make_result(
        "speeches-lm", make_variant_result("best", "best", [perplexity_metrics(300.0, 381.0, 332.0)])
    )
    result["leaks"] = {
        "obama": {"rows": 250, "seen": 2},
        "wbush": {"rows": 250, "seen": 0},
        "hbush": {"rows": 9, "seen": 1},
    }
    page = format_section(get_system("speeches-lm"), result)
    assert "One seed, so no interval: best." in page
    assert "2 of the 250 texts of obama are also in the training file." in page
    assert "1 of the 9 texts of hbush is also in the training file." in page
    assert "wbush are" not in page


def test_a_section_says_what_each_variant_is() -> None:
    page = format_section(
        get_system("speeches-lm"),
        make_result("speeches-lm", make_variant_result("best", "best", [perplexity_metrics(1.0, 1.0, 1.0)])),
    )
    for variant in get_system("speeches-lm").variants:
        assert f"- {variant.name}: {variant.description}" in page


def test_a_smoke_run_is_no_result() -> None:
    result = make_result(
        "speeches-lm", make_variant_result("best", "best", [perplexity_metrics(1.0, 1.0, 1.0)]), smoke=True
    )
    assert "; wanted " not in format_section(get_system("speeches-lm"), result)
    assert "; wanted " in format_section(get_system("speeches-lm"), result | {"quick": False})
    assert "its figures mean nothing" in format_section(get_system("speeches-lm"), result)
    line = next(
        line
        for line in summary_table(
            load_systems(), {name: result if name == "speeches-lm" else None for name in load_systems()}
        ).splitlines()
        if line.startswith("| [speeches-lm]")
    )
    assert line.endswith("| not run | not run | – |")


def test_what_was_not_run_is_said_with_the_command_that_runs_it() -> None:
    page = render_pages(Path("nowhere"))[""]
    for name, system in load_systems().items():
        assert f"Not run yet: `triform reproduce {name}`." in page
        assert f"](#{github_anchor(system.title)})" in page


def test_the_page_and_its_pictures_are_written(tmp_path: Path) -> None:
    result = make_result(
        "speeches-lm", make_variant_result("best", "best", [perplexity_metrics(300.0, 381.0, 332.0)])
    )
    write_result(tmp_path / "results", result)
    page = write_results_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert "![Loss over steps: speeches-lm](pictures/speeches-lm.svg)" in page.read_text()
    svg = (tmp_path / "docs" / "pictures" / "speeches-lm.svg").read_text()
    assert svg.startswith("<svg ")
    assert svg.count("<polyline") == 1
    assert "best, train: 5" in svg


@pytest.mark.parametrize("content", ["no json", "[]", '{"format": 99, "system": "speeches-lm"}', '{"format": 1}'])
def test_a_damaged_outcome_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "speeches-lm.json").write_text(content)
    with pytest.raises(DataError, match=r"speeches-lm\.json: is not a result of speeches-lm"):
        read_result(tmp_path, "speeches-lm")


def test_the_committed_page_is_what_the_committed_outcomes_make() -> None:
    for relative_path, text in render_pages(ROOT / "results").items():
        path = ROOT / "docs" / relative_path if relative_path else ROOT / "docs" / "results.md"
        assert path.read_text(encoding="utf-8") == text, f"{path} is old: run `triform reproduce tables`"


def test_committed_outcomes_are_whole_and_finite() -> None:
    for path in (ROOT / "results").glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert not result["quick"]
        assert path.stem in {*load_systems(), WHY_TRANSFORMERS}
        parts = result["parts"].values() if path.stem == WHY_TRANSFORMERS else [result]
        for variant in (variant for part in parts for variant in part["variants"]):
            assert variant["settings"].keys() <= SETTING_TYPES.keys(), path.name
            for run in variant["runs"]:
                assert all(math.isfinite(value) for metrics in run["scores"].values() for value in metrics.values())


def test_attention_is_drawn_from_what_the_outcome_holds(tmp_path: Path) -> None:
    attention = {
        "stack": "decoder",
        "heads": "each",
        "queries": ["a", "<b>"],
        "keys": ["a", "<b>"],
        "weights": [[[[1.0, 0.0], [0.25, 0.75]]], [[[1.0, 0.0], [0.0, 1.0]]]],
    }
    result = make_result(
        "speeches-lm",
        make_variant_result("best", "best", [perplexity_metrics(300.0, 381.0, 332.0)]) | {"map": attention},
    )
    write_result(tmp_path / "results", result)
    page = write_results_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert "](pictures/speeches-lm-best-attention.svg)" in page.read_text()
    svg = (tmp_path / "docs" / "pictures" / "speeches-lm-best-attention.svg").read_text()
    assert (svg.count('class="cell"'), svg.count('class="none"')) == (6, 2), "out of reach is a tint"
    assert svg.count("&lt;b&gt;") == 3
    assert "layer 2, head 1" in svg
