"""`triform explain`: pages and pictures of where a run looks, and refusals that come before any work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triform as package

Command = Callable[..., Any]
TEXTS = {"classifier": "the soup was lovely", "writer": "3 birds sat", "translator": "one and two"}
STACKS = {"classifier": ["encoder"], "writer": ["decoder"], "translator": ["encoder", "decoder", "cross"]}
FILE_SIGNATURES = {"html": b"<!doctype html>", "png": b"\x89png", "svg": b"<?xml"}
CROSS_NOTE = "note: each row of cross-attention is labelled with the token that is being generated\n"


@pytest.mark.parametrize("suffix", FILE_SIGNATURES)
@pytest.mark.parametrize("name", TEXTS)
def test_every_task_is_shown_in_every_kind_of_file(
    triform: Command, request: pytest.FixtureRequest, tmp_path: Path, name: str, suffix: str
) -> None:
    run, path = request.getfixturevalue(name), tmp_path / f"maps.{suffix}"
    result = triform("explain", run, TEXTS[name], "--out", path)
    assert result.code == 0, result.err
    assert path.read_bytes()[: len(FILE_SIGNATURES[suffix])].lower() == FILE_SIGNATURES[suffix]
    assert [
        line.split(":")[0] for line in result.out.splitlines() if " × " in line and " tokens" in line
    ] == STACKS[name]
    assert result.out.endswith(f"attention maps: {path}\n")
    assert result.err == (CROSS_NOTE if name == "translator" else "")


def test_the_label_is_said_with_the_words_that_moved_it_most(
    triform: Command, classifier: Path, tmp_path: Path
) -> None:
    path = tmp_path / "maps.html"
    out = triform("explain", classifier, TEXTS["classifier"], "--out", path).out.splitlines()
    label = package.load(classifier, device="cpu").predict([TEXTS["classifier"]])[0].output
    assert out[0] == f"{TEXTS['classifier']} → {label}"
    assert out[1] == "encoder: 1 layer × 2 heads, 4 × 4 tokens"
    assert out[2].startswith(f"{label} (integrated gradients): ")
    assert {word.split()[0] for word in out[2].partition(": ")[2].split(", ")} == set(TEXTS["classifier"].split())
    for target_label in ("good", "bad"):
        output = triform("explain", classifier, "the soup", "--target", target_label, "--out", path).out
        assert f"\n{target_label} (integrated gradients): " in output


@pytest.mark.parametrize("name", TEXTS)
def test_json_has_maps_tokens_and_attributions(
    triform: Command, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = request.getfixturevalue(name)
    report = triform("explain", run, TEXTS[name], "--json").json
    assert not list(tmp_path.iterdir()), "without --out nothing is written"
    explanation = package.load(run, device="cpu").explain(TEXTS[name])
    assert [report["text"], report["output"]] == [TEXTS[name], explanation.output]
    assert [item["name"] for item in report["maps"]] == STACKS[name]
    for written, item in zip(report["maps"], explanation.maps, strict=True):
        assert [written["queries"], written["keys"]] == [list(item.queries), list(item.keys)]
        np.testing.assert_allclose(np.array(written["weights"]), item.weights, rtol=1e-4, atol=1e-6)
    methods = ["integrated gradients", "gradient × input"] if name == "classifier" else []
    assert [item["method"] for item in report["attributions"]] == methods
    if name == "classifier":
        assert report["attributions"][0]["pieces"] == report["maps"][0]["keys"]
        assert report["attributions"][1]["total"] is None  # this method promises no sum


def test_json_and_a_file_can_be_had_together(triform: Command, translator: Path, tmp_path: Path) -> None:
    path = tmp_path / "cross.svg"
    report = triform("explain", translator, "one and two", "--json", "--stack", "cross", "--out", path).json
    assert [item["name"] for item in report["maps"]] == ["cross"]
    assert path.exists()


def test_a_translation_is_looked_at_beside_a_target(triform: Command, translator: Path, tmp_path: Path) -> None:
    path = tmp_path / "maps.html"
    result = triform("explain", translator, "one and two", "--target", "un et deux", "--out", path)
    assert result.out.startswith("one and two → un et deux\n")
    assert result.err == CROSS_NOTE


def test_a_continuation_is_looked_at_with_new_tokens(triform: Command, writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "maps.html"
    assert "3 × 3 tokens" in triform("explain", writer, "3 b", "--out", path).out
    assert "7 × 7 tokens" in triform("explain", writer, "3 b", "--target", "irds", "--out", path).out
    result = triform("explain", writer, "3 b", "--max-new-tokens", 4, "--out", path)
    tokens = int(result.out.partition("heads, ")[2].split()[0])
    assert 3 < tokens <= 7  # the end token may come early


def test_a_text_too_long_is_cut_with_a_note_on_standard_error(
    triform: Command, writer: Path, tmp_path: Path
) -> None:
    text = "3 birds sat in the tree"
    result = triform("explain", writer, text, "--out", tmp_path / "maps.svg")
    assert result.err == f"note: only the last 16 of {len(text)} tokens of the text were read\n"
    assert "16 × 16 tokens" in result.out


def test_one_map_can_be_chosen(triform: Command, translator: Path, tmp_path: Path) -> None:
    path = tmp_path / "maps.html"
    assert triform("explain", translator, "one", "--stack", "cross", "--out", path).code == 0
    page = path.read_text(encoding="utf-8")
    assert '"cross"' in page
    assert '"encoder"' not in page


def test_a_map_that_is_not_there_is_refused_by_naming_those_that_are(
    triform: Command, translator: Path, classifier: Path, tmp_path: Path
) -> None:
    path = tmp_path / "maps.html"
    result = triform("explain", translator, "one", "--stack", "nonsense", "--out", path)
    assert result.last_line == "there is no attention map 'nonsense'; available maps: encoder, decoder, cross"
    assert (
        "available maps: encoder"
        in triform("explain", classifier, "the", "--stack", "cross", "--out", path).refusal
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["maps.pdf", "maps", "html", ""])
def test_a_bad_suffix_is_refused_before_the_model_is_loaded(
    triform: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("triform.run.load", lambda *args, **kwargs: pytest.fail("the model was loaded"))
    refusal = triform("explain", tmp_path, "text", "--out", name).refusal
    assert refusal == f"cannot write {name!r}: the file name must end in .html, .png, .svg"


def test_a_missing_run_is_one_line(triform: Command, tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in triform("explain", tmp_path / "nowhere", "text").refusal


@pytest.mark.parametrize("text", ["", "  "])
@pytest.mark.parametrize("name", TEXTS)
def test_an_empty_text_is_refused_and_nothing_written(
    triform: Command, request: pytest.FixtureRequest, tmp_path: Path, name: str, text: str
) -> None:
    result = triform("explain", request.getfixturevalue(name), text, "--out", tmp_path / "maps.html")
    assert result.refusal == "the text is empty, so there is nothing to explain"
    assert not list(tmp_path.iterdir())


def test_wrong_use_is_one_line(triform: Command, classifier: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "maps.html")
    assert "unknown label 'ugly'" in triform("explain", classifier, "the soup", "--target", "ugly", *out).refusal
    assert "unknown device" in triform("explain", classifier, "the soup", "--device", "tpu", *out).refusal
    assert "missing argument" in triform("explain", classifier).refusal
    assert "new" in triform("explain", classifier, "the soup", "--max-new-tokens", -1, *out).refusal
    (tmp_path / "folder.html").mkdir()
    blocked = triform("explain", classifier, "the soup", "--out", tmp_path / "folder.html")
    assert blocked.code == 2
    assert len(blocked.err.splitlines()) == 1
    assert [child_path.name for child_path in tmp_path.iterdir()] == ["folder.html"]


def test_the_file_is_maps_html_unless_named(
    triform: Command, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert triform("explain", classifier, "the soup").code == 0
    assert [child_path.name for child_path in tmp_path.iterdir()] == ["maps.html"]


def test_python_and_the_command_line_see_the_same(triform: Command, classifier: Path, tmp_path: Path) -> None:
    path, python_path = tmp_path / "maps.html", tmp_path / "again.html"
    triform("explain", classifier, "the soup was awful", "--device", "cpu", "--out", path)
    package.load(classifier, device="cpu").explain("the soup was awful").save(python_path)
    assert path.read_bytes() == python_path.read_bytes()


def test_help_comes_without_loading_torch() -> None:
    code = (
        "import sys; sys.argv = ['triform', 'explain', '--help']\n"
        "from triform.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.endswith("False False\n")


def test_a_target_and_new_tokens_are_two_ways_to_go_on(triform: Command, writer: Path, tmp_path: Path) -> None:
    result = triform(
        "explain", writer, "one two", "--target", "x", "--max-new-tokens", "3", "--out", tmp_path / "m.html"
    )
    assert "--target and --max-new-tokens cannot be used together" in result.refusal


def test_new_tokens_are_for_a_writer_only(triform: Command, classifier: Path, tmp_path: Path) -> None:
    result = triform("explain", classifier, "one two", "--max-new-tokens", "3", "--out", tmp_path / "m.html")
    assert "--max-new-tokens is for generate; this run is for classify" in result.refusal


def test_a_place_that_cannot_be_written_to_is_named_as_it_was_given(triform: Command, classifier: Path) -> None:
    assert triform("explain", classifier, "good", "--out", "/proc/nowhere/m.html").last_line.startswith(
        "/proc/nowhere/m.html cannot be written"
    )


def test_words_never_seen_in_training_are_named(triform: Command, classifier: Path, tmp_path: Path) -> None:
    result = triform("explain", classifier, "good zyzzyva", "--out", tmp_path / "m.svg")
    assert "not in the vocabulary, so read as <unk>:" in result.err
    assert "'zyzzyva'" in result.err


def test_padding_and_sums_are_in_the_json_and_on_the_page(triform: Command, writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "maps.html"
    result = triform("explain", writer, "3 birds", "--pad-to", 10, "--out", path, "--json").json
    attention_map = result["maps"][0]
    assert (attention_map["n_padding"], attention_map["keys"][7:]) == (3, ["<pad>"] * 3)
    assert [(sums["padding"], sums["future"]) for sums in attention_map["sums"]] == [(0.0, 0.0)]
    assert '"padding":3' in path.read_text(encoding="utf-8")
    assert "cannot pad a text to 99 tokens" in triform("explain", writer, "3 birds", "--pad-to", 99).refusal
    first_part = triform("explain", writer, "3 birds sat in the tree", "--keep", "first", "--json").json["maps"][0]
    assert "".join(first_part["keys"]) == "3 birds sat in t"
    assert triform("explain", writer, "3 birds", "--keep", "x").refusal == "--keep x: choose first or last"
