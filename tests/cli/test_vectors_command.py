"""`triform vectors` as a user meets it, and `train --embeddings`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

Command = Any  # `triform(...)` of conftest: it gives an Answer
TEXT = "".join(
    f"the {'cat' if n % 2 else 'dog'} eats a {('bone', 'fish', 'rat')[n % 3]} in town.\n" for n in range(60)
)


@pytest.fixture(scope="module")
def vectors_file(triform: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    result = triform("vectors", "train", folder / "text.txt", "--out", folder / "v.bin", "--size", 16, "--seed", 3)
    assert result.code == 0, result.err
    assert "trained 11 vectors of width 16 on 480 words of text for 5 epochs" in result.out
    return folder / "v.bin"


def test_vectors_are_learned_and_looked_up(triform: Command, vectors_file: Path) -> None:
    neighbors = triform("vectors", "nearest", vectors_file, "cat", "dog", "--top", 3, "--json").json
    assert [len(neighbors[word]) for word in ("cat", "dog")] == [3, 3]
    output = triform("vectors", "nearest", vectors_file, "cat", "--top", 1).out
    assert neighbors["cat"][0]["word"] in output


def test_vectors_are_judged_by_files_of_ones_own(triform: Command, vectors_file: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(": pets\ncat fish dog bone\ncat fish dog bird\n", encoding="utf-8")
    (tmp_path / "p.tsv").write_text("cat\tdog\t9\ncat\ttown\t1\ncat\teats\t5\nbird\tdog\t2\n", encoding="utf-8")
    arguments = (
        "vectors",
        "evaluate",
        vectors_file,
        "--analogies",
        tmp_path / "a.txt",
        "--pairs",
        tmp_path / "p.tsv",
    )
    results = triform(*arguments, "--json").json
    assert [(result["name"], result["covered"], result["asked"]) for result in results] == [
        ("pets", 1, 2),
        ("all analogies", 1, 2),
        ("p", 3, 4),
    ]
    assert "Spearman" in triform(*arguments).out


def test_a_model_begins_with_vectors(triform: Command, train: Command, vectors_file: Path, tmp_path: Path) -> None:
    result = train(
        "classify", "--data", write_rows(tmp_path), "--out", tmp_path / "run", "--embeddings", vectors_file
    )
    assert result.code == 0, result.err
    assert "3 of 10 pieces have a vector" in result.err


def write_rows(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_text(
        "".join(f"{'good' if index % 2 else 'bad'},the cat eats x{index % 3}\n" for index in range(40)),
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "builtin:stories", "--out", "v.npy"), "v.npy: unknown file format '.npy'"),
        (("train", "none.txt", "--out", "v.bin"), "none.txt: no such file"),
        (("train", "builtin:stories/valid", "--out", "v.bin", "--min-count", "1000000"), "leaves no word"),
        (("train", "builtin:stories", "--out", "/dev/null/v.bin"), "v.bin cannot be written (Not a directory)"),
        (("nearest", "VECTORS", "catt"), "no vector for 'catt'; did you mean 'cat'"),
        (("nearest", "none.bin", "cat"), "none.bin: no such file"),
        (("evaluate", "VECTORS", "--data", "nowhere"), "word_eval/questions-words.txt"),
    ],
)
def test_what_is_wrong_is_one_line(
    triform: Command, vectors_file: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = triform("vectors", *(vectors_file if argument == "VECTORS" else argument for argument in arguments))
    assert message in result.refusal


def test_a_column_that_is_not_there_names_the_option(triform: Command, tmp_path: Path) -> None:
    result = triform("vectors", "train", write_rows(tmp_path), "--out", tmp_path / "v.bin", "--text-column", "nope")
    assert "no column 'nope'" in result.refusal
    assert "set --text-column to one of '" in result.refusal
