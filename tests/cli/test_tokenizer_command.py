"""`triform tokenizer`: vocabularies learned, used, taken from elsewhere and written for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from transformers import AutoTokenizer

from triform.text import BpeTokenizer, read_tokenizer

Command = Callable[..., Any]
TEXT = "The cat sat on the mat, and the other cat sat on the other mat.\nThen they're gone; it's late.\n"
HARD_TEXT = "the cat's  \t<eos> é 🙂"


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT * 3, encoding="utf-8")
    return path


@pytest.fixture
def tokenizer_file(triform: Command, text_file: Path, tmp_path: Path) -> Path:
    path = tmp_path / "learned.json"
    result = triform("tokenizer", "train", "--data", text_file, "--vocab-size", 280, "--out", path)
    assert result.code == 0, result.err
    assert result.out == f"bpe tokenizer with 280 tokens: {path}\n"
    return path


def test_what_is_encoded_comes_back(triform: Command, tokenizer_file: Path, tmp_path: Path) -> None:
    token_ids = triform("tokenizer", "encode", tokenizer_file, HARD_TEXT).out
    assert triform("tokenizer", "decode", tokenizer_file, *token_ids.split()).out == HARD_TEXT + "\n"
    several = triform("tokenizer", "encode", tokenizer_file, "--input", "-", stdin=f"{HARD_TEXT}\n\nmat\n").out
    assert several.splitlines()[0] == token_ids.rstrip("\n")
    assert (
        triform("tokenizer", "decode", tokenizer_file, "--input", "-", stdin=several).out == f"{HARD_TEXT}\n\nmat\n"
    )
    rows = triform("tokenizer", "encode", tokenizer_file, "cat", "mat", "--json").json
    assert ["".join(row["pieces"]) for row in rows] == ["cat", "mat"]
    spaced, joined = (triform("tokenizer", "decode", tokenizer_file, row).out for row in ("70 71", "70,71"))
    assert spaced == joined


def test_files_are_given_by_position_too(
    triform: Command, tokenizer_file: Path, text_file: Path, tmp_path: Path
) -> None:
    same = tmp_path / "same.json"
    assert triform("tokenizer", "train", text_file, "--vocab-size", 280, "--out", same).code == 0
    assert same.read_bytes() == tokenizer_file.read_bytes()
    two, three = tmp_path / "two.json", tmp_path / "three.json"
    assert triform("tokenizer", "train", text_file, text_file, "--kind", "char", "--out", two).code == 0
    assert triform("tokenizer", "train", text_file, "--data", text_file, "--kind", "char", "--out", three).code == 0
    assert two.read_bytes() == three.read_bytes()
    assert "there is no text to train on" in triform("tokenizer", "train", "--out", tmp_path / "none.json").refusal


@pytest.mark.parametrize("kind", ["word", "char", "wordpiece"])
def test_each_kind_is_learned(triform: Command, kind: str, text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "it.json"
    result = triform("tokenizer", "train", "--data", text_file, "--kind", kind, "--lowercase", "--out", out)
    assert result.out.startswith(f"{kind} tokenizer with ")
    upper, lower = (triform("tokenizer", "encode", out, text).out for text in ("THE Cat", "the cat"))
    assert upper == lower


def test_a_learned_vocabulary_serves_training(
    triform: Command, tokenizer_file: Path, text_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shape = ("--set", "model.d_model=8", "--set", "model.n_heads=1", "--set", "model.n_layers=1")
    train_options = ("--set", "train.max_steps=1", "--device", "cpu", "--set", "data.max_len=8")
    result = triform(
        *(
            "train",
            "generate",
            "--data",
            text_file,
            "--set",
            f"tokenizer.file={tokenizer_file}",
            "--out",
            run,
            *shape,
            *train_options,
        )
    )
    assert result.code == 0, result.err
    assert (
        triform("tokenizer", "encode", run, HARD_TEXT).out
        == triform("tokenizer", "encode", tokenizer_file, HARD_TEXT).out
    )


def test_to_other_libraries_and_back_the_ids_stay(triform: Command, tokenizer_file: Path, tmp_path: Path) -> None:
    expected = triform("tokenizer", "encode", tokenizer_file, HARD_TEXT).out
    token_ids = [int(word) for word in expected.split()]
    files = triform("tokenizer", "export", tokenizer_file, "--out", tmp_path / "hf").out.split()
    assert {Path(file).name for file in files} >= {"tokenizer.json", "vocab.json", "merges.txt"}
    hf_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert hf_tokenizer(HARD_TEXT, split_special_tokens=True)["input_ids"] == token_ids
    triform("tokenizer", "export", tokenizer_file, "--format", "tiktoken", "--out", tmp_path / "ranks")
    file = tmp_path / "ranks" / "tokenizer.tiktoken"
    metadata = json.loads(file.with_name(f"{file.name}.json").read_text(encoding="utf-8"))
    ranks = load_tiktoken_bpe(str(file))
    known = tiktoken.Encoding(
        "it", pat_str=metadata["pattern"], mergeable_ranks=ranks, special_tokens=metadata["special_tokens"]
    )
    assert known.encode_ordinary(HARD_TEXT) == token_ids
    for folder in (tmp_path / "hf", tmp_path / "hf" / "tokenizer.json", file):
        out = tmp_path / f"{folder.name}.back"
        result = triform("tokenizer", "import", folder, "--out", out.with_suffix(".json"))
        assert result.code == 0, result.err
        assert triform("tokenizer", "encode", out.with_suffix(".json"), HARD_TEXT).out == expected
    special = [f"--special={name}={number}" for name, number in metadata["special_tokens"].items()]
    named = triform(
        *("tokenizer", "import", file, "--out", tmp_path / "p.json", "--pattern", metadata["pattern"], *special)
    )
    assert named.code == 0, named.err
    assert triform("tokenizer", "encode", tmp_path / "p.json", HARD_TEXT).out == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encode", "{tmp}/nowhere", "a"), "no such tokenizer file"),
        (
            ("encode", "{tmp}", "a"),
            "no tokenizer found; known files are tokenizer.json, vocab.json with merges.txt",
        ),
        (("encode", "{tmp}/book.txt", "a"), "book.txt, line 3: "),
        (
            ("encode", "{learned}"),
            "there is nothing to read; give TEXT, --input FILE, or --input -",
        ),
        (("encode", "{learned}", "a", "--side", "left"), "--side left: must be source or target"),
        (("decode", "{learned}", "280"), "280 is not a token id; the ids of this vocabulary are 0 to 279"),
        (("decode", "{learned}", "1.5"), "'1.5' is not a token id; ids are whole numbers"),
        (("decode", "{learned}"), "there is nothing to read; give ID"),
        (
            ("export", "{learned}", "--format", "hff", "--out", "{tmp}/o"),
            "unknown --format 'hff'; choose from hf, tiktoken",
        ),
        (("train", "--data", "{tmp}/book.txt", "--out", "{learned}"), "already exists; choose another --out"),
        (
            ("train", "{tmp}/book.txt", "--kind", "wordpeice", "--out", "{tmp}/o"),
            "unknown --kind 'wordpeice'; choose from char, word, bpe, wordpiece",
        ),
        (
            ("train", "{tmp}/book.txt", "--kind", "wordpiece", "--vocab-size", "9", "--out", "{tmp}/o"),
            "tokenizer.vocab_size=9 is too small: it must be at least 40",
        ),
        (("train", "--data", "{tmp}/none.txt", "--out", "{tmp}/o"), "none.txt"),
        (("train", "--data", "{tmp}/book.txt", "--vocab-size", "9999", "--out", "{tmp}/o"), "is more than"),
        (("show", "{tmp}/nowhere"), "no such tokenizer file"),
        (("show", "{learned}", "--limit", "-1"), "--limit"),
        (("encode", "{learned}", "--explain"), "there is nothing to read; give TEXT"),
        (("import", "{learned}", "--out", "{learned}"), "already exists"),
        (("import", "{learned}", "--special", "<a>", "--out", "{tmp}/o"), "write the token and its id as TOKEN=ID"),
        (("import", "{tmp}/x.tiktoken", "--out", "{tmp}/o"), "no such tokenizer file"),
    ],
)
def test_what_is_wrong_is_one_line(
    triform: Command, arguments: tuple[str, ...], message: str, tokenizer_file: Path, tmp_path: Path
) -> None:
    command = [argument.format(tmp=tmp_path, learned=tokenizer_file) for argument in arguments]
    assert message in triform("tokenizer", *command).refusal
    assert not (tmp_path / "o").exists()


def test_what_no_other_library_reads_is_said(triform: Command, text_file: Path, tmp_path: Path) -> None:
    triform("tokenizer", "train", "--data", text_file, "--kind", "word", "--out", tmp_path / "w.json")
    result = triform("tokenizer", "export", tmp_path / "w.json", "--format", "tiktoken", "--out", tmp_path / "o")
    assert result.refusal == "tiktoken supports only byte-level BPE; this tokenizer is word"


def test_show_prints_the_merges_in_order(triform: Command, tokenizer_file: Path) -> None:
    content = triform("tokenizer", "show", tokenizer_file, "--limit", 0, "--json").json
    tokenizer = read_tokenizer(tokenizer_file)
    assert isinstance(tokenizer, BpeTokenizer)
    assert (content["kind"], content["vocab_size"], len(content["vocabulary"])) == ("bpe", 280, 280)
    assert content["special_tokens"]["eos"] == {"id": 3, "piece": "<eos>"}
    learned = [(left.decode(), right.decode()) for left, right in tokenizer.merges()]
    assert [(row["left"], row["right"]) for row in content["merges"]] == learned
    assert [row["id"] for row in content["merges"]] == list(range(260, 280))
    lines = triform("tokenizer", "show", tokenizer_file, "--limit", 5).out.splitlines()
    assert lines[:5] == [
        "kind            bpe",
        "vocabulary      280 tokens",
        "special tokens  pad <pad> (0), unk <unk> (1), bos <bos> (2), eos <eos> (3)",
        "merges          20",
        "",
    ]
    assert {"275 more tokens; --limit 0 shows all", "15 more merges; --limit 0 shows all"} < set(lines)
    table = triform("tokenizer", "show", tokenizer_file, "--merges", "--limit", 2).out.splitlines()
    assert [line.split() for line in table[1:3]] == [
        [str(number), *(piece.replace(" ", "␣") for piece in (*pair, "".join(pair))), str(259 + number)]
        for number, pair in enumerate(learned[:2], 1)
    ]
    assert (
        triform("tokenizer", "show", tokenizer_file, "--merges", "--json", "--limit", 2).json
        == content["merges"][:2]
    )


@pytest.mark.parametrize("kind", ["wordpiece", "word", "char"])
def test_show_says_which_kinds_have_no_merges(triform: Command, kind: str, text_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    triform("tokenizer", "train", text_file, "--kind", kind, "--out", path)
    assert "merge" not in triform("tokenizer", "show", path, "--limit", 0).out
    assert triform("tokenizer", "show", path, "--json").json["merges"] is None
    assert triform("tokenizer", "show", path, "--merges").refusal == (
        f"--merges: {path} has no merges, because only byte-level BPE has them; its kind is {kind}"
    )


def test_show_says_what_surrounds_a_text(triform: Command, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", encoding="utf-8")
    assert "a text is read as  [CLS] TEXT [SEP]" in triform("tokenizer", "show", tmp_path).out


def test_explain_shows_each_word_once_with_its_steps(triform: Command, tokenizer_file: Path) -> None:
    output = triform("tokenizer", "encode", tokenizer_file, "that that that\n", "--explain").out
    headings = [line for line in output.splitlines() if not line.startswith(" ")]
    assert headings == ["that", "␣that", "\\n"]
    assert output.startswith("that\n  bytes    t h a t\n  merge 2  t h at\n  ids      87 75 261\n")
    (row,) = triform("tokenizer", "encode", tokenizer_file, "that that", "--explain", "--json").json
    assert [str(token) for token in row["tokens"]] == triform(
        "tokenizer", "encode", tokenizer_file, "that that"
    ).out.split()
    assert [word["word"] for word in row["words"]] == ["that", " that"]
    assert row["words"][0]["steps"][0] == {"name": "bytes", "pieces": ["t", "h", "a", "t"], "rest": ""}


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "word", "char"])
def test_explain_is_at_most_80_columns_wide(triform: Command, kind: str, text_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    triform("tokenizer", "train", text_file, "--kind", kind, "--out", path)
    output = triform("tokenizer", "encode", path, TEXT, "x" * 99, "o-" * 200, "--explain").out
    assert max(map(len, output.splitlines())) <= 80
