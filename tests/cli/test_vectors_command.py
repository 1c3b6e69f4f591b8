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
def made(triform: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    answer = triform("vectors", "train", folder / "text.txt", "--out", folder / "v.bin", "--size", 16, "--seed", 3)
    assert answer.code == 0, answer.err
    assert "11 words have a vector of 16 numbers; 480 words of text, 5 times" in answer.out
    return folder / "v.bin"


def test_vectors_are_learned_looked_up_and_drawn(triform: Command, made: Path, tmp_path: Path) -> None:
    near = triform("vectors", "nearest", made, "cat", "dog", "--top", 3, "--json").json
    assert [len(near[word]) for word in ("cat", "dog")] == [3, 3]
    shown = triform("vectors", "nearest", made, "cat", "--top", 1).out
    assert near["cat"][0]["word"] in shown
    assert len(triform("vectors", "analogy", made, "cat", "fish", "dog", "--json").json) == 8
    assert triform("vectors", "map", made, "--out", tmp_path / "map.png").code == 0
    assert (tmp_path / "map.png").stat().st_size > 5_000


def test_vectors_are_judged_by_files_of_ones_own(triform: Command, made: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(": pets\ncat fish dog bone\ncat fish dog bird\n", encoding="utf-8")
    (tmp_path / "p.tsv").write_text("cat\tdog\t9\ncat\ttown\t1\ncat\teats\t5\nbird\tdog\t2\n", encoding="utf-8")
    asked = ("vectors", "evaluate", made, "--analogies", tmp_path / "a.txt", "--pairs", tmp_path / "p.tsv")
    found = triform(*asked, "--json").json
    assert [(each["name"], each["covered"], each["asked"]) for each in found] == [
        ("pets", 1, 2),
        ("all analogies", 1, 2),
        ("p", 3, 4),
    ]
    assert "Spearman" in triform(*asked).out


def test_a_model_begins_with_vectors(triform: Command, train: Command, made: Path, tmp_path: Path) -> None:
    answer = train("classify", "--data", rows(tmp_path), "--out", tmp_path / "run", "--embeddings", made)
    assert answer.code == 0, answer.err
    assert "3 of 10 pieces have a vector" in answer.err


def rows(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_text(
        "".join(f"{'good' if n % 2 else 'bad'},the cat eats x{n % 3}\n" for n in range(40)), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "builtin:topics", "--out", "v.npy"), "v.npy: ends in '.npy'"),
        (("train", "none.txt", "--out", "v.bin"), "none.txt: no such file"),
        (("train", "builtin:topics/valid", "--out", "v.bin", "--min-count", "1000000"), "leaves no word"),
        (("train", "builtin:topics", "--out", "/dev/null/v.bin"), "v.bin: cannot be written (Not a directory)"),
        (("nearest", "VECTORS", "catt"), "no vector for 'catt'; did you mean 'cat'"),
        (("nearest", "none.bin", "cat"), "none.bin: no such file"),
        (("evaluate", "VECTORS", "--data", "nowhere"), "word_eval/questions-words.txt"),
        (("map", "VECTORS", "--out", "map.pdf"), "map.pdf: a map is a picture"),
    ],
)
def test_what_is_wrong_is_one_line(triform: Command, made: Path, arguments: tuple[str, ...], told: str) -> None:
    answer = triform("vectors", *(made if each == "VECTORS" else each for each in arguments))
    assert told in answer.refusal


def test_a_column_that_is_not_there_names_the_option(triform: Command, tmp_path: Path) -> None:
    answer = triform("vectors", "train", rows(tmp_path), "--out", tmp_path / "v.bin", "--text-column", "nope")
    assert "has no column 'nope'" in answer.refusal
    assert "set --text-column to one of them" in answer.refusal
