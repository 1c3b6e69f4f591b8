"""The benchmarks run; what they measure is not a test's affair."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import benchmarks
from benchmarks.__main__ import main as front_door
from benchmarks.board import verdict

from triform.nn.quantize import trouble

ROOT = Path(__file__).parents[1]
OWN = ["triform", *([] if trouble() else ["triform int8"])]
DECODERS = ["triform fp32", *OWN[1:], "ctranslate2 float32", "ctranslate2 int8", "transformers"]
WHO = {  # who takes part in each, with the packages that must be there
    "attention": (["triform", "torch, full causal", "padded"], []),
    "classify": ([*OWN, "nn, padded to the batch's longest", "scikit-learn, TF-IDF, for scale"], ["sklearn"]),
    "generate": (DECODERS, ["transformers", "ctranslate2"]),
    "translate": (DECODERS, ["transformers", "ctranslate2"]),
    "scratch": (["triform scratch", "triform", "torch.nn eager"], []),
    "start": (["triform predict", "python, import torch"], []),
    "training": (["triform", "torch.nn eager", "plain PyTorch eager"], []),
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", WHO)
def test_a_benchmark_runs_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    who, packages = WHO[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = bench(name, "--quick", "--device", "cpu", "--json", str(tmp_path / "new" / "f.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "new" / "f.json").read_text(encoding="utf-8"))
    assert found["name"] == name
    assert all(found[key] for key in ("machine", "cpu", "threads", "torch", "date", "quick"))
    raced = [row for row in found["rows"] if "median" in row]
    assert set(who) <= {row["who"] for row in raced}
    assert all(row["median"] > 0 for row in raced)
    agreed = {row["who"]: row["share"] for row in found["rows"] if "share" in row}
    exact = {name: share for name, share in agreed.items() if "int8" not in name}
    assert all(share == 1 for share in exact.values()), "contestants do not do the same work"
    assert bool(exact) == (name in ("classify", "generate", "translate"))


def test_the_list_names_every_benchmark_with_one_line_each() -> None:
    done = bench()
    assert done.returncode == 0
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines.keys() == {*benchmarks(), "all"}
    assert set(WHO) <= lines.keys()
    assert all(line.endswith(".") for line in benchmarks().values())


def test_an_unknown_benchmark_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert front_door(["wings"]) == 2
    assert "no benchmark 'wings'; known are attention, audit, classify" in capsys.readouterr().err


def test_all_runs_each_in_its_own_process_and_says_which_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        asked.append(arguments[3:])
        return subprocess.CompletedProcess(arguments, returncode=int(arguments[3] == "start"))

    monkeypatch.setattr("benchmarks.__main__.subprocess.run", run)
    assert front_door(["all", "--quick", "--device", "cpu", "--json", str(tmp_path)]) == 1
    assert asked[0] == ["attention", "--quick", "--device", "cpu", "--json", str(tmp_path / "attention.json")]
    assert [arguments[0] for arguments in asked] == list(benchmarks())
    said = capsys.readouterr()
    assert f"figures as JSON: {tmp_path}/" in said.out
    assert said.err == "failed: start\n"


def test_a_slower_result_is_called_slower() -> None:
    assert (verdict(2.0), verdict(0.8)) == ("2.00×", "0.80×: slower")


def test_the_populations_benchmark_runs_and_writes_its_figures(tmp_path: Path) -> None:
    from benchmarks.populations import main

    main(["--quick", "--device", "cpu", "--json", str(tmp_path / "f.json")])
    rows = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    assert [row["seeds"] for row in rows] == [1, 3]
    assert all(row["model_steps_per_s"] > 0 for row in rows)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_documents_have_no_place_left_to_be_filled(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^[A-Z]+_[A-Z_]+$|TODO|FIXME", text, re.MULTILINE)
    for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (page.parent / image).exists(), image
