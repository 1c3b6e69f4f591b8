"""The processes that work on one command: a single one, or several that `torchrun` started.

`torchrun` gives each process its number, the rank, in environment variables. `join_world` connects the processes.
Inside it, they exchange small values as JSON; nothing is pickled. In a single process all functions return at once.

If a process fails, the others end too, and one of them prints why: `join_world` reports the error.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from triform.errors import ConfigError, PeerError, RunInterruptedError, TriformError
from triform.formatting import print_message

TIMEOUT_SECONDS = 600.0  # in which a process that does not answer is given up; TRIFORM_TIMEOUT changes it
HEARTBEAT_SECONDS = 0.5  # how often each process shows that it is alive
POLL_SECONDS = 0.02
REPORT_SECONDS = 5.0  # in which the main process prints an error before the others end
LINK_SECONDS = 8.0  # without an answer of the store, after which a process has lost the other machines and ends
EXIT_LOST_LINK = 2  # the exit code of such a process, as after other errors

T = TypeVar("T")


class GatherInterrupted(Exception):
    """A process that should take part in `gather_values` was interrupted; see `interrupt_gather`."""


class World(NamedTuple):
    """The place of this process among all processes of the command."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes of this machine
    attempt: int = 0  # how often torchrun has started the processes again

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0


SINGLE_PROCESS = World()


def is_launched() -> bool:
    """Return whether `torchrun` or a similar program started this process, alone or with others."""
    return "WORLD_SIZE" in os.environ


def current_world() -> World:
    """Return the place of this process, from the environment variables that `torchrun` sets."""
    if not is_launched():
        return World()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return World(rank, size, local_rank, int(attempt))
    except (KeyError, ValueError):
        raise ConfigError(
            "WORLD_SIZE is set, but RANK or LOCAL_RANK is not a number; start several processes with torchrun"
        ) from None


def refuse_several_processes(command: str) -> None:
    """Raise an error if `torchrun` started several processes of a command that works in one process only."""
    if current_world().size > 1:
        raise ConfigError(f"{command} runs in one process; start it without torchrun")


# -- connecting the processes


class _Connection:
    """The key-value store that connects the processes, and the threads that show that this one is alive.

    The store is on the machine of rank 0. If the link to it is lost, each call of the store and of gloo waits for
    minutes, and so does the main thread. Then another thread ends the process.
    """

    def __init__(self, world: World, timeout: float) -> None:
        self.world, self.timeout = world, timeout
        store = _open_store(world, timeout)
        number = next(_connection_numbers)  # a program may connect its processes several times
        self.all_attempts = PrefixStore(f"triform/{number}", store)
        self.store = PrefixStore(f"triform/{number}/{world.attempt}", store)
        self.n_gathered: Counter[str] = Counter()  # by channel
        self._ended = threading.Event()
        self._n_beats = 0
        self._heart = threading.Thread(target=self._show_life, args=(self.store.clone(),), daemon=True)  # type: ignore[attr-defined]
        self._heart.start()
        if world.size > 1:
            threading.Thread(target=self._watch_link, daemon=True).start()

    def _show_life(self, store: Store) -> None:
        with suppress(RuntimeError):  # the store has ended, and so will this process
            while True:
                store.add(f"alive/{self.world.rank}", 1)
                self._n_beats += 1
                if self._ended.wait(HEARTBEAT_SECONDS):
                    return

    def _watch_link(self) -> None:
        """End the process if a call of the store waits too long.

        Turns are counted and not seconds, because a process that was suspended has lost nothing. The first process
        of a machine prints the reason. The others end later, so that torchrun does not end the first one before.
        """
        is_first = self.world.local_rank == 0
        max_turns = (LINK_SECONDS if is_first else LINK_SECONDS + 1) / HEARTBEAT_SECONDS
        n_beats = n_turns = 0
        while not self._ended.wait(HEARTBEAT_SECONDS) and self._heart.is_alive():
            n_turns = n_turns + 1 if self._n_beats == n_beats else 0
            n_beats = self._n_beats
            if n_turns >= max_turns:
                if is_first:
                    print_message(f"triform: {_describe_lost_link(self.world)}", sys.__stderr__)
                    _kill_torchrun()
                os._exit(EXIT_LOST_LINK)

    def close(self) -> None:
        """Stop showing that this process is alive."""
        self._ended.set()
        self._heart.join(LINK_SECONDS)

    def is_reported(self, seconds: float) -> bool:
        """Return whether a process reports an error within some seconds."""
        deadline = time.monotonic() + seconds
        with suppress(RuntimeError):
            while not (reported := self.store.check(["reported"])) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            return bool(reported)
        return False

    def report(self, text: str) -> None:
        """Print an error, unless another process has done so."""
        with suppress(RuntimeError):  # without a store, each process prints for itself
            if self.store.add("reporters", 1) > 1:
                return
        print_message(f"triform: {text}")
        with suppress(RuntimeError):
            self.store.set("reported", text)

    def silent_ranks(self) -> list[int]:
        """Return the processes that do not show that they are alive."""
        keys = [f"alive/{rank}" for rank in range(self.world.size)]
        with suppress(RuntimeError):
            before = [self.store.add(key, 0) for key in keys]
            time.sleep(4 * HEARTBEAT_SECONDS)
            return [rank for rank, key in enumerate(keys) if self.store.add(key, 0) == before[rank]]
        return []


