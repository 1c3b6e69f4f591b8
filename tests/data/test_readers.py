"""Well-formed files of every kind, and the real sets."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triform.config import DataConfig
from triform.data import readers
from triform.data.files import BLOCK_SIZE
from triform.data.readers import (
    LabelledText,
    TextPair,
    count_units,
    find_safe_cut,
    fingerprint,
    read_aligned,
    read_chunks,
    read_lines,
    read_pairs,
    read_rows,
    validate_aligned,
)

DATA_CONFIG = DataConfig()
SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"the real sets are not at {SHARED_DATA}")
text_strategy = st.text(st.characters(codec="utf-8"), max_size=60)


def write_file(folder: Path, name: str, content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    path = folder / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def read_joined(path: str, **span: int) -> str:
    return "".join(chunk.text for chunk in read_chunks(path, DATA_CONFIG, **span))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\n"good, ""really""\nso",pos\nbad,neg\n'),
        ("a.csv.gz", 'label,text\r\npos,"good, ""really""\nso"\r\nneg,bad\r\n'),
        ("a.jsonl", '{"text": "good, \\"really\\"\\nso", "label": "pos"}\n\n{"label": "neg", "text": "bad"}'),
        ("A.NDJSON.GZ", '{"Review": "good, \\"really\\"\\nso", "Y": "pos"}\n{"Review": "bad", "Y": "neg"}'),
    ],
)
def test_one_set_reads_the_same_from_every_format(tmp_path: Path, name: str, content: str) -> None:
    raw = content.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(raw) if name.lower().endswith(".gz") else raw)
    rows = [(row.text, row.label) for row in read_rows(str(path), DATA_CONFIG)]
    assert rows == [('good, "really"\nso', "pos"), ("bad", "neg")]


def test_quotes_in_tsv_are_text(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.tsv", '0\t"open quote\n1\ta "word" in it\n0\tplain words\n')
    assert [row.text for row in read_rows(path, DATA_CONFIG)] == ['"open quote', 'a "word" in it', "plain words"]


def test_a_byte_order_mark_and_windows_line_ends_are_removed(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.tsv", b"\xef\xbb\xbflabel\ttext\r\n0\ta b\r\n1\tc d\r\n")
    assert list(read_rows(path, DATA_CONFIG)) == [LabelledText("a b", "0", 2), LabelledText("c d", "1", 3)]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "one\u0085still\u2028one\x0bone\ntwo\r\nthree")
    assert list(read_lines(path)) == [(1, "one\u0085still\u2028one\x0bone"), (2, "two"), (3, "three")]


def test_a_row_knows_the_line_it_began_on(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", 'text,label\n"a\nb\nc",x\n\nd e,y\n')
    assert [row.line for row in read_rows(path, DATA_CONFIG)] == [2, 6]


def test_an_empty_text_is_kept_and_labels_lose_blanks_around_them(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "text,label\n,pos\nb, neg \n")
    assert list(read_rows(path, DATA_CONFIG)) == [LabelledText("", "pos", 2), LabelledText("b", "neg", 3)]


def test_numbers_and_truths_are_labels_in_json(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.json", "".join(f'{{"text": "a", "label": {x}}}\n' for x in ("1", "true", "0.5")))
    assert [row.label for row in read_rows(path, DATA_CONFIG)] == ["1", "True", "0.5"]


@settings(deadline=None)  # files on a busy disk
@given(rows=st.lists(st.tuples(text_strategy, text_strategy.filter(str.strip)), min_size=1, max_size=8))
def test_csv_comes_back_as_the_csv_module_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    rows_read = [(row.text, row.label) for row in read_rows(str(path), DATA_CONFIG)]
    assert rows_read == [(text, label.strip()) for text, label in rows]


@settings(deadline=None)  # files on a busy disk
@given(rows=st.lists(st.tuples(text_strategy, text_strategy), min_size=1, max_size=8), ascii_only=st.booleans())
def test_json_lines_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ascii_only: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    lines = [json.dumps({"en": en, "fr": fr}, ensure_ascii=ascii_only) for en, fr in rows]
    path.write_bytes("\n".join(lines).encode())
    assert [(pair.source, pair.target) for pair in read_pairs(str(path), DATA_CONFIG)] == rows


def test_without_labels_a_text_file_gives_its_lines_and_a_table_its_texts(tmp_path: Path) -> None:
    text_lines_file = write_file(tmp_path, "a.txt", "one\n\nthree\n")
    assert list(read_rows(text_lines_file, DATA_CONFIG, labelled=False)) == [
        LabelledText("one", "", 1),
        LabelledText("", "", 2),
        LabelledText("three", "", 3),
    ]
    one_column_file = write_file(tmp_path, "a.csv", "I liked it\nI did not\n")
    assert list(read_rows(one_column_file, DATA_CONFIG, labelled=False)) == [
        LabelledText("I liked it", "", 1),
        LabelledText("I did not", "", 2),
    ]
    json_file = write_file(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": "b", "label": 1}\n')
    assert [row.label for row in read_rows(json_file, DATA_CONFIG, labelled=False)] == ["", ""]
    trained_config = DataConfig(text_column="words", label_column="mood")
    named_columns = write_file(tmp_path, "b.csv", "words,who\na b,me\n")
    assert list(read_rows(named_columns, trained_config, labelled=False)) == [LabelledText("a b", "", 2)]


def test_pairs_are_found_by_name_by_language_or_by_order(tmp_path: Path) -> None:
    expected = [TextPair("a b", "c d", 2)]
    for name, content in [
        ("a.csv", "target,id,source\nc d,7,a b\n"),
        ("b.tsv", "id\ten\tfr-FR\n7\ta b\tc d\n"),
        ("c.tsv.gz", "English\tFrench\na b\tc d\n"),
        ("d.jsonl", '\n{"n": 7, "tgt": "c d", "src": "a b"}\n'),
    ]:
        assert list(read_pairs(write_file(tmp_path, name, content), DATA_CONFIG)) == expected
    anki = write_file(tmp_path, "e.tsv", "Go.\tVa !\tCC-BY\nHi.\tSalut !\tCC-BY\n")
    assert list(read_pairs(anki, DATA_CONFIG)) == [TextPair("Go.", "Va !", 1), TextPair("Hi.", "Salut !", 2)]
    requested = DataConfig(source_column="3", target_column="1")
    assert next(read_pairs(anki, requested)) == TextPair("CC-BY", "Go.", 1)


def test_aligned_files_may_lack_the_last_line_end(tmp_path: Path) -> None:
    source = write_file(tmp_path, "a.en", "one\ntwo\n")
    target = write_file(tmp_path, "a.fr.gz", "un\r\ndeux")
    assert list(read_aligned(source, target)) == [TextPair("one", "un", 1), TextPair("two", "deux", 2)]
    assert validate_aligned(source, target) == 2


@settings(deadline=None)  # files on a busy disk
@given(
    text=st.text(st.sampled_from("ab.\r\n\n  é😀"), min_size=1, max_size=120),
    size=st.integers(1, 40),
    span=st.tuples(st.integers(0, 120), st.integers(0, 120)),
)
def test_pieces_put_together_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, span: tuple[int, int]
) -> None:
    path = write_file(tmp_path_factory.mktemp("txt"), "a.txt", b"\xef\xbb\xbf" + text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_SIZE", size)
        patch.setattr("triform.data.files.BLOCK_SIZE", size)
        chunks = list(read_chunks(path, DATA_CONFIG))
        assert "".join(chunk.text for chunk in chunks) == text
        assert all(chunk.text and not chunk.ends_document for chunk in chunks)
        offset = 0
        for chunk in chunks:
            assert chunk.line == 1 + text.count("\n", 0, offset)
            offset += len(chunk.text)
        start, stop = span
        assert read_joined(path, start=start, stop=stop) == text[start:stop]
        assert read_joined(path, start=start) == text[start:]
        assert count_units(path, DATA_CONFIG) == len(text)


def test_a_cut_falls_where_tokenizers_do_not_notice() -> None:
    for before, after in [
        ("a b\n", "c\n\nd e"),  # a line end between two visible characters
        ("a\n\n", "b c"),  # before a visible character
        ("a\n", " b c"),  # any line end
        ("a b", " c  d"),  # a single space
        ("a  b", ""),  # nowhere good
    ]:
        assert find_safe_cut(before + after) == len(before)


def test_long_text_is_cut_at_line_ends(tmp_path: Path) -> None:
    text = "a line of words\n\n  indented\nand more\n" * (BLOCK_SIZE // 12)
    path = write_file(tmp_path, "a.txt.gz", text)
    chunks = list(read_chunks(path, DATA_CONFIG))
    assert len(chunks) > 2
    assert "".join(chunk.text for chunk in chunks) == text
    for chunk, following in pairwise(chunks):
        assert BLOCK_SIZE // 2 < len(chunk.text) <= BLOCK_SIZE
        assert chunk.text.endswith("\n")
        assert not following.text[0].isspace()


def test_line_ends_of_a_text_to_write_are_kept(tmp_path: Path) -> None:
    assert read_joined(write_file(tmp_path, "a.txt", b"one\r\ntwo\rthree\n")) == "one\r\ntwo\rthree\n"


def test_documents_of_a_table_end_and_are_counted(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.jsonl", "".join(f'{{"text": "document {n}"}}\n' for n in range(10)))
    assert count_units(path, DATA_CONFIG) == 10
    chunks = list(read_chunks(path, DATA_CONFIG, start=2, stop=4))
    assert [(chunk.text, chunk.ends_document, chunk.line) for chunk in chunks] == [
        ("document 2", True, 3),
        ("document 3", True, 4),
    ]


def test_a_text_larger_than_the_memory_allowed_is_read_in_little(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    block = ("some words of a long text, é\n" * 40_000).encode()
    with path.open("wb") as file:
        for _ in range(85):
            file.write(block)
    size = path.stat().st_size
    assert size > 100_000_000
    tracemalloc.start()
    try:
        characters = sum(len(chunk.text) for chunk in read_chunks(str(path), DATA_CONFIG))
        assert validate_aligned(str(path), str(path)) == 85 * 40_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert characters == size - 85 * 40_000  # é is one character and two bytes
    assert peak < 10_000_000


def test_a_long_table_is_read_in_little(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_bytes(b"text,label\n" + b'"a few words, quoted",positive\n' * 60_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(str(path), DATA_CONFIG)) == 60_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


def test_a_fingerprint_follows_the_content_not_the_name_or_the_compression(tmp_path: Path) -> None:
    plain, zipped = write_file(tmp_path, "a.txt", "same"), write_file(tmp_path, "b.txt.gz", "same")
    other = write_file(tmp_path, "c.txt", "Same")
    assert fingerprint(plain) == fingerprint(zipped) != fingerprint(other)
    names = ["builtin:reviews", "builtin:reviews/valid", "builtin:numbers", "builtin:stories"]
    assert len({fingerprint(name) for name in names}) == 4
    assert fingerprint("builtin:reviews") == fingerprint("builtin:reviews/train")


def test_builtin_sets_read_like_files() -> None:
    rows = list(read_rows("builtin:reviews/test", DATA_CONFIG))
    assert {row.label for row in rows} == {"negative", "positive"}
    assert next(read_pairs("builtin:numbers", DATA_CONFIG)).target
    count = count_units("builtin:stories/valid", DATA_CONFIG)
    assert count == len(read_joined("builtin:stories/valid")) > 10_000
    part = read_joined("builtin:stories/valid", start=100, stop=200)
    assert part == read_joined("builtin:stories/valid")[100:200]
    assert "\n".join(line for _, line in read_lines("builtin:stories/valid")) + "\n" == read_joined(
        "builtin:stories/valid"
    )
    assert next(read_rows("builtin:numbers", DATA_CONFIG, labelled=False)).label == ""
    assert next(read_chunks("builtin:reviews", DATA_CONFIG)).ends_document


@needs_shared
@pytest.mark.parametrize(
    ("name", "count", "labels"),
    [
        ("sst2/train.tsv.gz", 67_349, {"0", "1"}),
        ("sst2/dev.tsv", 872, {"0", "1"}),
        ("sst2/test.tsv", 1_821, {"0", "1"}),
        ("speeches/train_CLS.tsv", 2_092, {"0", "1", "2"}),
        ("speeches/test_CLS.tsv", 750, {"0", "1", "2"}),
        ("imdb/valid.jsonl.gz", 5_000, {"0", "1"}),
    ],
)
def test_real_labelled_sets_are_laid_out_as_their_notes_say(name: str, count: int, labels: set[str]) -> None:
    rows = list(read_rows(str(SHARED_DATA / name), DATA_CONFIG))
    assert len(rows) == count
    assert {row.label for row in rows} == labels
    assert sum(len(row.text) for row in rows) > 20 * count


@needs_shared
def test_real_aligned_sets_have_as_many_pairs_as_their_notes_say() -> None:
    for split, count in (("train.{}.gz", 30_000), ("dev.{}", 887), ("test.{}", 1_305)):
        source, target = (str(SHARED_DATA / "ted_en_fr" / split.format(side)) for side in ("en", "fr"))
        assert validate_aligned(source, target) == sum(1 for _ in read_aligned(source, target)) == count


@needs_shared
def test_real_texts_are_counted_and_fingerprinted_as_their_notes_say() -> None:
    plays, articles = SHARED_DATA / "tinyshakespeare/input.txt", SHARED_DATA / "wiki_slice/wiki_slice.txt.gz"
    assert count_units(str(plays), DATA_CONFIG) == len(read_joined(str(plays))) == 1_115_394
    assert fingerprint(str(plays)).startswith("86c4e6aa9db7")
    assert fingerprint(str(articles)).startswith("25ae11c2ab3b")
    chunks = [chunk.text for chunk in read_chunks(str(articles), DATA_CONFIG)]  # a single line: cut between words
    assert len(chunks) == 3
    assert all(chunk[0] == " " for chunk in chunks[1:])
