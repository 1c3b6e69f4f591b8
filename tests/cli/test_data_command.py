"""`triform data`, as typed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Command


def test_sets_are_listed(triform: Command) -> None:
    lines = triform("data", "list").out.splitlines()
    assert lines[0].split() == ["dataset", "size", "licence", "description"]
    assert any(line.startswith("tinyshakespeare") and "public domain" in line for line in lines)
    files = triform("data", "list", "--json").json["multi30k_en_de"]["files"]
    assert files["train.en"]["bytes"] == 1_801_238


def test_an_empty_folder_holds_no_known_set(triform: Command, tmp_path: Path) -> None:
    assert "there is no known dataset here" in triform("data", "check", "--data", tmp_path).refusal


def test_an_altered_set_is_refused(triform: Command, tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not?\n")
    refused = triform("data", "check", "--data", tmp_path).refusal
    assert "this is not the expected input.txt: its sha256 is " in refused
    assert ", expected 86c4e6aa9db7c042" in refused
    assert refused.endswith(
        f"remove it and download it again with `triform data get tinyshakespeare --data {tmp_path}`"
    )


def test_a_set_made_by_hand_says_how(triform: Command, tmp_path: Path) -> None:
    assert "seed 20240613" in triform("data", "get", "imdb", "--data", tmp_path).refusal
