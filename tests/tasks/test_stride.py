"""Windows that overlap: every token is scored once, after as much context as is promised, and exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from triform.config import Config
from triform.data.store import TokenStore
from triform.errors import ConfigError
from triform.nn.vocabulary import IGNORE
from triform.run import Run
from triform.settings import build
from triform.tasks.generate import Generate
from triform.tasks.windows import Stream
from triform.text import train_tokenizer

MAX_LEN = 8


def stream(n: int) -> Stream:
    tokens = np.random.default_rng(n).integers(4, 20, size=n)
    return Stream(TokenStore.build([tokens.tolist()], vocab_size=20), n, MAX_LEN)


@pytest.fixture(scope="module")
def task() -> Generate:
    letters = "abcdefghijklmnop"
    settings = {
        "task": "generate", "tokenizer.kind": "char", "data.max_len": MAX_LEN,
        "model.d_model": 16, "model.n_layers": 2, "model.n_heads": 2, "model.d_ff": 32,
    }  # fmt: skip
    config = build(settings, Config())
    torch.manual_seed(0)
    made = Generate(config, train_tokenizer(config.tokenizer, [letters]))
    made.model.double().eval()
    return made


def one_by_one(task: Generate, data: Stream, stride: int) -> float:
    """The mean loss, a window a token: the first that has room for it, of those that begin a stride apart."""
    tokens = torch.from_numpy(np.asarray(data.store.tokens, dtype=np.int64))
    total = 0.0
    for place in range(1, len(tokens)):
        start = 0
        while start + MAX_LEN < place:
            start += stride
        assert place - start >= min(place, MAX_LEN - stride)
        with torch.inference_mode():
            scores = task.model(tokens[None, start:place])[0, -1]
        total -= float(scores.log_softmax(-1)[tokens[place]])
    return total / (len(tokens) - 1)


@pytest.mark.parametrize("n", [2, 7, 9, 10, 17, 40, 43])
@pytest.mark.parametrize("stride", [1, 3, 4, 7, 8])
def test_scores_are_those_of_a_window_a_token(task: Generate, n: int, stride: int) -> None:
    data = stream(n).strided(stride)
    scores = task.evaluate(data)
    assert scores["tokens"] == n - 1
    assert scores["loss"] == pytest.approx(one_by_one(task, data, stride), abs=1e-9)


@pytest.mark.parametrize("n", [5, 9, 64, 70])
def test_a_stride_of_all_is_side_by_side(n: int) -> None:
    plain, strided = (list(data.batches()) for data in (stream(n), stream(n).strided(MAX_LEN)))
    assert len(plain) == len(strided)
    for one, two in zip(plain, strided, strict=True):
        assert one.tokens.equal(two.tokens)
        assert one.targets.equal(two.targets)
    assert sum(batch.weight for batch in plain) == n - 1


def test_what_is_hidden_from_the_score_is_still_read() -> None:
    data = stream(60)
    for batch in data.strided(3).batches():
        wanted = batch.tokens[:, 1:]
        scored = batch.targets[:, :-1]
        assert ((scored == wanted) | (scored == IGNORE)).all()
        assert (batch.tokens != IGNORE).all()


def test_a_stride_that_cannot_be(task: Generate, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a stride of 9: give 1 to 8"):
        stream(20).strided(9)
    story = tmp_path / "story.txt"
    story.write_text("abcdef" * 30)
    run = Run(path=tmp_path, task=task)
    assert run.evaluate(story, stride=2)["tokens"] == run.evaluate(story)["tokens"]
    with pytest.raises(ConfigError, match="a stride of -1"):
        run.evaluate(story, stride=-1)


@pytest.mark.parametrize("n_tokens", [2, 5, 9, 10, 11, 40, 41, 20_000])
@pytest.mark.parametrize("stride", [0, 3, 8])
def test_a_stream_knows_how_many_batches_it_gives(n_tokens: int, stride: int) -> None:
    store = TokenStore.build([list(range(n_tokens))], vocab_size=n_tokens)
    stream = Stream(store, n_tokens, 8, stride)
    assert stream.n_batches() == len(list(stream.batches()))
