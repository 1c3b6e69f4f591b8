"""Windows that overlap: every token is scored once, after as much context as is promised, and exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from triform.config import Config
from triform.config.settings import build_config
from triform.data.token_store import TokenStore
from triform.errors import ConfigError
from triform.nn.loss import IGNORE_INDEX
from triform.run import Run
from triform.tasks.generate import Generate
from triform.tasks.language_model_data import LanguageModelDataset
from triform.text import train_tokenizer

MAX_LEN = 8


def build_dataset(n: int) -> LanguageModelDataset:
    tokens = np.random.default_rng(n).integers(4, 20, size=n)
    return LanguageModelDataset(TokenStore.build([tokens.tolist()], vocab_size=20), n, MAX_LEN)


@pytest.fixture(scope="module")
def task() -> Generate:
    letters = "abcdefghijklmnop"
    settings = {
        "task": "generate", "tokenizer.kind": "char", "data.max_len": MAX_LEN,
        "model.d_model": 16, "model.n_layers": 2, "model.n_heads": 2, "model.d_ff": 32,
    }  # fmt: skip
    config = build_config(settings, Config())
    torch.manual_seed(0)
    generator = Generate(config, train_tokenizer(config.tokenizer, [letters]))
    generator.model.double().eval()
    return generator


def loss_one_by_one(task: Generate, data: LanguageModelDataset, stride: int) -> float:
    """The mean loss, a window a token: the first that has room for it, of those that begin a stride apart."""
    tokens = torch.from_numpy(np.asarray(data.store.tokens, dtype=np.int64))
    total = 0.0
    for index in range(1, len(tokens)):
        start = 0
        while start + MAX_LEN < index:
            start += stride
        assert index - start >= min(index, MAX_LEN - stride)
        with torch.inference_mode():
            logits = task.model(tokens[None, start:index])[0, -1]
        total -= float(logits.log_softmax(-1)[tokens[index]])
    return total / (len(tokens) - 1)


@pytest.mark.parametrize("n", [2, 7, 9, 10, 17, 40, 43])
@pytest.mark.parametrize("stride", [1, 3, 4, 7, 8])
def test_metrics_are_those_of_a_window_a_token(task: Generate, n: int, stride: int) -> None:
    data = build_dataset(n).with_stride(stride)
    metrics = task.evaluator.evaluate(data)
    assert metrics["tokens"] == n - 1
    assert metrics["loss"] == pytest.approx(loss_one_by_one(task, data, stride), abs=1e-9)


@pytest.mark.parametrize("n", [5, 9, 64, 70])
def test_a_stride_of_all_is_side_by_side(n: int) -> None:
    plain, strided = (list(data.batches()) for data in (build_dataset(n), build_dataset(n).with_stride(MAX_LEN)))
    assert len(plain) == len(strided)
    for plain_batch, strided_batch in zip(plain, strided, strict=True):
        assert plain_batch.tokens.equal(strided_batch.tokens)
        assert plain_batch.targets.equal(strided_batch.targets)
    assert sum(batch.n_predictions for batch in plain) == n - 1


def test_what_is_hidden_from_the_score_is_still_read() -> None:
    data = build_dataset(60)
    for batch in data.with_stride(3).batches():
        next_tokens = batch.tokens[:, 1:]
        scored = batch.targets[:, :-1]
        assert ((scored == next_tokens) | (scored == IGNORE_INDEX)).all()
        assert (batch.tokens != IGNORE_INDEX).all()


def test_a_stride_that_cannot_be(task: Generate, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stride=9 must be between 1 and 8"):
        build_dataset(20).with_stride(9)
    story = tmp_path / "story.txt"
    story.write_text("abcdef" * 30)
    run = Run(path=tmp_path, task=task)
    assert run.evaluate(story, stride=2)["tokens"] == run.evaluate(story)["tokens"]
    with pytest.raises(ConfigError, match="stride=-1 must be between"):
        run.evaluate(story, stride=-1)


@pytest.mark.parametrize("n_tokens", [2, 5, 9, 10, 11, 40, 41, 20_000])
@pytest.mark.parametrize("stride", [0, 3, 8])
def test_a_dataset_knows_how_many_batches_it_gives(n_tokens: int, stride: int) -> None:
    store = TokenStore.build([list(range(n_tokens))], vocab_size=n_tokens)
    dataset = LanguageModelDataset(store, n_tokens, 8, stride)
    assert dataset.n_batches() == len(list(dataset.batches()))
