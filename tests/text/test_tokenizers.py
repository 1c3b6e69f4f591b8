"""Every kind of tokenizer goes through the same suite; then what is particular to each."""

from __future__ import annotations

import difflib
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triform.text
from triform.config import TokenizerConfig, TokenizerKind
from triform.errors import CheckpointError, ConfigError, DataError
from triform.text import BOS, EOS, PAD, TOKENIZERS, UNK, Tokenizer, load_tokenizer, train_tokenizer
from triform.text.base import split_long_text
from triform.text.nearest_words import WordIndex

KINDS = sorted(TOKENIZERS)
TEXTS = [
    "The cat sat on the mat, and the other cat sat on the other mat.\n\nThen they're gone; it's late.\n",
    "Le chat est assis, l’autre aussi : « déjà vu », où ça ? L'été, à Noël, le maïs, été, été.\n",
    "Die Straße über dem Fluß ist schön, schöner, am schönsten. 1999, 2024 und 31415926.\n",
    "猫が座った。猫が座った。もう一匹の猫も座った。 🙂🙂👩‍👩‍👧 \t tab\r\nand <pad> <unk> <bos> <eos> too\n",
    "    for x in range(100):\n        print(x, x ** 2)\n\n\n    return None  # [PAD] [UNK]\n",
] * 3
HARD_TEXTS = [
    "",
    "  \n \n\n  x",
    "I'll 'twas, \r\n\t THEY'RE 12345 ½",
    "🙂👩‍👩‍👧‍👦 漢字 e\u0301 \u0301",
    "\x00\x1b[0m\x7f\x80\x85\xa0\u2028\ufeff\U0010ffff",
    "x" * 3000 + " " * 3000 + "!" * 3000,
    "<pad><unk><bos><eos>",
    "Ünïcödé ſ İıŉ ß ﬁ Ǆ ΑΣ",
    *TEXTS,
]

no_deadline = settings(deadline=None)  # the machine may be busy with other tests


def train(kind: str, texts: list[str] = TEXTS, **options: object) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, **options), iter(texts))


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(request.param)


# ------------------------------------------------------------------------------- every kind


def test_the_registry_and_the_config_name_the_same_kinds() -> None:
    assert set(TOKENIZERS) == set(get_args(TokenizerKind)) - {"auto", "imported"}
    assert all(tokenizer_class.kind == kind for kind, tokenizer_class in TOKENIZERS.items())


def test_the_exported_names_are_sorted_and_exist() -> None:
    names = triform.text.__all__
    assert set(names) == {name for name in names if hasattr(triform.text, name)}
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))  # constants first, as ruff sorts


def test_reading_text_needs_no_torch() -> None:
    code = "import sys, triform.text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_special_tokens_have_the_same_ids_everywhere(tokenizer: Tokenizer) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    bert_names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    names = bert_names if tokenizer.kind == "wordpiece" else ["<pad>", "<unk>", "<bos>", "<eos>"]
    assert [tokenizer.format_piece(token) for token in range(4)] == names


