"""Dynamic evaluation: a step after each window, nothing from later text, and a run that does not change."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reproduce.dynamic import LR_GRID, DynamicEvaluation

import triform
from triform.data.token_store import TokenStore
from triform.errors import ConfigError
from triform.nn.kernels import int8
from triform.tasks.language_model_data import LanguageModelDataset

needs_int8 = pytest.mark.skipif(bool(int8.int8_unavailable_reason()), reason="this machine has no int8 products")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> triform.Run:
    folder = tmp_path_factory.mktemp("dynamic")
    rng = np.random.default_rng(5)
    text = " ".join("".join(rng.choice(list("abcde"), 3)) for _ in range(400))
    (folder / "train.txt").write_text(text, encoding="utf-8")
    settings = {"tokenizer.kind": "char", "data.max_len": 8, "data.valid_fraction": 0.2, "train.max_steps": 10}
    tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.3}
    data = str(folder / "train.txt")
    return triform.train(
        "generate", out=folder / "run", data=data, device="cpu", quiet=True, model=tiny, **settings
    )


def dataset(tokens: list[int]) -> LanguageModelDataset:
    return LanguageModelDataset(TokenStore(np.array(tokens), np.array([0, len(tokens)])), 1, 8)


def test_every_window_is_predicted_before_the_model_learns_from_it(run: triform.Run) -> None:
    tokens = run.task.tokenizer.encode("abc abd eee aaa abc abc dde")
    model = deepcopy(run.task.model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    expected = []
    for start in range(0, len(tokens) - 1, 8):
        window = torch.tensor(tokens[start : start + 9])
        losses = F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none")
        expected += losses.tolist()
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    losses, _ = DynamicEvaluation(run.task, 0.2).score(dataset(tokens), 0.2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_only_the_text_before_a_token_changes_its_loss(run: triform.Run) -> None:
    dynamic = DynamicEvaluation(run.task, 0.3)
    tokens = run.task.tokenizer.encode("abc abd eee aaa abc abc dde")
    losses, _ = dynamic.score(dataset(tokens), 0.3)
    for n in (8, 12, 17):
        start, _ = dynamic.score(dataset([*tokens[: n + 1], *reversed(tokens[n + 1 :])]), 0.3)
        np.testing.assert_allclose(start[:n], losses[:n], rtol=1e-5)
    other, _ = dynamic.score(dataset([*reversed(tokens[:9]), *tokens[9:]]), 0.3)
    assert not np.allclose(other[9:], losses[9:], rtol=1e-4)  # earlier windows do change later ones


def test_the_run_is_not_changed_and_a_tiny_rate_gives_the_plain_loss(run: triform.Run) -> None:
    before = {name: value.clone() for name, value in run.task.model.state_dict().items()}
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    plain = run.evaluate()
    result = DynamicEvaluation(run.task, 1e-9).evaluate()
    for name in ("loss", "perplexity", "bits_per_byte", "token_accuracy", "tokens"):
        assert result.metrics[name] == pytest.approx(plain[name], rel=1e-4)
    DynamicEvaluation(run.task, 0.5).evaluate()
    assert all(torch.equal(value, before[name]) for name, value in run.task.model.state_dict().items())
    assert run.evaluate() == plain
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files


def test_the_learning_rate_is_chosen_on_validation_data(run: triform.Run, tmp_path: Path) -> None:
    dynamic = DynamicEvaluation(run.task)
    losses = {lr: DynamicEvaluation(run.task, lr).evaluate().metrics["loss"] for lr in LR_GRID}
    assert dynamic.lr == min(losses, key=lambda lr: losses[lr])
    (tmp_path / "test.txt").write_text("abc abc abc abc abc abc abc", encoding="utf-8")
    assert dynamic.evaluate(str(tmp_path / "test.txt")).lr == dynamic.lr


@pytest.mark.parametrize("precision", ["bf16", pytest.param("int8", marks=needs_int8)])
def test_a_model_in_lower_precision_is_refused(run: triform.Run, precision: str) -> None:
    task = triform.load(run.path, device="cpu", precision=precision).task
    with pytest.raises(ConfigError, match="dynamic needs precision=fp32"):
        DynamicEvaluation(task, 0.1)


def test_an_ensemble_is_refused(run: triform.Run) -> None:
    ensemble = triform.load([run.path, run.path], device="cpu")
    with pytest.raises(ConfigError, match="an ensemble of 2 models, and dynamic evaluation needs a single one"):
        DynamicEvaluation(ensemble.task, 0.1)
