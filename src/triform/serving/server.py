"""What the handlers of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from triform.serving.endpoints import Endpoint
from triform.serving.explanations import Explanations
from triform.serving.metrics import RequestMetrics
from triform.serving.models import ModelRegistry
from triform.serving.options import ServerOptions
from triform.serving.run_list import RunList


@dataclass(frozen=True)
class Server:
    """The state of a running server.

    Attributes:
        options: What the server was started with.
        models: The runs that it has.
        endpoints: The routes of its API.
        requests: Counts and durations of the requests.
        explanations: The explanations that it computed last.
        run_list: The summaries of the runs, for the tab Runs.
        stopping: Set when the server stops. A response without an end, such as the tail of a file, ends then.
    """

    options: ServerOptions
    models: ModelRegistry
    endpoints: Sequence[Endpoint]
    requests: RequestMetrics = field(default_factory=RequestMetrics)
    explanations: Explanations = field(default_factory=Explanations)
    run_list: RunList = field(default_factory=RunList)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
