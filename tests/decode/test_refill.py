"""Rows that come and go, and steps that are replayed, change no token: every way equals one text by itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from listed_beam import listed_beam_search
from test_decoding import BANNED, EOS, FORMS, MAX_LEN, PROMPTS, STRATEGIES, STYLES, Scripted, form_of, random_scores

from triform.config import DecodeConfig
from triform.decode import replay as replaying
from triform.decode import search, slots
from triform.decode.beam import Ending
from triform.decode.choose import Sample, best, drawn, leading, row_seeds
from triform.decode.forms import Form
from triform.decode.replay import replay
from triform.decode.search import beam_search, run_search, write
from triform.decode.stepper import Cached, Rereading

ROWS = [*PROMPTS, [7], [8, 9, 10, 4, 5, 6], [4, 4], list(range(4, 11)) * 3, [10, 9, 8], [5, 6], [7, 7, 7, 7]]
LIMITS = (9, 25, 3, 31, 14, 30, 6, 1, 20, 12, 28, 17)
ENDING = Ending(eos=EOS, limits=LIMITS, banned=BANNED)
CONFIG = DecodeConfig(temperature=1.5, top_k=6, top_p=0.95, beam_size=3)
SEEDS = row_seeds(3, range(len(ROWS)))


def one_by_one(form: Form, strategy: str) -> list[list[int]]:
    """Every text alone, everything read again at every step."""
    found = []
    for row, limit, seed in zip(ROWS, LIMITS, SEEDS, strict=True):
        ending = Ending(eos=EOS, limits=(limit,), banned=BANNED)
        stepper = Rereading(form, [row])
        if strategy == "beam":
            found += listed_beam_search(stepper, ending, size=3, length_penalty=CONFIG.length_penalty)
        else:
            found += write(stepper, Sample(CONFIG, [seed]) if strategy == "sample" else best, ending)
    return found


def refilled(form: Form, strategy: str, patch: pytest.MonkeyPatch, at_once: int) -> list[list[int]]:
    patch.setattr(search, "AT_ONCE", at_once * (3 if strategy == "beam" else 1))
    return run_search(
        form, ROWS, DecodeConfig(**(vars(CONFIG) | {"strategy": strategy})), ENDING, default="", seeds=SEEDS
    )


def replayed(form: Form, strategy: str, patch: pytest.MonkeyPatch, at_once: int) -> list[list[int]]:
    patch.setattr(replaying, "MOST_ROWS", at_once * (3 if strategy == "beam" else 1))
    patch.setattr(replaying, "READ_AT_ONCE", 40)
    return replay(form, ROWS, CONFIG, ENDING, strategy=strategy, seeds=SEEDS)


def test_as_many_rows_are_written_at_once_as_a_tenth_of_the_memory_holds() -> None:
    plenty = float("inf")
    assert [replaying.most_rows(size, 1, plenty) for size in (1, 5, 1000)] == [512, 128, 1]
    assert replaying.most_rows(5, 1_000, 10 * 64_000) == 64
    assert replaying.most_rows(5, 1_000, 10 * 63_999) == 32
    assert replaying.most_rows(5, 1_000, 10) == 1  # one row is always tried


@pytest.mark.parametrize("at_once", [1, 2, 4, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
def test_rows_that_join_later_write_what_they_write_alone(
    form: str, strategy: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = one_by_one(form_of(form), strategy)
    assert len({tuple(tokens) for tokens in alone}) > 5  # there is something to compare
    assert refilled(form_of(form), strategy, monkeypatch, at_once) == alone
    assert replayed(form_of(form), strategy, monkeypatch, at_once) == alone


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
def test_in_every_variant_rows_that_join_later_write_what_they_write_alone(
    form: str, strategy: str, style: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = form_of(form, 4, **style)
    alone = one_by_one(made, strategy)
    assert refilled(made, strategy, monkeypatch, 3) == alone
    assert replayed(made, strategy, monkeypatch, 4) == alone


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_order_of_the_rows_does_not_matter(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = form_of("decoder", 1)
    order = [7, 3, 11, 0, 5, 9, 1, 10, 2, 8, 4, 6]
    ending = Ending(eos=EOS, limits=tuple(LIMITS[row] for row in order), banned=BANNED)
    rows, seeds = [ROWS[row] for row in order], [SEEDS[row] for row in order]
    turned = replay(form, rows, CONFIG, ending, strategy=strategy, seeds=seeds)
    straight = replayed(form, strategy, monkeypatch, 2)
    assert turned == [straight[row] for row in order]


def test_the_batch_is_kept_full_while_rows_wait() -> None:
    """One row in four writes eight tokens, the others one; who is done leaves at once and another comes."""

    def scores(row: int, written: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([1.0, 0.0] if len(written) == (1 if row % 4 else 8) else [0.0, 1.0])

    waiting, ending = [[row] for row in range(4, 12)], Ending(eos=0, limits=(9,) * 12)
    plain, beam = Scripted(4, scores), Scripted(4, scores)
    wanted = [[1] * (1 if row % 4 else 8) for row in range(12)]
    assert write(plain, best, ending, waiting) == wanted
    assert beam_search(beam, ending, size=1, length_penalty=0.6, waiting=waiting) == wanted
    for stepper in (plain, beam):
        assert sum(stepper.sizes) == 33  # one for each token: nobody stays who is done
        assert len(stepper.sizes) < 16  # 24 if those that wait came only when all are done


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_beam_search_is_the_listed_one(size: int) -> None:
    for seed in range(40):
        n_tokens, limit, alpha = 2 + seed % 6, 1 + seed % 7, (0.0, 0.6, 1.0, 2.0)[seed % 4]
        scores, ending = (
            random_scores(seed, n_tokens),
            Ending(eos=1, limits=(limit, 3, limit), banned=(n_tokens - 1,) * (seed % 2 and n_tokens > 2)),
        )
        how: dict[str, Any] = {"size": size, "length_penalty": alpha}
        assert beam_search(Scripted(3, scores), ending, **how) == listed_beam_search(
            Scripted(3, scores), ending, **how
        )


def test_slots_are_used_again_by_the_next_call_and_made_anew_when_weights_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    before = slots.Slots.__init__

    def counted(self: slots.Slots, *args: Any) -> None:
        made.append(1)
        before(self, *args)

    monkeypatch.setattr(slots.Slots, "__init__", counted)
    form = form_of("decoder", 2)
    first = replayed(form, "beam", monkeypatch, 4)
    assert replayed(form, "beam", monkeypatch, 4) == first
    assert len(made) == 1
    replayed(form, "greedy", monkeypatch, 4)
    assert len(made) == 2
    form.model.load_state_dict(form_of("decoder", 3).model.state_dict())  # in place: the same slots will do
    assert replayed(form, "beam", monkeypatch, 4) == one_by_one(form, "beam")
    assert len(made) == 2
    form.model.float()
    replayed(form, "beam", monkeypatch, 4)
    assert len(made) == 3


def test_slots_that_were_interrupted_serve_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    form = form_of("decoder", 2)
    wanted = replayed(form, "greedy", monkeypatch, 4)
    take, taken = slots.Slots._take, []

    def interrupted(self: slots.Slots, form: Form) -> None:
        taken.append(1)
        if len(taken) == 4:
            raise KeyboardInterrupt
        take(self, form)

    with monkeypatch.context() as patch:
        patch.setattr(slots.Slots, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            replayed(form, "greedy", patch, 4)
    assert replayed(form, "greedy", monkeypatch, 4) == wanted


def test_slots_do_not_keep_a_model_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    replaying._KEPT.clear()
    form = form_of("seq2seq", 2)
    replayed(form, "sample", monkeypatch, 4)
    assert len(replaying._KEPT) == 1
    del form
    assert len(replaying._KEPT) == 0


def test_a_step_that_cannot_be_recorded_is_taken_step_by_step_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stand-in for a device that records nothing: everything up to the graph works."""
    form = form_of("decoder", 2)
    wanted = replayed(form, "greedy", monkeypatch, 4)
    replaying._KEPT.clear()

    def refuse() -> None:
        raise RuntimeError("operation not permitted\nmore")

    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(slots, "_records", lambda device: True)
    with caplog.at_level(logging.WARNING, logger="triform"):
        assert replayed(form, "greedy", monkeypatch, 4) == wanted
    said = "decoding step by step, since a graph could not be recorded: operation not permitted"
    assert [record.message for record in caplog.records] == [said]


