"""Rows that come and go, and steps that are replayed, change no token: every way equals one text by itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from reference_beam import reference_beam_search
from test_decoding import (
    ARCHITECTURES,
    BANNED,
    EOS,
    MAX_LEN,
    PROMPTS,
    STRATEGIES,
    STYLES,
    ScriptedStepper,
    build_adapter,
    random_logits,
)

from triform.config import DecodeConfig
from triform.generation import graph_decoder, search, slots
from triform.generation.adapters import GenerationAdapter
from triform.generation.beam import StoppingCriteria
from triform.generation.graph_decoder import graph_decode
from triform.generation.sampling import TokenSampler, fast_topk, greedy, row_seeds, sample_from_uniform
from triform.generation.search import beam_search, decode_stepwise, generate
from triform.generation.stepper import CachedStepper, UncachedStepper

ROWS = [*PROMPTS, [7], [8, 9, 10, 4, 5, 6], [4, 4], list(range(4, 11)) * 3, [10, 9, 8], [5, 6], [7, 7, 7, 7]]
LIMITS = (9, 25, 3, 31, 14, 30, 6, 1, 20, 12, 28, 17)
STOPPING = StoppingCriteria(eos=EOS, limits=LIMITS, banned=BANNED)
CONFIG = DecodeConfig(temperature=1.5, top_k=6, top_p=0.95, beam_size=3)
SEEDS = row_seeds(3, range(len(ROWS)))


def decode_one_by_one(adapter: GenerationAdapter, strategy: str) -> list[list[int]]:
    """Every text alone, everything read again at every step."""
    outputs = []
    for row, limit, seed in zip(ROWS, LIMITS, SEEDS, strict=True):
        stopping = StoppingCriteria(eos=EOS, limits=(limit,), banned=BANNED)
        stepper = UncachedStepper(adapter, [row])
        if strategy == "beam":
            outputs += reference_beam_search(stepper, stopping, beam_size=3, length_penalty=CONFIG.length_penalty)
        else:
            outputs += decode_stepwise(
                stepper, TokenSampler(CONFIG, [seed]) if strategy == "sample" else greedy, stopping
            )
    return outputs


def decode_with_refills(
    adapter: GenerationAdapter, strategy: str, patch: pytest.MonkeyPatch, max_rows: int
) -> list[list[int]]:
    patch.setattr(search, "MAX_BATCH", max_rows * (3 if strategy == "beam" else 1))
    return generate(
        adapter,
        ROWS,
        DecodeConfig(**(vars(CONFIG) | {"strategy": strategy})),
        STOPPING,
        default_strategy="",
        seeds=SEEDS,
    )


def decode_with_graph(
    adapter: GenerationAdapter, strategy: str, patch: pytest.MonkeyPatch, max_rows: int
) -> list[list[int]]:
    patch.setattr(graph_decoder, "MAX_HYPOTHESES", max_rows * (3 if strategy == "beam" else 1))
    patch.setattr(graph_decoder, "MAX_PREFILL_TOKENS", 40)
    return graph_decode(adapter, ROWS, CONFIG, STOPPING, strategy=strategy, seeds=SEEDS)


def test_as_many_rows_are_written_at_once_as_a_tenth_of_the_memory_holds() -> None:
    unlimited = float("inf")
    assert [graph_decoder.max_slots(size, 1, unlimited) for size in (1, 5, 1000)] == [512, 128, 1]
    assert graph_decoder.max_slots(5, 1_000, 10 * 64_000) == 64
    assert graph_decoder.max_slots(5, 1_000, 10 * 63_999) == 32
    assert graph_decoder.max_slots(5, 1_000, 10) == 1  # one row is always tried


@pytest.mark.parametrize("max_rows", [1, 2, 4, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_that_join_later_write_what_they_write_alone(
    architecture: str, strategy: str, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decode_one_by_one(build_adapter(architecture), strategy)
    assert len({tuple(tokens) for tokens in expected}) > 5  # there is something to compare
    assert decode_with_refills(build_adapter(architecture), strategy, monkeypatch, max_rows) == expected
    assert decode_with_graph(build_adapter(architecture), strategy, monkeypatch, max_rows) == expected


@pytest.mark.parametrize("model_settings", STYLES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_in_every_variant_rows_that_join_later_write_what_they_write_alone(
    architecture: str, strategy: str, model_settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = build_adapter(architecture, 4, **model_settings)
    expected = decode_one_by_one(adapter, strategy)
    assert decode_with_refills(adapter, strategy, monkeypatch, 3) == expected
    assert decode_with_graph(adapter, strategy, monkeypatch, 4) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_order_of_the_rows_does_not_matter(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = build_adapter("decoder", 1)
    order = [7, 3, 11, 0, 5, 9, 1, 10, 2, 8, 4, 6]
    stopping = StoppingCriteria(eos=EOS, limits=tuple(LIMITS[row] for row in order), banned=BANNED)
    rows, seeds = [ROWS[row] for row in order], [SEEDS[row] for row in order]
    reordered = graph_decode(adapter, rows, CONFIG, stopping, strategy=strategy, seeds=seeds)
    in_order = decode_with_graph(adapter, strategy, monkeypatch, 2)
    assert reordered == [in_order[row] for row in order]


def test_the_batch_is_kept_full_while_rows_wait() -> None:
    """One row in four writes eight tokens, the others one; who is done leaves at once and another comes."""

    def logits(row: int, written: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([1.0, 0.0] if len(written) == (1 if row % 4 else 8) else [0.0, 1.0])

    waiting, stopping = [[row] for row in range(4, 12)], StoppingCriteria(eos=0, limits=(9,) * 12)
    stepwise, beam = ScriptedStepper(4, logits), ScriptedStepper(4, logits)
    expected = [[1] * (1 if row % 4 else 8) for row in range(12)]
    assert decode_stepwise(stepwise, greedy, stopping, waiting) == expected
    assert beam_search(beam, stopping, beam_size=1, length_penalty=0.6, waiting=waiting) == expected
    for stepper in (stepwise, beam):
        assert sum(stepper.batch_sizes) == 33  # one for each token: nobody stays who is done
        assert len(stepper.batch_sizes) < 16  # 24 if those that wait came only when all are done


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_beam_search_equals_the_reference(size: int) -> None:
    for seed in range(40):
        vocab_size, limit, alpha = 2 + seed % 6, 1 + seed % 7, (0.0, 0.6, 1.0, 2.0)[seed % 4]
        logits_fn, stopping = (
            random_logits(seed, vocab_size),
            StoppingCriteria(
                eos=1, limits=(limit, 3, limit), banned=(vocab_size - 1,) * (seed % 2 and vocab_size > 2)
            ),
        )
        options: dict[str, Any] = {"beam_size": size, "length_penalty": alpha}
        assert beam_search(ScriptedStepper(3, logits_fn), stopping, **options) == reference_beam_search(
            ScriptedStepper(3, logits_fn), stopping, **options
        )


def test_slots_are_used_again_by_the_next_call_and_made_anew_when_weights_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created = []
    original_init = slots.DecodeSlots.__init__

    def counting_init(self: slots.DecodeSlots, *args: Any) -> None:
        created.append(1)
        original_init(self, *args)

    monkeypatch.setattr(slots.DecodeSlots, "__init__", counting_init)
    adapter = build_adapter("decoder", 2)
    first = decode_with_graph(adapter, "beam", monkeypatch, 4)
    assert decode_with_graph(adapter, "beam", monkeypatch, 4) == first
    assert len(created) == 1
    decode_with_graph(adapter, "greedy", monkeypatch, 4)
    assert len(created) == 2
    adapter.model.load_state_dict(
        build_adapter("decoder", 3).model.state_dict()
    )  # in place: the same slots will do
    assert decode_with_graph(adapter, "beam", monkeypatch, 4) == decode_one_by_one(adapter, "beam")
    assert len(created) == 2
    adapter.model.float()
    decode_with_graph(adapter, "beam", monkeypatch, 4)
    assert len(created) == 3


def test_slots_that_were_interrupted_serve_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = build_adapter("decoder", 2)
    expected = decode_with_graph(adapter, "greedy", monkeypatch, 4)
    original_step, calls = slots.DecodeSlots._step, []

    def interrupted(self: slots.DecodeSlots, adapter: GenerationAdapter) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        original_step(self, adapter)

    with monkeypatch.context() as patch:
        patch.setattr(slots.DecodeSlots, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decode_with_graph(adapter, "greedy", patch, 4)
    assert decode_with_graph(adapter, "greedy", monkeypatch, 4) == expected


def test_slots_do_not_keep_a_model_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    graph_decoder._SLOTS_BY_MODEL.clear()
    adapter = build_adapter("seq2seq", 2)
    decode_with_graph(adapter, "sample", monkeypatch, 4)
    assert len(graph_decoder._SLOTS_BY_MODEL) == 1
    del adapter
    assert len(graph_decoder._SLOTS_BY_MODEL) == 0


def test_a_step_that_cannot_be_recorded_is_taken_step_by_step_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stand-in for a device that records nothing: everything up to the graph works."""
    adapter = build_adapter("decoder", 2)
    expected = decode_with_graph(adapter, "greedy", monkeypatch, 4)
    graph_decoder._SLOTS_BY_MODEL.clear()

    def refuse() -> None:
        raise RuntimeError("operation not permitted\nmore")

    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(slots, "_supports_cuda_graphs", lambda device: True)
    with caplog.at_level(logging.WARNING, logger="triform"):
        assert decode_with_graph(adapter, "greedy", monkeypatch, 4) == expected
    message = "decoding step by step, since a graph could not be recorded: operation not permitted"
    assert [record.message for record in caplog.records] == [message]


