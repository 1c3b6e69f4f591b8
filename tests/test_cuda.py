"""What only a GPU can show. Skipped elsewhere; the logic itself is tested on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from triform.config import ModelConfig, Sizes
from triform.decode.choose import best
from triform.decode.search import Ending, write
from triform.decode.stepper import DecoderStepper
from triform.launch import train
from triform.models.decoder import Decoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
MODEL = {"d_model": 64, "n_layers": 2, "n_heads": 2, "dropout": 0.1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_padded_on_the_left_stay_finite_and_decode_as_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = ModelConfig(d_model=64, d_ff=128, n_layers=3, n_heads=4)
    model = Decoder(config, Sizes(vocab_size=50, max_len=64)).to("cuda", dtype).eval()
    prompts = [[5], [7, 8, 9, 10, 11, 12, 13], [20, 21, 22]]

    def continued(rows: list[list[int]]) -> list[list[int]]:
        ending = Ending(eos=3, limits=(20,) * len(rows), banned=(0, 1, 2))
        return write(DecoderStepper(model, rows, max_len=64), best, ending)

    stepper = DecoderStepper(model, prompts, max_len=64)
    assert stepper.start().isfinite().all()
    if dtype is torch.float32:
        assert continued(prompts) == [continued([prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_repeated_on_cuda_ends_with_the_same_bits(precision: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} says {n * 7919 % 9973}.\n" for n in range(20_000)), encoding="utf-8")
    settings = {"max_steps": 40, "batch_size": 8, "eval_every": 20, "checkpoint_every": 10, "precision": precision}

    def run(name: str, **more: object) -> Path:
        made = train(
            "generate", data=str(text), out=str(tmp_path / name), device="cuda", quiet=True, seed=1,
            train=settings, model=MODEL, tokenizer={"kind": "bpe"}, **{"data.max_len": 512}, **more,
        )  # fmt: skip
        return made.path

    one, other = run("one"), run("other")
    weights = [load_file(path / "model.safetensors") for path in (one, other)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_the_three_forms_train_and_answer_on_cuda(tmp_path: Path) -> None:
    for task, text in (("classify", "The soup was good."), ("generate", "The"), ("translate", "twenty-one")):
        made = train(task, out=str(tmp_path / task), device="cuda", quiet=True, train={"max_steps": 5}, model=MODEL)
        assert made.predict([text])[0].output
        assert made.evaluate()["loss"] > 0
