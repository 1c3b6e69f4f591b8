"""Tasks go by the special tokens of their tokenizer, whatever they are and whichever are lacking."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_cases import NAMES, WORDS, prepared

from triform.config import TaskName, TrainConfig
from triform.errors import ConfigError, DataError
from triform.explain.look import explain
from triform.tasks import TASKS
from triform.tasks.classify import Classify
from triform.tasks.generate import Generate
from triform.tasks.translate import Translate
from triform.text import Special, read_tokenizer
from triform.text.bpe import byte_characters

KINDS = ("gpt2", "bert", "bare")


def vocabulary(kind: str, folder: Path) -> Path:
    """GPT-2's kind has only an end, BERT's has everything and a frame, a bare rank file has nothing."""
    folder.mkdir(exist_ok=True)
    if kind == "bert":
        letters = sorted({letter for word in WORDS for letter in word})
        pieces = ["[PAD]", *letters, *(f"##{letter}" for letter in letters), "[UNK]", "[CLS]", "[SEP]", *WORDS]
        (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
        return folder
    if kind == "gpt2":
        ids = {character: token for token, character in enumerate([*byte_characters(), "<|endoftext|>"])}
        (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        (folder / "merges.txt").write_text("", encoding="utf-8")
        return folder
    lines = [f"{b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256)]
    (folder / "bare.tiktoken").write_text("".join(lines), encoding="ascii")
    (folder / "bare.tiktoken.json").write_text(
        '{"pattern": "\\\\s+|\\\\S+", "special_tokens": {}}', encoding="utf-8"
    )
    return folder


def made(name: TaskName, kind: str, tmp_path: Path, **asked: Any) -> Any:
    given = {"tokenizer.file": str(vocabulary(kind, tmp_path / kind)), "tokenizer.kind": "imported"}
    return prepared(name, tmp_path, **given, **asked)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_task_learns_judges_and_predicts_with_it(name: TaskName, kind: str, tmp_path: Path) -> None:
    if (name, kind) == ("translate", "bare"):
        with pytest.raises(ConfigError, match="translate needs a token that ends a text"):
            made(name, kind, tmp_path)
        return
    ready = made(name, kind, tmp_path)
    task = ready.task
    assert task.config.tokenizer.kind == "imported"
    batch = next(iter(ready.train.batches()))
    assert torch.isfinite(task.loss(batch))
    assert np.isfinite(task.evaluate(ready.valid)["loss"])
    outputs = [prediction.output for prediction in task.predict(["amber birch", "cedar", ""])]
    assert len(outputs) == 3
    folder = tmp_path / "saved"
    folder.mkdir()
    task.save(folder)
    again = TASKS[name].load(task.config, folder)
    again.model.load_state_dict(task.model.state_dict())
    again.model.eval()
    assert [prediction.output for prediction in again.predict(["amber birch", "cedar", ""])] == outputs


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_looked_into(kind: str, tmp_path: Path) -> None:
    task = made("classify", kind, tmp_path).task
    found = explain(task, "amber birch")
    whole = task.tokenizer.special.whole(task.tokenizer.encode("amber birch"), 14)
    assert list(found.maps[0].keys) == task.tokenizer.pieces(whole)
    assert (found.maps[0].keys[0] == "[CLS]") == (kind == "bert")
    shown = explain(made("generate", kind, tmp_path).task, "amber", n_new=2)
    assert shown.maps[0].keys


@pytest.mark.parametrize("name", ["classify", "translate"])
def test_batches_hold_the_frame_and_the_tokenizers_own_tokens(name: TaskName, tmp_path: Path) -> None:
    ready = made(name, "bert", tmp_path)
    tokenizer = getattr(ready.task, "tokenizer", None) or ready.task.source
    first, last = tokenizer.bos, tokenizer.eos
    cut = 0
    for batch in ready.train.batches():
        texts = batch.tokens if name == "classify" else batch.source
        keep = batch.keep if name == "classify" else batch.source_keep
        keep = torch.ones_like(texts, dtype=torch.bool) if keep is None else keep
        assert (texts[:, 0] == first).all()
        ends = texts.gather(1, keep.sum(1, keepdim=True) - 1)
        assert (ends == last).all()
        assert (texts[~keep] == tokenizer.pad).all()
        cut += int((keep.sum(1) == 14).sum())
        if name == "translate":
            assert (batch.target[:, 0] == first).all()
            expected = batch.expected
            whole = (expected != -100).sum(1) < expected.shape[1]
            assert (expected.gather(1, (expected != -100).sum(1, keepdim=True) - 1)[whole] == last).all()
    assert cut > 3, "some texts are longer than the model reads, and still end as they must"


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("name", ["classify", "translate"])
def test_batches_gathered_on_a_device_are_the_same(name: TaskName, kind: str, tmp_path: Path) -> None:
    ready = made(name, kind, tmp_path)
    train = TrainConfig(batch_size=7)
    resident = ready.train.on(torch.device("cpu"), train)
    indices = np.array([3, 50, 9, 77, 20, 61, 5])
    plan = resident.plan(indices)
    there, here = resident.gather(torch.from_numpy(plan.rows), plan.shape), ready.train.batch(indices)
    fields = ("tokens", "labels") if name == "classify" else ("source", "target", "expected")
    for field in fields:
        left, right = getattr(there, field), getattr(here, field)
        assert torch.equal(left[..., : right.shape[-1]], right), field


def test_generated_text_begins_and_ends_as_its_tokenizer_says(tmp_path: Path) -> None:
    task = made("generate", "gpt2", tmp_path).task
    assert isinstance(task, Generate)
    assert task._ending((5,)).eos == 256
    assert task._ending((5,)).banned == ()
    bare = made("generate", "bare", tmp_path).task
    assert bare._ending((5,)).eos == -1, "nothing ends a text but its limit"
    assert len(bare._continue([[65]], [0])[0]) == 9
    framed = made("generate", "bert", tmp_path).task
    assert framed._prompt("amber") == framed.tokenizer.encode("amber"), "its training text had no [CLS]"
    assert framed._prompt("") == [framed.tokenizer.eos], "what stands between texts begins a new one"
    assert framed._ending((5,)).banned == (framed.tokenizer.pad,)


def test_documents_are_closed_by_the_tokenizers_end_or_by_nothing(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["ab"] * 40), encoding="utf-8")
    ended = made("generate", "gpt2", tmp_path, train=path).train.store.tokens.tolist()
    assert ended[:6] == [ord("a"), ord("b"), 256] * 2 or 256 in ended
    bare = made("generate", "bare", tmp_path, train=path).train.store.tokens.tolist()
    assert set(bare) == {ord("a"), ord("b")}


def test_two_tokenizers_of_one_vocabulary_are_both_kept(tmp_path: Path) -> None:
    """As Marian has them: one list of numbers, two ways to cut."""
    ready = made("translate", "bert", tmp_path)
    task = ready.task
    assert isinstance(task, Translate)
    other = read_tokenizer(vocabulary("bert", tmp_path / "bert"))
    other.special = other.special._replace(after=())
    two = Translate(task.config, task.source, other)
    folder = tmp_path / "two"
    folder.mkdir()
    two.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.source.json", "tokenizer.target.json"]
    again = Translate.load(task.config, folder)
    assert again.source.special == task.source.special
    assert again.target.special.after == ()
    assert again.sizes == task.sizes


def test_a_vocabulary_that_is_not_there_or_not_whole_is_the_settings_fault(tmp_path: Path) -> None:
    folder = vocabulary("gpt2", tmp_path / "broken")
    (folder / "merges.txt").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.file=.*merges\.txt: this file belongs to vocab\.json"):
        prepared("generate", tmp_path, **{"tokenizer.file": str(folder), "tokenizer.kind": "imported"})
    with pytest.raises(ConfigError, match=r"tokenizer\.dropout leaves out merges of bpe"):
        made("classify", "gpt2", tmp_path, **{"tokenizer.dropout": 0.1})


def test_runs_of_our_own_are_told_the_same_special_tokens_as_ever(tmp_path: Path) -> None:
    task = prepared("classify", tmp_path).task
    assert isinstance(task, Classify)
    assert task.tokenizer.special == Special(0, 1, 2, 3)
    assert task.tokenizer.never_written == (0, 1, 2)
    assert (task.tokenizer.pad, task.tokenizer.unk, task.tokenizer.bos, task.tokenizer.eos) == (0, 1, 2, 3)


def test_advice_on_unknown_words_fits_a_tokenizer_that_was_imported(tmp_path: Path) -> None:
    task = made("generate", "bert", tmp_path).task
    with pytest.raises(DataError) as refused:
        task.predict(["amber ☃"])
    assert str(refused.value).endswith("'☃'; leave it out; the imported tokenizer has no token for it")
    assert "read as [UNK]: '☃'" in task.look("amber ☃").notes[0]
