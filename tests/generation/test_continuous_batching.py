"""Rows that come and go, and steps that are replayed, change no token: every way equals one text by itself."""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from reference_decoding import ModelStepper, reference_beam_search, sample_tokens
from test_decoding import (
    ARCHITECTURES,
    BANNED,
    EOS,
    MAX_LEN,
    PROMPTS,
    STRATEGIES,
    STYLES,
    LogitsFn,
    ScriptedAdapter,
    build_adapter,
    decode,
    decode_reference,
    random_logits,
    tiny_model,
)
from torch import Tensor

from triform.config import DecodeConfig
from triform.generation import graph, scheduler, slots
from triform.generation.adapters import DecoderAdapter, Seq2SeqAdapter, TransformerAdapter
from triform.generation.backend import Request, SampledRow, TokenConstraints
from triform.generation.beam import BeamSettings
from triform.generation.graph import GraphBackend, SlotsPool
from triform.generation.sampling import fast_topk
from triform.generation.scheduler import Scheduler, generate, row_seeds
from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq

ROWS = [*PROMPTS, [7], [8, 9, 10, 4, 5, 6], [4, 4], list(range(4, 11)) * 3, [10, 9, 8], [5, 6], [7, 7, 7, 7]]
LIMITS = (9, 25, 3, 31, 14, 30, 6, 1, 20, 12, 28, 17)
CONSTRAINTS = TokenConstraints(eos=EOS, banned=BANNED)
CONFIG = DecodeConfig(temperature=1.5, top_k=6, top_p=0.95, beam_size=3)
SEEDS = row_seeds(3, range(len(ROWS)))
REQUESTS = [Request(*fields) for fields in zip(ROWS, LIMITS, SEEDS, strict=True)]
BEAM = BeamSettings(CONFIG.beam_size, CONFIG.length_penalty)


def requests_of(strategy: str, n_rows: int = len(ROWS)) -> list[Request]:
    settings = replace(CONFIG, strategy=strategy)
    return [replace(request, decode=settings) for request in REQUESTS[:n_rows]]


def options_of(n_rows: int) -> dict[str, Any]:
    return {"limits": LIMITS[:n_rows], "seeds": SEEDS[:n_rows], "config": CONFIG}


def beam_of(strategy: str) -> BeamSettings | None:
    return BEAM if strategy == "beam" else None


def decode_one_by_one(adapter: TransformerAdapter, strategy: str, n_rows: int = len(ROWS)) -> list[list[int]]:
    """Every text alone, the model run over the whole text at every step."""
    return decode_reference(adapter, ROWS[:n_rows], strategy, **options_of(n_rows))


@cache
def expected_tokens(architecture: str, seed: int, strategy: str) -> list[list[int]]:
    """What the model with this seed generates for every text alone; several tests compare with it."""
    return decode_one_by_one(build_adapter(architecture, seed), strategy)


def decode_with_refills(
    adapter: TransformerAdapter,
    strategy: str,
    patch: pytest.MonkeyPatch,
    max_rows: int,
    n_rows: int = len(ROWS),
) -> list[list[int]]:
    patch.setattr(scheduler, "MAX_EAGER_HYPOTHESES", max_rows * (3 if strategy == "beam" else 1))
    return generate(adapter, requests_of(strategy, n_rows), CONSTRAINTS)


def decode_with_graph(
    adapter: TransformerAdapter,
    strategy: str,
    patch: pytest.MonkeyPatch,
    max_rows: int,
    n_rows: int = len(ROWS),
) -> list[list[int]]:
    patch.setattr(graph, "MAX_GRAPH_HYPOTHESES", max_rows * (3 if strategy == "beam" else 1))
    patch.setattr(graph, "MAX_PREFILL_TOKENS", 40)
    return decode(adapter, ROWS[:n_rows], strategy, use_cuda_graphs=True, **options_of(n_rows))


