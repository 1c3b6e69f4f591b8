"""`triform config show` prints the settings that training would use, or used, and where each comes from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triform.config.settings import SETTING_TYPES, flatten_config
from triform.io.run_config import read_run_config

if TYPE_CHECKING:
    from conftest import Command, DataFiles

SETTINGS_FILE = "[train]\nweight_decay = 0.1\nbatch_size = 4\n"


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(SETTINGS_FILE)
    return file


def read_table(out: str) -> dict[str, tuple[str, str]]:
    """Return value and source of each setting from the printed table."""
    rows = [line.split(maxsplit=2) for line in out.splitlines()[1:]]
    return {name: (value, source) for name, value, source in rows}


# -- presets, files and options


def test_a_preset_shows_every_setting_and_its_source(triform: Command) -> None:
    table = read_table(triform("config", "show", "multi30k-tiny").out)
    assert list(table) == list(SETTING_TYPES)
    assert table["task"] == ("translate", "preset multi30k-tiny")
    assert table["model.d_ff"] == ("256", "preset multi30k-tiny")
    assert table["model.norm"] == ("layer", "default")
    assert table["train.log_every"] == ("auto", "chosen from the data")


def test_options_come_before_the_file_and_the_file_before_the_preset(triform: Command, settings_file: Path) -> None:
    arguments = ("--config", settings_file, "--lr", "0.5", "--set", "model.d_model=32")
    table = read_table(triform("config", "show", "small", "--task", "classify", *arguments).out)
    assert table["task"] == ("classify", "option")
    assert table["model.n_layers"] == ("4", "preset small")
    assert table["train.weight_decay"] == ("0.1", f"file {settings_file}")
    assert table["model.d_model"] == ("32", "option")
    assert table["train.lr"] == ("0.5", "option")
    assert table["train.batch_tokens"] == ("0", "default"), "the file sets train.batch_size instead"


def test_the_task_can_be_set_like_any_other_setting(triform: Command) -> None:
    table = read_table(triform("config", "show", "tiny", "--set", "task=translate").out)
    assert table["task"] == ("translate", "option")
    assert table["data.labels"] == ("none", "default"), "only classify has labels"


def test_a_file_can_be_the_argument_and_lies_over_a_preset(triform: Command, settings_file: Path) -> None:
    result = triform("config", "show", settings_file, "--preset", "tiny", "--json").json
    assert result["train.batch_size"] == {"value": 4, "source": f"file {settings_file}"}
    assert result["model.d_model"] == {"value": 64, "source": "preset tiny"}
    assert result["data.max_len"] == {"value": None, "source": "chosen from the data"}
    assert result["decode.strategy"] == {"value": None, "source": "default"}


def test_what_is_shown_is_what_training_uses(
    triform: Command, train: Command, files: DataFiles, settings_file: Path, tmp_path: Path
) -> None:
    options = ("--config", settings_file, "--set", "data.max_len=12", "--max-steps", "2")
    preview = triform("config", "show", "tiny", *options, "--json").json
    run = tmp_path / "run"
    result = triform(
        *("train", "classify", "--preset", "tiny", *options, "--data", files.csv, "--out", run, "--device", "cpu")
    )
    assert result.code == 0, result.err
    trained = triform("config", "show", run, "--json").json
    for name, entry in preview.items():
        if entry["value"] is not None and name != "task":
            assert trained[name] == entry, name
    used = flatten_config(read_run_config(run))
    assert {name: entry["value"] for name, entry in trained.items() if entry["value"] is not None}.items() <= {
        name: list(value) if isinstance(value, tuple) else value for name, value in used.items()
    }.items()
    assert trained["train.lr"] == {"value": 0.002, "source": "chosen from the data"}
    assert trained["data.train"] == {"value": str(files.csv), "source": "option"}
    assert trained["data.valid"] == {"value": "", "source": "default"}
    shutil.rmtree(run)


# -- runs


def test_a_run_that_is_trained_longer_records_the_new_source(
    triform: Command, classifier: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(classifier, run)
    before = triform("config", "show", run, "--json").json
    assert before["train.max_steps"] == {"value": 4, "source": "option"}
    assert before["train.epochs"]["source"] == "default"
    (run / "mine.toml").write_text("[train]\nmax_steps = 5\n")
    arguments = ("--resume", "--device", "cpu", "--quiet", "--config", run / "mine.toml")
    assert triform("train", "classify", "--out", run, *arguments).code == 0
    after = triform("config", "show", run, "--json").json
    assert after["train.max_steps"] == {"value": 5, "source": f"file {run / 'mine.toml'}"}
    assert {**after, "train.max_steps": None} == {**before, "train.max_steps": None}


def test_a_run_without_recorded_sources_says_so(triform: Command, classifier: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(classifier, run)
    (run / "sources.json").unlink()
    table = read_table(triform("config", "show", run, "--set", "decode.top_k=3").out)
    assert table["model.d_model"] == ("16", "saved in the run")
    assert table["model.norm"] == ("layer", "default")
    assert table["decode.top_k"] == ("3", "option")
    arguments = ("--resume", "--max-steps", "5", "--device", "cpu", "--quiet")
    assert triform("train", "classify", "--out", run, *arguments).code == 0
    assert not (run / "sources.json").exists(), "the sources of the other settings are still unknown"


def test_settings_of_a_base_run_are_named_as_such(triform: Command, classifier: Path) -> None:
    table = read_table(triform("config", "show", "--from", classifier, "--set", "model.dropout=0.3").out)
    assert table["model.d_model"] == ("16", "base run")
    assert table["model.dropout"] == ("0.3", "option")
    assert table["train.init_from"] == (str(classifier), "option")


# -- bad input


@pytest.mark.parametrize(
    ("target", "refusal"),
    [
        ("smal", "smal: no such run folder or file, and no preset has this name; did you mean 'small'?"),
        ("runs/none", "runs/none: no such run folder or file"),
        ("none.toml", "none.toml: no such file"),
    ],
)
def test_a_target_that_does_not_exist_is_refused(triform: Command, target: str, refusal: str) -> None:
    assert triform("config", "show", target).refusal == refusal


def test_a_broken_file_is_refused_with_its_line(triform: Command, tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("[train]\nlr = \n")
    refusal = triform("config", "show", file).refusal
    assert refusal.startswith(f"{file}: not valid TOML: ")
    assert "line 2" in refusal


def test_an_unknown_key_offers_the_nearest(triform: Command, tmp_path: Path) -> None:
    file = tmp_path / "typo.toml"
    file.write_text("[train]\nbatchsize = 4\n")
    refusal = triform("config", "show", file).refusal
    assert refusal == f"{file}: unknown setting 'train.batchsize'; did you mean 'train.batch_size'?"
    assert triform("config", "show", "tiny", "--preset", "small").refusal.endswith("give only one preset")
    assert triform("config", "show", file, "--config", file).refusal.endswith("give only one file")


def test_a_folder_that_is_no_run_and_a_damaged_run_are_refused(
    triform: Command, classifier: Path, tmp_path: Path
) -> None:
    assert "is not a run folder" in triform("config", "show", tmp_path).refusal
    run = tmp_path / "run"
    shutil.copytree(classifier, run)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text[: len(text) // 2])
    assert f"{run / 'config.toml'} does not match digests.json" in triform("config", "show", run).refusal
    assert f"{run} is damaged" in triform("config", "show", run, "--no-verify").refusal
    (run / "config.toml").write_text(text)
    (run / "sources.json").write_text("[1]")
    assert "sources.json is damaged" in triform("config", "show", run).refusal
    assert "whose settings are final" in triform("config", "show", run, "--preset", "tiny").refusal