_connections: list[_Connection] = []  # of this process; at most one
_connection_numbers = count()
_INTERRUPTED = {"interrupted": "gather_values"}  # a value that no caller sends


def _main_address() -> str:
    return ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))


@cache
def _open_store(world: World, timeout: float) -> Store:
    """Connect to the store. `torchrun` keeps it in a separate process, so it survives failed attempts."""
    address = _main_address()
    host, _, port = address.rpartition(":")
    is_server = world.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        return TCPStore(
            host, int(port), is_master=is_server, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
    except (RuntimeError, ValueError):
        raise ConfigError(
            f"rank {world.rank} cannot reach rank 0 at {address} (MASTER_ADDR:MASTER_PORT) within "
            f"{timeout:g} seconds (TRIFORM_TIMEOUT); start all processes with torchrun and one rendezvous"
        ) from None


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Connect the processes inside the `with` block, and end all of them if one fails.

    Args:
        device: Where the model of this process runs. Tensors on a GPU are exchanged with NCCL, others with Gloo.
    """
    world = current_world()
    if not is_launched() or distributed.is_initialized():
        yield world
        return
    connection = _Connection(world, _timeout_seconds())
    _connections.append(connection)
    try:
        _init_process_group(connection, device)
        yield world
        distributed.destroy_process_group()
    except BaseException as error:
        if world.size == 1:
            raise
        raise _report_error(connection, error) from None
    finally:
        _connections.clear()
        connection.close()


def _timeout_seconds() -> float:
    text = os.environ.get("TRIFORM_TIMEOUT", "")
    try:
        timeout = float(text or TIMEOUT_SECONDS)
    except ValueError:
        timeout = 0.0
    if not 0 < timeout < 1e6:
        raise ConfigError(f"TRIFORM_TIMEOUT={text} must be a number of seconds above 0")
    return timeout


def _init_process_group(connection: _Connection, device: torch.device) -> None:
    world = connection.world
    gather_values_slowly(platform.node())  # waits for the processes that start later
    if device.type == "cuda":
        torch.cuda.set_device(device)  # FSDP and CUDA graphs use the current device
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", connection.store),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=connection.timeout),
        device_id=device if device.type == "cuda" else None,
    )


# -- errors of one process end all of them


def _report_error(connection: _Connection, error: BaseException) -> BaseException:
    """Let one process print an error, and return the exception that ends this process."""
    with _ignored_signals():  # torchrun sends one when the first process has ended
        cause = _report_cause(connection, error)
    if distributed.is_initialized() and not is_connection_error(cause):
        with suppress(RuntimeError):
            distributed.destroy_process_group()
    if is_connection_error(cause):
        cause = PeerError(str(cause))
    if isinstance(cause, TriformError):
        cause.is_reported = True
    return cause


@contextmanager
def _ignored_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def _report_cause(connection: _Connection, error: BaseException) -> BaseException:
    """Find the cause of an error, let one process print it, and return it."""
    world, cause = connection.world, error
    while isinstance(cause, KeyboardInterrupt):  # of another error, or while the processes wait for each other
        cause = cause.__context__ or RunInterruptedError("interrupted")
    if isinstance(cause, PeerError | RunInterruptedError) and not world.is_main:
        connection.is_reported(REPORT_SECONDS)
    elif isinstance(cause, TriformError):
        if world.is_main or not connection.is_reported(REPORT_SECONDS / 2):
            connection.report(str(cause) if world.is_main else f"rank {world.rank}: {cause}")
    elif not is_connection_error(cause):
        if world.is_main:  # this process prints it when it ends
            with suppress(RuntimeError):
                connection.store.set("reported", str(cause))
        elif not connection.is_reported(REPORT_SECONDS / 2):  # torchrun may end this process before it prints
            connection.report(f"rank {world.rank}: {type(cause).__name__}: {cause}")
    elif not connection.is_reported(4 * HEARTBEAT_SECONDS):
        connection.report(_describe_lost_connection(connection, cause))
    return cause


def is_connection_error(error: BaseException) -> bool:
    """Return whether an exception of torch says that another process cannot be reached."""
    if isinstance(error, distributed.DistError):
        return True
    words = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe", "timed out")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _describe_lost_connection(connection: _Connection, error: BaseException) -> str:
    silent = connection.silent_ranks()
    names = f"rank {', '.join(map(str, silent))}" if silent else "a process"
    verb = "have" if len(silent) > 1 else "has"
    if "imed out" in str(error):
        return f"{names} {verb} not answered for {connection.timeout:g} seconds (TRIFORM_TIMEOUT); the others end"
    return f"{names} {verb} ended unexpectedly, so the others end; the output of torchrun names the cause"


def _describe_lost_link(world: World) -> str:
    return (
        f"rank {world.rank} has had no answer from {_main_address()} (MASTER_ADDR:MASTER_PORT) for "
        f"{LINK_SECONDS:g} seconds and ends; check that machine and the link to it, then continue with --resume"
    )


def _kill_torchrun() -> None:
    """End the torchrun that started this process, unless it may start the processes again when the link is back.

    With `--rdzv-backend c10d` it waits for the other machine, too, until the kernel gives up the connection after
    about 15 minutes, and no other signal interrupts that.
    """
    n_restarts, max_restarts = (
        int(os.environ.get(name, "0")) for name in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
    )
    with suppress(OSError):  # there is no /proc on other systems than Linux
        arguments = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
        names = {Path(argument).name for argument in arguments}
        if n_restarts >= max_restarts and names & {"torchrun", "torch.distributed.run"}:
            os.kill(os.getppid(), signal.SIGKILL)


def run_in_order(function: Callable[[], T], *, main_first: bool = False, channel: str = "main") -> T:
    """Call a function in every process. If it raises a `TriformError` in one of them, all raise one.

    Args:
        function: What to call. It must not exchange anything with other processes.
        main_first: The other processes wait until the main process has finished, because they use its files.
        channel: See `gather_values_slowly`.
    """
    if not _connections:
        return function()
    world, error, result = _connections[0].world, None, []
    for is_my_turn in (world.is_main, not world.is_main) if main_first else (True,):
        if is_my_turn:
            try:
                result.append(function())
            except TriformError as raised:
                error = raised
        errors = gather_values_slowly(None if error is None else str(error), channel)
        raise_first_error(errors, error)
    return result[0]


def raise_first_error(errors: list[str | None], own_error: TriformError | None = None) -> None:
    """Raise the first error of all processes, if there is one. Only the main process prints it.

    Args:
        errors: The error of each process.
        own_error: The error of this process.
    """
    for rank, text in enumerate(errors):
        if text is not None:
            if not current_world().is_main:
                raise PeerError(text)
            raise own_error or ConfigError(f"rank {rank}: {text}")


# -- exchanging values


def gather_values_slowly(value: Any, channel: str = "main") -> list[Any]:
    """Return the values of all processes, however long they take, as long as all of them are alive.

    Args:
        value: The value of this process.
        channel: Threads that exchange values at the same time need different channels.
    """
    if not _connections:
        return [value]
    connection = _connections[0]
    store, size = connection.store, connection.world.size
    connection.n_gathered[channel] += 1
    keys = [f"value/{channel}/{connection.n_gathered[channel]}/{rank}" for rank in range(size)]
    store.set(keys[connection.world.rank], json.dumps(value))
    last_beats, last_change = [0] * size, [time.monotonic()] * size
    for rank, key in enumerate(keys):
        while not store.check([key]):
            if store.check(["reported"]):
                raise PeerError("another process has failed")
            beats = store.add(f"alive/{rank}", 0)
            if beats != last_beats[rank]:
                last_beats[rank], last_change[rank] = beats, time.monotonic()
            elif time.monotonic() - last_change[rank] > connection.timeout:
                raise distributed.DistNetworkError(f"Timed out waiting for rank {rank}")
            time.sleep(POLL_SECONDS)
    return [json.loads(store.get(key)) for key in keys]


def gather_values(value: Any) -> list[Any]:
    """Return the values of all processes, in the order of their ranks, in every process."""
    if not distributed.is_initialized():
        return [value]
    encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = [int(length) for length in _gather_tensors(torch.tensor([len(encoded)]))]
    padded = torch.nn.functional.pad(encoded, (0, max(lengths) - len(encoded)))
    parts = _gather_tensors(padded)
    values = [json.loads(part[:length].numpy().tobytes()) for part, length in zip(parts, lengths, strict=True)]
    if _INTERRUPTED in values:
        raise GatherInterrupted
    return values


def interrupt_gather() -> None:
    """Let the next `gather_values` of all other processes raise `GatherInterrupted`, and wait for it."""
    with suppress(GatherInterrupted):
        gather_values(_INTERRUPTED)


def _gather_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all processes, which have the same shape."""
    tensors = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(tensors, tensor)
    return tensors


def broadcast_value(value: Any) -> Any:
    """Return the value of the main process in every process."""
    return gather_values(value if current_world().is_main else None)[0]


def remember(name: str, value: str) -> None:
    """Remember a text for the next attempt, if `torchrun` starts the processes again."""
    if _connections:
        _connections[0].all_attempts.set(name, value)


def recall(name: str) -> str:
    """Return what an earlier attempt has remembered; empty if there is nothing."""
    if not _connections or not current_world().attempt or not _connections[0].all_attempts.check([name]):
        return ""
    return str(_connections[0].all_attempts.get(name).decode())
