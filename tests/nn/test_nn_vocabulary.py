"""The loss over a vocabulary in parts, and products in half, against the plain way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.nn import vocabulary
from triform.nn.half import Halves, wide_product
from triform.nn.vocabulary import IGNORE, cross_entropy, in_parts, vocabulary_loss


def given(*, bias: bool, n: int = 1000) -> tuple[Tensor, nn.Linear, Tensor]:
    torch.manual_seed(1)
    head = nn.Linear(24, n, bias=bias).double()
    states = torch.randn(5, 41, 24, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, n, (5, 41))
    targets[0, :9] = IGNORE
    targets[3] = IGNORE
    return states, head, targets


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [64, 128, 10_000])
def test_the_loss_in_parts_and_its_gradients_are_torchs(bias: bool, smoothing: float, rows: int) -> None:
    states, head, targets = given(bias=bias)
    wanted = F.cross_entropy(
        head(states).flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=smoothing,
    )
    found = in_parts(states, head, targets, smoothing, most=rows * 1000)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-9)
    inputs = [states, *head.parameters()]
    slopes = [torch.autograd.grad(loss / 7, inputs) for loss in (wanted, found)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-10, atol=1e-12)


def test_a_vocabulary_is_filled_up_and_the_filling_is_never_likely() -> None:
    states, head, targets = given(bias=True, n=77)
    wanted = cross_entropy(head(states), targets, 0.0)
    torch.testing.assert_close(in_parts(states, head, targets, 0.0), wanted, rtol=1e-12, atol=1e-9)


def test_few_scores_and_scores_on_a_cpu_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MANY_SCORES", 1)
    monkeypatch.setattr(vocabulary, "in_parts", lambda *args: pytest.fail("no need"))
    states, head, targets = given(bias=True)
    assert vocabulary_loss(states, head, targets, 0.0).equal(cross_entropy(head(states), targets, 0.0))


def test_in_half_precision_the_parts_stay_near_the_whole() -> None:
    states, head, targets = (each.float() if not isinstance(each, Tensor) else each for each in given(bias=True))
    states = states.detach().float().requires_grad_()
    wanted = cross_entropy(head(states), targets, 0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = in_parts(states, head, targets, 0.0, most=64_000)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=0)
    slopes = [torch.autograd.grad(loss, [states, head.weight]) for loss in (wanted, found)]
    for one, other in zip(*slopes, strict=True):
        assert (one - other).norm() < 0.02 * one.norm()


def two_layers() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16, bias=False)).float()


def test_halves_give_what_autocast_gives_and_whole_gradients() -> None:
    model, x = two_layers(), torch.randn(3, 7, 32).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = model(x)
    halves = Halves(model)
    with torch.autocast("cpu", dtype=torch.bfloat16), halves.used():
        found = model(x)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    slopes = [torch.autograd.grad(y.float().square().sum(), list(model.parameters())) for y in (wanted, found)]
    for one, other in zip(*slopes, strict=True):
        assert other.dtype == torch.float32
        assert (one - other).norm() < 0.01 * one.norm()
    assert all("forward" not in vars(layer) for layer in model)


def test_halves_follow_the_weights() -> None:
    model, x = two_layers(), torch.randn(4, 32).float()
    halves = Halves(model)
    with torch.no_grad():
        model[0].weight.mul_(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = model(x)
        with halves.used():
            torch.testing.assert_close(model(x), wanted, rtol=2e-2, atol=2e-2)


def test_a_wide_product_adds_up_in_float32() -> None:
    left, right = (torch.randn(64, 64).bfloat16() for _ in range(2))
    torch.testing.assert_close(wide_product(left, right), left.float() @ right.float())
