"""Vocabularies of other libraries give the ids that those libraries give."""

from __future__ import annotations

import json
import pickle
import re
import warnings
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
    build_byte_bpe,
    build_ranks,
    write_bert,
    write_gpt2,
    write_marian,
    write_ranks,
    write_sentencepiece_model,
)
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Core
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, MarianTokenizer, PreTrainedTokenizerFast

from triform.config import TokenizerConfig
from triform.errors import CheckpointError, ConfigError, DataError, install_command
from triform.text import SpecialTokens, Tokenizer, load_tokenizer, parallel, read_tokenizer, train_tokenizer
from triform.text.imported_tokenizers import ImportedBpe, ImportedSubword
from triform.text.split_patterns import CL100K_PATTERN, GPT2_PATTERN, GPT4_PATTERN
from triform.text.tiktoken_files import ENCODINGS

EncodeFn = Callable[[str], list[int]]
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tiktoken's own spelling of the pattern, whose possessive repeats mean something else to the library
TIKTOKEN_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)


def build_encode_fn(tokenizer: object) -> EncodeFn:
    """What transformers gives for text in which names of special tokens are text."""
    return lambda text: tokenizer(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]  # type: ignore[operator]


def gpt2_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    write_gpt2(folder)
    return read_tokenizer(folder), build_encode_fn(GPT2Tokenizer.from_pretrained(str(folder)))


def ranks_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    ranks = build_ranks()
    folder.mkdir()
    path = write_ranks(folder / "small.tiktoken", ranks)
    special_tokens = {"<|endoftext|>": len(ranks) + 2}
    encoding = tiktoken.Encoding(
        "small", pat_str=TIKTOKEN_CL100K, mergeable_ranks=ranks, special_tokens=special_tokens
    )
    return read_tokenizer(path, pattern=CL100K_PATTERN, special_tokens=special_tokens), encoding.encode_ordinary


def o200k_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    ranks = build_ranks()
    folder.mkdir()
    path = write_ranks(folder / "small.tiktoken", ranks)
    pattern = ENCODINGS["o200k_base"][0]
    encoding = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return read_tokenizer(path, pattern=pattern), encoding.encode_ordinary


def bert_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    write_bert(folder, lowercase=True)
    return read_tokenizer(folder), build_encode_fn(BertTokenizer.from_pretrained(str(folder)))


def cased_bert_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    write_bert(folder, lowercase=False)
    return read_tokenizer(folder), build_encode_fn(BertTokenizer.from_pretrained(str(folder), do_lower_case=False))


def tokenizer_json_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    """As T5's: unigram, a normaliser, spaces shown, an end added; with the traps of a used file set."""
    backend = Core(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    backend.enable_truncation(8)
    backend.enable_padding(length=20)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return read_tokenizer(folder), lambda text: backend.encode(text, add_special_tokens=False).ids


def llama_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    """As Llama 3's: byte BPE, GPT-4's cuts, a beginning added."""
    backend = build_byte_bpe()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    begin = backend.token_to_id(names[0])
    backend.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{names[0]} $A", special_tokens=[(names[0], begin)]),
        ]
    )
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return read_tokenizer(folder), build_encode_fn(theirs)


def neox_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    """As GPT-NeoX's: a normaliser, and runs of spaces that are added tokens but not special."""
    backend = build_byte_bpe()
    backend.normalizer = normalizers.NFC()
    backend.add_tokens([AddedToken("    ", normalized=False), AddedToken("  ", normalized=False)])
    backend.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder), build_encode_fn(
        PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    )


def llama2_case(folder: Path) -> tuple[Tokenizer, EncodeFn]:
    """As Llama 2's: BPE over characters with spaces shown, bytes where a character is lacking."""
    trained_backend = Core(models.BPE())
    trained_backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained_backend.train_from_iterator(TEXTS[:3], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    model = json.loads(trained_backend.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    ids = {piece: token for token, piece in enumerate(pieces)}
    merges = [tuple(pair) for pair in model["merges"]]
    backend = Core(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in pieces[:3]])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder), build_encode_fn(
        PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    )


