"""Every setting is documented beside its default, and docs/settings.md is made from these texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from triform.config import TASK_NAMES
from triform.config.reference import SettingInfo, find_settings, setting_groups, settings_page
from triform.config.settings import (
    AUTO_SETTINGS,
    DEFAULTS,
    SETTING_TYPES,
    build_config,
    coerce_setting,
    flatten_config,
    format_setting,
)
from triform.errors import ConfigError
from triform.tasks.defaults import resolve_defaults

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
INFOS = [info for group in setting_groups() for info in group.settings]
EVERY_SETTING = pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
CHOICES = [info for info in INFOS if info.choices]


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), (
        "run: triform settings --markdown > docs/settings.md"
    )


def test_every_setting_is_in_the_reference_once() -> None:
    assert [info.name for info in INFOS] == list(SETTING_TYPES)
    headings = re.findall(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(SETTING_TYPES)


@EVERY_SETTING
def test_a_setting_is_explained_in_whole_sentences(info: SettingInfo) -> None:
    meaning = info.doc.meaning
    assert re.fullmatch(r"[A-Z].{10,}\.", meaning), meaning
    assert ". " not in meaning.replace("etc. ", ""), "one sentence; the rest goes into the details"
    for text in (info.doc.auto, info.doc.details):
        assert not text or text.endswith("."), text
    assert not info.doc.applies_to.endswith(".")


@EVERY_SETTING
def test_texts_name_only_settings_and_values_that_exist(info: SettingInfo) -> None:
    texts = f"{info.doc.meaning} {info.doc.auto} {info.doc.details} {info.doc.applies_to}"
    for name, value in re.findall(r"\b((?:data|tokenizer|model|train|decode)\.\w+)(?:=(\w+))?", texts):
        assert name in SETTING_TYPES
        if value:
            coerce_setting(name, value)


def test_a_setting_that_is_chosen_from_the_data_says_how() -> None:
    assert {info.name for info in INFOS if info.doc.auto} >= AUTO_SETTINGS


@pytest.mark.parametrize("info", CHOICES, ids=lambda info: info.name)
def test_the_listed_choices_are_those_that_are_accepted(info: SettingInfo) -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = re.search(rf"^### {re.escape(info.name)}\n(?:.*\n)+?- Type: one of (.*)$", page, re.MULTILINE)
    assert listed
    for choice in listed[1].split(", "):
        assert is_accepted(info.name, choice)
    with pytest.raises(ConfigError) as refusal:
        coerce_setting(info.name, "something else")
    assert str(refusal.value).endswith(f"choose from {listed[1]}")


def is_accepted(name: str, choice: str) -> bool:
    """Return whether at least one task accepts a value."""
    for task in TASK_NAMES:
        try:
            settings = {"task": task, name: choice}
            return flatten_config(build_config(settings))[name] == choice
        except ConfigError:
            continue
    return False


@EVERY_SETTING
def test_a_default_can_be_written_as_an_option(info: SettingInfo) -> None:
    assert coerce_setting(info.name, format_setting(info.default)) == DEFAULTS[info.name]


def test_a_name_without_its_section_finds_the_settings_of_every_section() -> None:
    assert [info.name for info in find_settings("lr")] == ["train.lr"]
    assert [info.name for info in find_settings("kind")] == ["tokenizer.kind", "model.kind"]
    assert [info.name for info in find_settings("model.kind")] == ["model.kind"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("d_modell", "did you mean 'model.d_model'?"),
        ("train.dropout", "did you mean 'model.dropout'?"),
        ("train.learning_rate", "did you mean 'train.lr'?"),
        ("modle", "did you mean 'model'?"),
        ("qqq", "run `triform settings` to see all settings"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        find_settings(name)
    assert str(refusal.value) == f"unknown setting {name!r}; {hint}"


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("name", "task", "n_tokens", "value"),
    [
        *(("model.d_model", "classify", n, width) for n, width in ((5, 128), (6, 256), (50, 256), (51, 512))),
        *(("model.n_layers", "classify", n, count) for n, count in ((5, 2), (50, 4), (51, 6))),
        *(("model.n_heads", "classify", n, count) for n, count in ((50, 4), (51, 8))),
        *(
            ("train.epochs", task, 1, count)
            for task, count in (("classify", 8), ("generate", 15), ("translate", 10))
        ),
        *(("train.epochs", task, 2, count) for task, count in (("classify", 2), ("generate", 5), ("translate", 3))),
        *(("train.batch_tokens", "translate", n, count) for n, count in ((0.9, 1024), (1, 4096), (20, 16384))),
    ],
)
def test_automatic_defaults_are_those_that_the_text_names(
    name: str, task: str, n_tokens: float, value: int
) -> None:
    config = resolve_defaults(build_config({"task": task}), int(n_tokens * MILLION), {"data.max_len": 64})
    assert flatten_config(config)[name] == value
    (info,) = find_settings(name)
    assert re.search(rf"\b{value:,}\b", info.doc.auto)


@pytest.mark.parametrize(("d_model", "lr"), [(128, 2e-3), (129, 1e-3), (256, 1e-3), (257, 5e-4)])
def test_the_text_names_the_automatic_learning_rates(d_model: int, lr: float) -> None:
    config = build_config({"model.d_model": d_model, "model.n_heads": 1})
    assert resolve_defaults(config, MILLION, {"data.max_len": 64}).train.lr == lr
    (info,) = find_settings("train.lr")
    assert f"{lr:.0e}".replace("e-0", "e-") in info.doc.auto
