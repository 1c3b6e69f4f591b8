"""The steps of a split end where the tokenizer ends, for every kind of tokenizer and on hard text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import models

from triform.config import TokenizerConfig
from triform.errors import DataError
from triform.scratch.splits import MAX_MERGED_BYTES, SplitStep, WordSplit, explain_splits
from triform.text import TOKENIZERS, Tokenizer, read_tokenizer, train_tokenizer, write_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "text"))  # where vocabularies of other libraries are made
from importing_cases import HARD_TEXTS, TEXTS, build_byte_bpe, write_bert, write_gpt2


def train(kind: str, texts: list[str] = TEXTS, **options: object) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, **options), texts)  # type: ignore[arg-type]


def own(kind: str, *, lowercase: bool = False) -> Callable[[Path], Tokenizer]:
    return lambda folder: train(kind, lowercase=lowercase)


def added_token(folder: Path) -> Tokenizer:
    """A tokenizer.json with a token that is found in a text before the text is split into words."""
    backend = build_byte_bpe()
    backend.add_tokens(["the other cat"])
    backend.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder)


def unmerged_words(folder: Path) -> Tokenizer:
    """As Llama 3: a word that is in the vocabulary is not merged from its bytes."""
    content = json.loads(build_byte_bpe().to_str())
    ids = content["model"]["vocab"]
    content["model"] |= {"ignore_merges": True, "vocab": {**ids, "Ġzzz": len(ids)}}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return read_tokenizer(folder)


def unsplit_text(folder: Path) -> Tokenizer:
    """WordPiece that does not split a text into words."""
    backend = Core(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder)


def exported_word(folder: Path) -> Tokenizer:
    write_tokenizer(train("word"), folder)
    return read_tokenizer(folder)


CASES: dict[str, Callable[[Path], Tokenizer]] = {
    **{kind: own(kind) for kind in TOKENIZERS},
    **{f"{kind}, lower case": own(kind, lowercase=True) for kind in TOKENIZERS},
    "gpt2": lambda folder: read_tokenizer(write_gpt2(folder)),
    "bert": lambda folder: read_tokenizer(write_bert(folder, lowercase=True)),
    "added token": added_token,
    "whole words": unmerged_words,
    "unsplit text": unsplit_text,
    "exported words": exported_word,
}


@pytest.mark.parametrize("case", CASES)
def test_the_last_steps_are_what_the_tokenizer_gives(case: str, tmp_path: Path) -> None:
    tokenizer = CASES[case](tmp_path)
    for text in [*HARD_TEXTS, "the other cat zzz"]:
        splits = explain_splits(tokenizer, text)
        assert [token for split in splits for token in split.tokens] == tokenizer.encode(text), ascii(text[:40])
        for split in splits:
            assert split.steps[-1].rest == ""
            assert len(split.steps[-1].pieces) == len(split.tokens)


def test_byte_pairs_are_merged_in_the_order_in_which_the_merges_were_learned() -> None:
    tokenizer = train("bpe", ["low lower lowest low low"], vocab_size=263)
    first, second = explain_splits(tokenizer, "low lowly")
    assert first.word == "low"
    assert [step.name for step in first.steps] == ["bytes", "merge 1", "merge 2"]
    assert second.word == " lowly"
    assert second.steps[-1] == SplitStep("merge 3", [" low", "l", "y"])


def test_wordpiece_takes_the_longest_piece_again_and_again() -> None:
    tokenizer = train("wordpiece", ["low low lowest newest"] * 3)
    (split,) = explain_splits(tokenizer, "lownewest")
    assert split.steps[:2] == [SplitStep("word", [], "lownewest"), SplitStep("match 1", ["low"], "##newest")]
    assert [step.name for step in split.steps[1:]] == [f"match {n}" for n in range(1, len(split.tokens) + 1)]
    assert explain_splits(tokenizer, "low☃")[0] == WordSplit(
        "low☃",
        [SplitStep("word", [], "low☃"), SplitStep("match 1", ["low"], "##☃"), SplitStep("no match", ["[UNK]"])],
        [1],
    )


def test_words_and_characters_are_split_in_one_step() -> None:
    assert [split.steps for split in explain_splits(train("word", ["a cat"]), "a dog")] == [
        [SplitStep("word", ["a"])],
        [SplitStep("word", ["<unk>"])],
    ]
    assert explain_splits(train("char", ["a cat"]), "cat") == [
        WordSplit("cat", [SplitStep("characters", ["c", "a", "t"])], [6, 5, 7])
    ]


def test_the_merges_of_a_very_long_word_are_not_listed() -> None:
    (split,) = explain_splits(train("bpe"), "x" * (MAX_MERGED_BYTES + 1))
    assert [step.name for step in split.steps] == ["pieces"]


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_no_text_has_no_words_and_half_a_surrogate_pair_is_refused(kind: str) -> None:
    assert explain_splits(train(kind), "") == []
    with pytest.raises(DataError, match="lone surrogate"):
        explain_splits(train(kind), "a\ud800")
