"""The published vocabularies of GPT-2, GPT-4 and BERT, where they are at hand, on real and on hard text."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from importing_cases import HARD_TEXTS, TRICKY_PIECES
from tiktoken.load import load_tiktoken_bpe
from transformers import BertTokenizer, GPT2Tokenizer

from triform.config import TokenizerConfig
from triform.text import Tokenizer, load_tokenizer, read_tokenizer, train_tokenizer, write_tokenizer

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(
    not (SHARED / "tokenizers").is_dir(), reason=f"the published vocabularies are not at {SHARED}"
)
FILES = {
    "gpt2": {"gpt2_encoder.json.gz": "vocab.json", "gpt2_vocab.bpe.gz": "merges.txt"},
    "cl100k": {"cl100k_base.tiktoken.gz": "cl100k_base.tiktoken"},
    "bert": {"bert_base_uncased_vocab.txt.gz": "vocab.txt"},
}
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
EncodeFn = Callable[[str], list[int]]


def build_reference(name: str, folder: Path) -> EncodeFn:
    if name == "cl100k":
        ranks = load_tiktoken_bpe(str(folder / "cl100k_base.tiktoken"))
        special_tokens = {"<|endoftext|>": 100257}
        return tiktoken.Encoding(
            "cl100k", pat_str=CL100K, mergeable_ranks=ranks, special_tokens=special_tokens
        ).encode_ordinary
    theirs = (GPT2Tokenizer if name == "gpt2" else BertTokenizer).from_pretrained(str(folder))
    return lambda text: theirs(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module", params=FILES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Tokenizer, EncodeFn]:
    folder = tmp_path_factory.mktemp(request.param)
    for archive, name in FILES[request.param].items():
        (folder / name).write_bytes(gzip.decompress((SHARED / "tokenizers" / archive).read_bytes()))
    return request.param, read_tokenizer(folder), build_reference(request.param, folder)


def reviews(n_characters: int) -> Iterator[str]:
    with gzip.open(SHARED / "imdb" / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            yield text
            n_characters -= len(text)
            if n_characters < 0:
                return


def test_hard_and_real_text_give_the_published_ids(case: tuple[str, Tokenizer, EncodeFn]) -> None:
    _, ours, theirs = case
    texts = [*HARD_TEXTS, *reviews(300_000)]
    assert ours.encode_batch(texts) == [theirs(text) for text in texts]
    for text in HARD_TEXTS:
        assert ours.encode(text) == theirs(text)


@given(parts=st.lists(st.one_of(st.sampled_from(TRICKY_PIECES), st.text(max_size=6)), max_size=12))
def test_any_text_gives_the_published_ids(case: tuple[str, Tokenizer, EncodeFn], parts: list[str]) -> None:
    _, ours, theirs = case
    assert ours.encode("".join(parts)) == theirs("".join(parts))


def test_their_sizes_and_special_tokens_are_the_known_ones(case: tuple[str, Tokenizer, EncodeFn]) -> None:
    name, ours, _ = case
    expected = {
        "gpt2": (50257, (None, None, 50256, 50256, (), ())),
        "cl100k": (100277, (None, None, 100257, 100257, (), ())),
        "bert": (30522, (0, 100, 101, 102, (101,), (102,))),
    }
    assert (ours.vocab_size, tuple(ours.special_tokens)) == expected[name]
    if name == "gpt2":
        assert ours.encode("Hello world") == [15496, 995]
    if name == "bert":
        assert ours.special_tokens.wrap(ours.encode("Hello, world!")) == [101, 7592, 1010, 2088, 999, 102]


def test_they_are_kept_in_a_run_folder(case: tuple[str, Tokenizer, EncodeFn], tmp_path: Path) -> None:
    _, ours, _ = case
    ours.save(tmp_path / "tokenizer.json")
    reloaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert reloaded.special_tokens == ours.special_tokens
    assert reloaded.encode_batch(HARD_TEXTS) == ours.encode_batch(HARD_TEXTS)


def test_their_byte_pairs_leave_as_the_rank_file_they_are(
    case: tuple[str, Tokenizer, EncodeFn], tmp_path: Path
) -> None:
    name, ours, _ = case
    if name == "bert":
        pytest.skip("WordPiece is no byte BPE")
    path = write_tokenizer(ours, tmp_path, file_format="tiktoken")[0]
    if name == "cl100k":
        published = gzip.decompress((SHARED / "tokenizers" / "cl100k_base.tiktoken.gz").read_bytes())
        assert path.read_bytes() == published
    else:
        sidecar = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
        theirs = tiktoken.Encoding(
            "gpt2",
            pat_str=sidecar["pattern"],
            mergeable_ranks=load_tiktoken_bpe(str(path)),
            special_tokens=sidecar["special_tokens"],
        )
        assert [theirs.encode_ordinary(text) for text in HARD_TEXTS] == ours.encode_batch(HARD_TEXTS)


def test_wordpiece_that_is_trained_here_normalises_and_splits_words_as_bert(tmp_path: Path) -> None:
    published = gzip.decompress((SHARED / "tokenizers" / "bert_base_uncased_vocab.txt.gz").read_bytes())
    (tmp_path / "vocab.txt").write_bytes(published)
    theirs = read_tokenizer(tmp_path)
    texts = list(reviews(300_000))
    ours = train_tokenizer(TokenizerConfig(kind="wordpiece", lowercase=True), texts)

    def words(tokenizer: Tokenizer, text: str) -> list[str]:
        return " ".join(tokenizer.format_pieces(tokenizer.encode(text))).replace(" ##", "").split(" ")

    n_words = 0
    for text in texts:
        pairs = list(zip(words(ours, text), words(theirs, text), strict=True))
        n_words += len(pairs)
        assert all(first == second for first, second in pairs if "[UNK]" not in (first, second))
    assert n_words > 60_000
    write_tokenizer(ours, tmp_path / "out")
    pieces, bert_pieces = (
        (folder / "vocab.txt").read_text(encoding="utf-8").split() for folder in (tmp_path / "out", tmp_path)
    )
    assert set(pieces[:4]) < set(bert_pieces)
    shared_pieces = set(pieces) & set(bert_pieces)
    assert len(shared_pieces) > len(pieces) * 0.7
