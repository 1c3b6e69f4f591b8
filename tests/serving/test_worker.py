"""Requests of many clients are computed together, and each gets what it gets alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

import triform
from triform.config import DecodeConfig
from triform.errors import ConfigError, DataError
from triform.run import Run
from triform.serving import worker as worker_module
from triform.serving.endpoints import ApiError
from triform.serving.generation_batches import GenerationBatches
from triform.serving.text_stream import TextStream
from triform.serving.worker import (
    GenerationRequest,
    GenerationUpdate,
    QueueFullError,
    RequestTimeoutError,
    Worker,
)

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2}
GREEDY = DecodeConfig(strategy="greedy")
SETTINGS: list[dict[str, Any]] = [
    {"strategy": "greedy"},
    {"strategy": "sample", "temperature": 1.0},
    {"strategy": "sample", "temperature": 0.7, "top_k": 5},
    {"strategy": "sample", "temperature": 1.3, "top_p": 0.8},
    {"strategy": "beam", "beam_size": 2},
    {"strategy": "beam", "beam_size": 3, "length_penalty": 1.0},
]
PROMPTS = ["If you", "The", "A sailor went to", "Tell me,", "x", "When the bells"]
REVIEWS = ["a fine film", "dull and far too long, with a plot that never begins", "good", "", "not bad at all"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One small run of each task, hardly trained."""
    folder = tmp_path_factory.mktemp("runs")
    options: dict[str, Any] = {"device": "cpu", "quiet": True, "model": MODEL}
    train, tokenizer = {"max_steps": 2, "batch_size": 4}, {"kind": "bpe", "vocab_size": 300}
    return {
        "generate": triform.train(
            "generate",
            out=folder / "generate",
            train=train,
            tokenizer=tokenizer,
            **options,
        ),
        "translate": triform.train("translate", out=folder / "translate", train=train, **options),
        "classify": triform.train("classify", out=folder / "classify", train=train, **options),
    }


@contextmanager
def start_worker(run: Run, **options: Any) -> Iterator[Worker]:
    worker = Worker(run, **{"max_batch": 8, "max_queue": 64, "timeout": 60.0} | options)
    try:
        yield worker
    finally:
        worker.close(drain=0)


def encode(run: Run, text: str) -> list[int]:
    predictor: Any = run.task.predictor
    if run.task.name == "generate":
        return predictor.encode_prompt(text)
    tokenizer = run.task.tokenizer
    return tokenizer.special_tokens.wrap(tokenizer.encode(text), run.config.data.max_len)


def make_request(run: Run, text: str, decode: dict[str, Any] | DecodeConfig, **options: Any) -> GenerationRequest:
    settings = DecodeConfig(**decode) if isinstance(decode, dict) else decode
    return GenerationRequest(tokens=encode(run, text), decode=settings, **{"max_new_tokens": 24} | options)


async def collect(worker: Worker, request: GenerationRequest) -> list[GenerationUpdate]:
    async with aclosing(worker.generate(request)) as updates:
        return [update async for update in updates]


async def collect_text(worker: Worker, request: GenerationRequest) -> str:
    return "".join(update.text for update in await collect(worker, request))


def run_async(main: Callable[[], Awaitable[Any]]) -> Any:
    async def with_limit() -> Any:
        return await asyncio.wait_for(main(), 240)

    return asyncio.run(with_limit())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.001)


