"""Characters: one token for each Unicode code point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Self

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from triform.config import TokenizerConfig
from triform.text.base import (
    REPLACEMENT,
    SPECIALS,
    UNK,
    CoreTokenizer,
    TextStream,
    check_allowed,
    check_vocab_size,
    lowercaser,
)


class CharTokenizer(CoreTokenizer):
    """Lossless on any text whose characters were all seen in training.

    A dictionary does the encoding: for single characters it is about six times faster than the library's
    word-level model and needs no memory beyond the ids. The file holds that model; a test keeps both equal.
    """

    kind: ClassVar[str] = "char"

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        first = len(SPECIALS)
        self._ids = {piece: token for token, piece in enumerate(self._pieces[first:], first)}
        self._texts = ["", REPLACEMENT, "", "", *self._pieces[first:]]

    @classmethod
    def train(cls, config: TokenizerConfig, texts: TextStream) -> Self:
        first = len(SPECIALS)
        check_vocab_size(config.vocab_size, least=first + 1)
        lower = lowercaser(config)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text if lower is None else lower.normalize_str(text))
        most = first + len(counts)
        check_allowed(config.vocab_size, most=most, name=texts.name)
        frequent = sorted(counts, key=lambda character: (-counts[character], character))
        # By code point, so that ids do not move when the counts of the same characters do.
        kept = sorted(frequent[: (config.vocab_size or most) - first])
        ids = {piece: token for token, piece in enumerate([*SPECIALS, *kept])}
        core = Core(models.WordLevel(ids, unk_token=SPECIALS[UNK]))
        core.normalizer = lower
        core.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")  # (?m): . is any character
        core.decoder = decoders.Fuse()
        return cls(core)

    def encode(self, text: str) -> list[int]:
        ids = self._ids
        return [ids.get(character, UNK) for character in self._normalised(text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join([self._texts[token] for token in tokens])

    def unknown(self, text: str) -> list[str]:
        distinct = dict.fromkeys(self._normalised(text))
        return [character for character in distinct if character not in self._ids]
