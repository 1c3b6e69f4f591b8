"""Byte-level BPE against three references: tiktoken, a plain encoder and a plain trainer."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from unicodedata import category

import numpy as np
import pytest
import regex
import tiktoken
from foreign_cases import HARD, TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st

from triform.config import TokenizerConfig
from triform.text import EOS, UNK, train_tokenizer
from triform.text import bpe as bpe_module
from triform.text.base import TextStream
from triform.text.bpe import BASE_SIZE, CHARACTERS_A_PIECE, FEWEST, GPT4_PATTERN, MOST, BpeTokenizer

unhurried = settings(deadline=None)  # the machine may be busy with other tests


def trained(texts: list[str] = TEXTS, **chosen: object) -> BpeTokenizer:
    made = train_tokenizer(TokenizerConfig(kind="bpe", **chosen), iter(texts))
    assert isinstance(made, BpeTokenizer)
    return made


PARTS = st.sampled_from(["  ", "    ", "\n", "\r\n", "'", "s", "Cat", " the", "123", "é", "!", "🙂", "𝔘", "\0"])
LOUD, QUIET = trained(), trained(lowercase=True)


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return trained()


@pytest.fixture(scope="module")
def reference(bpe: BpeTokenizer) -> tiktoken.Encoding:
    ranks = {spelled: token for token, spelled in enumerate(bpe._bytes) if token > EOS}
    return tiktoken.Encoding("ours", pat_str=GPT4_PATTERN, mergeable_ranks=ranks, special_tokens={})


def plain_split(text: str) -> list[bytes]:
    return [found[0].encode() for found in regex.finditer(GPT4_PATTERN, text)]


def plain_join(parts: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    joined: list[bytes] = []
    for part in parts:
        if joined and (joined[-1], part) == pair:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def plain_encode(bpe: BpeTokenizer, text: str) -> list[int]:
    """BPE as it is explained: join the pair that was learned first, until no known pair is left."""
    rank = {pair: number for number, pair in enumerate(bpe.merges())}
    token_of = {spelled: token for token, spelled in enumerate(bpe._bytes) if token > EOS}
    tokens: list[int] = []
    for chunk in plain_split(text):
        parts = [bytes([byte]) for byte in chunk]
        while known := [pair for pair in pairwise(parts) if pair in rank]:
            parts = plain_join(parts, min(known, key=rank.__getitem__))
        tokens += [token_of[part] for part in parts]
    return tokens


def plain_train(bpe: BpeTokenizer, texts: list[str], n_merges: int) -> list[tuple[bytes, bytes]]:
    """Join the most frequent pair, the earliest made first among equals, again and again."""
    age = {spelled: token for token, spelled in enumerate(bpe._bytes[:BASE_SIZE]) if token > EOS}
    words = [
        ([bytes([byte]) for byte in word], count)
        for word, count in Counter(word for text in texts for word in plain_split(text)).items()
    ]
    merges: list[tuple[bytes, bytes]] = []
    while len(merges) < n_merges:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for parts, count in words:
            for pair in pairwise(parts):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]))
        words = [(plain_join(parts, best), count) for parts, count in words]
        age.setdefault(b"".join(best), len(age) + EOS + 1)
        merges.append(best)
    return merges


@unhurried
@given(text=st.one_of(st.text(), st.sampled_from(HARD)))
def test_any_text_comes_back_exactly(bpe: BpeTokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text
    assert bpe.unknown(text) == []


@unhurried
@given(text=st.text())
def test_ids_equal_those_of_tiktoken(bpe: BpeTokenizer, reference: tiktoken.Encoding, text: str) -> None:
    assert bpe.encode(text) == reference.encode_ordinary(text)


@unhurried
@given(text=st.text())
def test_ids_equal_those_of_plain_python(bpe: BpeTokenizer, text: str) -> None:
    assert bpe.encode(text) == plain_encode(bpe, text)


@pytest.mark.parametrize("text", HARD, ids=lambda text: ascii(text[:12]))
def test_hard_text_gives_the_ids_of_both_references(
    bpe: BpeTokenizer, reference: tiktoken.Encoding, text: str
) -> None:
    tokens = bpe.encode(text)
    assert tokens == reference.encode_ordinary(text)
    assert tokens == plain_encode(bpe, text)


@unhurried
@given(
    text=st.text(
        st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\r\t\x1c\x85\xa0'’sSſtTlLvVeErRkK09½éÀ猫🙂𝔘"))
    )
)
def test_words_that_are_remembered_give_the_ids_of_the_library(bpe: BpeTokenizer, text: str) -> None:
    """The quick way, with a pattern of its own, against the library's core; twice, from memory the second time."""
    for _ in range(2):
        assert bpe.encode(text) == bpe._core.encode(text, add_special_tokens=False).ids