def sentencepiece_case(kind: str, **options: object) -> Callable[[Path], tuple[Tokenizer, EncodeFn]]:
    def build(folder: Path) -> tuple[Tokenizer, EncodeFn]:
        sentencepiece = pytest.importorskip("sentencepiece")
        path = write_sentencepiece_model(folder, "tokenizer.model", kind, **options)
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return read_tokenizer(folder), theirs.encode

    return build


def marian_case(folder: Path, side: str = "source") -> tuple[Tokenizer, EncodeFn]:
    pytest.importorskip("sentencepiece")
    write_marian(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another package is recommended
        theirs = MarianTokenizer.from_pretrained(str(folder))
    if side == "target":
        theirs._switch_to_target_mode()
    tokenizer = read_tokenizer(folder, side=side)  # type: ignore[arg-type]
    return tokenizer, lambda text: theirs.convert_tokens_to_ids(theirs._tokenize(text))


CASES: dict[str, Callable[[Path], tuple[Tokenizer, EncodeFn]]] = {
    "gpt2": gpt2_case,
    "ranks": ranks_case,
    "o200k": o200k_case,
    "bert": bert_case,
    "cased-bert": cased_bert_case,
    "library": tokenizer_json_case,
    "llama": llama_case,
    "neox": neox_case,
    "llama2": llama2_case,
    "unigram": sentencepiece_case("unigram"),
    "bpe": sentencepiece_case("bpe", byte_fallback=True, vocab_size=500, normalization_rule_name="identity"),
    "marian": marian_case,
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, EncodeFn]:
    return CASES[request.param](tmp_path_factory.mktemp("foreign") / "folder")


def build_case(name: str, tmp_path: Path) -> Tokenizer:
    return CASES[name](tmp_path / "folder")[0]


# --------------------------------------------------------------------------------------------- every kind


def test_hard_text_gives_the_ids_of_the_library_it_comes_from(case: tuple[Tokenizer, EncodeFn]) -> None:
    ours, theirs = case
    for text in HARD_TEXTS:
        assert ours.encode(text) == theirs(text), ascii(text[:40])
    assert ours.encode_batch(HARD_TEXTS) == [theirs(text) for text in HARD_TEXTS]


@given(parts=st.lists(st.one_of(st.sampled_from(TRICKY_PIECES), st.text(max_size=4)), max_size=12))
def test_any_text_gives_the_ids_of_the_library_it_comes_from(
    case: tuple[Tokenizer, EncodeFn], parts: list[str]
) -> None:
    ours, theirs = case
    text = "".join(parts)
    assert ours.encode(text) == theirs(text)
    tokens, lengths = ours.encode_rows([text, "", text])
    assert tokens.tolist() == theirs(text) * 2
    assert lengths.tolist() == [len(theirs(text)), 0, len(theirs(text))]


def test_a_long_text_gives_the_ids_of_the_library_too(case: tuple[Tokenizer, EncodeFn]) -> None:
    ours, theirs = case
    text = "".join(TEXTS) + "\n\n x\n\n\ny \n z" * 20 + " 𝔘\n\na\nb" * 20
    assert ours.encode(text) == theirs(text)


def test_a_lone_surrogate_is_refused(case: tuple[Tokenizer, EncodeFn]) -> None:
    with pytest.raises(DataError, match=r"character 2 is a lone surrogate \(U\+D800\)"):
        case[0].encode("a\ud800")
    with pytest.raises(DataError, match="lone surrogate"):
        case[0].encode_batch(["fine", "\udfff"])


def test_a_run_folder_keeps_an_imported_tokenizer(case: tuple[Tokenizer, EncodeFn], tmp_path: Path) -> None:
    before = case[0]
    before.save(tmp_path / "tokenizer.json")
    assert "triform" in json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    for after in (
        load_tokenizer(tmp_path / "tokenizer.json"),
        read_tokenizer(tmp_path),
        pickle.loads(pickle.dumps(before)),
    ):
        assert type(after) is type(before)
        assert after.special_tokens == before.special_tokens
        assert after.vocab_size == before.vocab_size
        assert after.encode_batch(HARD_TEXTS) == before.encode_batch(HARD_TEXTS)
        assert after.lossless == before.lossless
        assert after.to_json() == before.to_json()
        tokens = list(range(before.vocab_size))
        assert after.decode(tokens) == before.decode(tokens)
        assert after.format_pieces(tokens) == before.format_pieces(tokens)


def test_what_is_said_to_lose_nothing_comes_back_exactly(case: tuple[Tokenizer, EncodeFn]) -> None:
    ours = case[0]
    decoded = [ours.decode(ours.encode(text)) for text in HARD_TEXTS]
    assert (decoded == HARD_TEXTS) == ours.lossless


def test_special_tokens_are_left_out_of_text_and_unknown_ones_shown(case: tuple[Tokenizer, EncodeFn]) -> None:
    ours = case[0]
    tokens = ours.encode("The cat")
    special_tokens = {token for token in (ours.pad, ours.bos, ours.eos) if token is not None}
    assert ours.decode([*special_tokens, *tokens, *special_tokens]) == ours.decode(tokens)
    assert ours.decode(tokens).lower() == "the cat"
    if ours.unk is not None:
        assert "\N{REPLACEMENT CHARACTER}" in ours.decode([ours.unk])


def test_every_piece_can_be_shown(case: tuple[Tokenizer, EncodeFn]) -> None:
    ours = case[0]
    assert all(ours.format_piece(token) for token in range(ours.vocab_size))
    assert len(ours.format_pieces(ours.encode(TEXTS[3]))) == len(ours.encode(TEXTS[3]))


def test_what_a_vocabulary_lacks_is_named(case: tuple[Tokenizer, EncodeFn]) -> None:
    ours = case[0]
    rare = "cat ϟ cat"
    missing = ours.find_unknown(rare)
    assert bool(missing) == (ours.unk is not None and ours.unk in ours.encode(rare))
    assert not missing or "ϟ" in missing[0]
    assert ours.find_unknown("") == []


def test_children_encode_with_an_imported_tokenizer(
    case: tuple[Tokenizer, EncodeFn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "MIN_PARALLEL_CHARS", 0)
    monkeypatch.setattr(parallel, "available_cpus", lambda: 2)
    ours, theirs = case
    if not ours.single_threaded:
        pytest.skip("the library spreads its own work over the cores")
    parts = [[text] for text in HARD_TEXTS[:9]]
    rows = list(parallel.encode_stream(ours, parts))
    assert [row.tokens.tolist() for row in rows] == [theirs(text) for text in HARD_TEXTS[:9]]


# ------------------------------------------------------------------------------------------- special tokens


@pytest.mark.parametrize(
    ("name", "pieces", "before", "after"),
    [
        ("gpt2", (None, None, "<|endoftext|>", "<|endoftext|>"), (), ()),
        ("ranks", (None, None, "<|endoftext|>", "<|endoftext|>"), (), ()),
        ("o200k", (None, None, None, None), (), ()),
        ("bert", ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), ("[CLS]",), ("[SEP]",)),
        ("library", ("<pad>", "<unk>", None, "</s>"), (), ("</s>",)),
        ("llama", (None, None, "<|begin_of_text|>", "<|end_of_text|>"), ("<|begin_of_text|>",), ()),
        ("llama2", (None, "<unk>", "<s>", "</s>"), ("<s>",), ()),
        ("unigram", (None, "<unk>", "<s>", "</s>"), (), ()),
        ("marian", ("<pad>", "<unk>", "<pad>", "</s>"), (), ("</s>",)),
    ],
)
def test_special_tokens_are_found(
    name: str, pieces: tuple[str | None, ...], before: tuple[str], after: tuple[str], tmp_path: Path
) -> None:
    ours = build_case(name, tmp_path)
    names = [None if token is None else ours.format_piece(token) for token in ours.special_tokens[:4]]
    assert tuple(names) == pieces
    assert tuple(map(ours.format_piece, ours.special_tokens.before)) == before
    assert tuple(map(ours.format_piece, ours.special_tokens.after)) == after


def test_a_text_in_its_frame_is_what_transformers_feeds_a_model(tmp_path: Path) -> None:
    ours = build_case("bert", tmp_path)
    (tmp_path / "folder" / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "folder"))
    for text in (TEXTS[0], "", "cat"):
        assert ours.special_tokens.wrap(ours.encode(text)) == theirs(text)["input_ids"]
        truncated = theirs(text, truncation=True, max_length=8)["input_ids"]
        assert ours.special_tokens.wrap(ours.encode(text), 8) == truncated
        rows = ours.special_tokens.wrap_rows(ours.encode_rows([text, "", text]))
        assert rows.tokens.tolist() == [token for item in (text, "", text) for token in theirs(item)["input_ids"]]
        wrapped = rows.tokens[: rows.lengths[0]]
        assert ours.special_tokens.truncate(wrapped, 8).tolist() == truncated


