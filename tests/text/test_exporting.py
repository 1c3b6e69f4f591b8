"""Vocabularies written for other libraries give the same ids there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from importing_cases import (
    HARD_TEXTS,
    TEXTS,
    TRICKY_PIECES,
    build_ranks,
    write_bert,
    write_gpt2,
    write_marian,
    write_ranks,
)
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Core
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from triform.config import TokenizerConfig
from triform.errors import CheckpointError
from triform.text import BpeTokenizer, Tokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from triform.text.split_patterns import CL100K_PATTERN, GPT4_PATTERN

EncodeFn = Callable[[str], list[int]]
TOKENIZER_VARIANTS = [
    (kind, lowercase) for kind in ("char", "word", "bpe", "wordpiece") for lowercase in (False, True)
]


def train(kind: str, lowercase: bool = False) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, lowercase=lowercase), TEXTS)


def load_with_transformers(folder: Path) -> PreTrainedTokenizerFast:
    theirs = AutoTokenizer.from_pretrained(str(folder))
    assert isinstance(theirs, PreTrainedTokenizerFast)
    return theirs


def load_with_tiktoken(path: Path) -> EncodeFn:
    """As someone would who has only the two files."""
    sidecar = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
    return tiktoken.Encoding(
        "written",
        pat_str=sidecar["pattern"],
        mergeable_ranks=load_tiktoken_bpe(str(path)),
        special_tokens=sidecar["special_tokens"],
    ).encode_ordinary


@pytest.mark.parametrize(("kind", "lowercase"), TOKENIZER_VARIANTS)
def test_transformers_loads_ours_with_the_same_ids(kind: str, lowercase: bool, tmp_path: Path) -> None:
    ours = train(kind, lowercase)
    paths = write_tokenizer(ours, tmp_path)
    assert all(path.is_file() for path in paths)
    theirs = load_with_transformers(tmp_path)
    for text in HARD_TEXTS:
        assert theirs(text, split_special_tokens=True)["input_ids"] == ours.encode(text), ascii(text[:40])
    assert len(theirs) == ours.vocab_size
    special_ids = (theirs.pad_token_id, theirs.unk_token_id, theirs.bos_token_id, theirs.eos_token_id)
    assert special_ids == (0, 1, 2, 3)
    end_name, pad_name = ours.format_piece(3), ours.format_piece(0)
    assert theirs(f"{end_name} x {pad_name}")["input_ids"][0] == 3  # unless asked, transformers finds them in text
    tokens = ours.encode(TEXTS[0])
    if kind not in ("word", "wordpiece"):  # whose spaces are guessed here and there
        assert theirs.decode([2, *tokens, 3, 0], skip_special_tokens=True) == ours.decode(tokens)


@pytest.mark.parametrize(("kind", "lowercase"), TOKENIZER_VARIANTS)
def test_what_was_written_can_be_read_again(kind: str, lowercase: bool, tmp_path: Path) -> None:
    ours = train(kind, lowercase)
    write_tokenizer(ours, tmp_path)
    reloaded = read_tokenizer(tmp_path)
    assert reloaded.kind == "imported"
    assert reloaded.special_tokens == ours.special_tokens
    assert reloaded.encode_batch(HARD_TEXTS) == ours.encode_batch(HARD_TEXTS)
    assert reloaded.lossless == (ours.lossless and not lowercase and kind == "bpe")


def test_transformers_knows_the_whole_vocabulary_of_byte_bpe(tmp_path: Path) -> None:
    """The pair of files has no place for the pattern; the pieces and merges are all there."""
    ours = train("bpe")
    write_tokenizer(ours, tmp_path)
    assert isinstance(ours, BpeTokenizer)
    ids = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert list(ids.values()) == list(range(ours.vocab_size))
    lines = (tmp_path / "merges.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(ours.merges())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    theirs = GPT2Tokenizer.from_pretrained(str(tmp_path), unk_token="<unk>", bos_token="<bos>", eos_token="<eos>")
    reloaded = read_tokenizer(tmp_path)
    words = "the cat sat on the other mat"
    assert theirs(words)["input_ids"] == reloaded.encode(words) == ours.encode(words)
    assert reloaded.special_tokens == ours.special_tokens


@given(parts=st.lists(st.one_of(st.sampled_from(TRICKY_PIECES), st.text(max_size=4)), max_size=12))
def test_tiktoken_gives_any_text_the_same_ids(
    parts: list[str], tiktoken_case: tuple[Tokenizer, EncodeFn, Tokenizer]
) -> None:
    ours, theirs, reloaded = tiktoken_case
    text = "".join(parts)
    assert ours.encode(text) == theirs(text) == reloaded.encode(text)


@pytest.fixture(scope="module", params=["ours", "gpt2", "ranks"])
def tiktoken_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, EncodeFn, Tokenizer]:
    folder = tmp_path_factory.mktemp("written")
    if request.param == "ours":
        tokenizer = train("bpe")
    elif request.param == "gpt2":
        tokenizer = read_tokenizer(write_gpt2(folder / "gpt2"))
    else:
        path = write_ranks(folder / "ranks.tiktoken", build_ranks())
        tokenizer = read_tokenizer(path, pattern=CL100K_PATTERN, special_tokens={"<|endoftext|>": 999})
    files = write_tokenizer(tokenizer, folder / "out", file_format="tiktoken")
    assert [path.name for path in files] == ["tokenizer.tiktoken", "tokenizer.tiktoken.json"]
    reloaded = read_tokenizer(folder / "out")
    assert reloaded.special_tokens == tokenizer.special_tokens or request.param == "ours"
    assert reloaded.vocab_size == tokenizer.vocab_size
    return tokenizer, load_with_tiktoken(files[0]), reloaded


def test_tiktoken_gives_hard_text_the_same_ids(tiktoken_case: tuple[Tokenizer, EncodeFn, Tokenizer]) -> None:
    ours, theirs, reloaded = tiktoken_case
    for text in HARD_TEXTS:
        assert ours.encode(text) == theirs(text) == reloaded.encode(text)


def test_imported_vocabularies_leave_as_they_came(tmp_path: Path) -> None:
    gpt2 = write_gpt2(tmp_path / "gpt2")
    write_tokenizer(read_tokenizer(gpt2), tmp_path / "out")
    for name in ("vocab.json", "merges.txt"):
        before, after = ((folder / name).read_text(encoding="utf-8") for folder in (gpt2, tmp_path / "out"))
        assert (json.loads(before) == json.loads(after)) if name == "vocab.json" else before == after
    bert = write_bert(tmp_path / "bert", lowercase=True)
    write_tokenizer(read_tokenizer(bert), tmp_path / "bert-out")
    assert (tmp_path / "bert-out" / "vocab.txt").read_bytes() == (bert / "vocab.txt").read_bytes()
    theirs = load_with_transformers(tmp_path / "bert-out")
    for text in HARD_TEXTS:
        expected = BertTokenizer.from_pretrained(str(bert))(text, split_special_tokens=True)["input_ids"]
        assert theirs(text, split_special_tokens=True)["input_ids"] == expected
        assert (
            read_tokenizer(tmp_path / "bert-out").special_tokens.wrap(read_tokenizer(bert).encode(text)) == expected
        )


def test_sentencepiece_models_leave_as_the_files_they_are(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    folder = write_marian(tmp_path / "marian")
    for side in ("source", "target"):
        write_tokenizer(read_tokenizer(folder, side=side), tmp_path / "out", side=side)  # type: ignore[arg-type]
    for name in ("source.spm", "target.spm"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert read_tokenizer(tmp_path / "out").to_json() == read_tokenizer(folder).to_json()
    with pytest.raises(CheckpointError, match="tiktoken supports only byte-level BPE"):
        write_tokenizer(read_tokenizer(folder), tmp_path / "out", file_format="tiktoken")


def test_what_tiktoken_cannot_hold_is_refused_with_the_reason(tmp_path: Path) -> None:
    def assert_refused(tokenizer: Tokenizer, problem: str) -> None:
        with pytest.raises(CheckpointError, match=problem):
            write_tokenizer(tokenizer, tmp_path / "out", file_format="tiktoken")
        assert not (tmp_path / "out").exists()

    assert_refused(train("char"), "tiktoken supports only byte-level BPE; this tokenizer is char")
    assert_refused(train("bpe", lowercase=True), "cannot lowercase text")
    folder = write_gpt2(tmp_path / "shuffled")
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    max_id = max(ids.values())
    shuffled = {piece: max_id - token for piece, token in ids.items()}
    (folder / "vocab.json").write_text(json.dumps(shuffled), encoding="utf-8")
    assert_refused(read_tokenizer(folder), "numbers tokens in the order of their merges")
    backend = Core(models.BPE(*read_vocab_and_merges(write_gpt2(tmp_path / "plain"))))
    split = pre_tokenizers.Split(Regex(r"\s+|\S+"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = read_tokenizer(tmp_path / "plain").backend.decoder  # type: ignore[attr-defined]
    backend.save(str(tmp_path / "own.json"))
    assert_refused(
        read_tokenizer(tmp_path / "own.json"), "does not support the way in which this tokenizer splits text"
    )


def read_vocab_and_merges(folder: Path) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    return ids, [tuple(line.split()) for line in lines]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"file cannot be written|inside cannot be written"):
        write_tokenizer(train("char"), tmp_path / "file" / "inside")


def test_the_pattern_written_is_the_one_that_cuts(tmp_path: Path) -> None:
    write_tokenizer(train("bpe"), tmp_path, file_format="tiktoken")
    assert json.loads((tmp_path / "tokenizer.tiktoken.json").read_text(encoding="utf-8"))["pattern"] == GPT4_PATTERN
