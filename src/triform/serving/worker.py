"""The thread that owns a model and answers the requests of many clients together.

Handlers run on an event loop and never touch the model. They hand a `Job` to the `Worker` and wait for its answers.
The thread works in rounds: it takes jobs from the queue, computes a part of all of them, and sends what is new to
the event loops. Texts to generate are decoded by a `Scheduler`, one step or a few in each round, so that new
requests join between rounds. Texts to classify are gathered, sorted by length and computed in batches.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from triform.run import Run
from triform.serving.endpoints import ApiError
from triform.serving.generation_batches import GenerationBatches, error_for_client, resolve_request
from triform.serving.text_stream import TokenInfo
from triform.serving.worker_jobs import (
    BatchJob,
    GenerationJob,
    GenerationRequest,
    GenerationUpdate,
    Job,
    QueueFullError,
    RequestTimeoutError,
    WorkerStats,
)
from triform.tasks import Prediction

__all__ = [
    "GenerationRequest",
    "GenerationUpdate",
    "QueueFullError",
    "RequestTimeoutError",
    "TokenInfo",
    "Worker",
    "WorkerStats",
]
GATHERED_BATCHES = 4  # batches of texts that are sorted by length together
LONG_BATCH_CHARS = 1 << 16  # from which encoding a batch takes longer than computing it
THROUGHPUT_WINDOW = 64  # finished requests from which the time to wait is estimated
DEFAULT_RETRY_SECONDS = 1.0
ARRIVAL_GAPS = {"cuda": 0.002}  # seconds in which an idle worker waits for a further request, by type of device
MAX_ARRIVAL_SECONDS = 0.02  # that it waits in all


class UpdateStream(AsyncIterator[GenerationUpdate]):
    """The updates of one text. Closing it cancels the request."""

    def __init__(self, worker: Worker, job: GenerationJob) -> None:
        self._worker, self._job, self._finished = worker, job, False

    async def __anext__(self) -> GenerationUpdate:
        if self._finished:
            raise StopAsyncIteration
        try:
            update: GenerationUpdate = await self._job.receive()
        except BaseException:
            await self.aclose()
            raise
        self._finished = update.finish_reason is not None
        return update

    async def aclose(self) -> None:
        """Cancel the request, if it is not finished."""
        if not self._finished:
            self._finished = True
            self._worker.cancel(self._job)


class Worker:
    """Answers the requests to one run, in a thread.

    Args:
        run: The run.
        max_batch: The number of texts that the model computes together.
        max_queue: The number of requests that may wait. Further ones raise `QueueFullError`.
        timeout: Seconds after which a request raises `RequestTimeoutError`.

    Example:
        worker = Worker(run, max_batch=32, max_queue=256, timeout=60)
        async with aclosing(worker.generate(request)) as updates:
            async for update in updates:
                print(update.text, end="")
        worker.close(drain=10)
    """

    def __init__(self, run: Run, *, max_batch: int, max_queue: int, timeout: float) -> None:
        self.run, self.max_batch, self.max_queue, self.timeout = run, max_batch, max_queue, timeout
        self._changed = threading.Condition()  # guards `_queue`, `_close_at` and `cancelled` of all jobs
        self._queue: deque[Job] = deque()
        self._close_at: float | None = None  # when the thread ends at the latest
        # The rest belongs to the thread.
        self._generation = GenerationBatches(run, max_batch)
        self._outbox: list[tuple[Job, object]] = []
        self._finish_times: deque[float] = deque(maxlen=THROUGHPUT_WINDOW)
        self._n_classified = self._n_finished = 0
        self._batch_sizes: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._work, name=f"worker of {run.path.name}", daemon=True)
        self._thread.start()

    # -- the side of the event loop

    def generate(self, request: GenerationRequest) -> UpdateStream:
        """Generate a text and return its updates, which arrive while it is generated.

        Raises:
            QueueFullError: Too many requests wait.
            DataError: The tokens are not in the vocabulary.
            ConfigError: The settings contradict each other.
        """
        decode = resolve_request(self.run, request)
        job = GenerationJob(replace(request, decode=decode), self.timeout)
        self._submit(job)
        return UpdateStream(self, job)

    async def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """Classify texts."""
        return await self._compute(BatchJob("predict", texts, self.timeout))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the pooled vector of each text."""
        return await self._compute(BatchJob("embed", texts, self.timeout))

    async def logits(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the logits of each text, with a number for each label."""
        return await self._compute(BatchJob("logits", texts, self.timeout))

    async def _compute(self, job: BatchJob) -> list[Any]:
        if not job.texts:
            return []
        self._submit(job)
        try:
            results: list[Any] = await job.receive()
        except BaseException:
            self.cancel(job)
            raise
        return results

    def _submit(self, job: Job) -> None:
        with self._changed:
            if self._close_at is not None:
                raise ApiError(503, "the server is stopping")
            if len(self._queue) >= self.max_queue:
                raise QueueFullError(self.max_queue, self._estimate_wait())
            self._queue.append(job)
            self._changed.notify()

    def _estimate_wait(self) -> float:
        """Return the seconds in which about half of the waiting requests will be finished."""
        times = list(self._finish_times)
        if len(times) < 2 or times[-1] <= times[0]:
            return DEFAULT_RETRY_SECONDS
        return min(self.timeout, len(self._queue) / 2 * (times[-1] - times[0]) / (len(times) - 1))

    def cancel(self, job: Job) -> None:
        """Give up a request. If it is being computed, it leaves the batch before the next round."""
        with self._changed:
            job.cancelled = True
            if job in self._queue:
                self._queue.remove(job)
            self._changed.notify()

    def close(self, *, drain: float) -> None:
        """Refuse new requests, finish the others for at most `drain` seconds, and end the thread.

        It waits for the thread, so do not call it on an event loop.
        """
        with self._changed:
            close_at = time.monotonic() + drain
            self._close_at = close_at if self._close_at is None else min(close_at, self._close_at)
            self._changed.notify()
        self._thread.join()

    @property
    def stats(self) -> WorkerStats:
        """What the worker has done, and what it is doing."""
        return WorkerStats(
            queued=len(self._queue),
            running=len(self._generation.jobs) + self._n_classified,
            n_finished=self._n_finished,
            n_tokens=self._generation.n_tokens,
            batch_sizes=dict(self._generation.batch_sizes + self._batch_sizes),
        )

    # -- the side of the thread

    def _work(self) -> None:
        while self._wait_for_work():
            self._compute_gathered(self._select_texts())
            self._admit()
            for job, answer in self._generation.decode():
                self._outbox.append((job, answer))
                if isinstance(answer, GenerationUpdate) and answer.finish_reason is not None:
                    self._count_finished()
            self._send()
        with self._changed:
            unfinished: list[Job] = [*self._generation.jobs, *self._queue]
            self._queue.clear()
        self._generation.close()
        stopped = "the server was stopped before the request was finished"
        self._outbox += [(unfinished_job, ApiError(503, stopped)) for unfinished_job in unfinished]
        self._send()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; return False when the thread must end."""
        with self._changed:
            while not self._queue and not self._generation.jobs and self._close_at is None:
                self._changed.wait()
                self._wait_for_company()
            is_done = not self._queue and not self._generation.jobs
            return self._close_at is None or not (is_done or time.monotonic() >= self._close_at)

    def _wait_for_company(self) -> None:
        """Wait until no further request arrives, because the first round on a GPU delays those that come later."""
        gap, end = ARRIVAL_GAPS.get(self.run.task.device.type, 0.0), time.monotonic() + MAX_ARRIVAL_SECONDS
        while gap and 0 < len(self._queue) < self.max_batch and self._close_at is None and time.monotonic() < end:
            if not self._changed.wait(gap):
                return

    def _admit(self) -> None:
        """Move texts to generate from the queue to the batches, as many as there is room for."""
        with self._changed:
            for job in [job for job in self._queue if isinstance(job, GenerationJob)]:
                try:
                    is_added = self._generation.add(job)
                except Exception as error:
                    self._fail(job, error)
                    continue
                if is_added:
                    self._queue.remove(job)

    def _select_texts(self) -> list[tuple[BatchJob, int]]:
        """Take texts from the queue, from the oldest jobs first, and return each with its index in its job.

        A job with many texts gives one batch in each round, so that others are answered meanwhile. For the same
        reason, a round has only one batch with long texts.
        """
        selected: list[tuple[BatchJob, int]] = []
        has_long = False
        with self._changed:
            for job in [job for job in self._queue if isinstance(job, BatchJob)]:
                n_free = GATHERED_BATCHES * self.max_batch - len(selected)
                n = min(self.max_batch, len(job.texts) - job.n_started, n_free)
                is_long = sum(map(len, job.texts[job.n_started : job.n_started + n])) > LONG_BATCH_CHARS
                if is_long and has_long:
                    continue
                has_long = has_long or is_long
                selected += [(job, job.n_started + index) for index in range(n)]
                job.n_started += n
                if job.n_started == len(job.texts):
                    self._queue.remove(job)
        return sorted(selected, key=lambda item: (item[0].kind, len(item[0].texts[item[1]])))

    def _compute_gathered(self, texts: list[tuple[BatchJob, int]]) -> None:
        """Classify or embed texts, in batches of neighbours."""
        while texts:
            kind = texts[0][0].kind
            batch = [item for item in texts[: self.max_batch] if item[0].kind == kind]
            texts = texts[len(batch) :]
            self._n_classified = len(batch)
            self._compute_batch([item for item in batch if not item[0].cancelled])
            self._n_classified = 0
            self._send()

    def _compute_batch(self, batch: list[tuple[BatchJob, int]]) -> None:
        if not batch:
            return
        try:
            with self.run.inference_context():
                results = self._call_model(batch[0][0].kind, [job.texts[index] for job, index in batch])
        except Exception as error:
            jobs = list(dict.fromkeys(job for job, _ in batch))
            if len(jobs) == 1:
                self._fail(jobs[0], error)
            else:  # the texts of one job must not make the others fail
                for job in jobs:
                    self._compute_batch([item for item in batch if item[0] is job])
            return
        self._batch_sizes[len(batch)] += 1
        for (job, index), result in zip(batch, results, strict=True):
            job.results[index] = result
            if len(job.results) == len(job.texts):
                self._outbox.append((job, [job.results[index] for index in range(len(job.texts))]))
                self._count_finished()

    def _call_model(self, kind: str, texts: list[str]) -> list[Any]:
        predictor: Any = self.run.task.predictor
        if kind == "predict":
            return list(predictor.predict(texts))
        rows = predictor.logits(texts) if kind == "logits" else predictor.pooled_states(texts)
        return list(rows.tolist())

    def _count_finished(self) -> None:
        self._n_finished += 1
        self._finish_times.append(time.monotonic())

    def _fail(self, job: Job, error: Exception) -> None:
        """Answer a job with an error, and forget it."""
        self.cancel(job)
        self._outbox.append((job, error_for_client(error)))

    def _send(self) -> None:
        """Send all answers to the event loops that wait for them."""
        answers: dict[asyncio.AbstractEventLoop, list[tuple[Job, object]]] = {}
        for job, answer in self._outbox:
            answers.setdefault(job.loop, []).append((job, answer))
        self._outbox = []
        for loop, items in answers.items():
            try:
                loop.call_soon_threadsafe(_deliver, items)
            except RuntimeError:  # the loop is closed, and nobody waits
                for job, _ in items:
                    job.cancelled = True


def _deliver(items: list[tuple[Job, object]]) -> None:
    for job, answer in items:
        job.answers.put_nowait(answer)