def test_files_beside_a_vocabulary_say_what_is_special(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "folder")
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    ids |= {"<start>": len(ids), "<fill>": len(ids) + 1}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    settings = {"bos_token": {"content": "<start>"}, "unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"pad_token_id": ids["<fill>"]}), encoding="utf-8")
    ours = read_tokenizer(folder)
    end = ids["<|endoftext|>"]
    assert ours.special_tokens == SpecialTokens(ids["<fill>"], None, ids["<start>"], end)
    assert ours.encode("<start>") == gpt2_case(tmp_path / "other")[0].encode("<start>")


def test_where_a_model_begins_to_write_is_told_by_its_config(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    folder = write_marian(tmp_path / "folder")
    (folder / "config.json").write_text(
        json.dumps({"is_encoder_decoder": True, "decoder_start_token_id": 2, "eos_token_id": 0}), encoding="utf-8"
    )
    assert read_tokenizer(folder).bos == 2


@pytest.mark.parametrize("file", ["tokenizer.model", "tokenizer.json"])
def test_a_llama_folder_without_tokenizer_config_adds_its_bos(file: str, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    path = write_sentencepiece_model(tmp_path, "tokenizer.model", "bpe", byte_fallback=True, vocab_size=400)
    if file == "tokenizer.json":
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        ids = {piece: token for token, piece in enumerate(pieces)}
        backend = Core(models.BPE(ids, [], unk_token="<unk>", byte_fallback=True))
        backend.add_special_tokens(["<s>", "</s>"])
        path.unlink()
        backend.save(str(tmp_path / file))
    assert read_tokenizer(tmp_path).special_tokens.before == (), "nothing says that this is Llama's"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert read_tokenizer(tmp_path).special_tokens.wrap([5, 6]) == [1, 5, 6]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    assert read_tokenizer(tmp_path).special_tokens.wrap([5, 6]) == [5, 6]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    assert read_tokenizer(tmp_path).special_tokens.wrap([5, 6]) == [5, 6]


def test_marians_two_sides_share_their_numbers(tmp_path: Path) -> None:
    (source, _), (target, theirs) = marian_case(tmp_path / "a"), marian_case(tmp_path / "b", "target")
    assert source.vocab_size == target.vocab_size
    assert source.special_tokens == target.special_tokens
    assert target.encode_batch(HARD_TEXTS) == [theirs(text) for text in HARD_TEXTS]
    assert source.encode_batch(HARD_TEXTS) != target.encode_batch(HARD_TEXTS)
    code = source.encode(">>fra<< The cat")
    assert source.format_piece(code[0]) == ">>fra<<"
    assert code[1:] == source.encode("The cat")


def test_case_is_seen_in_the_pieces_or_told_beside_them(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "cased", lowercase=False)
    assert read_tokenizer(folder).encode("THE") != read_tokenizer(folder).encode("the")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}', encoding="utf-8")
    assert read_tokenizer(folder).encode("THE") == read_tokenizer(folder).encode("the")
    (folder / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}', encoding="utf-8")
    theirs = BertTokenizer.from_pretrained(str(folder), do_lower_case=False, tokenize_chinese_chars=False)
    assert read_tokenizer(folder).encode("猫が座った猫") == build_encode_fn(theirs)("猫が座った猫")


# ---------------------------------------------------------------------------------------------- the quick way


@pytest.mark.parametrize(
    ("name", "pattern"), [("gpt2", GPT2_PATTERN), ("ranks", CL100K_PATTERN), ("llama", GPT4_PATTERN), ("neox", "")]
)
def test_known_patterns_take_the_quick_way(name: str, pattern: str, tmp_path: Path) -> None:
    ours = build_case(name, tmp_path)
    assert isinstance(ours, ImportedBpe)
    assert ours.pattern == pattern
    ours.encode(TEXTS[0])
    assert bool(ours._word_cache) == bool(pattern)


@pytest.mark.parametrize("template", ["a{}1", "'{}x", " {} \n"])
@pytest.mark.parametrize("name", ["gpt2", "ranks"])
def test_both_ways_cut_around_every_character_alike(name: str, template: str, tmp_path: Path) -> None:
    """Of the first plane; what lies beyond is left to the library."""
    ours = build_case(name, tmp_path)
    assert isinstance(ours, ImportedBpe)
    code_points = [*range(0xD800), *range(0xE000, 0x10000)]
    for start in range(0, len(code_points), 4096):
        text = "".join(template.format(chr(code_point)) for code_point in code_points[start : start + 4096])
        assert ours.encode(text) == ours.backend.encode(text, add_special_tokens=False).ids


def test_a_vocabulary_without_special_tokens_still_encodes_many_texts_together(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "bare.tiktoken", build_ranks())
    ours = read_tokenizer(path, pattern=GPT4_PATTERN)
    assert ours.special_tokens[:4] == (None,) * 4
    for texts in (["a b", "", "c\0d", " e "], ["a b", "", " e "]):
        assert ours.encode_batch(texts) == [ours.encode(text) for text in texts]


# ------------------------------------------------------------------------------------------------- names


def test_openais_first_names_are_read_too(tmp_path: Path) -> None:
    ours = read_tokenizer(write_gpt2(tmp_path / "openai", ("encoder.json", "vocab.bpe")))
    assert ours.encode_batch(HARD_TEXTS) == build_case("gpt2", tmp_path).encode_batch(HARD_TEXTS)
    assert read_tokenizer(tmp_path / "openai" / "vocab.bpe").to_json() == ours.to_json()


def test_a_rank_file_is_known_by_its_name(tmp_path: Path) -> None:
    ranks = build_ranks()
    ours = read_tokenizer(write_ranks(tmp_path / "other.tiktoken", ranks), encoding="r50k_base")
    assert ours.eos == 50256
    assert ours.vocab_size == 50257
    assert ours.format_piece(len(ranks)) == f"<|unused_{len(ranks)}|>"
    model = tmp_path / "tokenizer.model"  # as Llama 3 calls it
    (tmp_path / "other.tiktoken").rename(model)
    assert read_tokenizer(model, encoding="r50k_base").to_json() == ours.to_json()
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: .* split pattern; .* cl100k_base"):
        read_tokenizer(model)


def test_bytes_that_are_lacking_leave_the_tokenizer_to_the_library(tmp_path: Path) -> None:
    backend = Core(models.BPE({"a": 0, "b": 1, "ab": 2, "<unk>": 3}, [("a", "b")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = read_tokenizer(tmp_path)
    assert isinstance(ours, ImportedSubword)
    assert ours.encode("abz") == [2, 3]
    assert ours.find_unknown("abz") == ["z"]


# -------------------------------------------------------------------------------------------- bad input


def assert_refused(path: Path, problem: str, **settings: object) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_tokenizer(path, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda ids: ids | {"extra": 1}, "'.' and 'extra' have the same id, 1"),
        (lambda ids: ids | {"extra": 9999}, r"pieces must be 0 to \d+, but no piece has id \d+"),
        (
            lambda ids: ids | {"extra": "1"},
            "is not a vocabulary: expected an object with an integer id for each piece",
        ),
        (lambda ids: ids | {"extra": True}, "not a vocabulary"),
        (lambda ids: [1], "not a vocabulary"),
        (lambda ids: {}, "not a vocabulary"),
    ],
)
def test_a_vocabulary_that_does_not_count_is_refused(change: Callable, problem: str, tmp_path: Path) -> None:  # type: ignore[type-arg]
    folder = write_gpt2(tmp_path / "folder")
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps(change(ids)), encoding="utf-8")
    assert_refused(folder, problem)


def test_a_piece_that_stands_twice_is_named(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "folder")
    text = (folder / "vocab.json").read_text(encoding="utf-8")
    (folder / "vocab.json").write_text('{"!": 0, ' + text[1:], encoding="utf-8")
    assert_refused(folder, r"vocab\.json: duplicate key '!'")


def test_bytes_that_are_lacking_are_counted(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}', encoding="utf-8")
    (tmp_path / "merges.txt").write_text("", encoding="utf-8")
    assert_refused(tmp_path, "lacks 255 of the 256 bytes")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a zzz", r"merges\.txt, line 3: 'zzz' is not in the vocabulary"),
        ("q z", r"merges\.txt, line 3: 'qz' is not in the vocabulary"),
        ("abc", r"merges\.txt, line 3: expected two pieces"),
        ("a b c", r"merges\.txt, line 3: expected two pieces"),
    ],
)
def test_a_merge_of_what_is_not_there_is_refused_with_its_line(line: str, problem: str, tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "folder")
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    (folder / "merges.txt").write_text("\n".join([*lines[:2], line, *lines[2:]]), encoding="utf-8")
    assert_refused(folder, problem)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("IQ==", "line 2: expected a piece in base64"),
        ("I!== 5", "line 2: expected a piece in base64"),
        ("IQ== five", "line 2: expected a piece in base64"),
        ("IQ== 5 6", "line 2: expected a piece in base64"),
        ("IQ== -5", "line 2: the piece is empty, or its rank is below 0"),
        ("AA== 999", "line 2: the same piece as in line 1"),
        ("eno= 0", "line 2: the same rank as in line 1"),
    ],
)
def test_a_broken_line_of_a_rank_file_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "cl100k_base.tiktoken", build_ranks())
    lines = path.read_text(encoding="ascii").split("\n")
    path.write_text("\n".join([lines[0], line, *lines[1:]]), encoding="ascii")
    assert_refused(path, problem)


