"""Training on short examples only, and evaluating examples of chosen lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import triform
from triform.config import Config, TrainConfig
from triform.config.settings import build_config
from triform.data.token_store import TokenStore
from triform.errors import ConfigError, DataError
from triform.run import Run
from triform.tasks.classification_data import ClassificationDataset
from triform.tasks.generate import Generate
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.translation_data import TranslationDataset
from triform.text import train_tokenizer

TINY: dict[str, Any] = {"d_model": 8, "d_ff": 16, "n_layers": 1, "n_heads": 2}
SHORT_TRAINING = {"max_steps": 2, "batch_size": 4}


def build_store(lengths: list[int]) -> TokenStore:
    return TokenStore.build([[4 + row] * length for row, length in enumerate(lengths)], vocab_size=50)


def test_a_store_keeps_the_selected_sequences_as_they_are() -> None:
    store = build_store([2, 0, 3, 1])
    selected = store.select(np.array([True, True, False, True]))
    assert [selected[index].tolist() for index in range(len(selected))] == [[4, 4], [], [7]]
    assert len(store.select(np.zeros(4, bool))) == 0


def test_a_classifier_is_left_with_the_texts_of_a_length_and_their_labels() -> None:
    data = ClassificationDataset(build_store([2, 5, 9, 3]), np.array([0, 1, 2, 3]), max_len=4)
    selected = data.with_lengths(3, 5)
    assert selected.labels.tolist() == [1, 3]
    assert selected.full_lengths.tolist() == [5, 3]  # not those of the cut texts
    assert selected.lengths.tolist() == [4, 3]
    with pytest.raises(DataError, match="no texts have 6 to 8 tokens; the longest one has 9"):
        data.with_lengths(6, 8)


def test_an_example_is_left_out_if_one_of_its_versions_is_too_long() -> None:
    data = ClassificationDataset(build_store([2, 5, 3, 3]), np.array([0, 1, 0, 1]), max_len=9, versions=2)
    selected = data.with_lengths(1, 4)
    assert len(selected) == 1
    assert selected.labels.tolist() == [0, 0]
    assert selected.full_lengths.tolist() == [2, 3]


def test_a_pair_is_as_long_as_its_longer_side_with_the_end_token() -> None:
    pairs = [f"pair {row}" for row in range(3)]
    data = TranslationDataset(build_store([2, 6, 3]), build_store([3, 1, 5]), 8, pairs)  # type: ignore[arg-type]
    assert data.full_lengths.tolist() == [4, 6, 6]
    selected = data.with_lengths(5, 6)
    assert selected.raw_pairs == pairs[1:]
    assert selected.source.lengths.tolist() == [6, 3]
    assert selected.target.lengths.tolist() == [1, 5]


@pytest.fixture(scope="module")
def generator() -> Generate:
    settings = {"task": "generate", "tokenizer.kind": "char", "data.max_len": 8}
    config = build_config(settings | {f"model.{name}": value for name, value in TINY.items()}, Config())
    torch.manual_seed(0)
    task = Generate(config, train_tokenizer(config.tokenizer, ["abcdefghijklmnop"]))
    task.model.double().eval()
    return task


@pytest.mark.parametrize(("low", "high"), [(1, 4), (3, 8), (8, 8), (5, 6)])
def test_predictions_of_a_language_model_are_those_after_so_many_tokens(
    generator: Generate, low: int, high: int
) -> None:
    tokens = np.random.default_rng(0).integers(4, 20, size=29)
    data = LanguageModelDataset(TokenStore.build([tokens.tolist()], vocab_size=20), 29, 8)
    total, count, stride = 0.0, 0, high - low + 1
    with torch.inference_mode():
        for start in range(0, len(tokens) - 1, stride):
            window = torch.from_numpy(tokens[start : start + high + 1])[None]
            logits = generator.model(window[:, :-1])[0].log_softmax(-1)
            for position in range(low, min(high, window.shape[1] - 1) + 1):
                total -= float(logits[position - 1, window[0, position]])
                count += 1
    metrics = generator.evaluator.evaluate(data.with_lengths(low, high))
    assert metrics["tokens"] == count
    assert metrics["loss"] == pytest.approx(total / count, abs=1e-12)


def test_a_text_shorter_than_the_window_has_no_predictions_of_this_length() -> None:
    data = LanguageModelDataset(build_store([6]), 6, 8)
    with pytest.raises(DataError, match="no windows of 8 tokens, because the text has only 6"):
        data.with_lengths(5, 8)


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    path = tmp_path / "texts.jsonl"
    rows = [{"label": n % 2, "text": " ".join(["good", "bad"][n % 2 :][:1] * (1 + n % 12))} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def train_classifier(path: str, out: Path, **data: object) -> Run:
    settings = {"train": path, "max_len": 12, "valid_fraction": 0.0, **data}
    return triform.train(
        "classify", out=out, data=settings, model=TINY, train=SHORT_TRAINING, device="cpu", quiet=True
    )


def test_a_classifier_trains_on_short_texts_and_says_how_many_were_left_out(labelled: str, tmp_path: Path) -> None:
    run = train_classifier(labelled, tmp_path / "run", train_max_len=4)
    events = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert (
        "texts.jsonl: 40 of 60 examples were left out, because they are longer than 4 tokens (data.train_max_len)"
    ) in events
    assert run.config.data.max_len == 12
    assert run.task.model.encoder.embedding.position_embedding.table.num_embeddings == 12  # type: ignore[union-attr]
    metrics = run.evaluate_by_length(labelled, edges=[4, 10, 12])
    assert {name: values["rows"] for name, values in metrics.items()} == {
        "1 to 4": 20,
        "5 to 10": 30,
        "11 to 12": 10,
    }


def test_the_training_set_is_evaluated_without_the_texts_that_were_left_out(labelled: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train = {**SHORT_TRAINING, "eval_train": 5, "eval_every": 2}
    data = {"train": labelled, "valid": labelled, "max_len": 12, "train_max_len": 4}
    run = triform.train("classify", out=out, data=data, model=TINY, train=train, device="cpu", quiet=True)
    sample = run.task.data.load_training_sample(5, 20, run.task.data.open_cache(out, []))
    assert isinstance(sample, ClassificationDataset)
    assert len(sample) == 5
    assert sample.full_lengths.max() <= 4


def test_a_language_model_trains_on_short_windows_and_reads_long_ones(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat. " * 40, encoding="utf-8")
    settings = {"task": "generate", "data.train": str(path), "data.max_len": 32, "data.train_max_len": 8}
    settings |= {"tokenizer.kind": "char", **{f"model.{name}": value for name, value in TINY.items()}}
    prepared = Generate.prepare(build_config(settings, Config()), tmp_path / "run")
    assert isinstance(prepared.train, LanguageModelDataset)
    indices = prepared.train.sampler(TrainConfig(batch_size=3), seed=0).next_batch()
    assert prepared.train.batch(indices).tokens.shape == (3, 8)
    assert isinstance(prepared.valid, LanguageModelDataset)
    assert prepared.valid.max_len == 32
    assert prepared.task.config.train.batch_size == 1_024 // 8


@pytest.mark.parametrize(
    ("train_max_len", "message"),
    [
        (13, r"data\.train_max_len=13 must be at most data\.max_len=12; raise data\.max_len"),
        (1, r"data\.train_max_len=1 is too small; it must be at least 2"),
        (-1, r"data\.train_max_len=-1 must be between 0 and"),
    ],
)
def test_a_wrong_length_is_refused(labelled: str, tmp_path: Path, train_max_len: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_classifier(labelled, tmp_path / "run", train_max_len=train_max_len)


def test_training_needs_a_text_that_is_short_enough(tmp_path: Path) -> None:
    path = tmp_path / "long.tsv"
    path.write_text("0\tone two three four\n1\tfive six seven eight\n" * 5, encoding="utf-8")
    with pytest.raises(DataError, match=r"long\.tsv: no training example has at most data\.train_max_len=3 tokens"):
        train_classifier(str(path), tmp_path / "run", train_max_len=3)


def test_the_edges_of_lengths_ascend_up_to_what_the_model_can_read(labelled: str, tmp_path: Path) -> None:
    run = train_classifier(labelled, tmp_path / "run")
    for edges, text in (((), "are missing; they"), ((0,), "0"), ((4, 4), "4, 4"), ((1, 13), "1, 13")):
        message = rf"lengths {text} must be ascending numbers between 1 and data\.max_len=12"
        with pytest.raises(ConfigError, match=message):
            run.evaluate_by_length(labelled, edges=edges)


def test_texts_that_are_too_long_and_training_data_are_noted(labelled: str, tmp_path: Path) -> None:
    run = train_classifier(labelled, tmp_path / "run")
    metrics, notices = run.evaluate_by_length_with_notices(labelled, [4], {})
    assert metrics["1 to 4"]["rows"] == 20
    assert "training data" in notices[0]
    assert notices[1] == f"{labelled}: 40 texts are left out, because they have more than 4 tokens"
    assert len(run.evaluate_by_length_with_notices(labelled, [4, 12], {})[1]) == 1


def test_a_range_without_texts_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "texts.tsv"
    path.write_text("0\tone two\n1\tthree four five six\n" * 5, encoding="utf-8")
    run = train_classifier(str(path), tmp_path / "run")
    assert run.evaluate_by_length(path, edges=[1, 2, 3, 4]).keys() == {"2 to 2", "4 to 4"}
