"""Text in and out of the model: three kinds of tokenizer behind one protocol. No torch here."""

from triform.text.base import BOS, EOS, PAD, SPECIALS, UNK, Rows, Tokenizer
from triform.text.bpe import SAMPLE, BpeTokenizer
from triform.text.char import CharTokenizer
from triform.text.stream import encode_stream
from triform.text.tokenizer import TOKENIZERS, load_tokenizer, train_tokenizer
from triform.text.word import WordTokenizer

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SAMPLE",
    "SPECIALS",
    "TOKENIZERS",
    "UNK",
    "BpeTokenizer",
    "CharTokenizer",
    "Rows",
    "Tokenizer",
    "WordTokenizer",
    "encode_stream",
    "load_tokenizer",
    "train_tokenizer",
]
