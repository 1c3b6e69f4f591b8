"""Pairs in both directions: what a model learns, and that everything else sees only source to target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.launch import train
from triform.tasks import TASKS, PreparedTask

PAIRS = [("one ship", "ein schiff"), ("two ships", "zwei schiffe"), ("a whale", "ein wal"), ("three", "drei")]
VALID = [("two whales", "zwei wale")]
MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2}


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return str(path)


def prepare(folder: Path, **data: Any) -> PreparedTask:
    settings = {"task": "translate", "data.train": write_pairs(folder / "pairs.tsv", PAIRS), "data.header": "no"}
    settings |= {"data.valid": write_pairs(folder / "valid.tsv", VALID), "tokenizer.kind": "word"}
    settings |= {f"model.{name}": value for name, value in MODEL.items()} | {"train.batch_size": 3}
    return TASKS["translate"].prepare(build_config(settings | data), folder / "run")


def decode_rows(prepared: PreparedTask) -> list[tuple[str, str]]:
    task, dataset = prepared.task, prepared.train
    batch = dataset.batch(np.arange(len(dataset)))
    return [
        (
            task.tokenizer.decode(source.tolist()),
            task.target_tokenizer.decode([t for t in target.tolist() if t >= 0]),
        )
        for source, target in zip(batch.source, batch.targets, strict=True)
    ]


def test_every_training_pair_is_learned_in_both_directions_and_others_in_one(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, **{"data.bidirectional": True, "train.eval_train": 2})
    assert decode_rows(prepared) == [*PAIRS, *((target, source) for source, target in PAIRS)]
    assert prepared.valid is not None
    assert [(pair.source, pair.target) for pair in prepared.valid.raw_pairs] == VALID
    evaluated = [(pair.source, pair.target) for pair in prepared.monitors["train"].raw_pairs]
    assert evaluated == PAIRS[::2], "evaluated training pairs are evenly spaced, and all from source to target"
    assert [(pair.source, pair.target) for pair in prepared.task.data.training_examples()] == PAIRS


def test_training_in_both_directions_is_training_on_a_file_with_reversed_pairs(tmp_path: Path) -> None:
    both = [*PAIRS, *((target, source) for source, target in PAIRS)]
    options: dict[str, Any] = {"device": "cpu", "quiet": True, "model": MODEL, "tokenizer.kind": "word"}
    options |= {"valid": write_pairs(tmp_path / "valid.tsv", VALID), "data.header": "no"}
    options["train"] = {"max_steps": 6, "batch_size": 3}
    runs = [
        train("translate", data=write_pairs(tmp_path / f"{name}.tsv", pairs), out=tmp_path / name, **options | more)
        for name, pairs, more in (("file", both, {}), ("setting", PAIRS, {"data.bidirectional": True}))
    ]
    expected, weights = (load_file(run.path / "model.safetensors") for run in runs)
    assert all(weights[name].equal(expected[name]) for name in expected)


def test_the_other_direction_has_its_own_tag_and_not_that_of_further_pairs(tmp_path: Path) -> None:
    extra = write_pairs(tmp_path / "extra.tsv", [("the wind", "der wind")])
    tags = {"data.extra_tag": "BT", "data.bidirectional_tag": "back"}
    prepared = prepare(tmp_path, **{"data.extra": (extra,), "data.bidirectional": True, **tags})
    rows = decode_rows(prepared)
    assert rows[4:6] == [("BT the wind", "der wind"), ("back ein schiff", "one ship")]
    assert rows[-1] == ("back der wind", "the wind")
    assert "back" in prepared.task.tokenizer.vocabulary


def test_encoded_pairs_of_one_direction_are_not_mistaken_for_those_of_both() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"data.bidirectional": True},
        {"data.bidirectional": True, "data.bidirectional_tag": "back"},
    ]
    configs = [build_config({"task": "translate", "data.train": "pairs.tsv", **more}) for more in settings]
    keys = [TASKS["translate"].choose_data_class(config)(config).cache_key for config in configs]
    assert len({repr(key) for key in keys}) == 3


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"task": "classify", "data.bidirectional": True}, "applies to the training of translate only"),
        ({"data.bidirectional": True, "train.objective": "denoise"}, "applies to the training of translate only"),
        ({"data.bidirectional": True, "tokenizer.joint_vocab": False}, "needs one vocabulary for both languages"),
        ({"data.bidirectional_tag": "back"}, "set data.bidirectional=true"),
    ],
)
def test_what_cannot_be_learned_in_both_directions_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        build_config({"task": "translate"} | settings)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_for_each_language_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "quiet": True, "model": MODEL, "train": {"max_steps": 1}}
    run = train("translate", data=write_pairs(tmp_path / "pairs.tsv", PAIRS), out=tmp_path / "run", **options)
    (run.path / "tokenizer.json").rename(run.path / "tokenizer.source.json")
    (run.path / "tokenizer.target.json").write_bytes((run.path / "tokenizer.source.json").read_bytes())
    with pytest.raises(ConfigError, match="has a tokenizer for each language"):
        prepare(tmp_path, **{"data.bidirectional": True, "tokenizer.kind": "auto", "tokenizer.file": str(run.path)})