def test_ranks_with_a_hole_are_refused(tmp_path: Path) -> None:
    ranks = build_ranks()
    last = max(ranks, key=ranks.__getitem__)
    assert_refused(write_ranks(tmp_path / "r50k_base.tiktoken", ranks | {last: 999}), "no piece has rank")
    del ranks[b"\x07"]
    assert_refused(write_ranks(tmp_path / "r50k_base.tiktoken", ranks), "lacks 1 of the 256 bytes")


def test_special_tokens_of_a_rank_file_must_be_free_and_no_words(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "small.tiktoken", build_ranks())
    assert_refused(
        path,
        "the id of <end>, 7, is already the rank of a piece",
        pattern=GPT4_PATTERN,
        special_tokens={"<end>": 7},
    )
    assert_refused(
        path,
        "'END' is an ordinary word, which texts may contain",
        pattern=GPT4_PATTERN,
        special_tokens={"END": 999},
    )
    assert_refused(path, "a rank file does not contain its split pattern")
    assert_refused(path, r"the split pattern '\(\(' is not valid", pattern="((")


@pytest.mark.parametrize(
    "sidecar_text",
    ["[]", "{}", '{"pattern": 3, "special_tokens": {}}', '{"pattern": "a", "special_tokens": {"<end>": "9"}}'],
)
def test_what_stands_beside_a_rank_file_must_be_a_pattern_and_special_tokens(
    sidecar_text: str, tmp_path: Path
) -> None:
    path = write_ranks(tmp_path / "small.tiktoken", build_ranks())
    (tmp_path / "small.tiktoken.json").write_text(sidecar_text, encoding="utf-8")
    assert_refused(path, r"small\.tiktoken\.json: expected a pattern, and special_tokens with their ids")


