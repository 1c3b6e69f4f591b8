"""Small vocabularies in the formats of other libraries, made here, and text that is hard to cut."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "The cat sat on the mat, and the other cat sat on the other mat.\n\nThen they're gone; it's late.\n",
    "Le chat est assis, l’autre aussi : « déjà vu », où ça ? L'été, à Noël, le maïs, été, été.\n",
    "Die Straße über dem Fluß ist schön, schöner, am schönsten. 1999, 2024 und 31415926.\n",
    "猫が座った。猫が座った。もう一匹の猫も座った。 🙂🙂👩‍👩‍👧 \t tab\r\nand <pad> <unk> <bos> <eos> too\n",
    "    for x in range(100):\n        print(x, x ** 2)\n\n\n    return None  \n \n \n",
] * 3
HARD_TEXTS = [
    "",
    " ",
    "\n",
    "  \n \n\n  x",
    "x \n  ",
    "x\n\n\n",
    "a  b   c    ",
    "\r\n\r\nx\r",
    "\tindent\t\t",
    "I'll, you've, THEY'RE, he'd'Ve 'twas 'S",
    "0 1 12 123 1234 12345678901234567890",
    "١٢٣٤ Ⅷ ½ ²³",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈🇫🇷🇩🇪",
    "漢字かな交じり文ヷ한국어ไทยالعربيةעברית mixed кириллица",
    "\u200fעברית\u200e (abc) العربية 123",
    "e\u0301 n\u0303 \u0301 a\u0300\u0301\u0302\u0303 ﬁ ①",
    "\x00\x01\x02\x1b[0m\x7f\x80\x85\xa0\u2028\u2029\ufeff\u200b\u00ad\ufffd\U0010ffff",
    "x" * 3000,
    "a" * 99 + " " + "a" * 100 + " " + "b" * 101,
    "ab" * 500 + "!" * 500 + " " * 500 + "\n" * 100,
    " leading,  and trailing   ",
    "<pad><unk><bos><eos><|endoftext|> [CLS] a [SEP] [MASK] [UNK] <s> </s>",
    "Ünïcödé ſ 'ſ İıŉ ß ﬁ Ǆ ΑΣ 𝔘𝔫𝔦 𐐀",
    "don't—won't…“quoted” ‘single’ «guillemets» (a) [b] {c} a_b-c/d",
    "<|im_start|>user\n>>fra<< hello<|im_end|>",
    *TEXTS[:5],
]
TRICKY_PIECES = [
    *("  ", "    ", "\n", "\r\n", "\n\n", "'", "s", "S", "'re", "ſ", "Cat", " the", "123", "½", "é", "É"),
    *("e\u0301", "!", "..", "猫", "🙂", "👩\u200d👧", "𝔘", "\0", "\x85", "\xa0", "\u2028", "א", "ا", "[SEP]"),
]


def build_byte_bpe(size: int = 500) -> Core:
    """As GPT-2's was made."""
    backend = Core(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return backend


def write_gpt2(folder: Path, names: tuple[str, str] = ("vocab.json", "merges.txt")) -> Path:
    content = json.loads(build_byte_bpe().to_str())["model"]
    ids = {**content["vocab"], "<|endoftext|>": len(content["vocab"])}
    folder.mkdir(exist_ok=True)
    (folder / names[0]).write_text(json.dumps(ids), encoding="utf-8")
    merges = "".join(f"{left} {right}\n" for left, right in content["merges"])
    (folder / names[1]).write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    return folder


def build_ranks(n_merges: int = 150) -> dict[bytes, int]:
    """Bytes, then pieces that occur; some that no joining leads to, as a hand may add."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = Counter(word for text in TEXTS for word in text.replace(" ", "\0 ").split("\0"))
    while len(ranks) < 256 + n_merges:
        pairs: Counter[bytes] = Counter()
        for word, count in words.items():
            parts = merge_by_rank(word.encode(), ranks)
            for left, right in pairwise(parts):
                pairs[left + right] += count
        ranks[min(pairs, key=lambda piece: (-pairs[piece], piece))] = len(ranks)
    ranks[b" zzqy"] = len(ranks)
    return ranks


def merge_by_rank(word: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    parts = [word[index : index + 1] for index in range(len(word))]
    while True:
        candidates = [
            (ranks[left + right], index)
            for index, (left, right) in enumerate(pairwise(parts))
            if left + right in ranks
        ]
        if not candidates:
            return parts
        index = min(candidates)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


def write_ranks(path: Path, ranks: dict[bytes, int]) -> Path:
    lines = [f"{b64encode(piece).decode()} {rank}\n" for piece, rank in ranks.items()]
    path.write_text("".join(lines), encoding="ascii")
    return path


def write_bert(folder: Path, *, lowercase: bool, size: int = 300) -> Path:
    backend = Core(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special_tokens, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    ids = backend.get_vocab()
    folder.mkdir(exist_ok=True)
    pieces = "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__))
    (folder / "vocab.txt").write_text(pieces, encoding="utf-8")
    return folder


def write_sentencepiece_model(
    folder: Path, name: str, kind: str, texts: list[str] = TEXTS, **options: object
) -> Path:
    import sentencepiece

    folder.mkdir(exist_ok=True)
    lines = [line for text in texts for line in text.split("\n") if line]
    with (folder / name).open("wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, model_type=kind, hard_vocab_limit=False,
            minloglevel=2, **{"vocab_size": 200, **options},
        )  # fmt: skip
    return folder / name


def write_marian(folder: Path) -> Path:
    """One list of pieces for two models, numbered in an order of its own: the end first, the padding last."""
    import sentencepiece

    model_paths = [
        write_sentencepiece_model(folder, "source.spm", "unigram", TEXTS[:3] * 5),
        write_sentencepiece_model(folder, "target.spm", "unigram", TEXTS[1:5] * 5),
    ]
    pieces = ["</s>", "<unk>", ">>fra<<"]
    for model_path in model_paths:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
        # Some are lacking.
        pieces += [processor.id_to_piece(token) for token in range(3, processor.get_piece_size() - 5)]
    ids = {piece: token for token, piece in enumerate([*dict.fromkeys(pieces), "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    return folder
