"""Arrow files, folders of `datasets`, folders of text files, and the delimiters of CSV files."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import pytest

from triform.config import DataConfig
from triform.config.settings import build_config, coerce_setting
from triform.data import files, readers, tables
from triform.data.inputs import read_inputs
from triform.data.preview import guess_task, preview_data
from triform.errors import ConfigError, DataError

ROWS = [("a good film", "pos"), ("ein schlechter Film – ja", "neg"), ("", "pos")]


def read_labelled(path: str | Path, **settings: str) -> list[tuple[str, str]]:
    return [(row.text, row.label) for row in readers.read_rows(str(path), DataConfig(**settings))]  # type: ignore[arg-type]


def read_pairs(path: str | Path, **settings: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in readers.read_pairs(str(path), DataConfig(**settings))]  # type: ignore[arg-type]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# -- CSV


@pytest.mark.parametrize(
    "content",
    [
        '\ufeffText;Label\r\nGood, but long;pos\r\n"Bad; ""really""";neg\r\n',  # as Excel writes it in Europe
        'sep=;\r\nText;Label\r\nGood, but long;pos\r\n"Bad; ""really""";neg\r\n',
        'Good, but long|pos\nBad; "really"|neg\n',
        'Good, but long\tpos\nBad; "really"\tneg\n',
        'text,label\n"Good, but long",pos\n"Bad; ""really""",neg\n',
    ],
)
def test_the_delimiter_of_a_csv_file_is_found(content: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", content)
    assert read_labelled(path) == [("Good, but long", "pos"), ('Bad; "really"', "neg")]
    assert read_inputs(str(path), "classify", DataConfig()).texts == ["Good, but long", 'Bad; "really"']
    assert preview_data("classify", str(path), DataConfig()).roles == ("text", "label")


def test_the_delimiter_can_be_chosen_and_errors_name_the_line_and_the_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "one, two;x\nthree, four;y\n")
    assert read_pairs(path) == [("one", " two;x"), ("three", " four;y")]  # both fit, and a .csv file has commas
    assert read_pairs(path, delimiter="semicolon") == [("one, two", "x"), ("three, four", "y")]
    assert read_pairs(path, delimiter="comma") == [("one", " two;x"), ("three", " four;y")]
    broken = write(tmp_path / "broken.csv", "sep=;\ntext;label\na;b\nc;d;e\n")
    with pytest.raises(
        DataError, match=r"line 4: expected 2 columns, found 3; quote texts that contain semicolons"
    ):
        read_labelled(broken)
    with pytest.raises(ConfigError, match=r"data\.delimiter"):
        build_config({"data.delimiter": coerce_setting("data.delimiter", "colon")})


def test_a_table_of_one_column_stays_one_column(tmp_path: Path) -> None:
    path = write(tmp_path / "docs.csv", "text\nfirst; then\nsecond; later\n")
    assert [chunk.text for chunk in readers.read_chunks(str(path), DataConfig())] == [
        "first; then",
        "second; later",
    ]


def test_the_delimiter_of_long_texts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    previous_limit = csv.field_size_limit(131_072)  # the default of Python
    try:
        path = write(tmp_path / "rows.csv", f"text;label\n{'a, b ' * 40_000};pos\nshort, too;neg\n")
        assert [label for _, label in read_labelled(path)] == ["pos", "neg"]
    finally:
        csv.field_size_limit(previous_limit)
    monkeypatch.setattr(tables, "MAX_SAMPLE_CHARS", 10)
    head = tables._read_head(iter(["a;b\n"] * 100))
    assert len(head) == 3, "the lines that are read to find the delimiter are limited in size too"


# -- folders of text files


def test_shards_runs_and_an_empty_name_are_no_folders_of_text_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "shards" / "README.md", "What these tokens are.")
    assert files.kind_from_name("shards") == "texts"
    write(tmp_path / "shards" / "manifest.json", "{}")
    write(tmp_path / "run" / "config.toml", "")
    write(tmp_path / "run" / "notes.txt", "a note")
    assert [files.kind_from_name(name) for name in ("shards", "run", "")] == [None, None, None]


@pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="names of files are UTF-8 here")
def test_a_name_that_is_not_utf8_does_not_stop_the_fingerprint(tmp_path: Path) -> None:
    write(tmp_path / os.fsdecode(b"caf\xe9.txt"), "one")
    assert len(readers.fingerprint(str(tmp_path))) == 16


def test_subfolders_are_labels_and_files_are_documents(tmp_path: Path) -> None:
    folder = tmp_path / "reviews"
    write(folder / "pos" / "1.txt", "a good film\nreally")
    write(folder / "neg" / "2.txt", "a bad film")
    write(folder / "neg" / "103_2", "without a suffix")
    write(folder / "neg" / ".hidden", b"\xff")
    assert read_labelled(folder) == [
        ("without a suffix", "neg"),
        ("a bad film", "neg"),
        ("a good film\nreally", "pos"),
    ]
    documents = list(readers.read_chunks(str(folder), DataConfig()))
    assert [chunk.text for chunk in documents] == ["without a suffix", "a bad film", "a good film\nreally"]
    assert all(chunk.ends_document for chunk in documents)
    assert guess_task(str(folder)) == "classify"
    assert preview_data("generate", str(folder), DataConfig()).rows[1] == ("a bad film",)
    inputs = read_inputs(str(folder), "classify", DataConfig())
    assert inputs.rows[2] == {"file": str(Path("pos", "1.txt")), "text": "a good film\nreally"}
    before = readers.fingerprint(str(folder))
    (folder / "neg" / "2.txt").rename(folder / "pos" / "2.txt")
    assert readers.fingerprint(str(folder)) != before  # the label has changed