def test_words_with_none_for_the_unknown_are_refused(tmp_path: Path) -> None:
    Core(models.WordLevel({"a": 0}, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    assert_refused(tmp_path, "the tokenizers library cannot encode text with it")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a\n[UNK]\na\n", r"vocab\.txt, line 3: duplicate of the piece 'a' in line 1"),
        ("a\n\n[UNK]\n", r"vocab\.txt, line 2: expected a piece, found an empty line"),
        ("a\nb\n", "has no piece for unknown words"),
    ],
)
def test_a_list_of_pieces_with_a_fault_is_refused(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(content, encoding="utf-8")
    assert_refused(tmp_path, problem)


def test_text_that_is_no_text_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\na\n\xff\n")
    assert_refused(tmp_path, r"vocab\.txt, line 3: not UTF-8")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON, or is damaged"),
        ("[]", "it has no model"),
        ('{"version": "1.0"}', "it has no model"),
        ('{"version": "1.0", "model": {"type": "Morse"}}', r"cannot read this tokenizer \(model Morse"),
        ('{"version": "1.0", "model": 5}', "cannot read this tokenizer"),
        ('{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 2}, "unk_token": "a"}}', "no piece has id 1"),
    ],
)
def test_a_tokenizer_json_that_is_none_is_refused(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    assert_refused(tmp_path, problem)


def test_a_missing_companion_is_named(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "folder")
    (folder / "merges.txt").unlink()
    assert_refused(folder, r"merges\.txt is missing; vocab\.json cannot be used without it")
    (folder / "source.spm").write_bytes(b"")
    (folder / "vocab.json").unlink()
    assert_refused(folder, r"vocab\.json is missing; source\.spm cannot be used without it")
    (folder / "source.spm").rename(folder / "target.spm")
    (folder / "vocab.json").touch()
    assert_refused(folder, r"source\.spm: no such tokenizer file")


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"stoi": {"a": 0}, "itos": {0: "a"}}))
    assert_refused(tmp_path, r"meta\.pkl is a pickle, which can run code")
    assert_refused(tmp_path / "meta.pkl", "is a pickle, which can run code")


