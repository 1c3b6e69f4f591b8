"""An old setting name is refused with one line that names the new one, wherever it is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triform.config.settings import RENAMED_SETTINGS

if TYPE_CHECKING:
    from conftest import Command


@pytest.mark.parametrize(("old_name", "new_name"), RENAMED_SETTINGS.items())
def test_an_old_name_on_the_command_line_is_answered_with_the_new_one(
    triform: Command, old_name: str, new_name: str
) -> None:
    assert triform("train", "classify", "--set", f"{old_name}=1").refusal == f"{old_name} is now {new_name}"


def test_so_is_one_without_its_section_or_in_another_one(triform: Command) -> None:
    assert triform("train", "classify", "--set", "reach=full").refusal == "reach is now model.attention_direction"
    refusal = triform("train", "classify", "--set", "train.reach=full").refusal
    assert refusal == "unknown setting 'train.reach'; model.reach is now model.attention_direction"


def test_so_is_one_beside_a_preset(triform: Command) -> None:
    result = triform("params", "--preset", "gpt2-small", "--set", "model.segments=2")
    assert result.refusal == "model.segments is now model.n_segments"


def test_so_is_one_in_a_config_file(triform: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\nbatch_size = 4\naccumulate = 2\n")
    result = triform("train", "classify", "--config", file)
    assert result.refusal == f"{file}: train.accumulate is now train.grad_accumulation"


def test_so_is_one_in_a_study(triform: Command, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'task = "classify"\n[variants.both]\nmodel = {reach = "both"}\n[variants.causal]\nmodel = {d_model = 8}\n'
    )
    result = triform("compare", file, "--out", tmp_path / "out")
    assert result.refusal == f"{file}: variants.both: model.reach is now model.attention_direction"


def test_an_unknown_name_that_was_never_one_still_offers_the_nearest(triform: Command) -> None:
    result = triform("train", "classify", "--set", "train.grad_acumulation=2")
    assert result.refusal.endswith("did you mean 'train.grad_accumulation'?")
