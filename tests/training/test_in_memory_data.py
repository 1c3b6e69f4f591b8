"""Training, evaluating and predicting with data frames and iterables instead of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triform
from triform.config import DataConfig
from triform.config.settings import build_config
from triform.data.in_memory import iter_examples, iter_texts
from triform.errors import CheckpointError, ConfigError, DataError
from triform.training.data_copies import copy_in_memory_data

TINY: dict[str, Any] = {
    "model": {"d_model": 8, "n_layers": 1, "n_heads": 2},
    "train": {"max_steps": 2},
    "device": "cpu",
    "quiet": True,
}
TEXTS = ["a good film", "a bad film", "a fine day", "a poor day"] * 5
LABELS = ["pos", "neg"] * 10


def pandas_frame(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def polars_frame(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def arrow_table(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


def dataset(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def records(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


EVERY_TABLE = pytest.mark.parametrize("make", [pandas_frame, polars_frame, arrow_table, dataset, records])


@EVERY_TABLE
def test_the_columns_of_every_kind_of_table_are_found(make: Callable[[dict[str, Any]], Any]) -> None:
    columns = {"id": [1, 2], "review": ["good", "bad"], "stars": [5, 1]}
    rows = [{"review": "good", "stars": "5"}, {"review": "bad", "stars": "1"}]
    assert list(iter_examples(make(columns), "classify", DataConfig(), "data")) == rows
    assert list(iter_texts(make(columns), "classify", DataConfig())) == ["good", "bad"]
    documents = iter_examples(make({"prose": ["one"]}), "generate", DataConfig(text_column="prose"), "data")
    assert list(documents) == [{"prose": "one"}]
    pairs = list(iter_examples(make({"fr": ["un"], "en": ["one"]}), "translate", DataConfig(), "data"))
    assert pairs == [{"fr": "un", "en": "one"}]
    with pytest.raises(DataError, match=r"^data: no key is named like 'label'; set data\.label_column to one of"):
        list(iter_examples(make({"text": ["a"], "other": ["b"]}), "classify", DataConfig(), "data"))
    with pytest.raises(DataError, match=r"^data: there are no rows"):
        list(iter_examples(make({"text": [], "label": []}), "classify", DataConfig(), "data"))
    with pytest.raises(DataError, match=r"^data, row 2: expected a text as text, found a missing value \("):
        list(iter_examples(make({"text": ["a", None], "label": [1, 2]}), "classify", DataConfig(), "data"))


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        (
            "classify",
            ["a", "b"],
            r"row 1: classify needs pairs \(text, label\), dictionaries or a data frame, found",
        ),
        ("classify", [("a", "x"), ("b",)], 'row 2: classify needs pairs .*found \\["b"\\] \\(tuple\\)'),
        ("classify", [("a", float("nan"))], r"row 1: expected a text or a number as label, found a missing value"),
        ("classify", [("a", [1])], r"row 1: expected a text or a number as label, found \[1\] \(list\)"),
        ("classify", [(3, "x")], r"row 1: expected a text as text, found 3 \(int\)"),
        (
            "classify",
            [{"text": "a", "label": "x"}, {"text": "b"}],
            "row 2: no column 'label'; the columns are 'text'",
        ),
        ("translate", [("a", None)], r"row 1: expected a text as target, found a missing value \(None\)"),
        ("generate", [("a", "b")], "row 1: generate needs strings, dictionaries or a data frame"),
        ("generate", ["a", "\ud800"], "row 2: the text contains half of a surrogate pair"),
        ("generate", 3, "expected the name of a file, a data frame or an iterable of rows, found int"),
        ("generate", b"abc", "found bytes"),
        ("generate", [], "there are no rows"),
    ],
)
def test_what_is_wrong_with_rows_is_said(task: Any, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^data[:,] .*{message}"):
        list(iter_examples(data, task, DataConfig(), "data"))


def test_numbers_of_numpy_are_labels_and_missing_values_of_pandas_are_not() -> None:
    rows = [("a", np.int64(3)), ("b", np.str_("x")), ("c", True)]
    assert [row["label"] for row in iter_examples(rows, "classify", DataConfig(), "data")] == ["3", "x", "True"]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", "b"], "label": pandas.array([1, None], dtype="Int64")})
    with pytest.raises(DataError, match="row 2: expected a text or a number as label, found a missing value"):
        list(iter_examples(frame, "classify", DataConfig(), "data"))
    with pytest.raises(DataError, match=r"a lazy frame has no rows yet; pass frame\.collect\(\)"):
        list(
            iter_examples(
                pytest.importorskip("polars").LazyFrame({"text": ["a"]}), "generate", DataConfig(), "data"
            )
        )


def test_a_run_on_frames_is_trained_evaluated_and_resumed(tmp_path: Path) -> None:
    frame = pandas_frame({"review": TEXTS, "mood": LABELS, "id": range(20)})
    valid = [("a good day", "pos"), ("a bad day", "neg")]
    columns = {"data.label_column": "mood"}
    out = tmp_path / "run"
    pairs = [{"review": text, "mood": label} for text, label in valid]
    run = triform.train("classify", data=frame, valid={"dev": pairs, "test": pairs}, out=out, **columns, **TINY)
    copies = sorted(path.name.split("-")[0] for path in (out / "data_copies").iterdir())
    assert copies == ["dev", "test", "train"]
    rows = [json.loads(line) for line in Path(run.config.data.train).read_text().splitlines()]
    assert rows[0] == {"review": "a good film", "mood": "pos"}  # the id is not copied
    assert run.evaluate()["rows"] == 2
    assert run.evaluate(frame) == run.evaluate(run.config.data.train)
    assert run.evaluate(valid) == run.evaluate()
    with pytest.raises(DataError, match=r"^data, row 1: .*'neutral'"):
        run.evaluate([("a film", "neutral")])
    expected = [prediction.output for prediction in run.predict(TEXTS[:3])]
    for texts in (frame[:3], frame["review"][:3], iter(TEXTS[:3]), np.array(TEXTS[:3])):
        assert [prediction.output for prediction in run.predict(texts)] == expected
    with pytest.raises(ConfigError, match=r"these differ: data\.train"):
        triform.train("classify", data=frame[:10], out=out, resume=True, **columns, **TINY)
    longer = TINY | {"train": {"max_steps": 3}}
    valid_sets = {"dev": pairs, "test": pairs}
    resumed = triform.train("classify", data=frame, valid=valid_sets, out=out, resume=True, **columns, **longer)
    assert resumed.progress()["step"] == 3
    assert sorted(path.name.split("-")[0] for path in (out / "data_copies").iterdir()) == copies


def test_copies_that_no_run_uses_are_removed(tmp_path: Path) -> None:
    out = str(tmp_path / "run")

    def copies() -> list[str]:
        return [path.name for path in tmp_path.glob("run/data_copies/*")]

    with suppress(RuntimeError), copy_in_memory_data("generate", "", None, {"data": ["one"]}, out) as result:
        settings, folder = result
        assert folder == out
        assert Path(settings["data"]).read_text() == '{"text": "one"}\n'
        raise RuntimeError
    assert not Path(out).exists()
    with copy_in_memory_data("generate", "", None, {"data": {"train": ["one"], "max_len": 8}}, out) as (
        settings,
        _,
    ):
        Path(out, "config.toml").write_text(settings["data"]["train"])  # as a run does
        assert build_config({"data.max_len": settings["data"]["max_len"]}).data.max_len == 8
    (first_copy,) = copies()
    with suppress(CheckpointError), copy_in_memory_data("generate", "", None, {"data": ["two"]}, out):
        assert len(copies()) == 2
        raise CheckpointError("the folder contains a run")
    assert copies() == [first_copy]
    with pytest.raises(ConfigError, match=r"source must be a file; pass pairs of sentences as data=zip\("):
        triform.train("translate", source=["one"], target=["un"])
