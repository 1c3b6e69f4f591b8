"""Recurrent models write the same from carried states as when everything is read again, in any company."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from reference_beam import reference_beam_search

from triform.config import DataSizes, DecodeConfig, ModelConfig, RecurrentKind
from triform.generation.beam import StoppingCriteria
from triform.generation.recurrent import (
    AnyAdapter,
    RecurrentStepper,
    build_decoder_adapter,
    build_seq2seq_adapter,
    build_stepper,
)
from triform.generation.sampling import TokenSampler, greedy, row_seeds
from triform.generation.search import beam_search, decode_stepwise, generate
from triform.generation.stepper import BasicStepper, UncachedStepper
from triform.models.factory import build_decoder, build_seq2seq

V, EOS, BANNED = 11, 3, (0, 1, 2)
ROWS = [[4, 5, 6, 7, 8], [9], [10, 4], [5, 5, 5, 5, 5, 5, 5, 5], [6, 7, 8]]
KINDS = get_args(RecurrentKind)
ARCHITECTURES = ["decoder", "seq2seq"]
EVERY_MODEL = pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in KINDS for form in ARCHITECTURES])


def build_adapter(kind: RecurrentKind, architecture: str, **settings: Any) -> AnyAdapter:
    """In float64, with weights so large that what it writes is not one token repeated."""
    torch.manual_seed(1)
    config = ModelConfig(kind=kind, d_model=8, n_layers=2, dropout=0.0, tie_embeddings=False, **settings)
    make: Any = build_decoder if architecture == "decoder" else build_seq2seq
    model = make(config, DataSizes(vocab_size=V, max_len=8)).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter)
    return build_decoder_adapter(model, 8) if architecture == "decoder" else build_seq2seq_adapter(model, 8, 2)


def make_stopping(n_rows: int, limit: int = 30) -> StoppingCriteria:
    return StoppingCriteria(eos=EOS, limits=(limit,) * n_rows, banned=BANNED)


def test_a_recurrent_model_is_stepped_by_its_states() -> None:
    assert isinstance(build_stepper(build_adapter("gru", "decoder"), ROWS), RecurrentStepper)


@EVERY_MODEL
def test_a_step_gives_the_logits_of_reading_everything_again(kind: RecurrentKind, form: str) -> None:
    recurrent, uncached = (
        RecurrentStepper(build_adapter(kind, form), ROWS),
        UncachedStepper(build_adapter(kind, form), ROWS),
    )
    torch.testing.assert_close(recurrent.prefill(), uncached.prefill())
    for step in range(20):  # far beyond the length of a window
        tokens = (torch.arange(len(ROWS)) * 3 + step) % 7 + 4
        if step == 5:
            recurrent.select(torch.tensor([2, 0, 0, 4, 3]))
            uncached.select(torch.tensor([2, 0, 0, 4, 3]))
        torch.testing.assert_close(recurrent.step(tokens), uncached.step(tokens), rtol=1e-5, atol=1e-5)


@EVERY_MODEL
def test_what_is_written_does_not_depend_on_who_is_written_beside_it(kind: RecurrentKind, form: str) -> None:
    adapter = build_adapter(kind, form)
    batched = decode_stepwise(RecurrentStepper(adapter, ROWS), greedy, make_stopping(5))
    assert len({tuple(tokens) for tokens in batched}) > 1
    assert batched == [
        decode_stepwise(RecurrentStepper(adapter, [row]), greedy, make_stopping(1))[0] for row in ROWS
    ]
    stepper = RecurrentStepper(adapter, ROWS[:2])
    assert decode_stepwise(stepper, greedy, make_stopping(5), waiting=ROWS[2:]) == batched
    assert decode_stepwise(_untyped(UncachedStepper(adapter, ROWS)), greedy, make_stopping(5)) == batched


def _untyped(stepper: BasicStepper) -> Any:
    return stepper


@EVERY_MODEL
def test_beams_take_over_the_states_of_their_parents(kind: RecurrentKind, form: str) -> None:
    adapter = build_adapter(kind, form)
    expected = reference_beam_search(
        UncachedStepper(adapter, ROWS), make_stopping(5), beam_size=3, length_penalty=0.6
    )
    options: dict[str, Any] = {"beam_size": 3, "length_penalty": 0.6}
    assert beam_search(RecurrentStepper(adapter, ROWS), make_stopping(5), **options) == expected
    assert (
        beam_search(RecurrentStepper(adapter, ROWS[:2]), make_stopping(5), waiting=ROWS[2:], **options) == expected
    )


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("form", ARCHITECTURES)
def test_every_strategy_is_had_by_name(form: str, strategy: Any) -> None:
    adapter, seeds = (
        build_adapter("lstm", form, attention_score="additive" if form == "seq2seq" else "scaled_dot"),
        row_seeds(7, range(5)),
    )
    config = DecodeConfig(strategy=strategy, temperature=1.5, beam_size=2)
    outputs = generate(adapter, ROWS, config, make_stopping(5), default_strategy="greedy", seeds=seeds)
    if strategy == "beam":
        assert outputs == beam_search(
            RecurrentStepper(adapter, ROWS), make_stopping(5), beam_size=2, length_penalty=0.6
        )
    else:
        select_token = TokenSampler(config, seeds) if strategy == "sample" else greedy
        assert outputs == decode_stepwise(RecurrentStepper(adapter, ROWS), select_token, make_stopping(5))
