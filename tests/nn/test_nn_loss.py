"""The loss over a vocabulary in chunks, and products in half, against the plain way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.nn.kernels import chunked_loss
from triform.nn.kernels.bf16_weights import Bf16Weights, matmul_fp32_accum
from triform.nn.kernels.chunked_loss import chunked_cross_entropy, fast_lm_head_loss
from triform.nn.loss import IGNORE_INDEX, cross_entropy


def random_inputs(*, bias: bool, n: int = 1000) -> tuple[Tensor, nn.Linear, Tensor]:
    torch.manual_seed(1)
    head = nn.Linear(24, n, bias=bias).double()
    states = torch.randn(5, 41, 24, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, n, (5, 41))
    targets[0, :9] = IGNORE_INDEX
    targets[3] = IGNORE_INDEX
    return states, head, targets


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [64, 128, 10_000])
def test_the_loss_in_parts_and_its_gradients_are_torchs(bias: bool, smoothing: float, rows: int) -> None:
    states, head, targets = random_inputs(bias=bias)
    expected = F.cross_entropy(
        head(states).flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=smoothing,
    )
    actual = chunked_cross_entropy(states, head, targets, smoothing, max_logits=rows * 1000)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-9)
    inputs = [states, *head.parameters()]
    gradients = [torch.autograd.grad(loss / 7, inputs) for loss in (expected, actual)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


def test_a_vocabulary_is_filled_up_and_the_filling_is_never_likely() -> None:
    states, head, targets = random_inputs(bias=True, n=77)
    expected = cross_entropy(head(states), targets, 0.0)
    torch.testing.assert_close(chunked_cross_entropy(states, head, targets, 0.0), expected, rtol=1e-12, atol=1e-9)


def test_few_scores_and_scores_on_a_cpu_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "MIN_CHUNKED_LOGITS", 1)
    monkeypatch.setattr(chunked_loss, "chunked_cross_entropy", lambda *args: pytest.fail("no need"))
    states, head, targets = random_inputs(bias=True)
    assert fast_lm_head_loss(states, head, targets, 0.0).equal(cross_entropy(head(states), targets, 0.0))


def test_in_half_precision_the_parts_stay_near_the_whole() -> None:
    states, head, targets = (
        tensor.float() if not isinstance(tensor, Tensor) else tensor for tensor in random_inputs(bias=True)
    )
    states = states.detach().float().requires_grad_()
    expected = cross_entropy(head(states), targets, 0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = chunked_cross_entropy(states, head, targets, 0.0, max_logits=64_000)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=0)
    gradients = [torch.autograd.grad(loss, [states, head.weight]) for loss in (expected, actual)]
    for expected_grad, grad in zip(*gradients, strict=True):
        assert (expected_grad - grad).norm() < 0.02 * expected_grad.norm()


def two_layers() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16, bias=False)).float()


def test_halves_give_what_autocast_gives_and_whole_gradients() -> None:
    model, x = two_layers(), torch.randn(3, 7, 32).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
    bf16_weights = Bf16Weights(model)
    with torch.autocast("cpu", dtype=torch.bfloat16), bf16_weights.swapped_in():
        actual = model(x)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    gradients = [
        torch.autograd.grad(y.float().square().sum(), list(model.parameters())) for y in (expected, actual)
    ]
    for expected_grad, grad in zip(*gradients, strict=True):
        assert grad.dtype == torch.float32
        assert (expected_grad - grad).norm() < 0.01 * expected_grad.norm()
    assert all("forward" not in vars(layer) for layer in model)


def test_halves_follow_the_weights() -> None:
    model, x = two_layers(), torch.randn(4, 32).float()
    bf16_weights = Bf16Weights(model)
    with torch.no_grad():
        model[0].weight.mul_(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        with bf16_weights.swapped_in():
            torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)


def test_a_wide_product_adds_up_in_float32() -> None:
    left, right = (torch.randn(64, 64).bfloat16() for _ in range(2))
    torch.testing.assert_close(matmul_fp32_accum(left, right), left.float() @ right.float())
