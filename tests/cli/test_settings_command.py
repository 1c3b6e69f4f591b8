"""`triform settings` explains all settings, a group or one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triform.config.reference import setting_groups
from triform.config.settings import SETTING_TYPES

if TYPE_CHECKING:
    from conftest import Command

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_all_settings_are_listed_with_one_line_each(triform: Command) -> None:
    result = triform("settings")
    assert result.code == 0
    listed = [line.split()[0] for line in result.out.splitlines() if line.split()[:1] and line.endswith(".")]
    assert [name for name in listed if name in SETTING_TYPES] == list(SETTING_TYPES)


def test_a_group_lists_its_settings_only(triform: Command) -> None:
    out = triform("settings", "decode").out
    assert out.startswith("decode: ")
    table = out.partition("\nsetting ")[2].splitlines()[1:]
    assert [line.split()[0] for line in table if line] == [n for n in SETTING_TYPES if n.startswith("decode.")]


@pytest.mark.parametrize("name", ["train.betas", "betas"])
def test_a_name_prints_everything_about_it(triform: Command, name: str) -> None:
    assert triform("settings", name).out.splitlines() == [
        "train.betas",
        "  meaning     The decay rates of the two moving averages of Adam.",
        "  type        list of numbers, 0 to 1",
        "  default     0.9,0.98",
        "  applies to  train.optimizer=adam, adamw or muon",
    ]


def test_one_setting_fits_into_80_columns(triform: Command) -> None:
    for name in SETTING_TYPES:
        assert max(map(len, triform("settings", name).out.splitlines())) <= 80


def test_json_has_every_field(triform: Command) -> None:
    assert [entry["name"] for entry in triform("settings", "--json").json] == list(SETTING_TYPES)
    (entry,) = triform("settings", "model.norm", "--json").json
    assert entry["choices"] == ["layer", "rms"]
    assert entry["default"] == "layer"
    assert entry["meaning"].endswith(".")
    (entry,) = triform("settings", "model.dropout", "--json").json
    assert (entry["default"], entry["bounds"]) == (0.1, [0, 0.95])


def test_markdown_is_the_page_of_the_documentation(triform: Command) -> None:
    assert triform("settings", "--markdown").out == PAGE.read_text(encoding="utf-8")


def test_an_unknown_name_offers_the_nearest(triform: Command) -> None:
    assert triform("settings", "model.n_head").refusal.endswith("did you mean 'model.n_heads'?")
    assert setting_groups()[3].name == "model"
    assert triform("settings", "modle").refusal.endswith("did you mean 'model'?")
