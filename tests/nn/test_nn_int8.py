"""Int8 layers stand close to the layers they replace, and a machine without the operators is told so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.errors import ConfigError
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.kernels import int8, precision
from triform.nn.kernels.packing import pack
from triform.nn.layouts import pad

CPU = torch.device("cpu")
SIZES = DataSizes(vocab_size=60, max_len=24, n_labels=3)
ROWS = [[5, 9, 11, 40, 8], [7, 7], [30, 31, 32, 33, 34, 35, 36, 37]]

needs_int8 = pytest.mark.skipif(bool(int8.int8_unavailable_reason()), reason="this machine has no int8 products")


@pytest.fixture(autouse=True)
def _float32(_float64_and_one_seed: None) -> None:
    torch.set_default_dtype(torch.float32)


def config(**settings: Any) -> ModelConfig:
    return ModelConfig(**{"d_model": 48, "d_ff": 96, "n_layers": 2, "n_heads": 4, "dropout": 0.0, **settings})


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


@needs_int8
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (2, 5, 64), (0, 64)])
def test_an_int8_layer_is_close_to_its_original(bias: bool, shape: tuple[int, ...]) -> None:
    layer, x = nn.Linear(64, 33, bias=bias), torch.randn(shape)
    actual = int8.Int8Linear(layer)(x)
    assert actual.shape == (*shape[:-1], 33)
    assert actual.dtype == torch.float32
    if x.numel():
        assert relative_error(actual, layer(x)) < 0.02
        assert not actual.equal(layer(x))


@needs_int8
def test_weights_come_back_within_half_a_step_of_their_own_output() -> None:
    layer = nn.Linear(40, 32)
    with torch.no_grad():
        layer.weight.mul_(torch.logspace(-4, 4, 32)[:, None])  # one scale for all would lose the small ones
        layer.weight[3] = 0.0
    step = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    error = (int8.Int8Linear(layer).weight - layer.weight).abs()
    assert (error <= 0.5001 * step).all()
    assert int8.Int8Linear(layer).weight[3].eq(0).all()


@needs_int8
def test_only_linear_layers_that_cost_something_are_exchanged() -> None:
    model = Classifier(config(), SIZES)
    int8.quantize_linears(model)
    assert isinstance(model.classification_head, nn.Linear)  # three labels
    class_by_name = {name: type(module).__name__ for name, module in model.named_modules()}
    assert [class_name for class_name in class_by_name.values() if class_name == "Linear"] == ["Linear"]
    assert sum(class_name == "Int8Linear" for class_name in class_by_name.values()) == 2 * 5
    assert {class_by_name["encoder.embedding.token_embedding"], class_by_name["encoder.final_norm"]} == {
        "Embedding",
        "LayerNorm",
    }


@needs_int8
def test_a_head_that_shares_its_weights_parts_from_the_embedding_which_stays_exact() -> None:
    model = Decoder(config(tie_embeddings=True), SIZES).eval()
    before = model.embedding.token_embedding.weight.detach().clone()
    int8.quantize_linears(model)
    assert isinstance(model.lm_head, int8.Int8Linear)
    assert model.embedding.token_embedding.weight.equal(before)
    assert relative_error(model.lm_head.weight, before) < 0.01


FORWARD_BY_FORM: dict[str, Callable[[nn.Module], Tensor]] = {
    "encoder": lambda model: model(*pad(ROWS)),
    "packed": lambda model: model(*pack(ROWS)),
    "decoder": lambda model: model(torch.tensor([ROWS[2]])),
    "seq2seq": lambda model: model(pad(ROWS)[0], torch.tensor([[2, 9, 8]] * 3), pad(ROWS)[1]),
}
MODEL_BY_FORM = {"encoder": Classifier, "packed": Classifier, "decoder": Decoder, "seq2seq": Seq2Seq}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu", "n_kv_heads": 2},
    {"positions": "relative"},
    {"positions": "alibi", "attention_score": "cosine"},
    {"positions": "t5", "attention_score": "additive", "norm_position": "post"},
    {"positions": "sinusoidal", "scale_embeddings": True, "window": 3},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("form", FORWARD_BY_FORM)
@pytest.mark.parametrize("kind", ["bf16", pytest.param("int8", marks=needs_int8)])
def test_every_form_answers_closely_in_lower_precision(kind: Any, form: str, variant: dict[str, Any]) -> None:
    model = MODEL_BY_FORM[form](config(**variant), SIZES).eval()
    quantized = copy.deepcopy(model)
    precision.cast_model(quantized, kind)
    with torch.inference_mode():
        actual, exact = FORWARD_BY_FORM[form](quantized).float(), FORWARD_BY_FORM[form](model)
    assert relative_error(actual, exact) < 0.06
    assert not actual.equal(exact)


def test_the_mean_of_a_long_packed_row_is_exact_in_bf16_too() -> None:
    x = torch.ones(1, 700, 4, dtype=torch.bfloat16)  # in bf16, 256 + 1 is 256
    _, layout = pack([[5] * 600, [5] * 100])
    assert layout.mean(x).equal(torch.ones(2, 4, dtype=torch.bfloat16))


# ------------------------------------------------------------------------------------------ what is chosen


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_auto_is_fp32_whatever_the_hardware_can_do(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in precision.BF16_CPU_FLAGS:
        monkeypatch.setattr(torch.cpu, flag, lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(int8, "int8_unavailable_reason", lambda: "broken")
    assert precision.resolve_precision("auto", torch.device(device), ModelConfig()) == "fp32"


def test_a_torch_that_no_longer_knows_its_bf16_units_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cpu", SimpleNamespace())
    assert not precision.has_bf16(CPU)


def test_what_cannot_be_had_is_refused_with_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown precision 'fp8'; choose from auto, fp32, bf16, int8"):
        precision.resolve_precision("fp8", CPU, ModelConfig())
    with pytest.raises(ConfigError, match="int8 is for the CPU, not for cuda; use bf16, or --device cpu"):
        precision.resolve_precision("int8", torch.device("cuda"), ModelConfig())
    monkeypatch.setattr(int8, "int8_unavailable_reason", lambda: "no such operator")
    with pytest.raises(ConfigError, match=r"not available on this machine \(no such operator\); use fp32"):
        precision.resolve_precision("int8", CPU, ModelConfig())


def test_missing_and_wrong_operators_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            raise RuntimeError("Didn't find engine for operation quantized::linear_prepack\nat somewhere")

    class Wrong(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return 1.2 * self.layer(x)

    monkeypatch.setattr(int8, "Int8Linear", Missing)
    assert int8.int8_unavailable_reason() == "Didn't find engine for operation quantized::linear_prepack"
    monkeypatch.setattr(int8, "Int8Linear", Wrong)
    assert int8.int8_unavailable_reason() == "int8 products differ by 20% from fp32"


def test_a_torch_without_the_operators_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "quantized", SimpleNamespace())
    assert "linear_prepack" in int8.int8_unavailable_reason()


def test_looking_for_trouble_leaves_random_numbers_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    int8.int8_unavailable_reason()
    assert torch.rand(2).equal(expected)
