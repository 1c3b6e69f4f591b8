"""Norms of gradients by distance: against finite differences, and zero beyond what a model can read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from triform.config import DataSizes, ModelConfig
from triform.data.token_store import TokenStore
from triform.explain.attribution import override_embeddings
from triform.explain.gradients import gradient_norms
from triform.models.factory import AnyDecoder, build_decoder
from triform.tasks.language_model_data import LanguageModelDataset

SIZES = DataSizes(vocab_size=11, max_len=8)


@pytest.fixture
def dataset() -> LanguageModelDataset:
    """Three full windows of eight tokens, and a shorter one."""
    tokens = np.random.default_rng(0).integers(0, 11, 30).astype(np.uint16)
    return LanguageModelDataset(TokenStore(tokens, np.array([0, 30])), 30, 8)


def build(**settings: object) -> AnyDecoder:
    torch.manual_seed(0)
    model = build_decoder(ModelConfig(**{"d_model": 16, "n_layers": 2, "dropout": 0.5, **settings}), SIZES)  # type: ignore[arg-type]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("settings", [{"n_heads": 2, "positions": "rotary"}, {"kind": "lstm"}, {"kind": "rnn"}])
def test_norms_equal_finite_differences(settings: dict[str, object], dataset: LanguageModelDataset) -> None:
    model = build(**settings).double()
    norms = gradient_norms(model, dataset)
    assert norms.shape == (8,)
    expected, batch = torch.zeros(8, dtype=torch.float64), next(dataset.batches())
    assert batch.tokens.shape == (3, 8)
    model.eval()
    with torch.no_grad():
        vectors = model.embedding.token_vectors(batch.tokens, torch.arange(8))

        def losses(changed: torch.Tensor) -> torch.Tensor:
            with override_embeddings(model.embedding, changed):
                return F.cross_entropy(model(batch.tokens)[:, -1], batch.targets[:, -1], reduction="none")

        for position in range(8):
            squares = torch.zeros(3, dtype=torch.float64)
            for k in range(16):
                step = torch.zeros_like(vectors)
                step[:, position, k] = 1e-6
                squares += ((losses(vectors + step) - losses(vectors - step)) / 2e-6) ** 2
            expected[7 - position] = squares.sqrt().mean()
    torch.testing.assert_close(norms.double(), expected, rtol=1e-4, atol=1e-6)


def test_nothing_is_read_beyond_the_window(dataset: LanguageModelDataset) -> None:
    norms = gradient_norms(build(n_heads=2, window=3), dataset)
    reach = 2 * (3 - 1)  # two layers, each with a window of the token and two before it
    assert (norms[: reach + 1] > 0).all()
    assert (norms[reach + 1 :] == 0).all()


def test_the_model_is_not_changed(dataset: LanguageModelDataset) -> None:
    model = build(n_heads=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradient_norms(model, dataset)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "token_vectors" not in vars(model.embedding)
