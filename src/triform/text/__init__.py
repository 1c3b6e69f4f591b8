"""Text in and out of the model: tokenizers of our own and of others behind one protocol. No torch here."""

from triform.text.base import BOS, EOS, OWN, PAD, SPECIALS, UNK, Rows, Special, Tokenizer
from triform.text.bpe import SAMPLE, BpeTokenizer
from triform.text.char import CharTokenizer
from triform.text.foreign import read_tokenizer
from triform.text.stream import encode_stream
from triform.text.tokenizer import TOKENIZERS, load_tokenizer, train_tokenizer
from triform.text.word import WordTokenizer, split_words
from triform.text.written import write_tokenizer

__all__ = [
    "BOS",
    "EOS",
    "OWN",
    "PAD",
    "SAMPLE",
    "SPECIALS",
    "TOKENIZERS",
    "UNK",
    "BpeTokenizer",
    "CharTokenizer",
    "Rows",
    "Special",
    "Tokenizer",
    "WordTokenizer",
    "encode_stream",
    "load_tokenizer",
    "read_tokenizer",
    "split_words",
    "train_tokenizer",
    "write_tokenizer",
]
