"""Int8 layers stand close to the layers they replace, and a machine without the operators is told so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.errors import ConfigError
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn import precision, quantize
from triform.nn.rows import pack, pad

CPU = torch.device("cpu")
SIZES = Sizes(vocab_size=60, max_len=24, n_labels=3)
ROWS = [[5, 9, 11, 40, 8], [7, 7], [30, 31, 32, 33, 34, 35, 36, 37]]

needs_int8 = pytest.mark.skipif(bool(quantize.trouble()), reason="this machine has no int8 products")


@pytest.fixture(autouse=True)
def _float32(_float64_and_one_seed: None) -> None:
    torch.set_default_dtype(torch.float32)


def config(**more: Any) -> ModelConfig:
    return ModelConfig(**{"d_model": 48, "d_ff": 96, "n_layers": 2, "n_heads": 4, "dropout": 0.0, **more})


def relative(one: Tensor, other: Tensor) -> float:
    return ((one - other).norm() / other.norm()).item()


@needs_int8
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (2, 5, 64), (0, 64)])
def test_an_int8_layer_is_close_to_its_original(bias: bool, shape: tuple[int, ...]) -> None:
    layer, x = nn.Linear(64, 33, bias=bias), torch.randn(shape)
    made = quantize.Int8Linear(layer)(x)
    assert made.shape == (*shape[:-1], 33)
    assert made.dtype == torch.float32
    if x.numel():
        assert relative(made, layer(x)) < 0.02
        assert not made.equal(layer(x))


@needs_int8
def test_weights_come_back_within_half_a_step_of_their_own_output() -> None:
    layer = nn.Linear(40, 32)
    with torch.no_grad():
        layer.weight.mul_(torch.logspace(-4, 4, 32)[:, None])  # one scale for all would lose the small ones
        layer.weight[3] = 0.0
    step = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    off = (quantize.Int8Linear(layer).weight - layer.weight).abs()
    assert (off <= 0.5001 * step).all()
    assert quantize.Int8Linear(layer).weight[3].eq(0).all()


@needs_int8
def test_only_linear_layers_that_cost_something_are_exchanged() -> None:
    model = Classifier(config(), SIZES)
    quantize.quantize(model)
    assert isinstance(model.head, nn.Linear)  # three labels
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    assert [kind for kind in kinds.values() if kind == "Linear"] == ["Linear"]
    assert sum(kind == "Int8Linear" for kind in kinds.values()) == 2 * 5
    assert {kinds["encoder.embedding.tokens"], kinds["encoder.norm"]} == {"Embedding", "LayerNorm"}


@needs_int8
def test_a_head_that_shares_its_weights_parts_from_the_embedding_which_stays_exact() -> None:
    model = Decoder(config(tie_embeddings=True), SIZES).eval()
    before = model.embedding.tokens.weight.detach().clone()
    quantize.quantize(model)
    assert isinstance(model.head, quantize.Int8Linear)
    assert model.embedding.tokens.weight.equal(before)
    assert relative(model.head.weight, before) < 0.01


FORMS: dict[str, Callable[[nn.Module], Tensor]] = {
    "encoder": lambda model: model(*pad(ROWS)),
    "packed": lambda model: model(*pack(ROWS)),
    "decoder": lambda model: model(torch.tensor([ROWS[2]])),
    "seq2seq": lambda model: model(pad(ROWS)[0], torch.tensor([[2, 9, 8]] * 3), pad(ROWS)[1]),
}
KINDS = {"encoder": Classifier, "packed": Classifier, "decoder": Decoder, "seq2seq": Seq2Seq}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu", "n_kv_heads": 2},
    {"positions": "relative"},
    {"positions": "alibi", "score": "cosine"},
    {"positions": "t5", "score": "additive", "norm_position": "post"},
    {"positions": "sinusoidal", "scale_embeddings": True, "window": 3},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bf16", pytest.param("int8", marks=needs_int8)])
def test_every_form_answers_closely_in_lower_precision(kind: Any, form: str, variant: dict[str, Any]) -> None:
    model = KINDS[form](config(**variant), SIZES).eval()
    cheaper = copy.deepcopy(model)
    precision.cast_model(cheaper, kind)
    with torch.inference_mode():
        made, exact = FORMS[form](cheaper).float(), FORMS[form](model)
    assert relative(made, exact) < 0.06
    assert not made.equal(exact)


def test_the_mean_of_a_long_packed_row_is_exact_in_bf16_too() -> None:
    x = torch.ones(1, 700, 4, dtype=torch.bfloat16)  # in bf16, 256 + 1 is 256
    _, rows = pack([[5] * 600, [5] * 100])
    assert rows.mean(x).equal(torch.ones(2, 4, dtype=torch.bfloat16))


# ------------------------------------------------------------------------------------------ what is chosen


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_auto_is_fp32_whatever_the_hardware_can_do(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for unit in precision.BF16_UNITS:
        monkeypatch.setattr(torch.cpu, unit, lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(quantize, "trouble", lambda: "broken")
    assert precision.resolve_precision("auto", torch.device(device), ModelConfig()) == "fp32"


def test_a_torch_that_no_longer_knows_its_bf16_units_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cpu", SimpleNamespace())
    assert not precision.has_bf16(CPU)


def test_what_cannot_be_had_is_refused_with_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown precision 'fp8'; choose from auto, fp32, bf16, int8"):
        precision.resolve_precision("fp8", CPU, ModelConfig())
    with pytest.raises(ConfigError, match="int8 is for the CPU, not for cuda; use bf16, or --device cpu"):
        precision.resolve_precision("int8", torch.device("cuda"), ModelConfig())
    monkeypatch.setattr(quantize, "trouble", lambda: "no such operator")
    with pytest.raises(ConfigError, match=r"not available on this machine \(no such operator\); use fp32"):
        precision.resolve_precision("int8", CPU, ModelConfig())


def test_missing_and_wrong_operators_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            raise RuntimeError("Didn't find engine for operation quantized::linear_prepack\nat somewhere")

    class Wrong(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return 1.2 * self.layer(x)

    monkeypatch.setattr(quantize, "Int8Linear", Gone)
    assert quantize.trouble() == "Didn't find engine for operation quantized::linear_prepack"
    monkeypatch.setattr(quantize, "Int8Linear", Wrong)
    assert quantize.trouble() == "its int8 products are off by 20%"


def test_a_torch_without_the_operators_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "quantized", SimpleNamespace())
    assert "linear_prepack" in quantize.trouble()


def test_looking_for_trouble_leaves_random_numbers_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    quantize.trouble()
    assert torch.rand(2).equal(expected)
