"""Recurrent models generate the same tokens from their states as when everything is read again, in any batch."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from reference_decoding import ModelStepper
from test_decoding import decode, decode_reference

from triform.config import DataSizes, DecodeConfig, ModelConfig, RecurrentKind
from triform.generation import scheduler
from triform.generation.adapters import GenerationAdapter
from triform.generation.recurrent import RecurrentStepper
from triform.generation.scheduler import build_decoder_adapter, build_seq2seq_adapter
from triform.models.factory import build_decoder, build_seq2seq

V = 11
ROWS = [[4, 5, 6, 7, 8], [9], [10, 4], [5, 5, 5, 5, 5, 5, 5, 5], [6, 7, 8]]
KINDS = get_args(RecurrentKind)
ARCHITECTURES = ["decoder", "seq2seq"]
EVERY_MODEL = pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in KINDS for form in ARCHITECTURES])


def build_adapter(kind: RecurrentKind, architecture: str, **settings: Any) -> GenerationAdapter:
    """A model in float64, with weights so large that it does not repeat one token."""
    torch.manual_seed(1)
    config = ModelConfig(kind=kind, d_model=8, n_layers=2, dropout=0.0, tie_embeddings=False, **settings)
    make: Any = build_decoder if architecture == "decoder" else build_seq2seq
    model = make(config, DataSizes(vocab_size=V, max_len=8)).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter)
    return build_decoder_adapter(model, 8) if architecture == "decoder" else build_seq2seq_adapter(model, 8, 2)


def test_a_recurrent_model_is_stepped_by_its_states() -> None:
    assert isinstance(build_adapter("gru", "decoder").build_stepper(), RecurrentStepper)


@EVERY_MODEL
def test_a_step_gives_the_logits_of_reading_everything_again(kind: RecurrentKind, form: str) -> None:
    adapter = build_adapter(kind, form)
    stepper, uncached = adapter.build_stepper(), ModelStepper(adapter, ROWS)
    torch.testing.assert_close(stepper.append_rows(ROWS), uncached.logits())
    for step in range(20):  # far beyond the length of a window
        tokens = (torch.arange(len(ROWS)) * 3 + step) % 7 + 4
        if step == 5:
            stepper.select(torch.tensor([2, 0, 0, 4, 3]))
            uncached.select([2, 0, 0, 4, 3])
        uncached.append(tokens.tolist())
        logits = stepper.step(tokens[:, None])[:, 0]
        torch.testing.assert_close(logits, uncached.logits(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@EVERY_MODEL
def test_what_is_generated_does_not_depend_on_the_rest_of_the_batch(
    kind: RecurrentKind, form: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = build_adapter(kind, form)
    expected = decode_reference(adapter, ROWS, strategy, limits=30)
    assert len({tuple(tokens) for tokens in expected}) > 1
    assert decode(adapter, ROWS, strategy, limits=30) == expected
    monkeypatch.setattr(scheduler, "MAX_EAGER_HYPOTHESES", 6 if strategy == "beam" else 2)
    assert decode(adapter, ROWS, strategy, limits=30) == expected


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_a_state_that_attends_to_its_source_by_an_additive_score_is_decoded_too(strategy: str) -> None:
    adapter, config = build_adapter("lstm", "seq2seq", attention_score="additive"), DecodeConfig(temperature=1.5)
    expected = decode_reference(adapter, ROWS, strategy, config=config)
    assert decode(adapter, ROWS, strategy, config=config) == expected
