"""Products of a few rows with large weights equal those of `F.linear`, and change nothing that a model answers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.generation.adapters import DecoderAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.scheduler import generate
from triform.models.decoder import Decoder
from triform.nn.kernels import few_rows
from triform.nn.kernels.few_rows import FewRowsLinear, select_product, use_few_rows_products

ROW_COUNTS = (*range(1, 18), 40)


@pytest.fixture(autouse=True)
def _float32_and_small_layers(_float64_and_one_seed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(few_rows, "MIN_WEIGHTS", 1)


def exact_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("out_features", [48, 33])
def test_every_number_of_rows_gives_the_same_sums(out_features: int, bias: bool) -> None:
    layer = nn.Linear(64, out_features, bias=bias)
    fast = FewRowsLinear(layer)
    with torch.inference_mode():
        for n_rows in ROW_COUNTS:
            x = torch.randn(n_rows, 64)
            y = fast(x)
            assert y.is_contiguous()
            torch.testing.assert_close(y.double(), exact_linear(x, layer), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("shape", [(64,), (1, 1, 64), (2, 3, 64), (4, 2, 64), (0, 64), (2, 0, 64)])
def test_inputs_of_any_shape_are_taken(shape: tuple[int, ...]) -> None:
    layer, x = nn.Linear(64, 48), torch.randn(shape)
    with torch.inference_mode():
        y = FewRowsLinear(layer)(x)
        strided = FewRowsLinear(layer)(x.mT.contiguous().mT) if x.dim() > 1 else y
    assert y.shape == strided.shape == (*shape[:-1], 48)
    torch.testing.assert_close(y, layer(x), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(strided, layer(x), atol=2e-6, rtol=2e-6)


def test_each_number_of_rows_has_its_product() -> None:
    weight = torch.zeros(48, 8)
    names = [select_product(n_rows, weight).__name__ for n_rows in (0, 1, 2, 4, 5, 16, 17)]
    assert names == ["linear"] * 2 + ["stationary_product"] * 2 + ["split_product"] * 2 + ["linear"]
    assert select_product(8, weight[1:]) is F.linear  # an odd number of outputs cannot be divided evenly


def test_gradients_flow_outside_of_inference() -> None:
    layer, x = nn.Linear(64, 48), torch.randn(2, 64, requires_grad=True)
    FewRowsLinear(layer)(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, layer.weight.sum(dim=0).expand(2, -1))


def test_a_model_keeps_its_parameters_and_its_answers() -> None:
    config = ModelConfig(d_model=32, d_ff=64, n_layers=2, n_heads=4, dropout=0.0, tie_embeddings=True)
    model = Decoder(config, DataSizes(vocab_size=50, max_len=24)).eval()
    fast = copy.deepcopy(model)
    use_few_rows_products(fast)
    assert isinstance(fast.lm_head, FewRowsLinear)
    assert fast.lm_head.weight is fast.embedding.token_embedding.weight
    assert fast.state_dict().keys() == model.state_dict().keys()
    for n_prompts in (1, 3, 7):  # each number of rows has another product
        requests = [Request([5 + index, 9, 11], max_new_tokens=8) for index in range(n_prompts)]
        answers = [
            generate(DecoderAdapter(variant, 24), requests, TokenConstraints(eos=3)) for variant in (model, fast)
        ]
        assert answers[0] == answers[1]


def test_small_layers_and_other_precisions_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(model: nn.Module) -> bool:
        use_few_rows_products(model)
        return any(isinstance(module, FewRowsLinear) for module in model.modules())

    assert replaced(nn.Sequential(nn.Linear(8, 8)))
    assert not replaced(nn.Sequential(nn.Linear(8, 8, dtype=torch.float64)))
    assert not replaced(nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16)))
    assert not replaced(nn.Sequential(nn.Linear(8, 8, device="meta")))
    monkeypatch.setattr(few_rows, "MIN_WEIGHTS", 65)
    assert not replaced(nn.Sequential(nn.Linear(8, 8)))
