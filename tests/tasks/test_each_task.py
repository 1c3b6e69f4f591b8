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
from task_cases import TINY, WORDS, prepared, sentences

from triform.config import Config
from triform.errors import DataError
from triform.settings import build
from triform.tasks import Generate, Prepared, Translate
from triform.text import BOS, EOS, PAD, UNK
from triform.training.folder import load_weights, weights_of

Shelf = Mapping[str, Prepared]

# -- classify


def test_labels_are_sorted_by_value(shelf: Shelf) -> None:
    assert shelf["classify"].task.labels == ("2", "10", "blue")
    made = shelf["classify"].task.predict(sentences()[:5])
    for each in made:
        assert list(each.probabilities) == ["2", "10", "blue"]
        assert sum(each.probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert each.output == max(each.probabilities, key=each.probabilities.__getitem__)


def test_a_label_never_seen_is_an_error_with_its_line(shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("text,label\namber,2\nbirch,green\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3.*green.*2, 10, blue"):
        shelf["classify"].task.read(str(path), [])


def test_texts_that_are_cut_are_counted_in_a_notice(shelf: Shelf) -> None:
    (labels, train, valid, _few) = shelf["classify"].notices
    assert labels.endswith("3 labels: 2, 10, blue")
    too_long = sum(len(text.split()) > TINY["data.max_len"] for text in sentences())
    assert int(train.split(": ")[1].split()[0]) + int(valid.split(": ")[1].split()[0]) == too_long > 0


# -- generate


def characters(folder: Path, text: str, **asked: Any) -> Prepared:
    path = folder / "letters.txt"
    path.write_text(text, encoding="utf-8")
    return prepared("generate", folder, path, **{"tokenizer.kind": "char", "data.max_len": 8, **asked})


@pytest.mark.parametrize("n", [100, 101, 1009])
def test_the_last_tenth_of_the_characters_is_held_out(n: int, tmp_path: Path) -> None:
    text = ("naïve café — ok\n" * n)[:n]
    made = characters(tmp_path, text)
    parts = [made.task.tokenizer.decode(data.store.tokens.tolist()) for data in (made.train, made.valid)]
    assert parts == [text[: n * 9 // 10], text[n * 9 // 10 :]]
    assert [data.n_bytes for data in (made.train, made.valid)] == [len(part.encode()) for part in parts]


def test_bits_per_byte_and_perplexity_of_a_model_that_knows_nothing(tmp_path: Path) -> None:
    """All weights zero: each of V tokens has the chance 1/V; the first token is given, not predicted."""
    text = "abcé" * 100
    made = characters(tmp_path, text)
    for parameter in made.task.model.parameters():
        torch.nn.init.zeros_(parameter)
    scores = made.task.evaluate(made.valid)
    vocab_size, n = 4 + 4, 39  # four specials and four letters; the held-out 40 letters are 50 bytes
    assert scores["tokens"] == n
    assert scores["loss"] == pytest.approx(math.log(vocab_size))
    assert scores["perplexity"] == pytest.approx(vocab_size)
    assert scores["bits_per_byte"] == pytest.approx(n * 3 / 50)


def test_a_document_ends_with_an_end_token(tmp_path: Path) -> None:
    path, texts = tmp_path / "documents.jsonl", sentences()[:20]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    made = prepared("generate", tmp_path, path)
    tokenizer = made.task.tokenizer
    for data, part in ((made.train, texts[:18]), (made.valid, texts[18:])):
        assert data.store.tokens.tolist() == [token for text in part for token in [*tokenizer.encode(text), EOS]]
        assert data.n_bytes == sum(map(len, part))


def test_a_window_predicts_the_token_after_each(shelf: Shelf) -> None:
    data = shelf["generate"].train
    batch = data.batch(np.array([0, 5, data.store.total - data.max_len - 1]))
    assert batch.tokens.shape == batch.targets.shape == (3, data.max_len)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert batch.targets[-1, -1] == data.store.tokens[-1]


def test_a_prompt_with_unknown_characters_is_an_error_and_special_tokens_are_never_written(tmp_path: Path) -> None:
    made = characters(tmp_path, "abc\n" * 50, **{"decode.strategy": "sample", "decode.max_new_tokens": 60})
    with pytest.raises(DataError, match="never saw in training: 'x', 'y'"):
        made.task.predict(["ab", "axyx"])
    assert isinstance(made.task, Generate)
    written = [token for row in made.task._continue([[4]] * 20, list(range(20))) for token in row]
    assert len(written) > 50
    assert not {PAD, UNK, BOS, EOS} & set(written)


# -- translate


@pytest.mark.parametrize("shared", [True, False])
def test_a_vocabulary_is_shared_or_each_side_has_its_own(shared: bool, tmp_path: Path) -> None:
    sides = []
    for side, words in (("source", WORDS), ("target", ["un", "deux", "trois"])):
        sides.append(tmp_path / f"{side}.txt")
        sides[-1].write_text("".join(f"{words[n % len(words)]} {words[-1]}\n" for n in range(60)), encoding="utf-8")
    asked = {"data.source": str(sides[0]), "data.target": str(sides[1]), "tokenizer.shared": shared}
    made = Translate.prepare(build({"task": "translate", **TINY, **asked}, Config()), tmp_path / "run")
    task = made.task
    sizes = (task.source.vocab_size, task.target.vocab_size, task.model.head.out_features)
    assert sizes == ((17, 17, 17) if shared else (14, 7, 7))
    assert (task.model.embedding.tokens.weight is task.model.encoder.embedding.tokens.weight) == shared
    task.save(tmp_path)
    loaded = Translate.load(task.config, tmp_path)
    load_weights(loaded.model, weights_of(task.model), tmp_path)
    task.model.eval()
    assert loaded.predict(WORDS) == task.predict(WORDS)
    assert set(" ".join(each.output for each in task.predict(WORDS)).split()) <= {"un", "deux", "trois", *WORDS}
