"""Linear layers by oneDNN equal `F.linear`, forward and backward, and change nothing that a model answers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import triform
from triform.config import DataSizes, ModelConfig
from triform.generation.adapters import DecoderAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.scheduler import generate
from triform.models.decoder import Decoder
from triform.nn.kernels import cpu_linear
from triform.nn.kernels.cpu_linear import CpuLinear, OneDnnLinear, Product, use_cpu_products

ROW_COUNTS = (*range(1, 18), 40, 64, 65, 200)
LIMITS = ("MIN_WEIGHTS", "MIN_PACKED_WEIGHTS", "MIN_MULTIPLICATIONS")

pytestmark = pytest.mark.skipif(not cpu_linear.has_onednn(), reason="this build of torch has no oneDNN")


@pytest.fixture(autouse=True)
def _float32_and_small_layers(_float64_and_one_seed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    for name in LIMITS:
        monkeypatch.setattr(cpu_linear, name, 1)


@pytest.fixture(params=[True, False], ids=["oneDNN for many rows", "F.linear for many rows"])
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of processors, whatever this one is."""
    monkeypatch.setattr(cpu_linear, "mkl_lacks_avx512", lambda: request.param)


def exact_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("out_features", [48, 33, 1])
def test_every_number_of_rows_gives_the_same_sums(out_features: int, bias: bool) -> None:
    layer = nn.Linear(64, out_features, bias=bias)
    fast = CpuLinear(layer, can_pack=True)
    with torch.inference_mode():
        for n_rows in ROW_COUNTS:
            x = torch.randn(n_rows, 64)
            y = fast(x)
            assert y.is_contiguous()
            torch.testing.assert_close(y.double(), exact_linear(x, layer), atol=4e-6, rtol=4e-6)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("shape", [(64,), (1, 1, 64), (2, 3, 64), (40, 2, 64), (0, 64), (2, 0, 64)])
def test_inputs_of_any_shape_are_taken(shape: tuple[int, ...]) -> None:
    layer, x = nn.Linear(64, 48), torch.randn(shape)
    for context in (torch.inference_mode(), torch.enable_grad()):
        with context:
            y = CpuLinear(layer, can_pack=True)(x)
            strided = CpuLinear(layer, can_pack=True)(x.mT.contiguous().mT) if x.dim() > 1 else y
        assert y.shape == strided.shape == (*shape[:-1], 48)
        torch.testing.assert_close(y, layer(x), atol=4e-6, rtol=4e-6)
        torch.testing.assert_close(strided, layer(x), atol=4e-6, rtol=4e-6)


def test_the_product_depends_on_rows_mode_and_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = CpuLinear(nn.Linear(8, 8), can_pack=True)
    monkeypatch.setattr(cpu_linear, "mkl_lacks_avx512", lambda: True)
    with torch.inference_mode():
        products = [layer.select_product(torch.zeros(n_rows, 8)) for n_rows in (0, 1, 64, 65)]
    assert products == [Product.LINEAR, Product.PACKED, Product.PACKED, Product.ONEDNN]
    assert layer.select_product(torch.zeros(1, 8)) is Product.ONEDNN  # training keeps no copies
    monkeypatch.setattr(cpu_linear, "MIN_MULTIPLICATIONS", 200)
    assert layer.select_product(torch.zeros(3, 8)) is Product.LINEAR
    monkeypatch.setattr(cpu_linear, "mkl_lacks_avx512", lambda: False)
    assert layer.select_product(torch.zeros(99, 8)) is Product.LINEAR
    with torch.inference_mode():
        assert layer.select_product(torch.zeros(1, 8, dtype=torch.bfloat16)) is Product.LINEAR
        assert layer.double().select_product(torch.zeros(1, 8)) is Product.LINEAR


