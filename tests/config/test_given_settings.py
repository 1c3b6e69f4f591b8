"""A setting counts as given if somebody gave it, whatever its default is."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

import triform
from triform.config import Config, DataConfig, ModelConfig, TrainConfig
from triform.config.merging import merge_request
from triform.config.presets import preset
from triform.config.settings import DEFAULTS, build_config, merge_settings, to_toml
from triform.io.run_config import read_setting_sources

TINY = {"d_model": 8, "n_layers": 1, "n_heads": 2}
EQUAL_TO_DEFAULTS = Config(
    seed=0, model=ModelConfig(dropout=0.1), train=replace(TrainConfig(), label_smoothing=0.0, betas=(0.9, 0.98))
)
GIVEN = {"seed", "model.dropout", "train.label_smoothing", "train.betas"}


def given_names(config: Config | Path, name: str = "", **settings: object) -> set[str]:
    """The settings that a training counts as given, without the task."""
    return merge_request("classify", name, config, settings).keys() - {"task"}  # type: ignore[arg-type]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.tsv"
    path.write_text("".join(f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(60)))
    return path


def test_the_values_of_this_test_are_the_defaults() -> None:
    assert Config() == EQUAL_TO_DEFAULTS
    assert hash(EQUAL_TO_DEFAULTS) == hash(Config())
    assert repr(EQUAL_TO_DEFAULTS) == repr(Config())
    assert asdict(EQUAL_TO_DEFAULTS) == asdict(Config())


def test_a_config_gives_what_its_sections_were_given(rows: Path, tmp_path: Path) -> None:
    """The default dropout of a small classifier is 0.5, and its default label smoothing 0.1."""
    travelled = copy.deepcopy(pickle.loads(pickle.dumps(EQUAL_TO_DEFAULTS)))
    config = replace(travelled, data=DataConfig(train=str(rows)))
    run = triform.train("classify", config=config, out=tmp_path / "run", device="cpu", quiet=True)
    assert (run.config.model.dropout, run.config.train.label_smoothing) == (0.1, 0.0)
    assert (run.config.model.d_model, run.config.train.weight_decay) == (64, 0.1)  # not given, so chosen
    sources = read_setting_sources(run.path)
    assert sources is not None
    assert {name for name, source in sources.items() if source == "option"} == {*GIVEN, "task", "data.train"}


@pytest.mark.parametrize(
    "travel", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config)), replace]
)
def test_copies_and_replacements_keep_what_was_given(travel: object) -> None:
    config: Config = travel(EQUAL_TO_DEFAULTS)  # type: ignore[operator]
    assert given_names(config) == GIVEN
    deeper = replace(config, model=replace(travel(config.model), activation="gelu"))  # type: ignore[operator]
    assert given_names(deeper) == GIVEN | {"model.activation"}
    assert given_names(build_config({"decode.beam_size": DEFAULTS["decode.beam_size"]}, deeper)) == (
        GIVEN | {"model.activation", "decode.beam_size"}
    )


def test_nothing_is_given_by_an_empty_config() -> None:
    assert given_names(Config()) == set()
    assert given_names(Config(model=ModelConfig(), train=replace(TrainConfig()))) == set()
    assert given_names(build_config({})) == set()


def test_a_preset_gives_what_it_names_and_yields_to_a_config(tmp_path: Path) -> None:
    named = given_names(preset("tiny", "classify"))
    assert named == {"model.d_model", "model.n_layers", "model.n_heads", "model.d_ff"}
    assert given_names(EQUAL_TO_DEFAULTS, "tiny") == named | GIVEN
    merged = merge_request("translate", "ted-set2", Config(model=ModelConfig(dropout=0.1)), {})
    assert merged["model.dropout"] == 0.1, "the preset has 0.2"
    assert merge_request("translate", "ted-set1", None, {})["model.dropout"] == 0.1


def test_a_file_gives_what_stands_in_it(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("seed = 0\n[model]\ndropout = 0.1\n")
    assert given_names(tmp_path / "settings.toml") == {"seed", "model.dropout"}
    (tmp_path / "all.toml").write_text(to_toml(Config(), {}))
    assert given_names(tmp_path / "all.toml") == DEFAULTS.keys() - {"task"}


def test_a_config_that_was_read_from_a_run_gives_everything(rows: Path, tmp_path: Path) -> None:
    settings = {"data": rows, "device": "cpu", "quiet": True}
    base = triform.train("classify", out=tmp_path / "base", model=TINY, train={"max_steps": 2}, **settings)
    for config in (base.config, triform.load(base.path, device="cpu").config):
        assert given_names(config) == DEFAULTS.keys() - {"task"}
    again = triform.train("classify", config=base.config, out=tmp_path / "again", **settings)
    assert again.config == base.config
    tuned = triform.train("classify", config=base.config, init_from=base.path, out=tmp_path / "tuned", **settings)
    assert tuned.config.tokenizer.file == str(base.path / "tokenizer.json")
    assert tuned.config.model == base.config.model


def test_of_two_settings_that_exclude_each_other_the_later_one_counts() -> None:
    windows = {"model.layer_windows": (8, -1)}
    assert merge_settings(windows, {"model.window": DEFAULTS["model.window"]}) == {"model.window": -1}
    steps = {"train.max_steps": 5}
    assert merge_settings(steps, {"train.epochs": 0.0})["train.max_steps"] == 5  # 0 epochs choose nothing


def test_a_resume_takes_a_given_default_too(rows: Path, tmp_path: Path) -> None:
    settings = {"data": rows, "device": "cpu", "quiet": True, "model": TINY, "out": tmp_path / "run"}
    triform.train("classify", train={"max_steps": 2, "parallel": "ddp"}, **settings)
    run = triform.train("classify", train={"max_steps": 3, "parallel": "auto"}, resume=True, **settings)
    assert (run.config.train.max_steps, run.config.train.parallel) == (3, "auto")


def test_what_was_given_is_no_setting() -> None:
    sections = (Config(), *(getattr(Config(), item.name) for item in fields(Config())[2:]))
    assert all("given" not in {item.name for item in fields(section)} for section in sections)
