"""Byte-level BPE against three references: tiktoken, a plain encoder and a plain trainer."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from unicodedata import category

import numpy as np
import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from importing_cases import HARD_TEXTS, TEXTS

from triform.config import TokenizerConfig
from triform.text import EOS, UNK, train_tokenizer
from triform.text import bpe as bpe_module
from triform.text.base import TrainingText
from triform.text.bpe import (
    BASE_VOCAB_SIZE,
    CHARS_PER_TOKEN,
    GPT4_PATTERN,
    MIN_AUTO_VOCAB,
    BpeTokenizer,
)

no_deadline = settings(deadline=None)  # the machine may be busy with other tests


def train_bpe(texts: list[str] = TEXTS, **options: object) -> BpeTokenizer:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", **options), iter(texts))
    assert isinstance(tokenizer, BpeTokenizer)
    return tokenizer


TEXT_PARTS = st.sampled_from(
    ["  ", "    ", "\n", "\r\n", "'", "s", "Cat", " the", "123", "é", "!", "🙂", "𝔘", "\0"]
)
CASED_BPE, LOWERCASED_BPE = train_bpe(), train_bpe(lowercase=True)


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return train_bpe()


@pytest.fixture(scope="module")
def reference(bpe: BpeTokenizer) -> tiktoken.Encoding:
    ranks = {token_bytes: token for token, token_bytes in enumerate(bpe._token_bytes) if token > EOS}
    return tiktoken.Encoding("ours", pat_str=GPT4_PATTERN, mergeable_ranks=ranks, special_tokens={})


def reference_split(text: str) -> list[bytes]:
    return [match[0].encode() for match in regex.finditer(GPT4_PATTERN, text)]


def reference_merge(parts: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    joined: list[bytes] = []
    for part in parts:
        if joined and (joined[-1], part) == pair:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def reference_encode(bpe: BpeTokenizer, text: str) -> list[int]:
    """BPE as it is explained: join the pair that was learned first, until no known pair is left."""
    rank = {pair: number for number, pair in enumerate(bpe.merges())}
    id_by_bytes = {token_bytes: token for token, token_bytes in enumerate(bpe._token_bytes) if token > EOS}
    tokens: list[int] = []
    for chunk in reference_split(text):
        parts = [bytes([byte]) for byte in chunk]
        while known := [pair for pair in pairwise(parts) if pair in rank]:
            parts = reference_merge(parts, min(known, key=rank.__getitem__))
        tokens += [id_by_bytes[part] for part in parts]
    return tokens


def reference_train(bpe: BpeTokenizer, texts: list[str], n_merges: int) -> list[tuple[bytes, bytes]]:
    """Join the most frequent pair, the earliest made first among equals, again and again."""
    creation_order = {
        token_bytes: token for token, token_bytes in enumerate(bpe._token_bytes[:BASE_VOCAB_SIZE]) if token > EOS
    }
    words = [
        ([bytes([byte]) for byte in word], count)
        for word, count in Counter(word for text in texts for word in reference_split(text)).items()
    ]
    merges: list[tuple[bytes, bytes]] = []
    while len(merges) < n_merges:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for parts, count in words:
            for pair in pairwise(parts):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], creation_order[pair[0]], creation_order[pair[1]]))
        words = [(reference_merge(parts, best), count) for parts, count in words]
        creation_order.setdefault(b"".join(best), len(creation_order) + EOS + 1)
        merges.append(best)
    return merges


@no_deadline
@given(text=st.one_of(st.text(), st.sampled_from(HARD_TEXTS)))
def test_any_text_comes_back_exactly(bpe: BpeTokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text
    assert bpe.find_unknown(text) == []


@no_deadline
@given(text=st.text())
def test_ids_equal_those_of_tiktoken(bpe: BpeTokenizer, reference: tiktoken.Encoding, text: str) -> None:
    assert bpe.encode(text) == reference.encode_ordinary(text)


@no_deadline
@given(text=st.text())
def test_ids_equal_those_of_plain_python(bpe: BpeTokenizer, text: str) -> None:
    assert bpe.encode(text) == reference_encode(bpe, text)


@pytest.mark.parametrize("text", HARD_TEXTS, ids=lambda text: ascii(text[:12]))
def test_hard_text_gives_the_ids_of_both_references(
    bpe: BpeTokenizer, reference: tiktoken.Encoding, text: str
) -> None:
    tokens = bpe.encode(text)
    assert tokens == reference.encode_ordinary(text)
    assert tokens == reference_encode(bpe, text)


@no_deadline
@given(
    text=st.text(
        st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\r\t\x1c\x85\xa0'’sSſtTlLvVeErRkK09½éÀ猫🙂𝔘"))
    )
)
def test_words_that_are_remembered_give_the_ids_of_the_library(bpe: BpeTokenizer, text: str) -> None:
    """The quick way, with a pattern of its own, against the library's core; twice, from memory the second time."""
    for _ in range(2):
        assert bpe.encode(text) == bpe._backend.encode(text, add_special_tokens=False).ids


