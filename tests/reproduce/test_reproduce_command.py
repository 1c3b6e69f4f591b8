"""`python -m reproduce` and `triform data`, as typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduce.result_file import empty_result, write_result

Command = Any  # the fixture of conftest.py, which gives the output or the refusal


def test_systems_are_listed(reproduce: Command) -> None:
    assert "speeches-lm" in reproduce("list").out
    listed = reproduce("list", "--json").json
    assert listed["ted-en-fr"]["variants"]["set-4"]["setting"] == "as-reported"


def test_an_unknown_system_is_refused(reproduce: Command) -> None:
    assert "did you mean 'imdb-encoder'?" in reproduce("imdb-encode").refusal


def test_an_unknown_variant_of_one_of_several_systems_is_refused(reproduce: Command) -> None:
    refused = reproduce("positions", "--variant", "alibi-2").refusal
    assert refused.startswith("--variant alibi-2: positions-classify has no such variant; choose from both, best")


def test_no_seeds_are_refused(reproduce: Command) -> None:
    for seeds in (0, -1):
        assert (
            f"--seeds {seeds}: each variant needs at least 1 seed"
            in reproduce("speeches-lm", "--seeds", seeds).refusal
        )


def test_a_system_without_its_data_names_the_file_and_the_command(reproduce: Command, tmp_path: Path) -> None:
    refused = reproduce("speeches-lm", "--data", tmp_path).refusal
    assert refused.startswith(
        f"{tmp_path}/speeches/train_CLS.tsv: the file is missing; download it with `triform data get speeches"
    )


def test_the_study_apart_from_the_systems_is_among_the_known_names(reproduce: Command) -> None:
    assert "why-transformers" in reproduce("zzz").refusal
    assert "did you mean 'why-transformers'?" in reproduce("why-transformer").refusal


def test_a_folder_without_results_does_not_replace_a_page(reproduce: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("earlier")
    refused = reproduce("tables", "--results", tmp_path / "nowhere", "--out", page).refusal
    assert refused.startswith(f"{tmp_path}/nowhere: no results found")
    assert page.read_text() == "earlier"


def test_the_page_is_made_from_what_there_is(reproduce: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_result(tmp_path, empty_result("speeches-lm", smoke=False))
    result = reproduce("tables", "--results", tmp_path, "--out", page)
    assert result.out == f"page: {page}\n"
    assert "Not run yet" in (tmp_path / "results" / "speeches-lm.md").read_text()
