"""A vocabulary that is given is used as it is, and one that does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from task_cases import NAMES, write_data

from triform.config import TaskName, TokenizerConfig
from triform.errors import ConfigError
from triform.launch import RunOptions
from triform.launch import train as launch
from triform.run import Run
from triform.text import load_tokenizer, train_tokenizer

TINY = {"d_model": 8, "n_layers": 1, "n_heads": 2}


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    texts = ["red green blue and many more words than the story has"]
    train_tokenizer(TokenizerConfig(kind="word"), texts).save(tmp_path / "words.json")
    return tmp_path / "words.json"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    (tmp_path / "story.txt").write_text("red and green and blue and unheard\n" * 30)
    return tmp_path / "story.txt"


def train(story: Path, out: Path, **tokenizer: object) -> Run:
    options = RunOptions(out=str(out), quiet=True, device="cpu", resume=out.exists())
    settings = {"data": {"train": str(story), "max_len": 8}, "model": TINY, "train": {"max_steps": 2}}
    tokenizer_settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in tokenizer.items()
    }
    return launch("generate", options=options, tokenizer=tokenizer_settings, **settings)


def test_a_given_vocabulary_is_used_and_kept_in_the_run(story: Path, vocabulary: Path, tmp_path: Path) -> None:
    run = train(story, tmp_path / "run", file=vocabulary)
    assert run.config.tokenizer.kind == "word"
    assert run.config.tokenizer.vocab_size == 11 + 4
    assert (tmp_path / "run" / "tokenizer.json").read_text() == vocabulary.read_text()
    vocabulary.unlink()
    assert run.predict(["red and"], strategy="greedy", max_new_tokens=2)[0].output
    assert train(story, tmp_path / "run", file=vocabulary).path == run.path, "a finished run needs the file no more"


def test_a_vocabulary_that_does_not_fit_is_refused(story: Path, vocabulary: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"tokenizer\.kind=bpe, but the kind of .*words\.json is word"):
        train(story, out, file=vocabulary, kind="bpe")
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size=99, but .*words\.json has 15"):
        train(story, out, file=vocabulary, vocab_size=99)
    with pytest.raises(ConfigError, match=r"tokenizer\.file=.*nowhere\.json: no such tokenizer file"):
        train(story, out, file=tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match=r"one vocabulary, and tokenizer\.joint_vocab=false needs two"):
        train(story, out, file=vocabulary, joint_vocab=False)
    assert not out.exists()


@pytest.mark.parametrize("preset", ["gpt2-small", "shakespeare-char", "multi30k-tiny", "tiny"])
def test_a_given_vocabulary_overrides_the_kind_and_size_of_a_preset(
    preset: str, story: Path, vocabulary: Path, tmp_path: Path
) -> None:
    task = "translate" if preset == "multi30k-tiny" else "generate"
    pairs = "red and\tgreen and\n" * 30
    (tmp_path / "pairs.tsv").write_text(pairs)
    run = launch(
        task, preset=preset, options=RunOptions(out=str(tmp_path / "run"), quiet=True, device="cpu"),
        data={"train": str(tmp_path / "pairs.tsv" if task == "translate" else story), "max_len": 8},
        tokenizer={"file": str(vocabulary)}, model=TINY | {"d_ff": 16}, train={"max_steps": 1},
    )  # fmt: skip
    assert (run.config.tokenizer.kind, run.config.tokenizer.vocab_size) == ("word", 15)


@pytest.mark.parametrize("task", NAMES)
def test_every_task_trains_with_wordpiece_and_keeps_it_in_the_run(task: TaskName, tmp_path: Path) -> None:
    data = {"train": str(write_data(task, tmp_path)), "max_len": 32}
    options = RunOptions(out=str(tmp_path / "run"), quiet=True, device="cpu")
    tokenizer = {"kind": "wordpiece", "lowercase": True}
    run = launch(task, options=options, data=data, tokenizer=tokenizer, model=TINY, train={"max_steps": 2})
    assert run.config.tokenizer.kind == "wordpiece"
    saved = load_tokenizer(tmp_path / "run" / "tokenizer.json")
    assert saved.format_pieces(saved.encode("Amber birches")) == ["amber", "birch", "##e", "##s"]
    assert run.predict(["Amber birch"])[0].output is not None
