"""The readable byte-level BPE equals the fast tokenizer."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tokenizers import Regex, pre_tokenizers

from triform.config import TokenizerConfig
from triform.data.builtin_sets import load_text
from triform.errors import ConfigError
from triform.scratch.bpe import BytePairEncoder, split_words
from triform.text.base import TrainingText
from triform.text.bpe import BASE_VOCAB_SIZE, BpeTokenizer
from triform.text.split_patterns import GPT4_PATTERN

VOCAB_SIZE = 600


def made_up_words(n_characters: int) -> str:
    """Return text of several scripts in which some words are much more frequent than others."""
    rng = random.Random(5)
    alphabet = "eeeeetaoinshrdluéüßñ江湖мир0123456789'-.👍"
    words = ["".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(3_000)]
    frequencies = [1 / rank for rank in range(1, len(words) + 1)]
    separators = rng.choices([" ", "  ", "\n", ", "], k=n_characters // 4)
    sampled = rng.choices(words, frequencies, k=n_characters // 4)
    return "".join(word + separator for word, separator in zip(sampled, separators, strict=True))[:n_characters]


@pytest.fixture(scope="module")
def text() -> str:
    stories = load_text("builtin:stories")
    return stories + made_up_words(1_000_000 - len(stories))


@pytest.fixture(scope="module")
def fast(text: str) -> BpeTokenizer:
    return BpeTokenizer.train(TokenizerConfig(kind="bpe", vocab_size=VOCAB_SIZE), TrainingText([text], "text"))


@pytest.fixture(scope="module")
def readable(text: str) -> BytePairEncoder:
    return BytePairEncoder.train([text], VOCAB_SIZE)


def test_merges_and_ids_equal_those_of_the_fast_tokenizer_on_a_megabyte(
    text: str, fast: BpeTokenizer, readable: BytePairEncoder
) -> None:
    assert len(text) == 1_000_000
    assert readable.merges == fast.merges()
    assert len(readable.pieces) == fast.vocab_size == VOCAB_SIZE
    assert readable.encode(text[-50_000:]) == fast.encode(text[-50_000:])


@pytest.mark.parametrize("unseen", ["", " ", "never seen: Ωmega\r\n\r\n", "we'RE I'll", "\x1c\x85\u2003x", "<eos>"])
def test_texts_never_seen_have_the_same_ids_and_come_back_unchanged(
    unseen: str, fast: BpeTokenizer, readable: BytePairEncoder
) -> None:
    assert readable.encode(unseen) == fast.encode(unseen)
    assert readable.decode(readable.encode(unseen)) == unseen


def test_words_are_split_as_the_library_splits_them() -> None:
    library = pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated")
    rng = random.Random(1)
    for _ in range(2_000):
        text = "".join(rng.choices("aZé  \n\r\t'sSſ'LLre0٣²Ⅷ.!-—\u00a0\u2003\x1c\x85👍𝐀中́", k=rng.randint(1, 13)))
        assert split_words(text) == [word for word, _ in library.pre_tokenize_str(text)], repr(text)


def test_steps_show_one_merge_after_the_other(readable: BytePairEncoder) -> None:
    steps = readable.merge_steps(" thereafter")
    assert steps[0] == [bytes([byte]) for byte in b" thereafter"]
    assert all(b"".join(pieces) == b" thereafter" for pieces in steps)
    assert all(len(after) < len(before) for before, after in pairwise(steps))


def test_a_vocabulary_without_room_for_all_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"must be at least {BASE_VOCAB_SIZE}"):
        BytePairEncoder.train(["some text"], BASE_VOCAB_SIZE - 1)


def test_training_ends_where_no_pair_occurs_twice() -> None:
    assert BytePairEncoder.train(["abcdef"], 1_000).merges == []