def test_as_many_rows_are_decoded_at_once_as_a_tenth_of_the_memory_holds() -> None:
    unlimited = float("inf")
    assert [graph.max_slots(size, 1, unlimited) for size in (1, 5, 1000)] == [512, 128, 1]
    assert graph.max_slots(5, 1_000, 10 * 64_000) == 64
    assert graph.max_slots(5, 1_000, 10 * 63_999) == 32
    assert graph.max_slots(5, 1_000, 10) == 1  # one row is always tried


@pytest.mark.parametrize("max_rows", [1, 2, 4, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_that_join_later_generate_what_they_generate_alone(
    architecture: str, strategy: str, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_tokens(architecture, 0, strategy)
    assert len({tuple(tokens) for tokens in expected}) > 5  # there is something to compare
    assert decode_with_refills(build_adapter(architecture), strategy, monkeypatch, max_rows) == expected
    assert decode_with_graph(build_adapter(architecture), strategy, monkeypatch, max_rows) == expected


# Every pair of a variant, a strategy and an architecture.
VARIANT_CASES = [
    (tuple(ARCHITECTURES)[(index + number) % 2], strategy, model_settings)
    for index, model_settings in enumerate(STYLES)
    for number, strategy in enumerate(STRATEGIES)
]


@pytest.mark.parametrize(("architecture", "strategy", "model_settings"), VARIANT_CASES)
def test_in_every_variant_rows_that_join_later_generate_what_they_generate_alone(
    architecture: str, strategy: str, model_settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, n_rows = build_adapter(architecture, 4, **model_settings), 4
    expected = decode_one_by_one(adapter, strategy, n_rows)
    assert decode_with_refills(adapter, strategy, monkeypatch, 2, n_rows) == expected
    assert decode_with_graph(adapter, strategy, monkeypatch, 3, n_rows) == expected


@pytest.mark.parametrize("use_cuda_graphs", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_order_of_the_rows_does_not_matter(
    strategy: str, use_cuda_graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = build_adapter("decoder", 1)
    order = [7, 3, 11, 0, 5, 9, 1, 10, 2, 8, 4, 6]
    rows, limits, seeds = ([values[row] for row in order] for values in (ROWS, LIMITS, SEEDS))
    reordered = decode(
        adapter, rows, strategy, limits=limits, seeds=seeds, config=CONFIG, use_cuda_graphs=use_cuda_graphs
    )
    in_order = decode_with_graph(adapter, strategy, monkeypatch, 2)
    assert reordered == [in_order[row] for row in order]


def first_tokens_of_every_fourth_row(row: int, written: tuple[int, ...]) -> Tensor:
    """One row in four generates eight tokens, the others one."""
    return torch.tensor([1.0, 0.0] if len(written) == (1 if row % 4 else 8) else [0.0, 1.0])


@pytest.mark.parametrize(("strategy", "config"), [("greedy", CONFIG), ("beam", DecodeConfig(beam_size=1))])
def test_the_batch_is_kept_full_while_rows_wait(
    strategy: str, config: DecodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is done leaves at once, and another takes its place."""
    monkeypatch.setattr(scheduler, "MAX_EAGER_HYPOTHESES", 4)
    adapter = ScriptedAdapter(first_tokens_of_every_fourth_row)
    outputs = adapter.decode(12, strategy, limits=9, config=config, constraints=TokenConstraints(eos=0))
    assert outputs == [[1] * (1 if row % 4 else 8) for row in range(12)]
    assert sum(adapter.batch_sizes) == 33  # one for each token: no row stays after its end
    assert len(adapter.batch_sizes) < 16  # 24 if those that wait came only when all are done


# -- requests that arrive while others are decoded


@pytest.mark.parametrize("use_cuda_graphs", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_requests_that_arrive_between_steps_get_what_they_get_alone(
    architecture: str, strategy: str, use_cuda_graphs: bool
) -> None:
    adapter = build_adapter(architecture, 1)
    outputs: dict[int, list[int]] = {}
    arriving = requests = requests_of(strategy)
    with Scheduler(adapter, CONSTRAINTS, beam_of(strategy), use_cuda_graphs=use_cuda_graphs) as server:
        while arriving or server.n_unfinished:
            for request in arriving[:1]:
                server.submit(request)
            arriving = arriving[1:]
            outputs |= server.step()
        assert server.step() == {}  # nothing is left to do
        late = server.submit(requests[3]).id
        while server.n_unfinished:
            outputs |= server.step()
    expected = expected_tokens(architecture, 1, strategy)
    assert [outputs[row] for row in range(len(ROWS))] == expected
    assert outputs[late] == expected[3]


def test_a_request_joins_as_soon_as_there_is_room() -> None:
    adapter = ScriptedAdapter(first_tokens_of_every_fourth_row)
    with Scheduler(adapter, TokenConstraints(eos=0)) as server:
        server.submit(Request([0], 9))
        for _ in range(3):
            assert server.step() == {}
        short = server.submit(Request([1], 9)).id
        assert server.step() == {}
        assert server.step() == {short: [1]}
        assert server.n_unfinished == 1


def test_slots_grow_for_a_request_that_does_not_fit() -> None:
    adapter = build_adapter("seq2seq", 1)
    adapter.model.lm_head.bias.data[EOS] = -50.0  # never ends by itself
    with Scheduler(adapter, CONSTRAINTS, max_rows=2, use_cuda_graphs=True) as server:
        backend = server.backend
        assert isinstance(backend, GraphBackend)
        first = server.submit(Request(ROWS[0], 30)).id
        outputs = server.step()
        assert backend.slots is not None
        assert backend.slots.shape == (2, 1, 64, 16)
        long_source = [4, 5, 6, 7] * 5
        second = server.submit(Request(long_source, 30)).id
        outputs |= server.step()
        assert backend.rows[1] is not None  # the second did not wait for the first
        while server.n_unfinished:
            outputs |= server.step()
        assert backend.slots.shape == (2, 1, 64, 32)
    assert outputs[first] == decode(adapter, [ROWS[0]], limits=30)[0]
    assert outputs[second] == decode(adapter, [long_source], limits=30)[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_that_move_to_larger_slots_generate_what_they_generate_alone(
    architecture: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "STEPS_PER_SYNC", 5)
    monkeypatch.setattr(graph, "STEPS_PER_SYNC", 5)
    monkeypatch.setattr(graph, "POOL", SlotsPool())
    model = tiny_model(Decoder if architecture == "decoder" else Seq2Seq, 5, 300)
    model.lm_head.bias.data[EOS] = -50.0  # never ends by itself
    adapter: Any = DecoderAdapter(model, 300) if architecture == "decoder" else Seq2SeqAdapter(model, 300, bos=2)
    settings = replace(CONFIG, strategy=strategy)
    requests = [
        Request(tokens, limit, row, settings)
        for row, (tokens, limit) in enumerate([(ROWS[0], 40), (ROWS[1], 33), (ROWS[5] * 5, 90), (ROWS[3], 140)])
    ]
    outputs: dict[int, list[int]] = {}
    with Scheduler(adapter, CONSTRAINTS, beam_of(strategy), max_rows=4, use_cuda_graphs=True) as server:
        shapes = []
        for request in requests:
            server.submit(request)
            outputs |= server.step()
            shapes.append(server.backend.slots.shape.cache_len)
        while server.n_unfinished:
            outputs |= server.step()
    assert shapes == [64, 64, 128, 256]
    options: dict[str, Any] = {"limits": [40, 33, 90, 140], "seeds": range(4), "config": settings}
    expected = decode_reference(adapter, [request.tokens for request in requests], strategy, **options)
    assert [outputs[row] for row in range(4)] == expected


# -- beam search, slots and draws


class ScriptedRows:
    """The rows of a `ScriptedAdapter`, for the reference."""

    def __init__(self, n_rows: int, logits_fn: LogitsFn) -> None:
        self.logits_fn = logits_fn
        self.rows: list[tuple[int, tuple[int, ...]]] = [(row, ()) for row in range(n_rows)]

    def logits(self) -> Tensor:
        return torch.stack([self.logits_fn(*row) for row in self.rows])

    def append(self, tokens: list[int]) -> None:
        self.rows = [(row, (*written, token)) for (row, written), token in zip(self.rows, tokens, strict=True)]

    def select(self, rows: list[int]) -> None:
        self.rows = [self.rows[row] for row in rows]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_beam_search_equals_the_reference(size: int) -> None:
    for seed in range(40):
        vocab_size, limit, alpha = 2 + seed % 6, 1 + seed % 7, (0.0, 0.6, 1.0, 2.0)[seed % 4]
        logits_fn, limits = random_logits(seed, vocab_size), (limit, 3, limit)
        constraints = TokenConstraints(eos=1, banned=(vocab_size - 1,) * (seed % 2 and vocab_size > 2))
        config = DecodeConfig(beam_size=size, length_penalty=alpha)
        outputs = ScriptedAdapter(logits_fn).decode(
            3, "beam", limits=limits, config=config, constraints=constraints
        )
        assert outputs == reference_beam_search(
            ScriptedRows(3, logits_fn), constraints, limits, beam_size=size, length_penalty=alpha
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
    # In place: the same slots will do.
    adapter.model.load_state_dict(build_adapter("decoder", 3).model.state_dict())
    assert decode_with_graph(adapter, "beam", monkeypatch, 4) == decode_one_by_one(adapter, "beam")
    assert len(created) == 2
    adapter.model.float()
    decode_with_graph(adapter, "beam", monkeypatch, 4)
    assert len(created) == 3


def test_slots_that_were_interrupted_serve_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = build_adapter("decoder", 2)
    expected = decode_with_graph(adapter, "greedy", monkeypatch, 4)
    original_step, calls = slots.DecodeSlots._step, []

    def interrupted(self: slots.DecodeSlots, adapter: TransformerAdapter) -> None:
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
    monkeypatch.setattr(graph, "POOL", SlotsPool())
    adapter = build_adapter("seq2seq", 2)
    decode_with_graph(adapter, "sample", monkeypatch, 4)
    assert len(graph.POOL.idle(adapter.model)) == 1
    assert len(graph.POOL._idle) == 1
    del adapter
    gc.collect()
    assert len(graph.POOL._idle) == 0


def test_a_model_keeps_only_the_slots_that_were_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "POOL", SlotsPool())
    monkeypatch.setattr(graph, "MAX_IDLE_SLOTS", 2)
    adapter = build_adapter("decoder", 2)
    for beam_size in (1, 2, 3):
        decode(adapter, ROWS, "beam", config=DecodeConfig(beam_size=beam_size), use_cuda_graphs=True)
    assert [idle.shape.beam_size for idle in graph.POOL.idle(adapter.model)] == [2, 3]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_threads_with_equal_settings_never_share_slots(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in the middle of a text when the other takes a step; afterwards the pool has the slots of both."""
    monkeypatch.setattr(graph, "POOL", SlotsPool())
    adapter = build_adapter("decoder", 2)
    expected = [decode_one_by_one(adapter, strategy)] * 2
    barrier, outputs = threading.Barrier(2, timeout=60), [dict[int, list[int]](), dict[int, list[int]]()]

    def work(thread: int) -> None:
        with Scheduler(adapter, CONSTRAINTS, beam_of(strategy), use_cuda_graphs=True) as server:
            for request in requests_of(strategy):
                server.submit(request)
            while server.n_unfinished:
                barrier.wait()
                outputs[thread] |= server.step()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[output[row] for row in range(len(ROWS))] for output in outputs] == expected
    assert len({id(idle) for idle in graph.POOL.idle(adapter.model)}) == 2


def test_a_step_that_cannot_be_recorded_runs_without_a_graph_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stand-in for a device that records nothing: everything up to the graph works."""
    adapter = build_adapter("decoder", 2)
    expected = decode_with_graph(adapter, "greedy", monkeypatch, 4)
    monkeypatch.setattr(graph, "POOL", SlotsPool())

    def refuse() -> None:
        raise RuntimeError("operation not permitted\nmore")

    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(slots, "_supports_cuda_graphs", lambda device: True)
    with caplog.at_level(logging.WARNING, logger="triform"):
        assert decode_with_graph(adapter, "greedy", monkeypatch, 4) == expected
    message = "decoding without a CUDA graph, because it could not be captured: operation not permitted"
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
    tokens = sample_tokens(logits.expand(200, -1), uniforms, DecodeConfig(top_k=3, temperature=1.0))
    assert len(set(tokens.tolist())) > 100


def test_numbers_drawn_ahead_are_those_drawn_one_by_one() -> None:
    ahead, one_by_one = (SampledRow(0, Request([], 1, seed=5), []) for _ in range(2))
    assert ahead.draw(33).tolist() == [one_by_one.draw(1).item() for _ in range(33)]


def test_a_full_context_slides_in_slots_too() -> None:
    adapter = build_adapter("decoder", 5)
    adapter.model.lm_head.bias.data[EOS] = -50.0  # never ends by itself
    for strategy in STRATEGIES:
        outputs = decode(adapter, ROWS, strategy, use_cuda_graphs=True, **options_of(len(ROWS)))
        assert outputs == decode_one_by_one(adapter, strategy)
        assert max(map(len, outputs)) > 2 * MAX_LEN


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_finished_row_that_is_still_in_the_batch_does_not_disturb_rows_whose_context_slides(
    strategy: str,
) -> None:
    """All rows have the same length, and too few are done to be evicted when the context of the others is full."""
    adapter = build_adapter("decoder", 5)
    adapter.model.lm_head.bias.data[EOS] = -50.0
    rows = [[4 + row % 7, 5, 6] for row in range(9)]
    options: dict[str, Any] = {"limits": [3, *[20] * 8], "config": CONFIG}
    assert decode(adapter, rows, strategy, **options) == decode_reference(adapter, rows, strategy, **options)


def test_a_stepper_goes_on_after_all_rows_have_left() -> None:
    adapter = build_adapter("seq2seq", 1)
    stepper = adapter.build_stepper()
    stepper.append_rows(ROWS[:2])
    stepper.select(torch.tensor([], dtype=torch.long))
    torch.testing.assert_close(stepper.append_rows(ROWS[3:4]), ModelStepper(adapter, ROWS[3:4]).logits())


# -- requests with different settings, log probabilities and cancelled requests

MIXED_SETTINGS = [
    DecodeConfig(strategy="greedy"),
    DecodeConfig(strategy="sample", temperature=1.5),
    DecodeConfig(strategy="sample", temperature=0.7, top_k=3),
    DecodeConfig(strategy="sample", temperature=1.2, top_k=6),
    DecodeConfig(strategy="sample", temperature=2.0, top_p=0.8),
    DecodeConfig(strategy="sample", temperature=1.8, top_k=5, top_p=0.9),
]
MIXED_REQUESTS = [
    replace(request, decode=MIXED_SETTINGS[row % len(MIXED_SETTINGS)], n_logprobs=row % 3)
    for row, request in enumerate(REQUESTS)
]


def decode_alone(adapter: TransformerAdapter, request: Request) -> list[int]:
    """The reference, with the settings of this request."""
    options: dict[str, Any] = {"limits": [request.max_new_tokens], "seeds": [request.seed]}
    return decode_reference(adapter, [request.tokens], request.decode.strategy, config=request.decode, **options)[0]


@pytest.mark.parametrize("use_cuda_graphs", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_requests_with_different_settings_share_a_batch_and_get_what_they_get_alone(
    architecture: str, use_cuda_graphs: bool
) -> None:
    adapter = build_adapter(architecture, 1)
    outputs: dict[int, list[int]] = {}
    arriving = list(MIXED_REQUESTS)
    with Scheduler(adapter, CONSTRAINTS, max_rows=4, use_cuda_graphs=use_cuda_graphs) as server:
        while arriving or server.n_unfinished:
            for request in arriving[:2]:
                server.submit(request)
            del arriving[:2]
            outputs |= server.step()
    assert [outputs[row] for row in range(len(ROWS))] == [decode_alone(adapter, row) for row in MIXED_REQUESTS]


@pytest.mark.parametrize("use_cuda_graphs", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probabilities_are_the_log_softmax_of_a_plain_forward_pass(
    architecture: str, use_cuda_graphs: bool
) -> None:
    adapter = build_adapter(architecture, 1)
    requests = [replace(request, n_logprobs=row % 2 * 4) for row, request in enumerate(MIXED_REQUESTS)]
    with Scheduler(adapter, CONSTRAINTS, max_rows=4, use_cuda_graphs=use_cuda_graphs) as server:
        rows = [server.submit(request) for request in requests]
        while server.n_unfinished:
            server.step()
    assert not any(row.logprobs for row in rows[::2])
    for row in rows[1::2]:
        stepper = ModelStepper(adapter, [row.request.tokens])
        for token, reported in zip(row.output, row.logprobs, strict=True):
            expected = stepper.logits()[0].double().log_softmax(-1)
            assert reported.logprob == pytest.approx(float(expected[token]), abs=1e-5)
            expected[list(BANNED)] = -torch.inf
            top = expected.topk(4)
            assert [alternative for alternative, _ in reported.alternatives] == top.indices.tolist()
            values = [value for _, value in reported.alternatives]
            assert values == pytest.approx(top.values.tolist(), abs=1e-5)
            stepper.append([token])


def test_a_small_vocabulary_reports_the_alternatives_that_it_has() -> None:
    adapter = build_adapter("decoder", 1)
    with Scheduler(adapter, CONSTRAINTS) as server:
        row = server.submit(Request(ROWS[0], 3, n_logprobs=20))
        while server.n_unfinished:
            server.step()
    assert [len(token.alternatives) for token in row.logprobs] == [11 - len(BANNED)] * len(row.output)


@pytest.mark.parametrize("use_cuda_graphs", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cancelled_requests_leave_their_rows_to_others_and_change_nothing(
    strategy: str, use_cuda_graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are cancelled while they wait, others while they are decoded, one of them after its context has slid."""
    monkeypatch.setattr(slots, "STEPS_PER_SYNC", 2)
    monkeypatch.setattr(graph, "STEPS_PER_SYNC", 2)
    monkeypatch.setattr(graph, "POOL", SlotsPool())
    adapter = build_adapter("decoder", 5)
    adapter.model.lm_head.bias.data[EOS] = -50.0  # never ends by itself
    expected = decode_one_by_one(adapter, strategy)
    outputs: dict[int, list[int]] = {}
    with Scheduler(adapter, CONSTRAINTS, beam_of(strategy), max_rows=4, use_cuda_graphs=use_cuda_graphs) as server:
        rows = [server.submit(request) for request in requests_of(strategy)]
        outputs |= server.step()
        for index in (1, 6, 11):
            server.cancel(rows[index])
        for _ in range(6):
            outputs |= server.step()
        server.cancel(rows[3])
        while server.n_unfinished:
            outputs |= server.step()
    remaining = [index for index in range(len(ROWS)) if index not in (1, 3, 6, 11)]
    assert outputs == {index: expected[index] for index in remaining}


@pytest.mark.parametrize("use_cuda_graphs", [False, True])
def test_the_reason_why_a_text_ends_is_its_end_token_or_its_limit(use_cuda_graphs: bool) -> None:
    adapter = build_adapter("seq2seq", 1)
    for strategy in STRATEGIES:
        with Scheduler(adapter, CONSTRAINTS, beam_of(strategy), use_cuda_graphs=use_cuda_graphs) as server:
            rows = [server.submit(request) for request in requests_of(strategy)]
            while server.n_unfinished:
                server.step()
        reasons = {row.finish_reason for row in rows}
        assert reasons == {"stop", "length"}, strategy
        for row in rows:
            assert (len(row.output) < row.request.max_new_tokens) == (row.finish_reason == "stop")
