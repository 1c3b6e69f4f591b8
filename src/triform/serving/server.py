"""What the handlers of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.to_thread

from triform.serving.endpoints import Endpoint
from triform.serving.explanations import Explanations
from triform.serving.metrics import RequestMetrics
from triform.serving.models import ModelRegistry
from triform.serving.options import ServerOptions
from triform.serving.run_list import RunList
from triform.serving.training_jobs import STUDIO_FOLDER, TrainingJobs
from triform.serving.uploads import UPLOADS_FOLDER, UploadStore

LONG_TEXT_CHARS = 1 << 16  # of a request, from which few are encoded at the same time
MAX_LONG_TEXTS = 2
MAX_UPLOADS = 4
Result = TypeVar("Result")


@dataclass(frozen=True)
class Server:
    """The state of a running server.

    Attributes:
        options: What the server was started with.
        models: The runs that it has.
        endpoints: The routes of its API.
        jobs: The training jobs in the folder of runs.
        requests: Counts and durations of the requests.
        explanations: The explanations that it computed last.
        run_list: The summaries of the runs, for the tab Runs.
        estimating: Held while the costs of a run are estimated, which uses the device.
        uploading: Limits how many files are uploaded at the same time.
        inspecting: Lets one file be inspected at a time, because this keeps a core busy.
        long_texts: Limits how many requests with long texts are encoded at the same time.
        stopping: Set when the server stops. A response without an end, such as the tail of a file, ends then.
    """

    options: ServerOptions
    models: ModelRegistry
    endpoints: Sequence[Endpoint]
    jobs: TrainingJobs
    requests: RequestMetrics = field(default_factory=RequestMetrics)
    explanations: Explanations = field(default_factory=Explanations)
    run_list: RunList = field(default_factory=RunList)
    estimating: asyncio.Lock = field(default_factory=asyncio.Lock)
    uploading: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAX_UPLOADS))
    inspecting: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    long_texts: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAX_LONG_TEXTS))
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def encode(self, texts: Sequence[str], function: Callable[[], Result]) -> Result:
        """Call a function that encodes texts in a thread. Long texts need 100 times their size in memory."""
        is_long = sum(map(len, texts)) > LONG_TEXT_CHARS
        return await anyio.to_thread.run_sync(function, limiter=self.long_texts if is_long else None)

    @property
    def uploads(self) -> UploadStore:
        """The data files that were uploaded for training.

        Raises:
            ApiError: The server has no folder of runs, or is read-only.
        """
        return UploadStore(self.jobs.runs_folder / STUDIO_FOLDER / UPLOADS_FOLDER)
