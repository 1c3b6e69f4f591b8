"""Records of searches: what they keep, and that settings which a search did not choose are noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from reproduce.page import with_searches
from reproduce.systems import get_system, load_systems

from triform.errors import DataError
from triform.experiments.search import runner
from triform.experiments.search.record import (
    build_record,
    chosen_settings,
    describe_choice,
    read_record,
    write_record,
)

RECORDS = Path(__file__).parents[3] / "reproduce" / "results" / "search"


def test_a_record_has_the_whole_search_and_no_names_of_machines(
    write_space: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_space(("final_seeds = 0", "final_seeds = 2"), ("trials = 4", "trials = 2"))
    result = runner.search(path, out="out", device="cpu", quiet=True)
    write_record(tmp_path / "records" / "small.json", build_record(result, {"device": "cpu"}))
    record = read_record(tmp_path / "records" / "small.json")
    assert record["environment"] == {"device": "cpu"}
    assert record["space"]["common.data.train"].startswith("rows.tsv (")
    assert [trial["value"] for trial in record["trials"]] == [trial.value for trial in result.trials]
    assert all("worker" not in trial and trial["seconds"] > 0 for trial in record["trials"])
    assert str(tmp_path) not in (tmp_path / "records" / "small.json").read_text()
    assert [row["variant"] for row in record["comparison"]["variants"]] == [
        "default",
        f"trial-{record['best']['number']}",
    ]


def test_the_best_trial_is_chosen_unless_the_default_is_better_with_new_seeds() -> None:
    record = {
        "name": "small", "metric": "accuracy", "higher_is_better": True, "counts": {"tried": 7},
        "best": {"number": 3, "settings": {"train.lr": 0.1}}, "default": {"train.lr": 0.2}, "comparison": None,
    }  # fmt: skip
    assert chosen_settings(record) == ("trial-3", {"train.lr": 0.1})
    assert describe_choice({"train.lr": 0.1}, record) == "chosen by search: 7 trials, validation accuracy, trial 3"
    with pytest.raises(DataError, match=r"chose train\.lr=0\.1 \(trial-3\), not 0\.2"):
        describe_choice({"train.lr": 0.2}, record)
    rows = [{"variant": "default", "mean": 0.8}, {"variant": "trial-3", "mean": 0.7}]
    compared = record | {"comparison": {"variants": rows}}
    assert chosen_settings(compared) == ("default", {"train.lr": 0.2})
    assert describe_choice({"train.lr": 0.2}, compared).startswith(
        "kept after a search: with new seeds, the best of 7 trials"
    )
    assert chosen_settings(compared | {"higher_is_better": False})[0] == "trial-3"


def test_every_system_that_names_a_search_has_the_settings_that_it_chose() -> None:
    names = {variant.search for system in load_systems().values() for variant in system.variants if variant.search}
    assert names
    assert names == {path.stem for path in RECORDS.glob("*.json")}
    for system in load_systems().values():
        with_searches(system, RECORDS)
    system = get_system("speeches-classifier")
    changed = [replace(variant, settings=variant.settings | {"train.lr": 0.03}) for variant in system.variants]
    with pytest.raises(DataError, match=r"chose train\.lr=0\.002 \(default\), not 0\.03"):
        with_searches(replace(system, variants=tuple(changed)), RECORDS)