def test_fast_topk_equals_topk() -> None:
    torch.manual_seed(0)
    for vocab_size, k in ((64 * 40 + 17, 10), (8192, 5), (300, 7), (64 * 4, 1), (10_001, 39)):
        logits = torch.randn(3, vocab_size)
        values, indices = fast_topk(logits, k)
        assert torch.equal(values, logits.topk(k).values)
        assert torch.equal(logits.gather(1, indices), values)
        assert torch.equal(indices, logits.topk(k).indices)


def test_ties_at_the_kth_place_are_all_kept() -> None:
    logits = torch.zeros(1, 4096)
    logits[0, 7] = 1.0
    uniforms = torch.linspace(0, 0.999, 200, dtype=torch.float64)[:, None]
    tokens = sample_from_uniform(logits.expand(200, -1), uniforms, DecodeConfig(top_k=3, temperature=1.0))
    assert len(set(tokens.tolist())) > 100


def test_numbers_drawn_ahead_are_those_drawn_one_by_one() -> None:
    batched_sampler, single_sampler = TokenSampler(CONFIG, [5]), TokenSampler(CONFIG, [5])
    assert batched_sampler.draw_uniforms(0, 33).tolist() == [
        single_sampler.draw_uniforms(0).item() for _ in range(33)
    ]


def test_a_full_context_is_gone_beyond_by_replay_too() -> None:
    adapter = build_adapter("decoder", 5)
    adapter.model.lm_head.bias.data[EOS] = -50.0  # never ends by itself
    for strategy in STRATEGIES:
        outputs = graph_decode(adapter, ROWS, CONFIG, STOPPING, strategy=strategy, seeds=SEEDS)
        assert outputs == decode_one_by_one(adapter, strategy)
        assert max(map(len, outputs)) > 2 * MAX_LEN


def test_a_cached_stepper_goes_on_after_everyone_left() -> None:
    adapter = build_adapter("seq2seq", 1)
    stepper = CachedStepper(adapter, ROWS[:2])
    stepper.prefill()
    stepper.select(torch.tensor([], dtype=torch.long))
    torch.testing.assert_close(stepper.append_rows(ROWS[3:4]), CachedStepper(adapter, ROWS[3:4]).prefill())
