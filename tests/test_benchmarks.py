"""The benchmarks run; what they measure is not a test's affair."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import distributed, timing
from benchmarks.__main__ import find_benchmarks
from benchmarks.__main__ import main as front_door
from benchmarks.report import format_ratio

from triform import world
from triform.nn.kernels.int8 import int8_unavailable_reason
from warm_processes import run_python

ROOT = Path(__file__).parents[1]
OWN_CONTESTANTS = ["triform", *([] if int8_unavailable_reason() else ["triform int8"])]
DECODERS = ["triform fp32", *OWN_CONTESTANTS[1:], "ctranslate2 float32", "ctranslate2 int8", "transformers"]
NUMBERS = ("un", "deux", "trois", "quatre", "cinq", "six", "sept")
PAIRS = [
    f"{a} and {b} make {a + b}.\t{NUMBERS[a]} et {NUMBERS[b]} font {a + b}." for a in range(7) for b in range(7)
]
EXPECTED_CONTESTANTS = {  # who takes part in each, with the packages that must be there
    "attention": (["triform", "torch, full causal", "padded"], []),
    "classify": (
        [*OWN_CONTESTANTS, "nn, padded to the batch's longest", "scikit-learn, TF-IDF, for scale"],
        ["sklearn"],
    ),
    "distributed": (["triform", "DDP", "FSDP"], []),
    "generate": (DECODERS, ["transformers", "ctranslate2"]),
    "translate": (DECODERS, ["transformers", "ctranslate2"]),
    "scratch": (["triform scratch", "triform", "torch.nn eager"], []),
    "start": (["triform predict", "python, import torch"], []),
    "studio": (["triform, first", "triform, again", "triform"], []),
    "training": (["triform", "torch.nn eager", "plain PyTorch eager"], []),
}


def run_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def warm_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Benchmarks start processes that have imported torch, and may be the only process of a group themselves."""
    run = partial(run_python, log_file=tmp_path / "log.txt")
    monkeypatch.setattr(distributed, "subprocess", SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL))
    for name in distributed.SINGLE_PROCESS_VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is removed at the end
        del os.environ[name]
    yield
    world._open_store.cache_clear()


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("name", EXPECTED_CONTESTANTS)
def test_a_benchmark_runs_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    contestants, packages = EXPECTED_CONTESTANTS[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    arguments = (name, "--smoke", "--device", "cpu", "--json", str(tmp_path / "new" / "f.json"))
    assert front_door(list(arguments)) == 0
    figures = json.loads((tmp_path / "new" / "f.json").read_text(encoding="utf-8"))
    assert figures["name"] == name
    assert all(figures[key] for key in ("machine", "cpu", "threads", "torch", "date", "smoke"))
    timed_rows = [row for row in figures["rows"] if "median" in row]
    assert set(contestants) <= {row["who"] for row in timed_rows}
    assert all(row["median"] > 0 for row in timed_rows)
    shares = {row["who"]: row["share"] for row in figures["rows"] if "share" in row}
    exact_shares = {name: share for name, share in shares.items() if "int8" not in name}
    assert all(share == 1 for share in exact_shares.values()), "contestants do not do the same work"
    assert bool(exact_shares) == (name in ("classify", "generate", "translate"))


def test_the_time_to_a_loss_is_measured_for_each_optimizer(tmp_path: Path) -> None:
    arguments = ["time_to_loss", "--smoke", "--device", "cpu", "--json", str(tmp_path / "f.json")]
    assert front_door(arguments) == 0
    peer, *rows = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    assert [row["what"] for row in rows] == ["triform adamw, 10 steps", "triform muon, 10 steps"]
    for row in rows:
        assert row["time_ratio"] == pytest.approx(row["seconds"] / peer["seconds"])
        assert row["reached"] == (row["loss"] <= peer["loss"])


def test_the_defaults_are_compared_on_the_same_held_out_text(tmp_path: Path) -> None:
    assert front_door(["defaults", "--smoke", "--json", str(tmp_path / "f.json")]) == 0
    own, ngrams, mixed, peer = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    assert own["what"] == "triform, default settings, 10 steps"
    assert max(mixed["bits_per_byte"], ngrams["bits_per_byte"]) < own["bits_per_byte"]
    assert own["seconds"] > 0
    assert 0 < peer["bits_per_byte"] < 10


def test_the_default_translator_is_compared_on_the_same_test_set(tmp_path: Path) -> None:
    for side, split in (("en", 0), ("fr", 1)):
        lines = [example.split("\t")[split] for example in PAIRS]
        (tmp_path / f"pairs.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = f"{tmp_path / 'pairs.en'},{tmp_path / 'pairs.fr'}"
    arguments = [
        "--data",
        data,
        "--pairs",
        "30",
        "--valid",
        data,
        "--test",
        data,
        "--json",
        str(tmp_path / "f.json"),
    ]
    assert front_door(["translation_defaults", "--smoke", *arguments]) == 0
    own, baseline, peer = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    assert own["what"] == "triform, 1 layer of width 16, 10 steps"
    assert 0 <= min(own["bleu"], peer["bleu"]) < baseline["bleu"] <= 100
    assert peer["seconds"] >= own["seconds"] > 0
    assert peer["logit_difference"] < 1e-5, "the peer is not translated with its own weights"


def test_the_list_names_every_benchmark_with_one_line_each() -> None:
    completed = run_benchmark()
    assert completed.returncode == 0
    lines = dict(line.split(maxsplit=1) for line in completed.stdout.splitlines())
    assert lines.keys() == {*find_benchmarks(), "all"}
    assert set(EXPECTED_CONTESTANTS) <= lines.keys()
    assert all(line.endswith(".") for line in find_benchmarks().values())


def test_an_unknown_benchmark_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert front_door(["wings"]) == 2
    assert f"no benchmark 'wings'; choose from {', '.join(find_benchmarks())}" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("start", "--quick"), ("audit", "--quick"), ("all", "--quick")])
