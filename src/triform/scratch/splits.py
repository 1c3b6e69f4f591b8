"""How a tokenizer splits each word of a text, step by step, in plain Python.

The tokenizers of `triform.text` split text with a fast library or with a cache of words. The functions here follow
the same rules one step at a time: byte-level BPE merge by merge, WordPiece from one longest piece to the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import models

from triform.scratch.bpe import BytePairEncoder
from triform.text import BpeTokenizer, CharTokenizer, Tokenizer, WordTokenizer
from triform.text.base import BackendTokenizer, check_text
from triform.text.bpe import byte_characters

MAX_MERGED_BYTES = 400  # bytes; the steps of a longer word are not listed


@dataclass(frozen=True)
class SplitStep:
    """One step in which a word is split.

    Attributes:
        name: What happened, such as "merge 12".
        pieces: The pieces after this step.
        rest: The part of the word that is not split yet.
    """

    name: str
    pieces: list[str]
    rest: str = ""


@dataclass(frozen=True)
class WordSplit:
    """The steps in which one word is split.

    Attributes:
        word: The word.
        steps: The steps, in order.
        tokens: The ids of the pieces of the last step.
    """

    word: str
    steps: list[SplitStep]
    tokens: list[int]


def explain_splits(tokenizer: Tokenizer, text: str) -> list[WordSplit]:
    """Explain how each word of a text is split.

    The tokens of all words together are `tokenizer.encode(text)`. Byte-level BPE, WordPiece and word tokenizers
    split a text into words first. With other tokenizers, the text counts as one word that is split in one step.

    Args:
        tokenizer: A tokenizer of any kind.
        text: The text.

    Returns:
        One entry for each word.

    Raises:
        DataError: The text contains half of a surrogate pair.

    Example:
        >>> from triform.config import TokenizerConfig
        >>> from triform.text import train_tokenizer
        >>> tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=262), ["low low slow"])
        >>> for step in explain_splits(tokenizer, "slower")[0].steps:
        ...     print(step.name, step.pieces)
        bytes ['s', 'l', 'o', 'w', 'e', 'r']
        merge 1 ['s', 'lo', 'w', 'e', 'r']
        merge 2 ['s', 'low', 'e', 'r']
    """
    check_text(text)
    if not text:
        return []
    if isinstance(tokenizer, BpeTokenizer):
        splits = list(_split_byte_pairs(tokenizer, text))
    elif isinstance(tokenizer, BackendTokenizer) and isinstance(tokenizer.backend.model, models.WordPiece):
        splits = list(_split_longest_match(tokenizer, text))
    elif isinstance(tokenizer, WordTokenizer):
        splits = [_split_in_one_step(tokenizer, word, "word") for word in _find_words(tokenizer, text)]
    else:
        splits = []
    # An imported vocabulary may have tokens that are found in a text before it is split into words.
    if [token for split in splits for token in split.tokens] == tokenizer.encode(text):
        return splits
    return [_split_in_one_step(tokenizer, text, "characters" if isinstance(tokenizer, CharTokenizer) else "pieces")]


def _find_words(tokenizer: BackendTokenizer, text: str) -> list[str]:
    """Return the words of a text after normalisation, in the spelling of the library."""
    backend = tokenizer.backend
    normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return [normalized]
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized)]


def _split_in_one_step(tokenizer: Tokenizer, text: str, name: str) -> WordSplit:
    """Return a split in one step."""
    tokens = tokenizer.encode(text)
    return WordSplit(text, [SplitStep(name, tokenizer.format_pieces(tokens))], tokens)


def _split_byte_pairs(tokenizer: BpeTokenizer, text: str) -> Iterator[WordSplit]:
    encoder, (ids, _) = BytePairEncoder(tokenizer.merges()), tokenizer.ranks()
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    # Some vocabularies look a whole word up before they merge its bytes.
    ignores_merges = json.loads(tokenizer.backend.to_str())["model"].get("ignore_merges", False)
    for spelling in _find_words(tokenizer, text):
        word_bytes = bytes(byte_of[character] for character in spelling)
        word = word_bytes.decode("utf-8", errors="replace")
        if (ignores_merges and word_bytes in ids) or len(word_bytes) > MAX_MERGED_BYTES:
            tokens = [token.id for token in tokenizer.backend.model.tokenize(spelling)]
            yield WordSplit(word, [SplitStep("pieces", tokenizer.format_pieces(tokens))], tokens)
            continue
        pieces_by_step = encoder.merge_steps(word)
        names = ["bytes"]
        for pieces in pieces_by_step[:-1]:
            rank = min(encoder.ranks[pair] for pair in pairwise(pieces) if pair in encoder.ranks)
            names.append(f"merge {rank + 1}")
        tokens_by_step = [[ids[piece] for piece in pieces] for pieces in pieces_by_step]
        steps = [
            SplitStep(name, tokenizer.format_pieces(tokens))
            for name, tokens in zip(names, tokens_by_step, strict=True)
        ]
        yield WordSplit(word, steps, tokens_by_step[-1])


def _split_longest_match(tokenizer: BackendTokenizer, text: str) -> Iterator[WordSplit]:
    """Split words into the longest pieces of the vocabulary, from left to right. Without a match one is unknown."""
    ids, model = tokenizer.backend.get_vocab(with_added_tokens=False), tokenizer.backend.model
    assert isinstance(model, models.WordPiece)
    prefix: str = model.continuing_subword_prefix
    for word in _find_words(tokenizer, text):
        steps, pieces, rest = [SplitStep("word", [], word)], list[str](), word
        while rest:
            lengths = range(len(rest), len(prefix) if pieces else 0, -1)
            length = next((length for length in lengths if rest[:length] in ids), 0)
            if not length or len(word) > model.max_input_chars_per_word:
                pieces, rest = [model.unk_token], ""
                steps.append(SplitStep("no match", pieces))
            else:
                pieces = [*pieces, rest[:length]]
                rest = prefix + rest[length:] if length < len(rest) else ""
                steps.append(SplitStep(f"match {len(pieces)}", pieces, rest))
        yield WordSplit(word, steps, [ids[piece] for piece in pieces])
