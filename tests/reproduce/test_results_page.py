"""The page of results: figures worked by hand, and the committed page made again from the committed outcomes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from triform.errors import DataError
from triform.reproduce.outcome import blank, read, write
from triform.reproduce.page import pages, write_page
from triform.reproduce.system import Column
from triform.reproduce.systems import SYSTEMS
from triform.reproduce.tables import anchor, judgements, pairing_verdicts, section, shown, summary
from triform.reproduce.why import parts as why

ROOT = Path(__file__).parents[2]
MADE = {
    "device": "cpu, slow",
    "torch": "2.13",
    "triform": "0.1.0",
    "python": "3.12",
    "date": "2026-01-02",
    "command": "triform reproduce speeches-lm",
}


def made(name: str, setting: str, runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "setting": setting,
        "about": "",
        "settings": {},
        "parameters": 855_890,
        "seconds": 83.4,
        "trained_in": "fp32",
        "scored_in": "fp32",
        "vocabulary": 5698,
        "made": MADE,
        "curves": {"train": [[1, 8.5], [500, 5.0]]},
        "runs": [{"seed": seed, "steps": 500, "scores": scores} for seed, scores in enumerate(runs)],
        **more,
    }


def perplexities(obama: float, wbush: float, hbush: float) -> dict[str, dict[str, float]]:
    figures = {"obama": obama, "wbush": wbush, "hbush": hbush, "train": 160.0}
    return {name: {"perplexity": value} for name, value in figures.items()}


def outcome(system: str, *variants: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    return {**blank(system, quick=quick), "variants": list(variants)}


def test_a_mean_comes_with_half_its_interval() -> None:
    column = Column(set="test", score="accuracy", title="", kind="percent")
    # 0.80 and 0.82: deviation 0.014142, t of one degree of freedom 12.706, so 12.706 * 0.01
    assert shown(column, [0.80, 0.82]) == "81.00 ± 12.71 %"
    assert shown(column, [0.80]) == "80.00 %"
    assert shown(column, []) == "–"
    assert shown(Column(set="t", score="seconds", title="", kind="seconds"), [3.14159]) == "3.14 s"


def test_a_section_has_reported_and_own_figures_baselines_and_circumstances() -> None:
    runs = [perplexities(380.0, 480.0, 420.0), perplexities(382.0, 482.0, 422.0)]
    found = outcome("speeches-lm", made("as-reported", "as-reported", runs))
    found["baselines"] = {"ngram": {"obama": {"perplexity": 240.5}}}
    found["unfit"] = {"other": "too little text"}
    page = section(SYSTEMS["speeches-lm"], found)
    assert "| *reported, as-reported* | 375.02 | 476.34 | 414.64 | 162.97 |" in page
    assert "| **as-reported** | 381.00 ± 12.71 | 481.00 ± 12.71 | 421.00 ± 12.71 | 160.00 ± 0.00 |" in page
    assert "| 855,890 | 2 | 1 m 23 s |" in page
    assert "| **best** | not run |" in page
    assert "| baseline: ngram | 240.50 |" in page
    assert "| baseline: other | not fitted: too little text |" in page
    assert "| as-reported | `triform reproduce speeches-lm` | cpu, slow | torch 2.13, Triform 0.1.0" in page


def test_what_a_model_writes_is_shown() -> None:
    samples = [{"input": "", "output": "\nKING:\nAy."}, {"input": "JULIET: ", "output": "Nay.\n"}]
    found = outcome("shakespeare-char", made("best", "best", [{"valid": {"loss": 1.44}}], samples=samples))
    page = section(SYSTEMS["shakespeare-char"], found)
    assert "best goes on from nothing:\n\n```\nKING:\nAy.\n```" in page
    assert "best goes on after `JULIET: `:\n\n```\nJULIET: Nay.\n```" in page


def test_targets_are_judged_by_the_mean() -> None:
    system = SYSTEMS["speeches-lm"]
    near = made("as-reported", "as-reported", [perplexities(380.0, 480.0, 500.0)])
    best = made("best", "best", [perplexities(300.02, 381.0, 332.0)])
    said = judgements(system, outcome("speeches-lm", near, best))
    assert [line.rpartition(": ")[2] for line in said] == [
        *("reached", "reached", "**not reached**"),
        *("**not reached**", "reached", "**not reached**"),
    ]
    assert said[0].startswith("as-reported, Obama, perplexity: 380.00; wanted 337.52 to 412.52 (within 10 %")


def test_a_mean_of_just_the_target_reaches_it() -> None:
    """22,750 of 25,000 are 91 %, though the mean of these five numbers is a hair below it."""
    shares = (0.9092, 0.9102, 0.9086, 0.9118, 0.9102)
    for less, word in ((0.0, ": reached"), (1e-6, ": **not reached**")):
        runs = [{"test": {"accuracy": share - less}} for share in shares]
        said = judgements(SYSTEMS["imdb-encoder"], outcome("imdb-encoder", made("fine-tuned", "best", runs)))
        assert said[0].endswith(word)


def test_the_best_must_be_so_much_above_all_that_were_reported() -> None:
    def translated(name: str, setting: str, bleu: float) -> dict[str, Any]:
        return made(name, setting, [{"test beam 5": {"bleu": bleu}}])

    sets = [translated(f"set-{n}", "as-reported", 20.0 + n) for n in (1, 2, 3, 4)]
    low, high = (outcome("ted-en-fr", *sets, translated("best", "best", bleu)) for bleu in (28.5, 29.0))
    said = [judgements(SYSTEMS["ted-en-fr"], each)[1] for each in (low, high)]
    assert said[0].endswith("wanted 5 above the best of set-1, set-2, set-3, set-4, 29.00: **not reached**")
    assert said[1].endswith(": reached")
    some = outcome("ted-en-fr", *sets[1:], translated("best", "best", 40.0))
    assert judgements(SYSTEMS["ted-en-fr"], some)[1].endswith(": open, since set-1 was not run")


def test_paired_seeds_end_in_a_verdict() -> None:
    full = [perplexities(370.0 + n, 470.0 + n, 410.0 + n) for n in range(20)]
    window = [perplexities(360.0 + n + n % 2, 470.0 + n + (-1) ** n, 410.0 + n) for n in range(20)]
    found = outcome("speeches-window", made("full", "as-reported", full), made("window-8", "as-reported", window))
    said = pairing_verdicts(SYSTEMS["speeches-window"], found)
    assert "window-8 better by 9.50 ± 0.24 perplexity, corrected p < 0.001" in said[0]
    assert "no evidence of a difference" in said[1]
    assert "no difference at all" in said[2]
    assert len(said) == 3, "the other pairing was not run"


def test_seeds_that_only_one_of_two_has_are_left_out() -> None:
    runs = [perplexities(370.0 + n, 470.0, 410.0) for n in range(9)]
    other = [perplexities(360.0 + n, 471.0, 410.0) for n in range(8)]
    found = outcome("speeches-window", made("full", "as-reported", runs), made("window-8", "as-reported", other))
    assert "window-8 better by 10 ± 0" in pairing_verdicts(SYSTEMS["speeches-window"], found)[0]
    found = outcome(
        "speeches-window", made("full", "as-reported", runs), made("window-8", "as-reported", other[:1])
    )
    assert pairing_verdicts(SYSTEMS["speeches-window"], found) == []


def test_verdicts_are_corrected_for_all_that_were_looked_at() -> None:
    runs = [perplexities(370.0 + n, 470.0, 410.0) for n in range(8)]
    better = [perplexities(360.0 + n, 470.0, 410.0) for n in range(8)]
    names = ("full", "window-8", "full-converged", "window-8-converged")
    made_all = [made(name, "best", some) for name, some in zip(names, (runs, better, runs, better), strict=True)]
    one, both = (outcome("speeches-window", *some) for some in (made_all[:2], made_all))
    said = [pairing_verdicts(SYSTEMS["speeches-window"], each)[0] for each in (one, both)]
    assert "p = 0.023" in said[0], "3 times 2 / 2^8"
    assert "p = 0.047" in said[1], "6 times"


def test_one_seed_and_leaks_are_told() -> None:
    found = outcome("speeches-lm", made("best", "best", [perplexities(300.0, 381.0, 332.0)]))
    found["leaks"] = {
        "obama": {"rows": 250, "seen": 2},
        "wbush": {"rows": 250, "seen": 0},
        "hbush": {"rows": 9, "seen": 1},
    }
    page = section(SYSTEMS["speeches-lm"], found)
    assert "One seed, so no interval: best." in page
    assert "2 of the 250 texts of obama are also in the training file." in page
    assert "1 of the 9 texts of hbush is also in the training file." in page
    assert "wbush are" not in page


def test_a_section_says_what_each_variant_is() -> None:
    page = section(
        SYSTEMS["speeches-lm"], outcome("speeches-lm", made("best", "best", [perplexities(1.0, 1.0, 1.0)]))
    )
    for variant in SYSTEMS["speeches-lm"].variants:
        assert f"- {variant.name}: {variant.about}" in page


def test_a_quick_run_is_no_result() -> None:
    found = outcome("speeches-lm", made("best", "best", [perplexities(1.0, 1.0, 1.0)]), quick=True)
    assert "; wanted " not in section(SYSTEMS["speeches-lm"], found)
    assert "; wanted " in section(SYSTEMS["speeches-lm"], found | {"quick": False})
    assert "no figure means anything" in section(SYSTEMS["speeches-lm"], found)
    line = next(
        line
        for line in summary(
            SYSTEMS, {name: found if name == "speeches-lm" else None for name in SYSTEMS}
        ).splitlines()
        if line.startswith("| [speeches-lm]")
    )
    assert line.endswith("| not run | not run | – |")


def test_what_was_not_run_is_said_with_the_command_that_runs_it() -> None:
    page = pages(Path("nowhere"))[""]
    for name, system in SYSTEMS.items():
        assert f"Not run yet: `triform reproduce {name}`." in page
        assert f"](#{anchor(system.title)})" in page


def test_the_page_and_its_pictures_are_written(tmp_path: Path) -> None:
    found = outcome("speeches-lm", made("best", "best", [perplexities(300.0, 381.0, 332.0)]))
    write(tmp_path / "results", found)
    page = write_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert "![Loss over steps: speeches-lm](pictures/speeches-lm.svg)" in page.read_text()
    drawn = (tmp_path / "docs" / "pictures" / "speeches-lm.svg").read_text()
    assert drawn.startswith("<svg ")
    assert drawn.count("<polyline") == 1
    assert "best, train: 5" in drawn


@pytest.mark.parametrize("content", ["no json", "[]", '{"format": 99, "system": "speeches-lm"}', '{"format": 1}'])
def test_a_damaged_outcome_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "speeches-lm.json").write_text(content)
    with pytest.raises(DataError, match=r"speeches-lm\.json: is not an outcome of speeches-lm"):
        read(tmp_path, "speeches-lm")


def test_the_committed_page_is_what_the_committed_outcomes_make() -> None:
    for place, text in pages(ROOT / "results").items():
        path = ROOT / "docs" / place if place else ROOT / "docs" / "results.md"
        assert path.read_text(encoding="utf-8") == text, f"{path} is old: run `triform reproduce tables`"


def test_committed_outcomes_are_whole_and_finite() -> None:
    for path in (ROOT / "results").glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert not found["quick"]
        assert path.stem in {*SYSTEMS, why.NAME}
        parts = found["parts"].values() if path.stem == why.NAME else [found]
        for variant in (variant for part in parts for variant in part["variants"]):
            for run in variant["runs"]:
                assert all(math.isfinite(value) for scores in run["scores"].values() for value in scores.values())


def test_attention_is_drawn_from_what_the_outcome_holds(tmp_path: Path) -> None:
    seen = {
        "stack": "decoder",
        "heads": "each",
        "queries": ["a", "<b>"],
        "keys": ["a", "<b>"],
        "weights": [[[[1.0, 0.0], [0.25, 0.75]]], [[[1.0, 0.0], [0.0, 1.0]]]],
    }
    found = outcome("speeches-lm", made("best", "best", [perplexities(300.0, 381.0, 332.0)]) | {"map": seen})
    write(tmp_path / "results", found)
    page = write_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert "](pictures/speeches-lm-best-attention.svg)" in page.read_text()
    drawn = (tmp_path / "docs" / "pictures" / "speeches-lm-best-attention.svg").read_text()
    assert (drawn.count('class="cell"'), drawn.count('class="none"')) == (6, 2), "out of reach is a tint"
    assert drawn.count("&lt;b&gt;") == 3
    assert "layer 2, head 1" in drawn