def test_the_leading_ones_are_those_of_topk() -> None:
    torch.manual_seed(0)
    for v, k in ((64 * 40 + 17, 10), (8192, 5), (300, 7), (64 * 4, 1), (10_001, 39)):
        scores = torch.randn(3, v)
        values, places = leading(scores, k)
        assert torch.equal(values, scores.topk(k).values)
        assert torch.equal(scores.gather(1, places), values)
        assert torch.equal(places, scores.topk(k).indices)


def test_ties_at_the_kth_place_are_all_kept() -> None:
    scores = torch.zeros(1, 4096)
    scores[0, 7] = 1.0
    points = torch.linspace(0, 0.999, 200, dtype=torch.float64)[:, None]
    tokens = drawn(scores.expand(200, -1), points, DecodeConfig(top_k=3, temperature=1.0))
    assert len(set(tokens.tolist())) > 100


def test_numbers_drawn_ahead_are_those_drawn_one_by_one() -> None:
    ahead, single = Sample(CONFIG, [5]), Sample(CONFIG, [5])
    assert ahead.points(0, 33).tolist() == [single.points(0).item() for _ in range(33)]


def test_a_full_context_is_gone_beyond_by_replay_too() -> None:
    form = form_of("decoder", 5)
    form.model.head.bias.data[EOS] = -50.0  # never ends by itself
    for strategy in STRATEGIES:
        found = replay(form, ROWS, CONFIG, ENDING, strategy=strategy, seeds=SEEDS)
        assert found == one_by_one(form, strategy)
        assert max(map(len, found)) > 2 * MAX_LEN


def test_a_cached_stepper_goes_on_after_everyone_left() -> None:
    form = form_of("seq2seq", 1)
    stepper = Cached(form, ROWS[:2])
    stepper.start()
    stepper.select(torch.tensor([], dtype=torch.long))
    torch.testing.assert_close(stepper.join(ROWS[3:4]), Cached(form, ROWS[3:4]).start())