@no_deadline
@given(texts=st.lists(st.lists(TEXT_PARTS, max_size=3).map("".join), max_size=9), lowercase=st.booleans())
def test_texts_that_are_split_together_do_not_touch(texts: list[str], lowercase: bool) -> None:
    """Spaces at an end, empty texts, the character that stands between them, and what is left to the library."""
    tokenizer = LOWERCASED_BPE if lowercase else CASED_BPE
    expected = [row.ids for row in tokenizer._backend.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer.encode_batch(texts) == expected
    tokens, lengths = tokenizer.encode_rows(texts)
    assert lengths.tolist() == [len(row) for row in expected]
    assert tokens.tolist() == [token for row in expected for token in row]


@pytest.mark.parametrize("template", ["a{}1", "'{}x", " {} \n"])
def test_both_ways_cut_around_every_character_alike(bpe: BpeTokenizer, template: str) -> None:
    """All planes, assigned or not: what is a letter, a number, a space, an s."""
    code_points = [
        code_point
        for code_point in range(0x110000)
        if not 0xD800 <= code_point < 0xE000 and (code_point < 0x33000 or code_point % 97 == 0)
    ]
    texts = [
        "".join(template.format(chr(code_point)) for code_point in code_points[start : start + 2048])
        for start in range(0, len(code_points), 2048)
    ]
    for text in texts:
        assert bpe.encode(text) == bpe._backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "text", [" " * 2_000_000, "\n" * 1_200_000, "é" * 300_000, " \n" * 500_000 + "x", "1" * 999]
)
def test_endless_repetition_is_only_text(bpe: BpeTokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


def test_what_is_remembered_stays_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, texts = train_bpe(), [f"word{number}x {'long' * 40}" for number in range(300)]
    expected = train_bpe().encode_batch(texts)
    monkeypatch.setattr(bpe_module, "MAX_CACHED_WORDS", 50)
    monkeypatch.setattr(bpe_module, "MAX_GROUP_CHARS", 500)  # characters at a time, after which memory is looked at
    assert fresh.encode_batch(texts) == expected
    assert 0 < len(fresh._word_cache) < 60
    assert max(map(len, fresh._word_cache)) <= bpe_module.MAX_CACHED_WORD_CHARS


def test_a_vocabulary_beyond_two_bytes_is_held_in_four(bpe: BpeTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bpe.encode_batch(HARD_TEXTS)
    monkeypatch.setattr(BpeTokenizer, "vocab_size", 70_000)
    wide = BpeTokenizer(bpe._backend)
    assert wide.encode_rows(HARD_TEXTS).tokens.dtype == np.uint32
    assert wide.encode_batch(HARD_TEXTS) == expected


def test_a_long_text_is_learned_from_parts_all_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{'early' if number < 500 else 'later'} word number {number}\n" * 200 for number in range(1000)]
    n_characters = sum(map(len, lines))
    monkeypatch.setattr(bpe_module, "MAX_TRAIN_CHARS", n_characters // 10)
    part_lengths: list[int] = []
    sample = TrainingText.sample
    monkeypatch.setattr(
        TrainingText,
        "sample",
        lambda stream, max_characters: (
            part_lengths.append(len(part)) or part for part in sample(stream, max_characters)
        ),
    )
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    tokenizer = train_tokenizer(config, iter(lines), n_characters=n_characters)
    assert 0.09 < sum(part_lengths) / n_characters < 0.12
    assert {" word", "early", "later"} <= {tokenizer.format_piece(token) for token in range(tokenizer.vocab_size)}
    part_lengths.clear()
    train_tokenizer(config, iter(lines))  # how long it is was not known
    assert sum(part_lengths) == n_characters


def test_merges_are_learned_as_plain_python_learns_them(bpe: BpeTokenizer) -> None:
    merges = bpe.merges()
    assert len(merges) == bpe.vocab_size - BASE_VOCAB_SIZE
    assert merges == reference_train(bpe, TEXTS, len(merges))


def test_a_text_through_the_whole_of_unicode_agrees_with_tiktoken(
    bpe: BpeTokenizer, reference: tiktoken.Encoding
) -> None:
    """Where the two regex engines could differ: what is a letter, a number, a space."""
    code_points = [code_point for code_point in range(0x30000) if category(chr(code_point)) not in ("Cn", "Cs")]
    texts = [
        "".join(f"a{chr(code_point)}1" for code_point in code_points[start : start + 512])
        for start in range(0, len(code_points), 512)
    ]
    assert bpe.encode_batch(texts) == [reference.encode_ordinary(text) for text in texts]


def test_a_cut_character_shows_as_replacement_characters(bpe: BpeTokenizer) -> None:
    tokens = bpe.encode("\U0010fffe")
    assert len(tokens) == 4
    assert bpe.decode(tokens[:2]) == "\N{REPLACEMENT CHARACTER}"
    assert bpe.decode([*tokens, *tokens[1:]]).startswith("\U0010fffe\N{REPLACEMENT CHARACTER}")


@no_deadline
@given(data=st.data())
def test_any_tokens_decode_as_the_library_decodes_them(bpe: BpeTokenizer, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(EOS + 1, bpe.vocab_size - 1)))
    assert bpe.decode(tokens) == bpe._backend.decode(tokens, skip_special_tokens=False)
    assert "\N{REPLACEMENT CHARACTER}" in bpe.decode([*tokens, UNK])


def test_pieces_read_as_text_and_stray_bytes_by_number(bpe: BpeTokenizer) -> None:
    assert [bpe.format_piece(token) for token in bpe.encode(" cat\n")] == [" cat", "\n"]
    assert "".join(bpe.format_piece(token) for token in bpe.encode("\xc7")) == "<0xC3><0x87>"
    assert "猫" in [bpe.format_piece(token) for token in range(bpe.vocab_size)]


def test_a_character_in_several_tokens_is_shown_in_each_with_its_part(bpe: BpeTokenizer) -> None:
    tokens = bpe.encode("\xc7")
    assert len(tokens) == 2
    assert bpe.format_pieces(tokens) == ["\xc7⟨1/2⟩", "\xc7⟨2/2⟩"]
    tokens = bpe.encode("\U0010fffe")
    assert len(tokens) == 4
    assert bpe.format_pieces(tokens) == [f"\U0010fffe⟨{part}/4⟩" for part in (1, 2, 3, 4)]


def test_a_token_may_end_one_character_and_begin_another() -> None:
    tokenizer = train_bpe(["éà" * 50], vocab_size=BASE_VOCAB_SIZE + 1)
    assert tokenizer.merges() == [(b"\xa9", b"\xc3")]
    assert tokenizer.format_pieces(tokenizer.encode("éà")) == ["é⟨1/2⟩", "é⟨2/2⟩à⟨1/2⟩", "à⟨2/2⟩"]


def test_pieces_cut_off_from_their_character_are_shown_by_number(bpe: BpeTokenizer) -> None:
    first, second = bpe.encode("\xc7")
    assert bpe.format_pieces([second, first]) == ["<0x87>", "<0xC3>"]
    assert bpe.format_pieces([first]) == ["<0xC3>"]
    last, end = bpe.encode(" cat")[0], bpe.encode("\xc7")[0]
    assert bpe.format_pieces([end, last]) == ["<0xC3>", " cat"]


def test_special_tokens_are_shown_by_name_and_do_not_break_a_character(bpe: BpeTokenizer) -> None:
    assert bpe.format_pieces([0, UNK, 2, EOS]) == ["<pad>", "<unk>", "<bos>", "<eos>"]
    first, second = bpe.encode("\xc7")
    assert bpe.format_pieces([2, first, second, EOS]) == ["<bos>", "\xc7⟨1/2⟩", "\xc7⟨2/2⟩", "<eos>"]
    assert bpe.format_pieces([]) == []


@no_deadline
@given(text=st.one_of(st.text(), st.sampled_from(HARD_TEXTS)))
def test_pieces_are_one_a_token_and_hold_the_text(bpe: BpeTokenizer, text: str) -> None:
    text = regex.sub("[⟨⟩]", "", text)
    tokens = bpe.encode(text)
    pieces = bpe.format_pieces(tokens)
    assert len(pieces) == len(tokens)
    assert all(pieces)
    first_parts = regex.sub(r"(?s).⟨(?!1/)\d/\d⟩", "", "".join(pieces))  # of each part but the first nothing
    assert regex.sub(r"⟨1/\d⟩", "", first_parts) == text
    for token, piece in zip(tokens, pieces, strict=True):
        if "⟨" not in piece:
            assert piece == bpe.format_piece(token)


def test_a_size_left_open_follows_the_amount_of_text(bpe: BpeTokenizer) -> None:
    words = [
        " ".join(f"{number * 7919:x}" for number in range(start, start + 500)) for start in range(0, 30000, 500)
    ]
    n_characters = sum(map(len, words))
    assert MIN_AUTO_VOCAB < n_characters // CHARS_PER_TOKEN < TokenizerConfig().max_vocab_size
    assert train_bpe(words).vocab_size == n_characters // CHARS_PER_TOKEN
    assert train_tokenizer(TokenizerConfig(kind="bpe", max_vocab_size=600), words).vocab_size == 600
    assert BASE_VOCAB_SIZE < bpe.vocab_size <= MIN_AUTO_VOCAB


def test_cutting_the_merges_equals_training_to_the_smaller_size() -> None:
    texts = TEXTS * 20
    for size in (BASE_VOCAB_SIZE + 1, 300, 400):
        assert train_bpe(texts, vocab_size=size).merges() == train_bpe(texts).merges()[: size - BASE_VOCAB_SIZE]


def test_lowercase_takes_the_case_away_before_encoding() -> None:
    lower = train_bpe(lowercase=True)
    assert lower.encode("THE CAT, ÉTÉ") == lower.encode("the cat, été")
    assert lower.decode(lower.encode("THE CAT, ÉTÉ")) == "the cat, été"


def test_a_word_of_half_a_million_characters_is_learned_from_and_encoded() -> None:
    """In the library alone, learning from such a word takes hours: its time grows with the square of the length."""
    word = "abc" * 170_000
    tokenizer = train_bpe([word, "abc"])
    assert tokenizer.decode(tokenizer.encode(word)) == word
    assert len(tokenizer.encode(word)) < len(word) / 100
