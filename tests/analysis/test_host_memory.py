"""A model that does not fit is refused before any of it is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from triform.analysis import host_memory
from triform.analysis.host_memory import available_memory, require_memory
from triform.config import Config, DataSizes, TaskName
from triform.config.settings import build_config
from triform.errors import ConfigError

LARGEST_SETTINGS = {"model.d_model": 65536, "model.d_ff": 2**20, "model.n_layers": 1000, "model.n_heads": 16}


def make_config(task: TaskName, **settings: Any) -> Config:
    sizes = {"model.d_model": 16, "model.d_ff": 32, "model.n_layers": 2, "model.n_heads": 2, "task": task}
    return build_config(
        sizes | {"data.max_len": 20, **{name.replace("__", "."): value for name, value in settings.items()}}
    )


@pytest.fixture
def one_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: 2**30)


@pytest.mark.usefixtures("one_gib")
@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_the_largest_model_that_settings_allow_is_refused_at_once(task: TaskName, kind: str) -> None:
    settings: dict[str, Any] = {**LARGEST_SETTINGS, "model.kind": kind, "task": task, "data.max_len": 2**24}
    if kind == "lstm":
        settings |= {"model.d_ff": 0, "model.n_heads": 0}
    sizes = DataSizes(vocab_size=2**31, max_len=2**24, n_labels=2)
    with pytest.raises(
        ConfigError, match=r"^the model has [\d,]+ parameters, which need [\d,.]+ GiB of memory; 1\.0"
    ):
        require_memory(build_config(settings), sizes)


@pytest.mark.usefixtures("one_gib")
@pytest.mark.parametrize(
    ("settings", "sizes", "lower"),
    [
        ({}, {"vocab_size": 2**30}, "the vocabulary (tokenizer.vocab_size)"),
        ({}, {"max_len": 2**24}, "data.max_len"),
        ({"model__positions": "sinusoidal"}, {"max_len": 2**26}, "data.max_len"),
        ({"model__d_ff": 2**20, "model__n_layers": 50}, {}, "model.d_ff"),
        ({"model__d_model": 8192, "model__n_layers": 50}, {}, "model.d_model or model.n_layers"),
    ],
)
def test_the_refusal_names_what_makes_the_model_large(
    settings: dict[str, Any], sizes: dict[str, int], lower: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        require_memory(make_config("generate", **settings), DataSizes(**{"vocab_size": 50, "max_len": 20} | sizes))
    assert f"lower {lower}" in str(refused.value)


@pytest.mark.usefixtures("one_gib")
def test_a_model_that_fits_is_not_refused() -> None:
    require_memory(make_config("generate"), DataSizes(vocab_size=50, max_len=20))


@pytest.mark.parametrize("name", ["d_model", "d_ff", "n_layers", "n_heads"])
def test_a_size_that_is_missing_from_a_stored_config_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.{name} must be above 0; set it with --set"):
        require_memory(make_config("generate", **{f"model__{name}": 0}), DataSizes(vocab_size=50, max_len=20))


def test_a_container_has_less_than_its_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(host_memory, "CGROUP_FILES", ((limit, used),))
    machine_memory = available_memory()
    limit.write_text(f"{300 << 20}\n")
    used.write_text(f"{200 << 20}\n")
    assert available_memory() == 100 << 20
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {50 << 20}\nactive_file {20 << 20}\n")
    assert available_memory() == 170 << 20
    limit.write_text("max\n")
    assert available_memory() > machine_memory / 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_what_is_available_is_no_more_than_the_computer_has() -> None:
    total = host_memory._read_field(host_memory.MEMINFO, "MemTotal:")
    assert total is not None
    assert 0 < available_memory() <= total
