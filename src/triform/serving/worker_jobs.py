"""Requests on their way from an event loop to the thread of a worker, and their answers on the way back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from triform.config import DecodeConfig
from triform.generation.backend import FinishReason, Row
from triform.generation.scheduler import Scheduler
from triform.serving.endpoints import ApiError
from triform.serving.text_stream import TextStream, TokenInfo


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A prompt to continue, or a source to translate.

    Args:
        tokens: The prompt or the source, encoded.
        max_new_tokens: The text ends after so many tokens.
        decode: The strategy and its settings.
        seed: The seed of sampling. The same seed gives the same text as `Run.predict`.
        stop: The text ends before the first of these strings.
        n_logprobs: The number of alternatives to report with each token. 0: no log probabilities.
        n_best: The number of hypotheses to return; for beam search only.
        stream: Whether updates arrive while the text is generated. False: only the last one, with the whole text,
            which takes less time.
    """

    tokens: list[int]
    max_new_tokens: int
    decode: DecodeConfig
    seed: int = 0
    stop: tuple[str, ...] = ()
    n_logprobs: int = 0
    n_best: int = 1
    stream: bool = True


@dataclass(frozen=True, kw_only=True)
class GenerationUpdate:
    """What is new of a text since the last update."""

    text: str  # never a part of a character, never a part of a stop string
    tokens: tuple[TokenInfo, ...] = ()  # empty if the text is not streamed and has no log probabilities
    n_tokens: int  # that were generated so far
    finish_reason: FinishReason | None = None  # in the last update
    hypotheses: tuple[tuple[str, float], ...] = ()  # of beam search, with their scores, in the last update


class QueueFullError(ApiError):
    """Too many requests wait for a model."""

    def __init__(self, max_queue: int, retry_after: float) -> None:
        seconds = max(1, math.ceil(retry_after))
        message = f"{max_queue} requests are waiting for this model; try again in {seconds} s"
        super().__init__(429, message, headers={"Retry-After": str(seconds)})


class RequestTimeoutError(ApiError):
    """A request took longer than the time limit."""

    def __init__(self, timeout: float) -> None:
        super().__init__(504, f"the request was not finished within the time limit of {timeout:g} s")


class Job:
    """A request, the event loop that waits for its answers, and the answers that have arrived there."""

    def __init__(self, timeout: float) -> None:
        self.loop, self.timeout = asyncio.get_running_loop(), timeout
        self.deadline = self.loop.time() + timeout
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False

    async def receive(self) -> Any:
        """Wait for the next answer; raise it if it is an error."""
        try:
            async with asyncio.timeout_at(self.deadline):
                answer = await self.answers.get()
        except TimeoutError:
            raise RequestTimeoutError(self.timeout) from None
        if isinstance(answer, Exception):
            raise answer
        return answer


class GenerationJob(Job):
    """A text to generate. The thread of the worker sets `stream`, `scheduler` and `row`."""

    stream: TextStream
    scheduler: Scheduler
    row: Row

    def __init__(self, request: GenerationRequest, timeout: float) -> None:
        super().__init__(timeout)
        self.request = request
        self.n_generated = 0  # tokens that were counted


class BatchJob(Job):
    """Texts to classify or to embed."""

    def __init__(self, kind: Literal["predict", "logits", "embed"], texts: Sequence[str], timeout: float) -> None:
        super().__init__(timeout)
        self.kind, self.texts = kind, list(texts)
        self.n_started = 0  # texts that were given to the model
        self.results: dict[int, Any] = {}  # by index of the text


@dataclass
class WorkerStats:
    """What a worker has done, and what it is doing.

    Attributes:
        queued: Requests that wait.
        running: Texts that are computed at the moment.
        n_finished: Requests that were answered.
        n_tokens: Tokens that were generated.
        batch_sizes: How often the model computed this number of texts together.
    """

    queued: int = 0
    running: int = 0
    n_finished: int = 0
    n_tokens: int = 0
    batch_sizes: dict[int, int] = field(default_factory=dict)
