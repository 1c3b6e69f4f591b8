"""What each task promises besides: labels in order, text held out to the character, one vocabulary or two."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_cases import TINY, WORDS, prepare_task, sentences

from triform.config import Config
from triform.config.settings import build_config
from triform.errors import DataError
from triform.tasks import Generate, PreparedTask, Translate
from triform.text import BOS, EOS, PAD, UNK
from triform.training.tensors import load_weights, named_weights

PreparedTasks = Mapping[str, PreparedTask]

# -- classify


def test_labels_are_sorted_by_value(prepared_tasks: PreparedTasks) -> None:
    assert prepared_tasks["classify"].task.config.data.labels == ("2", "10", "blue")
    predictions = prepared_tasks["classify"].task.predictor.predict(sentences()[:5])
    for prediction in predictions:
        assert list(prediction.probabilities) == ["2", "10", "blue"]
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert prediction.output == max(prediction.probabilities, key=prediction.probabilities.__getitem__)


def test_a_label_never_seen_is_an_error_with_its_line(prepared_tasks: PreparedTasks, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("text,label\namber,2\nbirch,green\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3.*green.*2, 10, blue"):
        prepared_tasks["classify"].task.data.load_dataset(str(path), [])


def test_texts_that_are_cut_are_counted_in_a_notice(prepared_tasks: PreparedTasks) -> None:
    (labels, train, valid, _few) = prepared_tasks["classify"].notices
    assert labels.endswith("3 labels: 2, 10, blue")
    too_long = sum(len(text.split()) > TINY["data.max_len"] for text in sentences())
    assert int(train.split(": ")[1].split()[0]) + int(valid.split(": ")[1].split()[0]) == too_long > 0


# -- generate


def prepare_characters(folder: Path, text: str, **overrides: Any) -> PreparedTask:
    path = folder / "letters.txt"
    path.write_text(text, encoding="utf-8")
    return prepare_task("generate", folder, path, **{"tokenizer.kind": "char", "data.max_len": 8, **overrides})


@pytest.mark.parametrize("n", [100, 101, 1009])
def test_the_last_tenth_of_the_characters_is_held_out(n: int, tmp_path: Path) -> None:
    text = ("naïve café — ok\n" * n)[:n]
    prepared_task = prepare_characters(tmp_path, text)
    parts = [
        prepared_task.task.tokenizer.decode(data.store.tokens.tolist())
        for data in (prepared_task.train, prepared_task.valid)
    ]
    assert parts == [text[: n * 9 // 10], text[n * 9 // 10 :]]
    assert [data.n_bytes for data in (prepared_task.train, prepared_task.valid)] == [
        len(part.encode()) for part in parts
    ]


def test_bits_per_byte_and_perplexity_of_a_model_that_knows_nothing(tmp_path: Path) -> None:
    """All weights zero: each of V tokens has the chance 1/V; the first token is given, not predicted."""
    text = "abcé" * 100
    prepared_task = prepare_characters(tmp_path, text)
    for parameter in prepared_task.task.model.parameters():
        torch.nn.init.zeros_(parameter)
    metrics = prepared_task.task.evaluator.evaluate(prepared_task.valid)
    vocab_size, n = 4 + 4, 39  # four specials and four letters; the held-out 40 letters are 50 bytes
    assert metrics["tokens"] == n
    assert metrics["loss"] == pytest.approx(math.log(vocab_size))
    assert metrics["perplexity"] == pytest.approx(vocab_size)
    assert metrics["bits_per_byte"] == pytest.approx(n * 3 / 50)


def test_a_document_ends_with_an_end_token(tmp_path: Path) -> None:
    path, texts = tmp_path / "documents.jsonl", sentences()[:20]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    prepared_task = prepare_task("generate", tmp_path, path)
    tokenizer = prepared_task.task.tokenizer
    for data, part in ((prepared_task.train, texts[:18]), (prepared_task.valid, texts[18:])):
        assert data.store.tokens.tolist() == [token for text in part for token in [*tokenizer.encode(text), EOS]]
        assert data.n_bytes == sum(map(len, part))


def test_a_window_predicts_the_token_after_each(prepared_tasks: PreparedTasks) -> None:
    data = prepared_tasks["generate"].train
    batch = data.batch(np.array([0, 5, data.store.n_tokens - data.max_len - 1]))
    assert batch.tokens.shape == batch.targets.shape == (3, data.max_len)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert batch.targets[-1, -1] == data.store.tokens[-1]


def test_a_prompt_with_unknown_characters_is_an_error_and_special_tokens_are_never_written(tmp_path: Path) -> None:
    prepared_task = prepare_characters(
        tmp_path, "abc\n" * 50, **{"decode.strategy": "sample", "decode.max_new_tokens": 60}
    )
    with pytest.raises(DataError, match="not in the vocabulary: 'x', 'y'"):
        prepared_task.task.predictor.predict(["ab", "axyx"])
    assert isinstance(prepared_task.task, Generate)
    generated = [token for row in prepared_task.task.predictor.generate([[4]] * 20) for token in row]
    assert len(generated) > 50
    assert not {PAD, UNK, BOS, EOS} & set(generated)


# -- translate


@pytest.mark.parametrize("shared", [True, False])
def test_a_vocabulary_is_shared_or_each_side_has_its_own(shared: bool, tmp_path: Path) -> None:
    sides = []
    for side, words in (("source", WORDS), ("target", ["un", "deux", "trois"])):
        sides.append(tmp_path / f"{side}.txt")
        sides[-1].write_text("".join(f"{words[n % len(words)]} {words[-1]}\n" for n in range(60)), encoding="utf-8")
    overrides = {"data.source": str(sides[0]), "data.target": str(sides[1]), "tokenizer.joint_vocab": shared}
    prepared_task = Translate.prepare(
        build_config({"task": "translate", **TINY, **overrides}, Config()), tmp_path / "run"
    )
    task = prepared_task.task
    sizes = (task.source_tokenizer.vocab_size, task.target_tokenizer.vocab_size, task.model.lm_head.out_features)
    assert sizes == ((17, 17, 17) if shared else (14, 7, 7))
    assert (
        task.model.embedding.token_embedding.weight is task.model.encoder.embedding.token_embedding.weight
    ) == shared
    task.save(tmp_path)
    loaded = Translate.load(task.config, tmp_path)
    load_weights(loaded.model, named_weights(task.model), tmp_path)
    task.model.eval()
    assert loaded.predictor.predict(WORDS) == task.predictor.predict(WORDS)
    assert set(" ".join(prediction.output for prediction in task.predictor.predict(WORDS)).split()) <= {
        "un",
        "deux",
        "trois",
        *WORDS,
    }