@unhurried
@given(texts=st.lists(st.lists(PARTS, max_size=3).map("".join), max_size=9), lowercase=st.booleans())
def test_texts_that_are_split_together_do_not_touch(texts: list[str], lowercase: bool) -> None:
    """Spaces at an end, empty texts, the character that stands between them, and what is left to the library."""
    made = QUIET if lowercase else LOUD
    expected = [row.ids for row in made._core.encode_batch(texts, add_special_tokens=False)]
    assert made.encode_batch(texts) == expected
    tokens, lengths = made.encode_rows(texts)
    assert lengths.tolist() == [len(row) for row in expected]
    assert tokens.tolist() == [token for row in expected for token in row]


@pytest.mark.parametrize("around", ["a{}1", "'{}x", " {} \n"])
def test_both_ways_cut_around_every_character_alike(bpe: BpeTokenizer, around: str) -> None:
    """All planes, assigned or not: what is a letter, a number, a space, an s."""
    points = [
        point for point in range(0x110000) if not 0xD800 <= point < 0xE000 and (point < 0x33000 or point % 97 == 0)
    ]
    texts = [
        "".join(around.format(chr(point)) for point in points[at : at + 2048]) for at in range(0, len(points), 2048)
    ]
    for text in texts:
        assert bpe.encode(text) == bpe._core.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "text", [" " * 2_000_000, "\n" * 1_200_000, "é" * 300_000, " \n" * 500_000 + "x", "1" * 999]
)
def test_endless_repetition_is_only_text(bpe: BpeTokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


def test_what_is_remembered_stays_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, texts = trained(), [f"word{number}x {'long' * 40}" for number in range(300)]
    expected = trained().encode_batch(texts)
    monkeypatch.setattr(bpe_module, "REMEMBERED", 50)
    monkeypatch.setattr(bpe_module, "MANY", 500)  # characters at a time, after which memory is looked at
    assert fresh.encode_batch(texts) == expected
    assert 0 < len(fresh._words) < 60
    assert max(map(len, fresh._words)) <= bpe_module.LONGEST


def test_a_vocabulary_beyond_two_bytes_is_held_in_four(bpe: BpeTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bpe.encode_batch(HARD)
    monkeypatch.setattr(BpeTokenizer, "vocab_size", 70_000)
    wide = BpeTokenizer(bpe._core)
    assert wide.encode_rows(HARD).tokens.dtype == np.uint32
    assert wide.encode_batch(HARD) == expected


def test_a_long_text_is_learned_from_parts_all_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{'early' if number < 500 else 'later'} word number {number}\n" * 200 for number in range(1000)]
    n_characters = sum(map(len, lines))
    monkeypatch.setattr(bpe_module, "SAMPLE", n_characters // 10)
    seen: list[int] = []
    spread = TextStream.spread
    monkeypatch.setattr(
        TextStream, "spread", lambda stream, most: (seen.append(len(part)) or part for part in spread(stream, most))
    )
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    sampled = train_tokenizer(config, iter(lines), n_characters=n_characters)
    assert 0.09 < sum(seen) / n_characters < 0.12
    assert {" word", "early", "later"} <= {sampled.piece(token) for token in range(sampled.vocab_size)}
    seen.clear()
    train_tokenizer(config, iter(lines))  # how long it is was not known
    assert sum(seen) == n_characters


def test_merges_are_learned_as_plain_python_learns_them(bpe: BpeTokenizer) -> None:
    merges = bpe.merges()
    assert len(merges) == bpe.vocab_size - BASE_SIZE
    assert merges == plain_train(bpe, TEXTS, len(merges))


def test_a_text_through_the_whole_of_unicode_agrees_with_tiktoken(
    bpe: BpeTokenizer, reference: tiktoken.Encoding
) -> None:
    """Where the two regex engines could differ: what is a letter, a number, a space."""
    points = [point for point in range(0x30000) if category(chr(point)) not in ("Cn", "Cs")]
    texts = ["".join(f"a{chr(point)}1" for point in points[at : at + 512]) for at in range(0, len(points), 512)]
    assert bpe.encode_batch(texts) == [reference.encode_ordinary(text) for text in texts]


def test_a_cut_character_shows_as_replacement_characters(bpe: BpeTokenizer) -> None:
    tokens = bpe.encode("\U0010fffe")
    assert len(tokens) == 4
    assert bpe.decode(tokens[:2]) == "\N{REPLACEMENT CHARACTER}"
    assert bpe.decode([*tokens, *tokens[1:]]).startswith("\U0010fffe\N{REPLACEMENT CHARACTER}")


@unhurried
@given(data=st.data())
def test_any_tokens_decode_as_the_library_decodes_them(bpe: BpeTokenizer, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(EOS + 1, bpe.vocab_size - 1)))
    assert bpe.decode(tokens) == bpe._core.decode(tokens, skip_special_tokens=False)
    assert "\N{REPLACEMENT CHARACTER}" in bpe.decode([*tokens, UNK])


def test_pieces_read_as_text_and_stray_bytes_by_number(bpe: BpeTokenizer) -> None:
    assert [bpe.piece(token) for token in bpe.encode(" cat\n")] == [" cat", "\n"]
    assert "".join(bpe.piece(token) for token in bpe.encode("\xc7")) == "<0xC3><0x87>"
    assert "猫" in [bpe.piece(token) for token in range(bpe.vocab_size)]


def test_a_character_in_several_tokens_is_shown_in_each_with_its_part(bpe: BpeTokenizer) -> None:
    tokens = bpe.encode("\xc7")
    assert len(tokens) == 2
    assert bpe.pieces(tokens) == ["\xc7⟨1/2⟩", "\xc7⟨2/2⟩"]
    tokens = bpe.encode("\U0010fffe")
    assert len(tokens) == 4
    assert bpe.pieces(tokens) == [f"\U0010fffe⟨{part}/4⟩" for part in (1, 2, 3, 4)]


def test_a_token_may_end_one_character_and_begin_another() -> None:
    made = trained(["éà" * 50], vocab_size=BASE_SIZE + 1)
    assert made.merges() == [(b"\xa9", b"\xc3")]
    assert made.pieces(made.encode("éà")) == ["é⟨1/2⟩", "é⟨2/2⟩à⟨1/2⟩", "à⟨2/2⟩"]


def test_pieces_cut_off_from_their_character_are_shown_by_number(bpe: BpeTokenizer) -> None:
    first, second = bpe.encode("\xc7")
    assert bpe.pieces([second, first]) == ["<0x87>", "<0xC3>"]
    assert bpe.pieces([first]) == ["<0xC3>"]
    last, end = bpe.encode(" cat")[0], bpe.encode("\xc7")[0]
    assert bpe.pieces([end, last]) == ["<0xC3>", " cat"]


def test_special_tokens_are_shown_by_name_and_do_not_break_a_character(bpe: BpeTokenizer) -> None:
    assert bpe.pieces([0, UNK, 2, EOS]) == ["<pad>", "<unk>", "<bos>", "<eos>"]
    first, second = bpe.encode("\xc7")
    assert bpe.pieces([2, first, second, EOS]) == ["<bos>", "\xc7⟨1/2⟩", "\xc7⟨2/2⟩", "<eos>"]
    assert bpe.pieces([]) == []


@unhurried
@given(text=st.one_of(st.text(), st.sampled_from(HARD)))
def test_pieces_are_one_a_token_and_hold_the_text(bpe: BpeTokenizer, text: str) -> None:
    text = regex.sub("[⟨⟩]", "", text)
    tokens = bpe.encode(text)
    shown = bpe.pieces(tokens)
    assert len(shown) == len(tokens)
    assert all(shown)
    once = regex.sub(r"(?s).⟨(?!1/)\d/\d⟩", "", "".join(shown))  # of each part but the first nothing
    assert regex.sub(r"⟨1/\d⟩", "", once) == text
    for token, piece in zip(tokens, shown, strict=True):
        if "⟨" not in piece:
            assert piece == bpe.piece(token)


def test_a_size_left_open_follows_the_amount_of_text(bpe: BpeTokenizer) -> None:
    words = [
        " ".join(f"{number * 7919:x}" for number in range(start, start + 500)) for start in range(0, 30000, 500)
    ]
    characters = sum(map(len, words))
    assert FEWEST < characters // CHARACTERS_A_PIECE < MOST
    assert trained(words).vocab_size == characters // CHARACTERS_A_PIECE
    assert BASE_SIZE < bpe.vocab_size <= FEWEST


def test_cutting_the_merges_equals_training_to_the_smaller_size() -> None:
    texts = TEXTS * 20
    for size in (BASE_SIZE + 1, 300, 400):
        assert trained(texts, vocab_size=size).merges() == trained(texts).merges()[: size - BASE_SIZE]


def test_lowercase_takes_the_case_away_before_encoding() -> None:
    lower = trained(lowercase=True)
    assert lower.encode("THE CAT, ÉTÉ") == lower.encode("the cat, été")
    assert lower.decode(lower.encode("THE CAT, ÉTÉ")) == "the cat, été"


def test_a_word_of_half_a_million_characters_is_learned_from_and_encoded() -> None:
    """In the library alone, learning from such a word takes hours: its time grows with the square of the length."""
    word = "abc" * 170_000
    made = trained([word, "abc"])
    assert made.decode(made.encode(word)) == word
    assert len(made.encode(word)) < len(word) / 100
