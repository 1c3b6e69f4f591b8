"""What a server is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LOOPBACK_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
MAX_CONNECTIONS = 1_000
OTHER_FILES = 256  # that a server may have open beside its connections


def default_max_connections() -> int:
    """Return how many connections the process can have, given how many files it may open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MAX_CONNECTIONS
    n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if n_files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(n_files // 2, n_files - OTHER_FILES))


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What a server serves, and its limits.

    Args:
        runs: The run folder of each model that is served by name.
        folder: A folder with runs. All runs below it are listed, and served by their path relative to it.
        page: Whether to serve the page of the studio and the routes below `/api`.
        host: The address that the server is bound to. It decides which `Host` headers are accepted.
        allowed_hosts: Further host names by which clients reach the server, for example that of a proxy.
        token: The token that every request must have; "" if none is required.
        device: auto, cpu, cuda or mps.
        precision: auto, fp32, bf16 or int8.
        max_batch: The number of texts that a model computes together.
        max_queue: The number of requests that may wait for a model. Further ones are answered with status 429.
        timeout: Seconds after which a request is given up with status 504.
        max_body: Bytes of a request.
        max_upload: Bytes of a data file that is uploaded.
        max_connections: The number of connections. The default depends on the number of files that may be open.
        head_timeout: Seconds in which a client must send the head of a request.
        read_only: Whether requests that change a run or start a job are refused.
    """

    runs: Mapping[str, Path] = field(default_factory=dict)
    folder: Path | None = None
    page: bool = False
    host: str = LOOPBACK_HOST
    allowed_hosts: tuple[str, ...] = ()
    token: str = ""
    device: str = "auto"
    precision: str = "auto"
    max_batch: int = 32
    max_queue: int = 256
    timeout: float = 120.0
    max_body: int = 1 << 20
    max_upload: int = 1 << 28
    max_connections: int = field(default_factory=default_max_connections)
    head_timeout: float = 10.0
    read_only: bool = False
