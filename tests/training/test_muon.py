"""Muon against singular value decompositions and optimizers of torch; in models, in checkpoints, and refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from same_runs import StoppedAfter, assert_same_run, train_run
from torch import nn

from triform.config import Config, DataSizes, ModelConfig, TrainConfig
from triform.errors import ConfigError
from triform.models.decoder import Decoder
from triform.training.muon import COEFFICIENTS, Muon, hidden_matrices, muon_update, orthogonalize
from triform.training.optim import build_optimizer


def polynomial(singular_values: np.ndarray) -> np.ndarray:
    """Apply the polynomial of the iterations to singular values, five times."""
    a, b, c = COEFFICIENTS
    for _ in range(5):
        singular_values = a * singular_values + b * singular_values**3 + c * singular_values**5
    return singular_values


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_the_iterations_change_singular_values_only(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = orthogonalize(matrices).numpy()
    for matrix, actual in zip(matrices.numpy(), result, strict=True):
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        expected = left @ np.diag(polynomial(values / np.linalg.norm(values))) @ right
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)
        assert (np.linalg.svd(actual)[1] > 0.6).all()
        assert (np.linalg.svd(actual)[1] < 1.3).all()


def test_a_gradient_of_zero_changes_nothing() -> None:
    assert not orthogonalize(torch.zeros(2, 3, 4)).any()


class TwoLayers(nn.Module):
    """A block with two matrices of one shape, and a head that is not in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 6), nn.Linear(8, 6)])
        self.head = nn.Linear(6, 3)


def test_matrices_of_blocks_move_as_torchs_muon_and_the_rest_as_adamw() -> None:
    torch.manual_seed(0)
    model = TwoLayers()
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    matrices = [weights[name] for name in sorted(hidden_matrices(model))]
    assert [tuple(matrix.shape) for matrix in matrices] == [(6, 8), (6, 8)]
    others = [weight for name, weight in weights.items() if name not in hidden_matrices(model)]
    decaying = [weight for weight in others if weight.ndim == 2]
    not_decaying = [weight for weight in others if weight.ndim < 2]
    optimizer = build_optimizer(model, TrainConfig(optimizer="muon", lr=0.02, weight_decay=0.1))
    assert isinstance(optimizer, Muon)
    references = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [{"params": decaying, "weight_decay": 0.1}, {"params": not_decaying, "weight_decay": 0.0}],
            lr=0.02,
            betas=(0.9, 0.98),
        ),
    ]
    for _ in range(4):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            weights[name].grad = parameter.grad.clone()
        for stepped in (optimizer, *references):
            stepped.step()
    for name, parameter in model.named_parameters():
        # torch computes its iterations in bf16; an update has entries of about lr * 0.2.
        tolerance = 4 * 0.02 * 0.05 if name in hidden_matrices(model) else 1e-6
        torch.testing.assert_close(parameter.detach(), weights[name].detach(), rtol=0, atol=tolerance)


def test_an_update_is_as_large_as_one_of_adamw() -> None:
    grads = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    update = muon_update(grads, torch.zeros_like(grads))
    assert 0.1 < math.sqrt(float(update.square().mean())) < 0.3


def test_embeddings_heads_norms_and_biases_are_not_orthogonalised() -> None:
    config = ModelConfig(d_model=16, d_ff=32, n_layers=2, n_heads=2, positions="learned", tie_embeddings=False)
    names = hidden_matrices(Decoder(config, DataSizes(vocab_size=11, max_len=8)))
    assert len(names) == 2 * 5
    assert all("blocks" in name and name.endswith(".weight") and "norm" not in name for name in names)


def test_a_stopped_run_resumes_exactly(tmp_path: Path, stopped_after: StoppedAfter) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("".join(f"{'good' if n % 2 else 'bad'},thing {n % 7}\n" for n in range(60)), encoding="utf-8")
    settings = {"optimizer": "muon", "max_steps": 8, "eval_every": 4}
    uninterrupted = train_run(str(rows), tmp_path / "whole", settings)
    with stopped_after(3):
        train_run(str(rows), tmp_path / "stopped", settings)
    assert_same_run(uninterrupted, train_run(str(rows), tmp_path / "stopped", {}, model={}, resume=True))


def test_muon_is_refused_where_it_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match=r"muon needs whole matrices .* leave out train\.parallel=fsdp"):
        TrainConfig(optimizer="muon", parallel="fsdp")
    with pytest.raises(ConfigError, match=r"muon applies to Transformers only, not to model\.kind=lstm"):
        Config(model=ModelConfig(kind="lstm"), train=TrainConfig(optimizer="muon"))