@pytest.mark.parametrize("frozen", ["", "x", "weight", "bias"])
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 48), (48, 64), (7, 5)])
@pytest.mark.parametrize("shape", [(30,), (2, 3)])
def test_gradients_equal_those_of_f_linear(
    shape: tuple[int, ...], in_features: int, out_features: int, frozen: str
) -> None:
    tensors = {
        "x": torch.randn(*shape, in_features),
        "weight": torch.randn(out_features, in_features),
        "bias": torch.randn(out_features),
    }
    weights = torch.randn(*shape, out_features)
    results = []
    for function in (OneDnnLinear.apply, F.linear):
        leaves = {
            name: tensor.double() if function is F.linear else tensor.clone() for name, tensor in tensors.items()
        }
        for name, leaf in leaves.items():
            leaf.requires_grad_(name != frozen)
        y = function(*leaves.values())
        (y * weights.to(y.dtype)).sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves.values())])
    for fast, exact in zip(*results, strict=True):
        assert (fast is None) == (exact is None)
        if fast is not None:
            torch.testing.assert_close(fast.double(), exact, atol=4e-5, rtol=4e-5)


def test_a_packed_copy_follows_its_weights() -> None:
    layer = nn.Linear(64, 48)
    fast, x = CpuLinear(layer, can_pack=True), torch.randn(2, 64)
    with torch.inference_mode():
        fast(x)
    packed = fast.packed
    with torch.inference_mode():
        fast(x)
    assert fast.packed is packed  # unchanged weights are packed once
    with torch.no_grad():
        layer.weight.mul_(2.0)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), F.linear(x, layer.weight, layer.bias), atol=4e-6, rtol=4e-6)
    layer.weight.data = torch.randn(48, 64)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), F.linear(x, layer.weight, layer.bias), atol=4e-6, rtol=4e-6)


@pytest.mark.usefixtures("processor")
def test_a_model_keeps_its_parameters_and_its_answers() -> None:
    config = ModelConfig(d_model=32, d_ff=64, n_layers=2, n_heads=4, dropout=0.0, tie_embeddings=True)
    model = Decoder(config, DataSizes(vocab_size=50, max_len=24)).eval()
    fast = copy.deepcopy(model)
    use_cpu_products(fast)
    use_cpu_products(fast)  # a second call changes nothing
    assert isinstance(fast.lm_head, CpuLinear)
    assert fast.lm_head.weight is fast.embedding.token_embedding.weight
    assert fast.state_dict().keys() == model.state_dict().keys()
    for n_prompts in (1, 3, 7):
        requests = [Request([5 + index, 9, 11], max_new_tokens=8) for index in range(n_prompts)]
        answers = [
            generate(DecoderAdapter(variant, 24), requests, TokenConstraints(eos=3))
            for variant in (model, fast, copy.deepcopy(fast))  # a copy is made after the weights were packed
        ]
        assert answers[0] == answers[1] == answers[2]


def test_unsupported_layers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(model: nn.Module) -> bool:
        use_cpu_products(model)
        return any(isinstance(module, CpuLinear) for module in model.modules())

    assert replaced(nn.Sequential(nn.Linear(8, 8)))
    assert not replaced(nn.Sequential(nn.Linear(8, 8, dtype=torch.float64)))
    assert not replaced(nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16)))
    assert not replaced(nn.Sequential(nn.Linear(8, 8, device="meta")))
    monkeypatch.setattr(cpu_linear, "MIN_WEIGHTS", 65)
    assert not replaced(nn.Sequential(nn.Linear(8, 8)))
    monkeypatch.setattr(cpu_linear, "MIN_WEIGHTS", 1)
    monkeypatch.setattr(cpu_linear, "has_onednn", lambda: False)
    assert not replaced(nn.Sequential(nn.Linear(8, 8)))


def test_very_large_models_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "MAX_PACKED_WEIGHTS", 100)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    use_cpu_products(model)
    assert not any(layer.can_pack for layer in model if isinstance(layer, CpuLinear))


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_training_learns_the_same_with_either_library(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for use_onednn in (False, True):
        monkeypatch.setattr("triform.training.build_step.mkl_lacks_avx512", lambda value=use_onednn: value)
        monkeypatch.setattr(cpu_linear, "mkl_lacks_avx512", lambda value=use_onednn: value)
        run = triform.train(
            task, out=tmp_path / str(use_onednn), device="cpu", quiet=True,
            model={"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.0},
            train={"max_steps": 4, "batch_size": 4, "optimizer": "sgd", "lr": 0.1},
        )  # fmt: skip
        model = run.task.model
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert not torch.equal(*weights)  # the second run did use the other library
    torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-4)