def test_special_tokens_are_not_written_out(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("The cat")
    assert tokenizer.decode([BOS, *tokens, EOS, PAD, PAD]) == tokenizer.decode(tokens) == "The cat"
    assert tokenizer.decode([UNK]) == "\N{REPLACEMENT CHARACTER}"


@no_deadline
@given(
    text=st.lists(st.sampled_from(["<pad>", "<unk>", "[PAD]", "[UNK]", "<bos>", "<eos>", " ", ",", "\n"])).map(
        "".join
    )
)
def test_the_name_of_a_special_token_is_ordinary_text(tokenizer: Tokenizer, text: str) -> None:
    assert not {PAD, UNK, BOS, EOS} & set(tokenizer.encode(text))


def test_no_text_gives_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch(["", ""]) == [[], []]
    assert tokenizer.decode([]) == ""


def test_every_token_lies_in_the_vocabulary_and_has_a_piece(tokenizer: Tokenizer) -> None:
    tokens = {token for text in HARD_TEXTS for token in tokenizer.encode(text)}
    assert max(tokens) < tokenizer.vocab_size
    assert all(tokenizer.format_piece(token) for token in range(tokenizer.vocab_size))


@no_deadline
@given(texts=st.lists(st.one_of(st.text(), st.sampled_from(HARD_TEXTS)), max_size=8))
def test_a_batch_encodes_like_its_texts_one_by_one(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_comes_back_the_same(kind: str, lowercase: bool, tmp_path: Path) -> None:
    before = train(kind, lowercase=lowercase)
    before.save(tmp_path / "tokenizer.json")
    for after in (load_tokenizer(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(before))):
        assert type(after) is type(before)
        assert after.vocab_size == before.vocab_size
        assert after.encode_batch(HARD_TEXTS) == before.encode_batch(HARD_TEXTS)
        assert all(after.format_piece(token) == before.format_piece(token) for token in range(after.vocab_size))
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_file(kind: str, tmp_path: Path) -> None:
    for name in "ab":
        train(kind).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_how_the_text_is_cut_into_texts_does_not_change_what_is_learned(kind: str, tmp_path: Path) -> None:
    full_text = "".join(TEXTS)
    train(kind, [full_text]).save(tmp_path / "whole")
    train(kind, list(split_long_text(full_text, 0))).save(tmp_path / "lines")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "lines").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_asked_for_is_the_size_given(kind: str) -> None:
    size = {"char": 20, "word": 20, "bpe": 300, "wordpiece": 200}[kind]
    assert train(kind, vocab_size=size).vocab_size == size
    maximum = train(kind, vocab_size=0).vocab_size
    assert train(kind, vocab_size=maximum).vocab_size == maximum


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_the_data_cannot_fill_is_refused_with_the_most_it_can(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size=50000 is more than the data allows") as caught:
        train(kind, vocab_size=50000)
    maximum = int(str(caught.value).split("(")[1].split()[0])
    assert train(kind, vocab_size=maximum).vocab_size == maximum
    with pytest.raises(ConfigError, match=rf"set it to {maximum} or lower, or remove the setting"):
        train(kind, vocab_size=maximum + 1)


@pytest.mark.parametrize(("kind", "minimum"), [("char", 5), ("word", 5), ("bpe", 260)])
def test_a_size_without_room_for_anything_is_refused_with_the_least(kind: str, minimum: int) -> None:
    assert train(kind, vocab_size=minimum).vocab_size == minimum
    with pytest.raises(ConfigError, match=f"at least {minimum}"):
        train(kind, vocab_size=minimum - 1)


@pytest.mark.parametrize("texts", [[], ["", ""]])
@pytest.mark.parametrize("kind", KINDS)
def test_no_text_at_all_is_refused(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match=r"corpus\.txt: there is no text"):
        train_tokenizer(TokenizerConfig(kind=kind), iter(texts), name="corpus.txt")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_while_reading_the_texts_arrives_as_it_is(kind: str) -> None:
    def texts() -> Iterator[str]:
        yield "one"
        raise DataError("not UTF-8", path="corpus.txt", line=2)

    with pytest.raises(DataError, match=r"corpus\.txt, line 2: not UTF-8"):
        train_tokenizer(TokenizerConfig(kind=kind), texts())


def test_half_a_surrogate_pair_is_refused_in_words(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch(["fine", text])):
        with pytest.raises(DataError, match=r"character 3 is a lone surrogate \(U\+D800\)"):
            encode("ab\ud800c")
    with pytest.raises(DataError, match="the data: character 1"):
        train(tokenizer.kind, ["\udfff"])


@no_deadline
@given(texts=st.lists(st.text(alphabet="ab'é1 .,!<\t\r\n\u2028\x85", max_size=20), max_size=6))
def test_long_text_may_be_cut_at_a_line_break_before_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    full_text = "\n".join(texts)
    parts = list(split_long_text(full_text, 0))
    assert "".join(parts) == full_text
    assert [token for part in parts for token in tokenizer.encode(part)] == tokenizer.encode(full_text)


def test_long_text_encodes_like_the_library_does_in_one_go(tokenizer: Tokenizer) -> None:
    full_text = "".join(TEXTS) * 10
    assert len(list(split_long_text(full_text, 4096))) > 1
    assert tokenizer.encode(full_text) == tokenizer._backend.encode(full_text, add_special_tokens=False).ids


def test_a_forked_child_tokenizes_without_a_warning() -> None:
    code = """
import os
from triform.config import TokenizerConfig
from triform.text import train_tokenizer
tokenizer = train_tokenizer(TokenizerConfig(kind="bpe"), ["some text, some more text"] * 50)
expected = tokenizer.encode_batch(["some text"] * 99)
child = os.fork()
if child == 0:
    os._exit(tokenizer.encode_batch(["some text"] * 99) != expected)
assert os.waitpid(child, 0)[1] == 0 and "TOKENIZERS_PARALLELISM" not in os.environ
"""
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    assert "tokenizers" not in completed.stdout + completed.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no such tokenizer file"),
        ("", "damaged"),
        ("[1]", "not a Triform tokenizer"),
        ('{"version": "1.0"}', "not a Triform tokenizer"),
        ('{"triform": {"format": 1, "kind": "char"}, "tokenizer": {}}', "damaged"),
        ('{"triform": {"format": 1, "kind": "morse"}, "tokenizer": {}}', "unknown tokenizer kind 'morse'"),
        ('{"triform": {"format": 99, "kind": "char"}, "tokenizer": {}}', "has format 99, and this Triform reads"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(
    content: str | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=problem) as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


def test_a_vocabulary_without_the_special_tokens_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    train("word").save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["tokenizer"]["model"]["vocab"]["<eos>"]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match="must be numbered from 0 and start with <pad>"):
        load_tokenizer(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        train("char").save(tmp_path / "missing" / "tokenizer.json")


# ------------------------------------------------------------------------------- characters


@no_deadline
@given(text=st.one_of(st.text(min_size=1), st.sampled_from([text for text in HARD_TEXTS if text])))
def test_characters_seen_in_training_come_back_exactly(text: str) -> None:
    tokenizer = train("char", [text])
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == len(text)
    assert tokenizer.vocab_size == 4 + len(set(text))
    expected = tokenizer._backend.encode(text, add_special_tokens=False).ids
    assert tokens == expected  # the dictionary equals the model


def test_characters_are_numbered_by_code_point_and_the_rarest_dropped() -> None:
    tokenizer = train("char", ["cccbbbaaadde"], vocab_size=8)
    assert [tokenizer.format_piece(token) for token in range(4, 8)] == list("abcd")
    assert tokenizer.decode(tokenizer.encode("ace")) == "ac\N{REPLACEMENT CHARACTER}"
    assert tokenizer.find_unknown("zebra, zebra") == ["z", "e", "r", ",", " "]
    tied = train("char", ["badc"], vocab_size=6)
    assert tied.find_unknown("abcd") == ["c", "d"]


# ------------------------------------------------------------------------------------ words


def test_words_are_numbered_by_frequency_then_alphabet() -> None:
    tokenizer = train("word", ["b a b c, d d d"])
    assert [tokenizer.format_piece(token) for token in range(4, tokenizer.vocab_size)] == ["d", "b", ",", "a", "c"]
    assert train("word", ["b a b c, d d d"], min_count=2).find_unknown("a b c d") == ["a", "c"]
    assert train("word", ["b a b c, d d d"], vocab_size=6).find_unknown("a b c, d a") == ["a", "c", ","]


def test_words_keep_their_inner_apostrophes_and_punctuation_stands_alone() -> None:
    tokenizer = train("word", ["Don't! l’homme's (dogs') x_y e\u0301te\u0301 3.14"])
    pieces = [
        tokenizer.format_piece(token)
        for token in tokenizer.encode("Don't! l’homme's (dogs') x_y e\u0301te\u0301 3.14")
    ]
    assert pieces == [
        *("Don't", "!", "l’homme's", "(", "dogs", "'", ")"),
        *("x", "_", "y", "e\u0301te\u0301", "3", ".", "14"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        'He said: "Wait, (please) don\'t go!" and left.',
        "A well-known 50% off, for $5; really?",
        "Le chat «noir», l’autre [aussi]…",
        "“Curly” and ‘single’ quotes, too.",
    ],
)
def test_words_read_well_when_joined_again(text: str) -> None:
    tokenizer = train("word", [text])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_without_case_when_asked() -> None:
    tokenizer = train("word", ["The the THE ÉTÉ"], lowercase=True)
    assert tokenizer.decode(tokenizer.encode("THE Été Zoo")) == "the été \N{REPLACEMENT CHARACTER}"
    assert tokenizer.find_unknown("THE Zoo") == ["zoo"]


def test_a_text_without_frequent_words_is_refused() -> None:
    with pytest.raises(DataError, match="no word occurs 2 times"):
        train("word", ["each word once"], min_count=2)


def test_the_nearest_words_are_those_that_difflib_finds_in_the_whole_vocabulary() -> None:
    rng = random.Random(5)
    words = sorted({"".join(rng.choices("abcdefgh", k=rng.randint(2, 9))) for _ in range(3000)})
    index = WordIndex(words)
    for _ in range(40):
        letters = list(rng.choice([word for word in words if len(word) > 4]))
        letters[rng.randrange(len(letters))] = "x"
        unknown = "".join(letters)
        best = difflib.get_close_matches(unknown, words, n=1, cutoff=0.6)[0]
        similarity = difflib.SequenceMatcher(None, unknown, best).ratio()
        nearest = index.nearest(unknown)[0]
        assert difflib.SequenceMatcher(None, unknown, nearest).ratio() == pytest.approx(similarity, abs=0.1)
    assert index.nearest("ABCX") == index.nearest("abcx")
    assert index.nearest("☃") == ()
    assert index.nearest("") == ()
    assert WordIndex(["ab" * 500]).nearest("ab" * 500 + "c") == ()  # comparing such words would take too long
