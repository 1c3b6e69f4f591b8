"""Generate several texts at once and bring their updates together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from triform.generation.backend import FinishReason
from triform.serving.worker import GenerationRequest, GenerationUpdate, TokenInfo, Worker


@dataclass
class GeneratedText:
    """A text that is generated, as far as it is known."""

    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)
    n_tokens: int = 0
    finish_reason: FinishReason | None = None
    hypotheses: tuple[tuple[str, float], ...] = ()

    def add(self, update: GenerationUpdate) -> None:
        """Add what is new."""
        self.text += update.text
        self.tokens += update.tokens
        self.n_tokens = update.n_tokens
        self.finish_reason = update.finish_reason
        self.hypotheses = update.hypotheses


async def stream_texts(
    worker: Worker, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[tuple[int, GenerationUpdate]]:
    """Yield the updates of all requests as they arrive, each with the index of its request.

    When it is closed, or one of the requests fails, the others are cancelled.
    """
    updates: asyncio.Queue[tuple[int, GenerationUpdate | Exception]] = asyncio.Queue()

    async def forward(index: int, request: GenerationRequest) -> None:
        try:
            async with aclosing(worker.generate(request)) as stream:
                async for update in stream:
                    updates.put_nowait((index, update))
        except Exception as error:
            updates.put_nowait((index, error))

    tasks = [asyncio.create_task(forward(index, request)) for index, request in enumerate(requests)]
    try:
        n_running = len(tasks)
        while n_running:
            index, update = await updates.get()
            if isinstance(update, Exception):
                raise update
            n_running -= update.finish_reason is not None
            yield index, update
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def generate_texts(worker: Worker, requests: Sequence[GenerationRequest]) -> list[GeneratedText]:
    """Return the complete texts of all requests, in the same order."""
    texts = [GeneratedText() for _ in requests]
    async with aclosing(stream_texts(worker, requests)) as updates:
        async for index, update in updates:
            texts[index].add(update)
    return texts
