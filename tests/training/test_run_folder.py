"""A run folder's settings: whole, or not opened at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from triform.config import Config
from triform.config.merging import describe_sources
from triform.config.settings import DEFAULTS, build_config
from triform.errors import CheckpointError
from triform.io.run_config import read_setting_sources
from triform.io.run_layout import DIGESTS_FILE, LAST_CONFIG_KEY
from triform.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run_folder = RunFolder(tmp_path / "run")
    run_folder.path.mkdir()
    return run_folder


def test_settings_cut_anywhere_are_damaged_even_where_they_are_still_toml(folder: RunFolder) -> None:
    config = build_config({"data.train": "/far/away/rows.csv", "decode.max_new_tokens": 200, "model.d_model": 64})
    folder.write_config(config)
    content = folder.config_file.read_bytes()
    assert folder.read_config() == config
    (folder.path / DIGESTS_FILE).unlink()  # without digests damage must be noticed too
    ends = {index for index, byte in enumerate(content) if byte == ord("\n")}
    cuts = {*range(0, len(content), 23), *ends, *(end + 1 for end in ends), *range(len(content) - 25, len(content))}
    for cut in sorted(cuts - {len(content)}):
        folder.config_file.write_bytes(content[:cut])
        with pytest.raises(CheckpointError, match="is damaged"):
            folder.read_config()


def test_settings_of_an_older_version_that_knew_fewer_of_them_are_whole(folder: RunFolder) -> None:
    folder.write_config(Config())
    lines = folder.config_file.read_text().splitlines(keepends=True)
    newer = ("lora_", "freeze", "layer_decay", "base =", "average")
    folder.config_file.write_text("".join(line for line in lines if not line.startswith(newer)))
    (folder.path / DIGESTS_FILE).unlink()  # it had no digests either
    assert folder.read_config() == Config()


def test_the_setting_that_ends_a_file_is_the_last_there_is() -> None:
    """Who adds a setting puts it before this one, which every folder has had from the first."""
    assert list(DEFAULTS)[-1] == LAST_CONFIG_KEY


def test_the_source_of_a_value_that_was_adapted_is_not_recorded(tmp_path: Path) -> None:
    request = {"train.batch_size": (8, "option"), "train.lr": (0.1, "preset small")}
    folder = RunFolder(tmp_path, request=request)
    folder.write_config(build_config({"train.batch_size": 4, "train.grad_accumulation": 2, "train.lr": 0.1}))
    assert read_setting_sources(tmp_path) == {"train.lr": "preset small"}
    sources = describe_sources(folder.read_config(), read_setting_sources(tmp_path), resolved=True)
    assert sources["train.lr"] == "preset small"
    assert sources["train.grad_accumulation"] == "chosen automatically"
    assert sources["model.norm"] == "default"
