"""WordPiece: trained like the library's and BERT's, and written in BERT's own format."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from importing_cases import HARD_TEXTS, TEXTS
from tokenizers.implementations import BertWordPieceTokenizer
from transformers import BertTokenizer

from triform.config import TokenizerConfig
from triform.errors import ConfigError, DataError
from triform.text import WordPieceTokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from triform.text.wordpiece import MAX_ALPHABET

BERT_NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
# Every pair of neighbouring pieces has a different count, so there is one right order of merges.
CHAINS = [
    " ".join([word[:length]] * count)
    for word, first_count in (("abcdef", 128), ("ghijkl", 192), ("mnopqr", 320))
    for length, count in zip(range(2, 7), (first_count >> shift for shift in range(5)), strict=True)
]


def train(texts: list[str] = TEXTS, **options: object) -> WordPieceTokenizer:
    tokenizer = train_tokenizer(TokenizerConfig(kind="wordpiece", **options), iter(texts))  # type: ignore[arg-type]
    assert isinstance(tokenizer, WordPieceTokenizer)
    return tokenizer


def split(tokenizer: WordPieceTokenizer, text: str) -> list[str]:
    return tokenizer.format_pieces(tokenizer.encode(text))


@pytest.mark.parametrize("lowercase", [False, True])
def test_training_learns_the_pieces_of_the_library_in_the_same_order(lowercase: bool) -> None:
    theirs = BertWordPieceTokenizer(lowercase=lowercase)
    theirs.train_from_iterator(
        CHAINS, vocab_size=200, min_frequency=2, special_tokens=BERT_NAMES, show_progress=False
    )
    ids = theirs.get_vocab()
    learned = [piece for piece in sorted(ids, key=ids.__getitem__) if len(piece.removeprefix("##")) > 1][4:]
    ours = train(CHAINS, lowercase=lowercase)
    first_pieces = [*BERT_NAMES, *"abcdefghijklmnopqr", *(f"##{letter}" for letter in "abcdefghijklmnopqr")]
    assert list(ours.vocabulary) == first_pieces + learned
    assert len(learned) == 15
    for word in ("abcdef", "abcdeff", "ghijkr", "mn"):
        assert split(ours, word) == theirs.encode(word, add_special_tokens=False).tokens


def test_every_process_learns_the_same_vocabulary() -> None:
    """The library alone numbers the characters differently in every training."""
    code = (
        "import hashlib, json, sys\n"
        "from triform.config import TokenizerConfig\nfrom triform.text import train_tokenizer\n"
        "tokenizer = train_tokenizer(TokenizerConfig(kind='wordpiece'), json.load(sys.stdin))\n"
        "print(hashlib.sha256(tokenizer.to_json().encode()).hexdigest())"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    assert completed.stdout.strip() == hashlib.sha256(train().to_json().encode()).hexdigest()


@pytest.mark.parametrize("lowercase", [False, True])
def test_bert_reads_the_exported_vocabulary_with_the_same_ids(lowercase: bool, tmp_path: Path) -> None:
    ours = train(lowercase=lowercase)
    names = {path.name for path in write_tokenizer(ours, tmp_path)}
    assert names == {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    lines = (tmp_path / "vocab.txt").read_text(encoding="utf-8").split("\n")
    assert lines == [*ours.vocabulary, ""]
    (tmp_path / "tokenizer.json").unlink()
    theirs = BertTokenizer.from_pretrained(str(tmp_path))
    reloaded = read_tokenizer(tmp_path / "vocab.txt")
    assert reloaded.special_tokens[:4] == ours.special_tokens[:4]
    for text in HARD_TEXTS:
        expected = theirs(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == reloaded.encode(text) == expected, ascii(text[:40])


def test_lower_case_removes_accents_as_bert_does() -> None:
    tokenizer = train(["Der Été été ÉTÉ"] * 3, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("DER été")) == "der ete"
    cased = train(["Der Été été ÉTÉ"] * 3)
    assert cased.decode(cased.encode("Der Été")) == "Der Été"


def test_only_words_with_new_characters_and_very_long_words_are_unknown() -> None:
    tokenizer = train(["low lower lowest, newer newest"] * 3)
    assert split(tokenizer, "lowest rewoten") == ["lowest", "r", "##e", "##w", "##o", "##t", "##e", "##n"]
    assert tokenizer.find_unknown("lowest rewoten, Low ☃ snow Low") == ["Low", "☃"]
    assert tokenizer.find_unknown("w" * 100) == []
    assert tokenizer.find_unknown("w" * 101) == ["w" * 101]
    assert tokenizer.decode(tokenizer.encode("low Low")) == "low \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "text",
    [
        'They don\'t say "well-made" (often), do they?',
        "C'est l'été, qu'il dit... J’aime ça !",
        "It's Ann's; we've 'quoted' it.",
    ],
)
def test_pieces_read_well_when_joined_again(text: str) -> None:
    tokenizer = train([text] * 2)
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace(" !", "!")


def test_a_piece_inside_a_word_is_decoded_without_its_mark() -> None:
    tokenizer = train(CHAINS)
    ids = {piece: token for token, piece in enumerate(tokenizer.vocabulary)}
    assert tokenizer.decode([ids["##c"], ids["##d"], ids["ab"]]) == "cd ab"


def test_the_rarest_characters_of_a_large_alphabet_are_unknown() -> None:
    frequent = [chr(0x4E00 + index) for index in range(MAX_ALPHABET)]
    tokenizer = train(["".join(frequent) * 2, "\u4dff"])
    assert tokenizer.find_unknown("".join(frequent)) == []
    assert tokenizer.find_unknown("\u4dff") == ["\u4dff"]


def test_a_size_without_room_for_the_characters_is_refused_with_the_least() -> None:
    minimum = 4 + 2 * 18
    assert train(CHAINS, vocab_size=minimum).vocab_size == minimum
    with pytest.raises(
        ConfigError, match=rf"tokenizer\.vocab_size={minimum - 1} is too small.* at least {minimum}"
    ):
        train(CHAINS, vocab_size=minimum - 1)


def test_a_smaller_vocabulary_is_the_start_of_a_larger_one() -> None:
    largest = train().vocabulary
    for size in (len(largest) - 1, len(largest) - 40):
        assert list(train(vocab_size=size).vocabulary) == list(largest[:size])


def test_text_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="the data: there are no words to train a tokenizer on"):
        train([" \n\t "])
