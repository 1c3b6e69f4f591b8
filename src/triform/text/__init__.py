"""Tokenizers, Triform's own and imported ones, behind one interface. No torch."""

from triform.text.base import Tokenizer
from triform.text.bpe import MAX_TRAIN_CHARS, BpeTokenizer
from triform.text.char import CharTokenizer
from triform.text.exporting import write_tokenizer
from triform.text.importing import read_tokenizer
from triform.text.parallel import encode_stream
from triform.text.tokenizer import TOKENIZERS, load_tokenizer, train_tokenizer
from triform.text.tokens import BOS, DEFAULT_SPECIAL_TOKENS, EOS, PAD, SPECIAL_TOKENS, UNK, SpecialTokens, TokenRows
from triform.text.word import WordTokenizer, split_words
from triform.text.wordpiece import WordPieceTokenizer

__all__ = [
    "BOS",
    "DEFAULT_SPECIAL_TOKENS",
    "EOS",
    "MAX_TRAIN_CHARS",
    "PAD",
    "SPECIAL_TOKENS",
    "TOKENIZERS",
    "UNK",
    "BpeTokenizer",
    "CharTokenizer",
    "SpecialTokens",
    "TokenRows",
    "Tokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "encode_stream",
    "load_tokenizer",
    "read_tokenizer",
    "split_words",
    "train_tokenizer",
    "write_tokenizer",
]