@contextmanager
def blocked_model(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The model computes nothing until the event is set."""
    release = threading.Event()
    original = Run.inference_context

    @contextmanager
    def wait_and_compute(self: Run) -> Iterator[None]:
        release.wait(120)
        with original(self):
            yield

    with monkeypatch.context() as patch:
        patch.setattr(Run, "inference_context", wait_and_compute)
        try:
            yield release
        finally:
            release.set()


# -- the same alone and in company


@pytest.mark.parametrize("name", ["generate", "translate"])
def test_requests_with_different_settings_get_what_predict_returns(name: str, runs: dict[str, Run]) -> None:
    run = runs[name]
    jobs = [(prompt, SETTINGS[index % 6], index) for index, prompt in enumerate(PROMPTS * 4)]
    limit = {"max_new_tokens": 24}
    expected = [run.predict(text, seed=seed, **settings, **limit)[0].output for text, settings, seed in jobs]

    async def main() -> list[str]:
        with start_worker(run, max_batch=5) as worker:
            requests = [make_request(run, text, settings, seed=seed) for text, settings, seed in jobs]
            return list(await asyncio.gather(*(collect_text(worker, request) for request in requests)))

    assert run_async(main) == expected
    assert len(set(expected)) > 6  # there is something to compare


@contextmanager
def rounds_that_wait(monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[threading.Semaphore]:
    """The next round begins when the client that receives the text with this seed has released the semaphore."""
    turns, decode = threading.Semaphore(1), GenerationBatches.decode

    def wait_and_decode(batches: GenerationBatches) -> list[Any]:
        turns.acquire(timeout=60)
        answers = decode(batches)
        if all(job.request.seed != seed for job, _ in answers):
            turns.release()
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(GenerationBatches, "decode", wait_and_decode)
        yield turns


def test_requests_that_join_and_leave_change_no_other_text(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["generate"]
    request = make_request(run, "If you", SETTINGS[1], seed=3, max_new_tokens=150)
    expected = run.predict("If you", seed=3, max_new_tokens=150, **SETTINGS[1])[0].output

    async def main() -> str:
        with rounds_that_wait(monkeypatch, request.seed) as turns, start_worker(run) as worker:
            text, others = "", []
            async for update in worker.generate(request):
                text += update.text
                if update.n_tokens % 10 == 0:
                    other = make_request(run, "The", SETTINGS[update.n_tokens // 10 % 6], max_new_tokens=5)
                    others.append(asyncio.create_task(collect(worker, other)))
                    leaving = worker.generate(replace(other, max_new_tokens=100))
                    await asyncio.sleep(0)
                    await leaving.aclose()
                turns.release()
            await asyncio.gather(*others)
            assert max(worker.stats.batch_sizes) > 1
            return text

    assert run_async(main) == expected


def test_updates_count_tokens_and_say_why_the_text_ends(runs: dict[str, Run]) -> None:
    run = runs["generate"]

    async def main() -> list[GenerationUpdate]:
        with start_worker(run) as worker:
            return await collect(worker, make_request(run, "The", GREEDY, max_new_tokens=30))

    updates = run_async(main)
    assert len(updates) > 5  # it is streamed
    assert [update.finish_reason for update in updates] == [None] * (len(updates) - 1) + ["length"]
    assert updates[-1].n_tokens == 30
    infos = [info for update in updates for info in update.tokens]
    assert "".join(info.text for info in infos) == "".join(update.text for update in updates)
    assert len(infos) == 30


def test_classification_in_company_equals_classification_alone(runs: dict[str, Run]) -> None:
    run = runs["classify"]
    expected = [run.predict(text)[0] for text in REVIEWS]

    async def main() -> Any:
        with start_worker(run, max_batch=3) as worker:
            one_by_one = [worker.predict([text]) for text in REVIEWS]
            vectors = worker.embed(REVIEWS)
            return await asyncio.gather(worker.predict(REVIEWS * 5), worker.predict([]), vectors, *one_by_one)

    batched, nothing, vectors, *one_by_one = run_async(main)
    assert nothing == []
    for predictions in (batched[:5], batched[-5:], [result[0] for result in one_by_one]):
        for prediction, alone in zip(predictions, expected, strict=True):
            assert (prediction.input, prediction.output, prediction.notes) == (
                alone.input,
                alone.output,
                alone.notes,
            )
            assert prediction.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
    predictor: Any = run.task.predictor
    torch.testing.assert_close(torch.tensor(vectors), torch.from_numpy(predictor.pooled_states(REVIEWS)))


def test_no_batch_is_larger_than_allowed(runs: dict[str, Run]) -> None:
    async def main() -> None:
        with start_worker(runs["classify"], max_batch=3) as worker:
            await asyncio.gather(*(worker.predict(REVIEWS * 3) for _ in range(4)))
            assert max(worker.stats.batch_sizes) == 3
        with start_worker(runs["generate"], max_batch=2) as worker:
            request = make_request(runs["generate"], "The", GREEDY)
            await asyncio.gather(*(collect(worker, request) for _ in range(5)))
            assert max(worker.stats.batch_sizes) == 2

    run_async(main)


def test_a_short_text_is_not_computed_with_several_long_ones(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with start_worker(runs["classify"]) as worker:
            with blocked_model(worker, monkeypatch):
                first = asyncio.create_task(worker.predict(["first"]))
                await asyncio.to_thread(wait_until, lambda: worker.stats.running == 1)
                texts = ("fine " * 20_000,) * 3 + ("short",)
                others = [asyncio.create_task(worker.predict([text])) for text in texts]
                await asyncio.to_thread(wait_until, lambda: worker.stats.queued == 4)
            await asyncio.gather(first, *others)
            assert worker.stats.batch_sizes == {1: 3, 2: 1}

    run_async(main)


# -- log probabilities, hypotheses, bad requests


def test_an_idle_worker_waits_where_rounds_are_long_so_that_requests_start_together(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worker_module.ARRIVAL_GAPS, "cpu", 30.0)
    monkeypatch.setattr(worker_module, "MAX_ARRIVAL_SECONDS", 60.0)

    async def main() -> None:
        with start_worker(runs["generate"], max_batch=3) as worker:
            requests = [make_request(runs["generate"], text, GREEDY, max_new_tokens=5) for text in PROMPTS[:3]]
            first = asyncio.create_task(collect(worker, requests[0]))
            await asyncio.sleep(0.2)  # without waiting, the first text would be finished by now
            await asyncio.gather(first, *(collect(worker, request) for request in requests[1:]))
            assert set(worker.stats.batch_sizes) == {3}

    run_async(main)


def test_log_probabilities_arrive_with_their_tokens(runs: dict[str, Run]) -> None:
    run = runs["generate"]
    request = make_request(run, "The", GREEDY, n_logprobs=3, max_new_tokens=6)

    async def main() -> Any:
        with start_worker(run) as worker:
            return await asyncio.gather(collect(worker, request), collect(worker, replace(request, n_logprobs=0)))

    updates, without = run_async(main)
    infos = [info for update in updates for info in update.tokens]
    tokens = [info.token for info in infos]
    with torch.inference_mode():
        logits = run.task.model(torch.tensor([[*request.tokens, *tokens]]))[0]
    log_probs = logits.double().log_softmax(-1)[len(request.tokens) - 1 :]
    for info, expected in zip(infos, log_probs[:-1], strict=True):
        assert info.logprob == pytest.approx(float(expected[info.token]), abs=1e-4)
        assert len(info.alternatives) == 3
        best, text, value = info.alternatives[0]
        assert (best, value) == (info.token, info.logprob)
        assert text
    assert all(info.logprob is None and not info.alternatives for update in without for info in update.tokens)


def test_beam_search_returns_its_best_hypotheses(runs: dict[str, Run]) -> None:
    run = runs["translate"]
    expected = run.predict("ein Haus", beam_size=4, top=3, max_new_tokens=9)[0].alternatives
    request = make_request(run, "ein Haus", {"strategy": "beam", "beam_size": 4}, n_best=3, max_new_tokens=9)

    async def main() -> GenerationUpdate:
        with start_worker(run) as worker:
            return (await collect(worker, request))[-1]

    update = run_async(main)
    assert [text for text, _ in update.hypotheses] == [alternative.text for alternative in expected]
    assert [score for _, score in update.hypotheses] == pytest.approx([item.score for item in expected], abs=1e-5)
    assert update.text == update.hypotheses[0][0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tokens": []}, DataError, "no tokens"),
        ({"tokens": [5, 300]}, DataError, "not in the vocabulary of tokens 0 to 299"),
        ({"max_new_tokens": 0}, ConfigError, "max_new_tokens=0 must be at least 1"),
        ({"n_logprobs": 21}, ConfigError, "at most 20 alternatives, found 21"),
        ({"n_best": 2}, ConfigError, "2 hypotheses need decode.strategy=beam"),
        (
            {"decode": DecodeConfig(strategy="beam"), "n_logprobs": 1},
            ConfigError,
            "reports no log prob",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_before_it_waits(
    options: dict[str, Any], error: type[Exception], message: str, runs: dict[str, Run]
) -> None:
    async def main() -> None:
        with start_worker(runs["generate"]) as worker, pytest.raises(error, match=message):
            worker.generate(replace(make_request(runs["generate"], "The", GREEDY), **options))

    run_async(main)


# -- limits


def test_a_full_queue_refuses_requests_and_says_when_to_come_again(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["classify"]

    async def main() -> None:
        with start_worker(run, max_queue=2) as worker, blocked_model(worker, monkeypatch) as release:
            first = asyncio.create_task(worker.predict(["good"]))
            await asyncio.sleep(0)
            await asyncio.to_thread(wait_until, lambda: worker.stats.running == 1)
            waiting = [asyncio.create_task(worker.predict(["bad"])) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError, match="2 requests are waiting") as caught:
                await worker.predict(["more"])
            assert caught.value.status == 429
            assert int(caught.value.headers["Retry-After"]) >= 1
            release.set()
            await asyncio.gather(first, *waiting)
            assert worker.stats.n_finished == 3

    run_async(main)


def test_a_request_that_takes_too_long_is_given_up(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with start_worker(runs["generate"], timeout=0.05) as worker:
            with blocked_model(worker, monkeypatch):
                with pytest.raises(RequestTimeoutError, match=r"the time limit of 0.05 s") as caught:
                    await collect(worker, make_request(runs["generate"], "The", GREEDY))
                assert caught.value.status == 504
            await asyncio.to_thread(wait_until, lambda: worker.stats.running == 0)

    run_async(main)


def test_closing_the_updates_frees_the_row(runs: dict[str, Run]) -> None:
    run = runs["generate"]

    async def main() -> None:
        with start_worker(run, max_batch=1) as worker:
            endless = worker.generate(make_request(run, "The", GREEDY, max_new_tokens=100_000))
            await anext(endless)
            waiting = worker.generate(make_request(run, "The", GREEDY, max_new_tokens=100_000))
            await waiting.aclose()  # while it waits
            assert worker.stats.queued == 0
            following = asyncio.create_task(collect(worker, make_request(run, "The", GREEDY, max_new_tokens=3)))
            await endless.aclose()
            assert (await following)[-1].n_tokens == 3
            with pytest.raises(StopAsyncIteration):
                await anext(endless)

    run_async(main)


# -- errors and the end


def test_an_error_in_the_model_fails_the_requests_of_its_batch_and_the_worker_goes_on(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = runs["generate"]
    request = make_request(run, "The", GREEDY, max_new_tokens=5)

    async def main() -> None:
        with start_worker(run) as worker:
            for error, status, message in (
                (torch.OutOfMemoryError("CUDA"), 503, "ran out of memory"),
                (ZeroDivisionError("oops"), 500, "internal error"),
            ):
                with monkeypatch.context() as patch:
                    patch.setattr(run.task.model.lm_head, "forward", _raiser(error))
                    with pytest.raises(ApiError, match=message) as caught:
                        await collect(worker, request)
                    assert caught.value.status == status
                assert (await collect(worker, request))[-1].n_tokens == 5
            with torch.no_grad():
                weight = run.task.model.lm_head.weight
                original = weight.clone()
                weight.fill_(float("nan"))
                with pytest.raises(ApiError, match="output is not finite") as caught:
                    await collect(worker, request)
                weight.copy_(original)
            assert caught.value.status == 503
            assert (await collect(worker, request))[-1].n_tokens == 5

    run_async(main)
    assert "oops" in caplog.text


def test_an_error_outside_of_the_model_does_not_end_the_worker(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["generate"]
    request = make_request(run, "The", GREEDY, max_new_tokens=5)

    async def main() -> None:
        with start_worker(run) as worker:
            for name in ("__init__", "append"):
                with monkeypatch.context() as patch:
                    patch.setattr(TextStream, name, _raiser(ZeroDivisionError("oops")))
                    with pytest.raises(ApiError, match="internal error"):
                        await collect(worker, request)
                assert (await collect(worker, request))[-1].n_tokens == 5

    run_async(main)


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any) -> Any:
        raise error

    return fail


def test_a_text_that_cannot_be_read_fails_alone(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[Any]:
        with start_worker(runs["classify"]) as worker, blocked_model(worker, monkeypatch) as release:
            jobs = [asyncio.create_task(worker.predict([text])) for text in ("good", "\ud800", "bad")]
            await asyncio.sleep(0)
            release.set()
            return list(await asyncio.gather(*jobs, return_exceptions=True))

    first, broken, last = run_async(main)
    assert [prediction.input for prediction in (*first, *last)] == ["good", "bad"]
    assert isinstance(broken, ApiError)
    assert "surrogate" in broken.message
    assert broken.status == 400


def test_closing_finishes_requests_and_refuses_new_ones(runs: dict[str, Run]) -> None:
    run = runs["generate"]
    request = make_request(run, "The", GREEDY, max_new_tokens=40)

    async def main() -> None:
        worker = Worker(run, max_batch=1, max_queue=8, timeout=60)
        running = [asyncio.create_task(collect(worker, request)) for _ in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(worker.close, drain=60))
        await asyncio.to_thread(wait_until, lambda: worker._close_at is not None)
        with pytest.raises(ApiError, match="the server is stopping") as caught:
            worker.generate(request)
        assert caught.value.status == 503
        assert [(await updates)[-1].n_tokens for updates in running] == [40] * 3
        await closing
        assert not worker._thread.is_alive()

    run_async(main)


def test_requests_that_outlast_the_drain_time_fail_and_the_thread_ends(runs: dict[str, Run]) -> None:
    run = runs["generate"]

    async def main() -> None:
        worker = Worker(run, max_batch=1, max_queue=8, timeout=60)
        endless = make_request(run, "The", GREEDY, max_new_tokens=1_000_000)
        running = [asyncio.create_task(collect(worker, endless)) for _ in range(2)]
        await asyncio.to_thread(wait_until, lambda: worker.stats.n_tokens > 0)
        await asyncio.to_thread(worker.close, drain=0.05)
        for updates in running:
            with pytest.raises(ApiError, match="stopped before the request was finished"):
                await updates
        assert not worker._thread.is_alive()

    run_async(main)


def test_a_text_that_is_not_streamed_arrives_in_one_update(runs: dict[str, Run]) -> None:
    run = runs["generate"]
    request = make_request(run, "If you", SETTINGS[1], seed=3)
    expected = run.predict("If you", seed=3, max_new_tokens=24, **SETTINGS[1])[0].output
    stop = expected[len(expected) // 2 :][:2]
    variants = [
        replace(request, stream=False),
        replace(request, stream=False, n_logprobs=2),
        replace(request, stream=False, stop=(stop,)),
        replace(request, stop=(stop,)),
    ]

    async def main() -> Any:
        with start_worker(run) as worker:
            return await asyncio.gather(*(collect(worker, variant) for variant in variants))

    (plain,), (with_logprobs,), (stopped,), streamed = run_async(main)
    assert (plain.text, plain.tokens, plain.n_tokens) == (expected, (), 24)
    assert (with_logprobs.text, len(with_logprobs.tokens)) == (expected, 24)
    assert stopped.text == expected[: expected.index(stop)]
    assert stopped.finish_reason == "stop"
    assert "".join(update.text for update in streamed) == stopped.text
    assert streamed[-1].n_tokens == stopped.n_tokens < 24
