"""WordPiece as in BERT: a word is split into the longest pieces that the vocabulary has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Core

from triform.config import TokenizerConfig
from triform.errors import DataError
from triform.text.base import (
    REPLACEMENT,
    BackendTokenizer,
    TrainingText,
    check_vocab_size,
    check_vocab_size_limit,
    disable_fork_warning,
)
from triform.text.bpe import MAX_TRAIN_CHARS, MIN_AUTO_VOCAB, MIN_PAIR_COUNT, auto_vocab_size
from triform.text.tokens import UNK
from triform.text.word import join_words

CONTINUATION = "##"  # starts every piece that is not at the start of a word
MAX_WORD_CHARS = 100  # characters; to BERT a longer word is unknown
MAX_ALPHABET = 1_000  # characters; rarer ones are unknown, as in the training of BERT
_MAX_REPEATS = 10_000  # how often a word is repeated in one text for the trainer

# BERT splits at every apostrophe. These two patterns find those inside a word: don't, l'été.
_ENGLISH_ENDING = re.compile(r"(?<=\w) (['’]) (?=(?:s|t|d|m|ll|re|ve)(?!\S))", re.IGNORECASE)
_FRENCH_ARTICLE = re.compile(r"(?<!\S)([cdjlmnst]|qu) (['’]) (?=\w)", re.IGNORECASE)


class WordPieceTokenizer(BackendTokenizer):
    """WordPiece with BERT's normalisation, word split and names of special tokens.

    Every character of the alphabet is in the vocabulary, both at the start and inside of a word, so only words with
    other characters and words of more than 100 characters are unknown. Decoding guesses the spaces between words.
    """

    kind: ClassVar[str] = "wordpiece"
    special_names: ClassVar[tuple[str, ...]] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    lossless: bool = False

    @classmethod
    def train(cls, config: TokenizerConfig, texts: TrainingText) -> Self:
        """Learn pieces of words from texts.

        Args:
            config: The settings, of which `vocab_size` and `lowercase` are used.
            texts: The texts.

        Returns:
            A tokenizer with at most `vocab_size` tokens.

        Raises:
            ConfigError: `vocab_size` is too small, or larger than these texts allow.
            DataError: There are no words.
        """
        disable_fork_warning()
        normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)  # lowercasing also removes accents
        word_counts = Counter(
            word for text in texts.sample(MAX_TRAIN_CHARS) for word in normalizer.normalize_str(text).split()
        )
        if not word_counts:
            raise DataError(f"{texts.name}: there are no words to train a tokenizer on")
        alphabet = _find_alphabet(word_counts)
        # The library numbers the pieces of one character in random order, and breaks ties between merges by these
        # numbers. Pieces that are given as special tokens keep their order, so training is reproducible.
        first_pieces = [*cls.special_names, *alphabet, *(CONTINUATION + c for c in alphabet if _can_continue(c))]
        check_vocab_size(config.vocab_size, minimum=len(first_pieces))
        backend = Core(models.WordPiece(unk_token=cls.special_names[UNK]))
        # The library's training time is quadratic in the length of a word.
        split_long_words = pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{MAX_WORD_CHARS}}}"), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), split_long_words])
        trainer = trainers.WordPieceTrainer(
            vocab_size=config.vocab_size or max(MIN_AUTO_VOCAB, config.max_vocab_size),
            min_frequency=MIN_PAIR_COUNT,
            special_tokens=first_pieces,
            show_progress=False,
        )
        backend.train_from_iterator(_repeat_words(word_counts, set(alphabet)), trainer)
        ids = backend.get_vocab(with_added_tokens=False)
        check_vocab_size_limit(config.vocab_size, maximum=len(ids), name=texts.name)
        # Pieces are numbered in the order in which they were learned, so a smaller vocabulary is the first of them.
        vocab_size = config.vocab_size or max(
            auto_vocab_size(texts.n_characters, config.max_vocab_size), len(first_pieces)
        )
        trained = build_wordpiece_backend(
            {piece: token for piece, token in ids.items() if token < vocab_size}, cls.special_names[UNK], normalizer
        )
        return cls(trained)

    def decode(self, tokens: Sequence[int]) -> str:
        words: list[str] = []
        for token in tokens:
            if token < len(self.special_names) and token != UNK:
                continue
            piece = REPLACEMENT if token == UNK else self._pieces[token]
            if piece.startswith(CONTINUATION) and words:
                words[-1] += piece.removeprefix(CONTINUATION)
            else:
                words.append(piece.removeprefix(CONTINUATION))
        text = _ENGLISH_ENDING.sub(r"\1", " ".join(words))
        return join_words(_FRENCH_ARTICLE.sub(r"\1\2", text).split(" ") if words else [])

    def find_unknown(self, text: str) -> list[str]:
        words = self._backend.pre_tokenizer.pre_tokenize_str(self._normalize(text))
        tokenize = self._backend.model.tokenize
        return [word for word in dict.fromkeys(word for word, _ in words) if tokenize(word)[0].id == UNK]


def build_wordpiece_backend(ids: dict[str, int], unk_token: str, normalizer: normalizers.Normalizer) -> Core:
    """Build a WordPiece tokenizer of the library, without special tokens."""
    backend = Core(models.WordPiece(ids, unk_token=unk_token, max_input_chars_per_word=MAX_WORD_CHARS))
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _find_alphabet(word_counts: Counter[str]) -> list[str]:
    """Return the characters of the vocabulary: the most frequent ones, ordered by code point."""
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            counts[character] += count
    return sorted(sorted(counts, key=lambda character: (-counts[character], character))[:MAX_ALPHABET])


def _can_continue(character: str) -> bool:
    """Return whether a character can follow a letter in a word. A punctuation mark cannot."""
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(f"a{character}")) == 1


def _repeat_words(word_counts: Counter[str], alphabet: set[str]) -> Iterator[str]:
    """Yield texts in which every word of the alphabet occurs as often as it was counted."""
    for word, count in word_counts.items():
        if alphabet.issuperset(word):
            for start in range(0, count, _MAX_REPEATS):
                yield " ".join([word] * min(_MAX_REPEATS, count - start))