def test_what_is_not_there_or_not_known_is_said(tmp_path: Path) -> None:
    assert_refused(tmp_path, r"no tokenizer found; known files are tokenizer\.json")
    assert_refused(tmp_path / "none.json", "no such tokenizer file")
    (tmp_path / "notes.md").write_text("x", encoding="utf-8")
    assert_refused(tmp_path / "notes.md", "unknown tokenizer format")


def test_a_damaged_sentencepiece_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    (tmp_path / "tokenizer.model").write_bytes(b"\x00\x01 no model")
    assert_refused(tmp_path, "not a SentencePiece model")
    folder = write_marian(tmp_path / "marian")
    (folder / "vocab.json").write_text('{"a": 0}', encoding="utf-8")
    assert_refused(folder, "lacks <unk> or </s>")


def test_without_the_package_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CheckpointError, match=re.escape(install_command("sentencepiece"))):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": "core", "special": {"pad": 10**6}}, "damaged"),
        ({"model": "core"}, "damaged"),
        ({"model": "sentencepiece", "special": {}}, "damaged"),
    ],
)
def test_a_damaged_file_of_an_imported_tokenizer_is_refused(
    change: dict[str, object], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    build_case("bert", tmp_path).save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    header = content["triform"]
    special_tokens = header["special"] | change.get("special", {})  # type: ignore[operator]
    content["triform"] = {"format": 1, "kind": "imported", **change, "special": special_tokens}
    if "special" not in change:
        del content["triform"]["special"]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=problem):
        load_tokenizer(path)


def test_an_imported_kind_cannot_be_learned() -> None:
    with pytest.raises(ConfigError, match=r"set tokenizer\.file to its file"):
        train_tokenizer(TokenizerConfig(kind="imported"), ["text"])