def test_what_is_wrong_with_a_folder_of_text_files_is_said(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    write(flat / "a.txt", "one")
    assert guess_task(str(flat)) == "generate"
    with pytest.raises(DataError, match="no labels; put the text files of each label in a subfolder"):
        read_labelled(flat)
    with pytest.raises(DataError, match="a folder of text files has no pairs"):
        read_pairs(flat)
    write(flat / "b.txt", b"good\nB\xe9b\xe9")
    with pytest.raises(DataError, match=r"b\.txt, line 2: the text is not UTF-8"):
        list(readers.read_chunks(str(flat), DataConfig()))
    write(flat / "c.pdf", b"%PDF")
    with pytest.raises(DataError, match=r"c\.pdf is not a text file"):
        list(readers.read_chunks(str(flat), DataConfig()))
    with pytest.raises(DataError, match="this is a folder; name a file in it"):
        read_labelled(write(tmp_path / "other" / "rows.csv", "a,b").parent)


# -- Arrow


def test_arrow_files_are_read_in_both_formats_and_compressed(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    texts, labels = map(list, zip(*ROWS, strict=True))
    table = pyarrow.table({"id": [1, 2, 3], "text": texts, "label": pyarrow.array(labels).dictionary_encode()})
    feather.write_feather(table, str(tmp_path / "rows.feather"), compression="zstd")
    with pyarrow.ipc.new_stream(tmp_path / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    content = pyarrow.compress((tmp_path / "rows.arrow").read_bytes(), codec="gzip", asbytes=True)
    paths = [
        str(tmp_path / "rows.feather"),
        str(tmp_path / "rows.arrow"),
        str(write(tmp_path / "r.arrow.gz", content)),
    ]
    for path in paths:
        assert read_labelled(path) == ROWS, path
        assert preview_data("classify", path, DataConfig()).roles == ("", "text", "label")
    assert guess_task(paths[0]) == "classify"
    assert read_inputs(paths[1], "classify", DataConfig()).texts == texts
    with pytest.raises(DataError, match=r"'prose'.*data\.text_column to one of"):
        read_labelled(paths[0], text_column="prose")


def test_what_is_wrong_with_an_arrow_file_is_said(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")

    def write_arrow(name: str, columns: dict[str, list[object]]) -> Path:
        table = pyarrow.table(columns)
        with pyarrow.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
        return tmp_path / name

    good = write_arrow("good.arrow", {"text": ["a"] * 9, "label": ["x"] * 9})
    damaged = write(tmp_path / "damaged.arrow", good.read_bytes()[:-40])
    for path in (damaged, write(tmp_path / "text.arrow", "no arrow at all")):
        with pytest.raises(DataError, match="the Arrow file is damaged or is not one"):
            read_labelled(path)
    with pytest.raises(DataError, match="row 2: expected a text under 'text', found null"):
        read_labelled(write_arrow("none.arrow", {"text": ["a", None], "label": ["x", "y"]}))
    with pytest.raises(DataError, match=r"row 1: expected a text under 'text', found \{"):
        read_labelled(write_arrow("nested.arrow", {"text": [{"a": "b"}], "label": ["x"]}))
    with pytest.raises(DataError, match="row 1: expected a text or a number under 'label', found NaN"):
        read_labelled(write_arrow("nan.arrow", {"text": ["a"], "label": [float("nan")]}))
    with pytest.raises(DataError, match="the file is empty"):
        read_labelled(write_arrow("empty.arrow", {"text": [], "label": []}))


def write_dataset(folder: Path, columns: dict[str, list[object]], features: dict[str, object]) -> Path:
    """Write a folder as `datasets.save_to_disk` does, in two files."""
    import pyarrow

    folder.mkdir(parents=True)
    table = pyarrow.table(columns)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (table.slice(0, 2), table.slice(2)), strict=True):
        with pyarrow.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(part)
    write(
        folder / "state.json", json.dumps({"_data_files": [{"filename": name} for name in names], "_split": None})
    )
    write(folder / "dataset_info.json", json.dumps({"features": features}))
    return folder


def test_a_dataset_folder_is_read_with_the_names_of_its_classes(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    label = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    columns: dict[str, list[object]] = {"text": [text for text, _ in ROWS], "label": [1, 0, 1]}
    folder = write_dataset(tmp_path / "set" / "train", columns, {"label": label, "text": {"dtype": "string"}})
    assert read_labelled(folder) == ROWS
    assert guess_task(str(folder)) == "classify"
    assert files.file_size(str(folder)) > 500
    assert readers.fingerprint(str(folder)) == readers.fingerprint(str(folder))
    write(tmp_path / "set" / "dataset_dict.json", '{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"has the splits train, test; name one of them, such as .*train"):
        read_labelled(tmp_path / "set")
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow: no such file"):
        read_labelled(folder)
    write(folder / "state.json", "{")
    with pytest.raises(DataError, match=r"state\.json: the file is damaged"):
        read_labelled(folder)


def test_sentences_of_two_languages_may_be_nested(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pairs: list[object] = [{"en": "one", "fr": "un"}, {"en": "two", "fr": "deux"}, {"en": "six", "fr": "six"}]
    folder = write_dataset(tmp_path / "pairs", {"id": [1, 2, 3], "translation": pairs}, {})
    assert read_pairs(folder)[:2] == [("one", "un"), ("two", "deux")]
    assert read_pairs(folder, source_column="fr", target_column="en")[1] == ("deux", "two")
    assert guess_task(str(folder)) == "translate"
    assert preview_data("translate", str(folder), DataConfig()).roles == ("source", "target")


def test_a_folder_that_the_package_datasets_has_written_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    columns = {"text": [text for text, _ in ROWS], "label": [1, 0, 1]}
    data = datasets.Dataset.from_dict(columns, features=features)
    data.save_to_disk(str(tmp_path / "one"), num_shards=2)
    assert read_labelled(tmp_path / "one") == ROWS
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "splits"))
    assert read_labelled(tmp_path / "splits" / "test") == ROWS
    data.to_parquet(str(tmp_path / "rows.parquet"))
    assert read_labelled(tmp_path / "rows.parquet") == ROWS
