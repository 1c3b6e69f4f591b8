"""Run folders of format 1 open, predict, evaluate and resume.

The folders in `format1/` were made by the code before format 2. Those named after a form were interrupted at step 4
of 8; `expected.json` holds what that code predicted with them, and the final validation loss of an uninterrupted
run. They name their data as /data/format1/..., which `movable` replaces.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from triform import load, scratch, train
from triform.config.settings import RENAMED_SETTINGS, SETTING_TYPES
from triform.errors import CheckpointError, ConfigError
from triform.io import migration
from triform.io.digests import record_digests
from triform.io.run_config import read_run_format
from triform.io.run_layout import CHECKPOINT_FILES
from triform.run import Run
from triform.training.lora_adapter import read_adapter
from triform.training.run_folder import RunFolder

FORMAT1 = Path(__file__).parent / "format1"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FORMAT1 / "expected.json").read_text(encoding="utf-8"))
DATA_FILES = {"classify": "labelled.tsv", "generate": "text.txt", "translate": "pairs.tsv"}
INTERRUPTED = ("classify", "generate", "translate", "recurrent")
every_run = pytest.mark.parametrize("name", EXPECTED)
every_interrupted_run = pytest.mark.parametrize("name", INTERRUPTED)


@pytest.fixture
def movable(tmp_path: Path) -> Callable[[str], Path]:
    """Copy a run to a temporary folder and let it find its data in `format1/`."""

    def copy(name: str) -> Path:
        folder = Path(shutil.copytree(FORMAT1 / name, tmp_path / name))
        for path in (folder / "config.toml", *folder.glob("checkpoints/*/state.json")):
            text = path.read_text(encoding="utf-8").replace("/data/format1/runs/", f"{FORMAT1.as_posix()}/")
            path.write_text(text.replace("/data/format1", FORMAT1.as_posix()), encoding="utf-8", newline="\n")
        record_digests(folder)
        for checkpoint in folder.glob("checkpoints/*"):
            record_digests(checkpoint, CHECKPOINT_FILES)
        return folder

    return copy


def decode_settings(run: Run) -> dict[str, Any]:
    return {} if run.task.name == "classify" else {"strategy": "greedy", "max_new_tokens": 12}


def file_contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def assert_predicts_as_before(run: Run, name: str) -> None:
    expected = EXPECTED[name]
    predictions = run.predict(expected["texts"], **decode_settings(run))
    assert [prediction.output for prediction in predictions] == expected["outputs"]
    probabilities = [list(item.probabilities.values()) for item in predictions if item.probabilities]
    np.testing.assert_allclose(probabilities, expected.get("probabilities", []), atol=1e-5)
    metrics = run.evaluate(FORMAT1 / DATA_FILES[run.task.name], **decode_settings(run))
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-4)


@every_run
def test_a_run_predicts_and_evaluates_as_before_and_reading_writes_nothing(name: str) -> None:
    before = file_contents(FORMAT1 / name)
    run = load(FORMAT1 / name, device="cpu")
    assert not run.notices
    assert_predicts_as_before(run, name)
    assert file_contents(FORMAT1 / name) == before


@every_interrupted_run
def test_a_run_is_resumed_exactly_and_ends_in_format_2(name: str, movable: Callable[[str], Path]) -> None:
    folder = movable(name)
    stored = RunFolder(folder).read_config()
    run = train(stored.task, out=folder, resume=True, device="cpu", quiet=True)
    assert_resumed_run_is_complete(run, name)


def assert_resumed_run_is_complete(run: Run, name: str) -> None:
    events = [json.loads(line) for line in (run.path / "metrics.jsonl").read_bytes().splitlines()]
    final_loss = [event["loss"] for event in events if event["event"] == "valid"][-1]
    assert final_loss == pytest.approx(EXPECTED[name]["final_loss"], rel=1e-4)
    assert read_run_format(run.path) == 2
    config_text = (run.path / "config.toml").read_text(encoding="utf-8")
    assert "attention_direction = " in config_text
    assert "reach = " not in config_text
    assert load_file(run.path / "model.safetensors").keys() == dict(run.task.model.named_parameters()).keys()
    assert RunFolder(run.path).is_complete()
    load(run.path, device="cpu")


@pytest.mark.parametrize("name", ["classify", "translate"])
def test_a_migration_killed_at_any_file_is_done_again(
    name: str, movable: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = movable(name)
    config = RunFolder(folder).read_config()
    replace, allowed = Path.replace, 0

    def replace_or_die(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return replace(path, target)

    finished = False
    while not finished:
        left = allowed
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace_or_die)
            try:
                RunFolder(folder).prepare_resume()
                finished = True
            except KeyboardInterrupt:
                allowed += 1
        assert RunFolder(folder).read_config() == config
        assert_predicts_as_before(load(folder, device="cpu"), name)
    assert allowed > 5
    assert_resumed_run_is_complete(train(config.task, out=folder, resume=True, device="cpu", quiet=True), name)


def test_training_begins_with_a_run_of_format_1(tmp_path: Path) -> None:
    run = train(
        "classify",
        data=str(FORMAT1 / "labelled.tsv"),
        init_from=FORMAT1 / "plain",
        train={"max_steps": 1, "lr": 1e-12},
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    assert run.evaluate(FORMAT1 / "labelled.tsv")["loss"] == pytest.approx(EXPECTED["plain"]["loss"], rel=1e-4)


def test_an_adapter_of_format_1_fits_its_base_and_no_other(movable: Callable[[str], Path]) -> None:
    adapter = FORMAT1 / "adapter" / "adapter.safetensors"
    assert_predicts_as_before(load(FORMAT1 / "plain", adapter=adapter, device="cpu"), "adapter")
    base = movable("plain")
    RunFolder(base).prepare_resume()  # a base of format 2 with the same weights
    assert read_run_format(base) == 2
    assert_predicts_as_before(load(base, adapter=adapter, device="cpu"), "adapter")
    with pytest.raises(CheckpointError, match="adapter for another base"):
        load(FORMAT1 / "classify", adapter=adapter, device="cpu")


def test_a_changed_adapter_of_format_1_does_not_match_its_digest(tmp_path: Path) -> None:
    content = bytearray((FORMAT1 / "adapter" / "adapter.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "adapter.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        read_adapter(tmp_path / "adapter.safetensors")


def test_the_numpy_side_reads_a_run_of_format_1() -> None:
    model = scratch.load(FORMAT1 / "plain")
    assert isinstance(model, scratch.TextClassifier)
    np.testing.assert_allclose(
        model.predict_proba(EXPECTED["plain"]["texts"]), EXPECTED["plain"]["probabilities"], atol=1e-5
    )


@every_run
def test_keys_of_format_2_stay_and_keys_of_format_1_come_back(name: str) -> None:
    new_keys = dict(load(FORMAT1 / name, device="cpu").task.model.named_parameters())
    assert migration.migrate_tensors(new_keys).keys() == new_keys.keys()
    old_keys = load_file(FORMAT1 / name / "model.safetensors").keys()
    assert {migration.format1_key(key) for key in new_keys} == old_keys
    assert not old_keys & new_keys.keys() - {"encoder.embedding.norm.weight"}


def test_an_old_setting_name_gets_the_new_one() -> None:
    assert not RENAMED_SETTINGS.keys() & SETTING_TYPES.keys()
    assert set(RENAMED_SETTINGS.values()) <= SETTING_TYPES.keys()
    with pytest.raises(ConfigError, match=r"^model\.reach is now model\.attention_direction$"):
        train("classify", model={"reach": "causal"}, quiet=True)
    with pytest.raises(ConfigError, match=r"^base is now init_from$"):
        train("classify", base="runs/other", quiet=True)
