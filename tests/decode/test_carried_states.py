"""Recurrent models write the same from carried states as when everything is read again, in any company."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from listed_beam import listed_beam_search

from triform.config import DecodeConfig, ModelConfig, RecurrentKind, Sizes
from triform.decode.beam import Ending
from triform.decode.carried import AnyForm, Carried, decoder_form, seq2seq_form, stepper_of
from triform.decode.choose import Sample, best, row_seeds
from triform.decode.search import beam_search, run_search, write
from triform.decode.stepper import Rereading, Steps
from triform.models.kinds import make_decoder, make_seq2seq

V, EOS, BANNED = 11, 3, (0, 1, 2)
ROWS = [[4, 5, 6, 7, 8], [9], [10, 4], [5, 5, 5, 5, 5, 5, 5, 5], [6, 7, 8]]
KINDS = get_args(RecurrentKind)
FORMS = ["decoder", "seq2seq"]
EVERY = pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in KINDS for form in FORMS])


def form_of(kind: RecurrentKind, form: str, **more: Any) -> AnyForm:
    """In float64, with weights so large that what it writes is not one token repeated."""
    torch.manual_seed(1)
    config = ModelConfig(kind=kind, d_model=8, n_layers=2, dropout=0.0, tie_embeddings=False, **more)
    make: Any = make_decoder if form == "decoder" else make_seq2seq
    model = make(config, Sizes(vocab_size=V, max_len=8)).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter)
    return decoder_form(model, 8) if form == "decoder" else seq2seq_form(model, 8, 2)


def ending(n: int, limit: int = 30) -> Ending:
    return Ending(eos=EOS, limits=(limit,) * n, banned=BANNED)


def test_a_recurrent_model_is_stepped_by_its_states() -> None:
    assert isinstance(stepper_of(form_of("gru", "decoder"), ROWS), Carried)


@EVERY
def test_a_step_gives_the_scores_of_reading_everything_again(kind: RecurrentKind, form: str) -> None:
    carried, again = Carried(form_of(kind, form), ROWS), Rereading(form_of(kind, form), ROWS)
    torch.testing.assert_close(carried.start(), again.start())
    for step in range(20):  # far beyond the length of a window
        tokens = (torch.arange(len(ROWS)) * 3 + step) % 7 + 4
        if step == 5:
            carried.select(torch.tensor([2, 0, 0, 4, 3]))
            again.select(torch.tensor([2, 0, 0, 4, 3]))
        torch.testing.assert_close(carried.step(tokens), again.step(tokens), rtol=1e-5, atol=1e-5)


@EVERY
def test_what_is_written_does_not_depend_on_who_is_written_beside_it(kind: RecurrentKind, form: str) -> None:
    made = form_of(kind, form)
    together = write(Carried(made, ROWS), best, ending(5))
    assert len({tuple(text) for text in together}) > 1
    assert together == [write(Carried(made, [row]), best, ending(1))[0] for row in ROWS]
    few = Carried(made, ROWS[:2])
    assert write(few, best, ending(5), waiting=ROWS[2:]) == together
    assert write(_steps(Rereading(made, ROWS)), best, ending(5)) == together


def _steps(stepper: Steps) -> Any:
    return stepper


@EVERY
def test_beams_take_over_the_states_of_their_parents(kind: RecurrentKind, form: str) -> None:
    made = form_of(kind, form)
    expected = listed_beam_search(Rereading(made, ROWS), ending(5), size=3, length_penalty=0.6)
    how = {"size": 3, "length_penalty": 0.6}
    assert beam_search(Carried(made, ROWS), ending(5), **how) == expected
    assert beam_search(Carried(made, ROWS[:2]), ending(5), waiting=ROWS[2:], **how) == expected


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("form", FORMS)
def test_every_strategy_is_had_by_name(form: str, strategy: Any) -> None:
    made, seeds = (
        form_of("lstm", form, score="additive" if form == "seq2seq" else "scaled_dot"),
        row_seeds(7, range(5)),
    )
    how = DecodeConfig(strategy=strategy, temperature=1.5, beam_size=2)
    got = run_search(made, ROWS, how, ending(5), default="greedy", seeds=seeds)
    if strategy == "beam":
        assert got == beam_search(Carried(made, ROWS), ending(5), size=2, length_penalty=0.6)
    else:
        choose = Sample(how, seeds) if strategy == "sample" else best
        assert got == write(Carried(made, ROWS), choose, ending(5))