def test_the_old_name_of_an_option_is_answered_with_the_new_one(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        front_door(list(arguments))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "no such option --quick; it is called --smoke now.\n"


def test_all_runs_each_in_its_own_process_and_says_which_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []

    def run(arguments: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        calls.append(arguments[3:])
        return subprocess.CompletedProcess(arguments, returncode=int(arguments[3] == "start"))

    monkeypatch.setattr("benchmarks.__main__.subprocess.run", run)
    assert front_door(["all", "--smoke", "--device", "cpu", "--json", str(tmp_path)]) == 1
    assert ["attention", "--smoke", "--device", "cpu", "--json", str(tmp_path / "attention.json")] in calls
    assert [arguments[0] for arguments in calls] == list(find_benchmarks())
    captured = capsys.readouterr()
    assert f"figures as JSON: {tmp_path}/" in captured.out
    assert captured.err == "failed: start\n"


def test_a_slower_result_is_called_slower() -> None:
    assert (format_ratio(2.0), format_ratio(0.8)) == ("2.00×", "0.80×: slower")


def test_the_products_benchmark_measures_every_product(tmp_path: Path) -> None:
    from benchmarks.products import ROWS, main

    main(["--smoke", "--device", "cpu", "--json", str(tmp_path / "f.json")])
    rows = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    names = {"triform", "F.linear", "oneDNN", "8 parts of the weights in a batch"}
    for n_rows in ROWS:
        assert {row["who"] for row in rows if row["what"] == f"{n_rows} rows"} == names
    assert all(row["best_ms"] > 0 for row in rows)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_documents_have_no_place_left_to_be_filled(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^[A-Z]+_[A-Z_]+$|TODO|FIXME", text, re.MULTILINE)
    for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (page.parent / image).exists(), image


def test_the_benchmark_of_the_server_runs_and_writes_its_figures(tmp_path: Path) -> None:
    assert front_door(["serve", "--smoke", "--device", "cpu", "--json", str(tmp_path / "f.json")]) == 0
    rows = {row["what"]: row for row in json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]}
    assert {"1 client", "8 clients", "8 clients, classify", "8 clients, complete", "8 clients, translate"} <= set(
        rows
    )
    assert not rows["8 clients"]["errors"], rows["8 clients"]["first_errors"]
    assert rows["/health under load"]["p99_ms"] > 0
    assert rows["throughput of 8 clients"]["times_one_client"] > 0
    assert rows["memory of the server"].keys() >= {"before_mib", "after_mib"}


def test_the_benchmark_of_attacks_runs_and_other_clients_are_served(tmp_path: Path) -> None:
    assert front_door(["attacks", "--smoke", "--device", "cpu", "--json", str(tmp_path / "f.json")]) == 0
    (row,) = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    assert row["requests"] > row["errors"] == 0, row["first_errors"]
