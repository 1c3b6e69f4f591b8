"""A tokenizer with one token for each Unicode code point."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Self

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from triform.config import TokenizerConfig
from triform.text.base import (
    REPLACEMENT,
    BackendTokenizer,
    TrainingText,
    build_lowercaser,
    check_text,
    check_vocab_size,
    check_vocab_size_limit,
)
from triform.text.tokens import SPECIAL_TOKENS, UNK


class CharTokenizer(BackendTokenizer):
    """Tokenizer of single characters, lossless on text whose characters all occur in the training text.

    Characters are encoded with a dictionary, which is about six times faster than the library's word-level model
    and needs no memory beyond the ids. The file holds the library's model, and a test compares the two.
    """

    kind: ClassVar[str] = "char"

    def __init__(self, backend: Core) -> None:
        super().__init__(backend)
        n_special = len(SPECIAL_TOKENS)
        self._ids = {piece: token for token, piece in enumerate(self._pieces[n_special:], n_special)}
        self._token_texts = ["", REPLACEMENT, "", "", *self._pieces[n_special:]]

    @classmethod
    def train(cls, config: TokenizerConfig, texts: TrainingText) -> Self:
        """Collect the characters of texts.

        Args:
            config: The settings, of which `vocab_size` and `lowercase` are used.
            texts: The texts.

        Returns:
            A tokenizer that knows every character, or the most frequent ones.

        Raises:
            ConfigError: `vocab_size` is too small, or larger than these texts allow.
        """
        n_special = len(SPECIAL_TOKENS)
        check_vocab_size(config.vocab_size, minimum=n_special + 1)
        lowercaser = build_lowercaser(config)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text if lowercaser is None else lowercaser.normalize_str(text))
        max_size = n_special + len(counts)
        check_vocab_size_limit(config.vocab_size, maximum=max_size, name=texts.name)
        frequent = sorted(counts, key=lambda character: (-counts[character], character))
        # Sort by code point, so that the ids do not depend on the counts.
        vocabulary = sorted(frequent[: (config.vocab_size or max_size) - n_special])
        ids = {piece: token for token, piece in enumerate([*SPECIAL_TOKENS, *vocabulary])}
        backend = Core(models.WordLevel(ids, unk_token=SPECIAL_TOKENS[UNK]))
        backend.normalizer = lowercaser
        backend.pre_tokenizer = pre_tokenizers.Split(
            Regex("(?m)."), "isolated"
        )  # with (?m), . matches any character
        backend.decoder = decoders.Fuse()
        return cls(backend)

    def encode(self, text: str) -> list[int]:
        ids = self._ids
        tokens = [ids.get(character, UNK) for character in self._lowercase(text)]
        if UNK in tokens:  # only then can there be a lone surrogate, which no vocabulary has
            check_text(text)
        return tokens

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join([self._token_texts[token] for token in tokens])

    def find_unknown(self, text: str) -> list[str]:
        unknown = [character for character in dict.fromkeys(self._lowercase(text)) if character not in self._ids]
        if unknown:
            check_text(text)
        return unknown

    def nearest_known(self, unknown: str) -> tuple[str, ...]:
        """Return the character in the other case, and the letter without its accents, if they are known."""
        base = unicodedata.normalize("NFKD", unknown)[:1]
        variants = dict.fromkeys([unknown.swapcase(), base, base.swapcase()])
        return tuple(variant for variant in variants if variant != unknown and variant in self._ids)

    def _lowercase(self, text: str) -> str:
        return text if self._backend.normalizer is None else self._normalize(text)
