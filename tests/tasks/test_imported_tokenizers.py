"""Tasks go by the special tokens of their tokenizer, whatever they are and whichever are lacking."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_cases import NAMES, WORDS, prepare_task

from triform.config import TaskName, TrainConfig
from triform.errors import ConfigError, DataError
from triform.explain.inspection import explain
from triform.tasks import TASKS
from triform.tasks.classify import Classify
from triform.tasks.explanation import build_explanation_input
from triform.tasks.generate import Generate
from triform.tasks.translate import Translate
from triform.text import SpecialTokens, read_tokenizer
from triform.text.bpe import byte_characters

KINDS = ("gpt2", "bert", "bare")


def write_vocabulary(kind: str, folder: Path) -> Path:
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


def prepare_with_vocabulary(name: TaskName, kind: str, tmp_path: Path, **overrides: Any) -> Any:
    tokenizer_settings = {
        "tokenizer.file": str(write_vocabulary(kind, tmp_path / kind)),
        "tokenizer.kind": "imported",
    }
    return prepare_task(name, tmp_path, **tokenizer_settings, **overrides)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_task_learns_judges_and_predicts_with_it(name: TaskName, kind: str, tmp_path: Path) -> None:
    if (name, kind) == ("translate", "bare"):
        with pytest.raises(ConfigError, match="translate needs a tokenizer with an end token"):
            prepare_with_vocabulary(name, kind, tmp_path)
        return
    prepared_task = prepare_with_vocabulary(name, kind, tmp_path)
    task = prepared_task.task
    assert task.config.tokenizer.kind == "imported"
    batch = next(iter(prepared_task.train.batches()))
    assert torch.isfinite(task.loss(batch))
    assert np.isfinite(task.evaluator.evaluate(prepared_task.valid)["loss"])
    outputs = [prediction.output for prediction in task.predictor.predict(["amber birch", "cedar", ""])]
    assert len(outputs) == 3
    folder = tmp_path / "saved"
    folder.mkdir()
    task.save(folder)
    loaded = TASKS[name].load(task.config, folder)
    loaded.model.load_state_dict(task.model.state_dict())
    loaded.model.eval()
    assert [prediction.output for prediction in loaded.predictor.predict(["amber birch", "cedar", ""])] == outputs


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_looked_into(kind: str, tmp_path: Path) -> None:
    task = prepare_with_vocabulary("classify", kind, tmp_path).task
    classified = explain(task, "amber birch")
    framed_tokens = task.tokenizer.special_tokens.wrap(task.tokenizer.encode("amber birch"), 14)
    assert list(classified.maps[0].keys) == task.tokenizer.format_pieces(framed_tokens)
    assert (classified.maps[0].keys[0] == "[CLS]") == (kind == "bert")
    generated = explain(prepare_with_vocabulary("generate", kind, tmp_path).task, "amber", max_new_tokens=2)
    assert generated.maps[0].keys


@pytest.mark.parametrize("name", ["classify", "translate"])
def test_batches_hold_the_frame_and_the_tokenizers_own_tokens(name: TaskName, tmp_path: Path) -> None:
    prepared_task = prepare_with_vocabulary(name, "bert", tmp_path)
    tokenizer = prepared_task.task.tokenizer
    first, last = tokenizer.bos, tokenizer.eos
    n_full = 0
    for batch in prepared_task.train.batches():
        texts = batch.tokens if name == "classify" else batch.source
        keep = batch.keep if name == "classify" else batch.source_keep
        keep = torch.ones_like(texts, dtype=torch.bool) if keep is None else keep
        assert (texts[:, 0] == first).all()
        ends = texts.gather(1, keep.sum(1, keepdim=True) - 1)
        assert (ends == last).all()
        assert (texts[~keep] == tokenizer.pad).all()
        n_full += int((keep.sum(1) == 14).sum())
        if name == "translate":
            assert (batch.decoder_input[:, 0] == first).all()
            targets = batch.targets
            is_complete = (targets != -100).sum(1) < targets.shape[1]
            assert (targets.gather(1, (targets != -100).sum(1, keepdim=True) - 1)[is_complete] == last).all()
    assert n_full > 3, "some texts are longer than the model reads, and still end as they must"


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("name", ["classify", "translate"])
def test_batches_gathered_on_a_device_are_the_same(name: TaskName, kind: str, tmp_path: Path) -> None:
    prepared_task = prepare_with_vocabulary(name, kind, tmp_path)
    train = TrainConfig(batch_size=7)
    device_dataset = prepared_task.train.to_device(torch.device("cpu"), train)
    indices = np.array([3, 50, 9, 77, 20, 61, 5])
    plan = device_dataset.plan(indices)
    gathered, collated = (
        device_dataset.gather(torch.from_numpy(plan.rows), plan.shape),
        prepared_task.train.batch(indices),
    )
    fields = ("tokens", "labels") if name == "classify" else ("source", "decoder_input", "targets")
    for field in fields:
        left, right = getattr(gathered, field), getattr(collated, field)
        assert torch.equal(left[..., : right.shape[-1]], right), field


def test_generated_text_begins_and_ends_as_its_tokenizer_says(tmp_path: Path) -> None:
    task = prepare_with_vocabulary("generate", "gpt2", tmp_path).task
    assert isinstance(task, Generate)
    assert task.token_constraints.eos == 256
    assert task.token_constraints.banned == ()
    without_eos = prepare_with_vocabulary("generate", "bare", tmp_path).task
    assert without_eos.token_constraints.eos == -1, "nothing ends a text but its limit"
    assert len(without_eos.predictor.generate([[65]])[0]) == 9
    framed = prepare_with_vocabulary("generate", "bert", tmp_path).task
    assert framed.predictor.encode_prompt("amber") == framed.tokenizer.encode("amber"), (
        "its training text had no [CLS]"
    )
    assert framed.predictor.encode_prompt("") == [framed.tokenizer.eos], (
        "what stands between texts begins a new one"
    )
    assert framed.token_constraints.banned == (framed.tokenizer.pad,)


def test_documents_are_closed_by_the_tokenizers_end_or_by_nothing(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["ab"] * 40), encoding="utf-8")
    ended = prepare_with_vocabulary("generate", "gpt2", tmp_path, train=path).train.store.tokens.tolist()
    assert ended[:6] == [ord("a"), ord("b"), 256] * 2 or 256 in ended
    without_eos = prepare_with_vocabulary("generate", "bare", tmp_path, train=path).train.store.tokens.tolist()
    assert set(without_eos) == {ord("a"), ord("b")}


def test_two_tokenizers_of_one_vocabulary_are_both_kept(tmp_path: Path) -> None:
    """As Marian has them: one list of numbers, two ways to cut."""
    prepared_task = prepare_with_vocabulary("translate", "bert", tmp_path)
    task = prepared_task.task
    assert isinstance(task, Translate)
    other = read_tokenizer(write_vocabulary("bert", tmp_path / "bert"))
    other.special_tokens = other.special_tokens._replace(after=())
    two_tokenizer_task = Translate(task.config, task.source_tokenizer, other)
    folder = tmp_path / "two"
    folder.mkdir()
    two_tokenizer_task.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.source.json", "tokenizer.target.json"]
    loaded = Translate.load(task.config, folder)
    assert loaded.source_tokenizer.special_tokens == task.source_tokenizer.special_tokens
    assert loaded.target_tokenizer.special_tokens.after == ()
    assert loaded.sizes == task.sizes


def test_a_vocabulary_that_is_not_there_or_not_whole_is_the_settings_fault(tmp_path: Path) -> None:
    folder = write_vocabulary("gpt2", tmp_path / "broken")
    (folder / "merges.txt").unlink()
    with pytest.raises(
        ConfigError, match=r"tokenizer\.file=.*merges\.txt is missing; vocab\.json cannot be used without it"
    ):
        prepare_task("generate", tmp_path, **{"tokenizer.file": str(folder), "tokenizer.kind": "imported"})
    with pytest.raises(ConfigError, match=r"tokenizer\.bpe_dropout applies only to"):
        prepare_with_vocabulary("classify", "gpt2", tmp_path, **{"tokenizer.bpe_dropout": 0.1})


def test_runs_of_our_own_are_told_the_same_special_tokens_as_ever(tmp_path: Path) -> None:
    task = prepare_task("classify", tmp_path).task
    assert isinstance(task, Classify)
    assert task.tokenizer.special_tokens == SpecialTokens(0, 1, 2, 3)
    assert task.tokenizer.banned_tokens == (0, 1, 2)
    assert (task.tokenizer.pad, task.tokenizer.unk, task.tokenizer.bos, task.tokenizer.eos) == (0, 1, 2, 3)


def test_advice_on_unknown_words_fits_a_tokenizer_that_was_imported(tmp_path: Path) -> None:
    task = prepare_with_vocabulary("generate", "bert", tmp_path).task
    with pytest.raises(DataError) as error_info:
        task.predictor.predict(["amber ☃"])
    assert str(error_info.value).endswith("'☃'; remove it; the imported tokenizer has no token for it")
    assert "read as [UNK]: '☃'" in build_explanation_input(task, "amber ☃").notes[0]
