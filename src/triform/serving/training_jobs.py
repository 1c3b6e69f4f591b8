"""Training jobs: processes of `triform train` that write ordinary run folders and survive the server.

A job has the id of its run. Its record and its log are in the folder `.studio/jobs` of the folder of runs. The
process is found again by its number and start time, or by the lock of the run folder. One job trains at a time,
because two would share the device and both would be slower.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from triform.errors import CheckpointError, FolderInUseError
from triform.io.files import read_regular, refuse_special_file, write_bytes
from triform.io.locks import LockHolder, find_lock_holder, folder_lock
from triform.serving.endpoints import ApiError, encode_json
from triform.serving.job_process import (
    describe_exit,
    find_error_line,
    read_log_tail,
    read_process_start,
    start_detached,
)
from triform.serving.models import resolve_below
from triform.serving.options import ServerOptions
from triform.serving.run_list import RunSummary, read_listed_settings, summarise_run

STUDIO_FOLDER = ".studio"  # of the folder of runs, for the files of the studio
JOBS_FOLDER = "jobs"
EXIT_SECONDS, POLL_SECONDS = 5.0, 0.05  # for a process to end after it has released its run folder
MAX_RECORDS = 50  # of jobs; older ones are forgotten, but not their runs
EXIT_INTERRUPTED = 130
LOCK_PURPOSE = "training"  # the first word of the purpose of a lock that a training process holds
JobState = Literal["starting", "training", "stopping", "finished", "stopped", "failed"]


class JobRecord(msgspec.Struct, kw_only=True):
    """What is stored of a job. `exit_code` is None while it runs, and if it ended while no server ran."""

    run: str
    task: str
    arguments: list[str]
    started: str
    pid: int
    process_start: str
    exit_code: int | None = None
    stop_requested: bool = False


class JobSummary(msgspec.Struct, kw_only=True):
    """A job. `id` is the id of its run, `log` the end of what the command printed."""

    id: str
    task: str
    state: JobState
    command: str
    started: str
    error: str
    log: str
    has_run: bool
    can_stop: bool
    can_resume: bool


class TrainingJobs:
    """The jobs of a folder of runs. All methods may be called from any thread."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # by run, those that this server has started
        self._stopped_holders: set[LockHolder] = set()  # processes without a job that were asked to stop
        self._lock = threading.RLock()

    @property
    def runs_folder(self) -> Path:
        """The folder of runs.

        Raises:
            ApiError: The server has none, or is read-only.
        """
        if self.options.read_only:
            raise ApiError(403, "this server is read-only, so it does not train")
        if self.options.folder is None:
            raise ApiError(403, "this server has no folder of runs; start it as triform studio FOLDER")
        return self.options.folder

    def summarise_all(self) -> list[JobSummary]:
        """Return all jobs, the newest first."""
        if self.options.folder is None:
            return []
        with self._lock:
            records = self._read_records(self.options.folder)
            return [self._summarise(self.options.folder, record) for record in records]

    def start(
        self, run_id: str, task: str, arguments: Sequence[str], keep_data: Callable[[], None] = lambda: None
    ) -> JobSummary:
        """Start `triform ARGUMENTS`, which trains the run.

        Args:
            run_id: The id of the new run.
            task: Its task.
            arguments: The arguments of the command.
            keep_data: Called when the job is accepted, before its process starts.

        Raises:
            ApiError: Another job is running, or there is already a run of this name.
            OSError: The files of the job cannot be written. Then no process runs.
        """
        folder = self.runs_folder
        with self._only_starter(folder):
            if (folder / run_id).exists():
                raise ApiError(409, f"there is already a folder {run_id!r}; choose another name", param="name")
            self._require_all_ended(folder)
            keep_data()
            return self._start(folder, run_id, task, arguments)

    def resume(self, run_id: str) -> JobSummary:
        """Continue a run that was stopped, in a new process.

        Raises:
            ApiError: The run is training or finished, or another job is running.
            OSError: The files of the job cannot be written. Then no process runs.
        """
        folder = self.runs_folder
        path = self._run_path(folder, run_id)
        with self._only_starter(folder):
            summary = summarise_run(run_id, path, find_lock_holder(path))
            if summary.state in ("training", "finished"):
                reason = "is training" if summary.state == "training" else "is finished"
                raise ApiError(409, f"{run_id} {reason}, so there is nothing to resume")
            task = str(read_listed_settings(path).get("task", ""))
            arguments = ["train", task, "--out", str(path), "--resume", *self.device_arguments]
            self._require_all_ended(folder)
            return self._start(folder, run_id, task, arguments)

    def stop(self, run_id: str) -> None:
        """Ask the process that trains a run to save and stop. A second request changes nothing.

        Raises:
            ApiError: No process trains the run, or it may not be stopped.
        """
        folder = self.runs_folder
        with self._lock:
            record = self._read_record(folder, run_id)
            if record is not None and self._is_running(folder, record):
                if not record.stop_requested:
                    send_stop_signal(run_id, record.pid)
                    record.stop_requested = True
                    self._write_record(folder, record)
                return
            holder = find_lock_holder(self._run_path(folder, run_id))
            if holder is None:
                raise ApiError(409, f"{run_id} is not training")
            require_stoppable(run_id, holder)
            if holder not in self._stopped_holders:
                send_stop_signal(run_id, holder.pid)
                self._stopped_holders.add(holder)

    @property
    def device_arguments(self) -> list[str]:
        """The option with the device of the server, if it was given one."""
        return [] if self.options.device == "auto" else ["--device", self.options.device]

    @contextmanager
    def _only_starter(self, folder: Path) -> Iterator[None]:
        """Let only one thread of one server start a job in a folder of runs."""
        try:
            with self._lock, folder_lock(_jobs_folder(folder), "starting a job"):
                yield
        except FolderInUseError:
            raise ApiError(409, "another studio starts a job in this folder; one job trains at a time") from None

    def _start(self, folder: Path, run_id: str, task: str, arguments: Sequence[str]) -> JobSummary:
        log_file = _file(folder, run_id, ".log")
        with ExitStack() as undo:  # without its record, nobody would find the process
            undo.callback(log_file.unlink, missing_ok=True)
            process = start_detached(arguments, log_file)
            undo.callback(process.wait)
            undo.callback(process.kill)
            record = JobRecord(
                run=run_id,
                task=task,
                arguments=list(arguments),
                started=datetime.now().isoformat(timespec="seconds"),
                pid=process.pid,
                process_start=read_process_start(process.pid),
            )
            write_bytes(_file(folder, run_id, ".json"), encode_json(record))
            undo.pop_all()
        self._children[run_id] = process
        self._forget_old(folder)
        return self._summarise(folder, record)

    def _require_all_ended(self, folder: Path) -> None:
        for other in self._read_records(folder):
            self._require_ended(folder, other)

    def _require_ended(self, folder: Path, other: JobRecord) -> None:
        """Raise `ApiError` if a job trains. One that has released its run folder is given some time to end."""
        deadline = time.monotonic() + EXIT_SECONDS
        while self._is_running(folder, other):
            path = resolve_below(folder, other.run)
            is_ending = path is not None and find_lock_holder(path) is None
            if not is_ending or time.monotonic() > deadline:
                raise ApiError(409, f"{other.run} is training; one job trains at a time, so stop it or wait")
            time.sleep(POLL_SECONDS)

    def _run_path(self, folder: Path, run_id: str) -> Path:
        if path := resolve_below(folder, run_id):
            return path
        if run_id in self.options.runs:
            raise ApiError(403, f"{run_id!r} is not in the folder of runs, so the server does not change it")
        raise ApiError(404, f"there is no run {run_id!r}; GET /api/runs lists the runs")

    def _summarise(self, folder: Path, record: JobRecord) -> JobSummary:
        is_running = self._is_running(folder, record)
        path = resolve_below(folder, record.run)
        run = None if path is None else summarise_run(record.run, path, find_lock_holder(path))
        log = read_log_tail(_file(folder, record.run, ".log"))
        state, error = _find_state(record, is_running=is_running, run=run, log=log)
        may_change = not self.options.read_only
        is_busy = is_running or (run is not None and run.state == "training")
        return JobSummary(
            id=record.run,
            task=record.task,
            state=state,
            command=f"triform {shlex.join(record.arguments)}",
            started=record.started,
            error=error,
            log=log,
            has_run=run is not None,
            can_stop=may_change and is_busy and state != "stopping",
            can_resume=may_change and not is_busy and run is not None and run.state != "finished",
        )

    def _is_running(self, folder: Path, record: JobRecord) -> bool:
        """Return whether the process of a job runs. The exit code of a process that has ended is stored."""
        child = self._children.get(record.run)
        if child is not None and child.pid == record.pid:
            if (exit_code := child.poll()) is None:
                return True
            if record.exit_code is None:
                record.exit_code = exit_code
                self._write_record(folder, record)
            return False
        if record.exit_code is not None:
            return False
        if record.process_start:
            return read_process_start(record.pid) == record.process_start
        holder = find_lock_holder(folder / record.run)
        return holder is not None and holder.pid == record.pid

    def _read_records(self, folder: Path) -> list[JobRecord]:
        paths = _jobs_folder(folder).glob("*.json")
        records = [record for path in paths if (record := _read_record(path)) is not None]
        return sorted(records, key=lambda record: (record.started, record.run), reverse=True)

    def _read_record(self, folder: Path, run_id: str) -> JobRecord | None:
        return _read_record(_file(folder, run_id, ".json"))

    def _write_record(self, folder: Path, record: JobRecord) -> None:
        with suppress(OSError):  # the process and the run folder still tell how far it is
            write_bytes(_file(folder, record.run, ".json"), encode_json(record))

    def _forget_old(self, folder: Path) -> None:
        for record in self._read_records(folder)[MAX_RECORDS:]:
            for suffix in (".json", ".log"):
                _file(folder, record.run, suffix).unlink(missing_ok=True)


def _jobs_folder(folder: Path) -> Path:
    """Return the folder of the records and logs of the jobs.

    Raises:
        CheckpointError: It is a link.
    """
    path = folder / STUDIO_FOLDER / JOBS_FOLDER
    refuse_special_file(path.parent)
    refuse_special_file(path)
    return path


def _file(folder: Path, run_id: str, suffix: str) -> Path:
    """Return a file of a job. The id of a run may contain slashes, so a digest of it is the name."""
    name = hashlib.sha256(run_id.encode(errors="surrogatepass")).hexdigest()[:24]
    return _jobs_folder(folder) / (name + suffix)


def _read_record(path: Path) -> JobRecord | None:
    try:
        return msgspec.json.decode(read_regular(path), type=JobRecord)
    except (OSError, CheckpointError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _find_state(record: JobRecord, *, is_running: bool, run: RunSummary | None, log: str) -> tuple[JobState, str]:
    """Return the state of a job and its error. The run folder decides, because the command line may continue it."""
    if is_running:
        if record.stop_requested:
            return "stopping", ""
        return "training" if run is not None and run.state == "training" else "starting", ""
    if run is not None and run.state in ("training", "finished"):
        return ("training" if run.state == "training" else "finished"), ""
    # A process that is stopped while Python starts, before it handles signals, is ended by the signal.
    was_interrupted = record.exit_code == EXIT_INTERRUPTED or (
        record.stop_requested and record.exit_code == -signal.SIGTERM
    )
    if record.exit_code and not was_interrupted:
        return "failed", describe_exit(record.exit_code, log)
    if run is not None:
        return ("stopped", "") if run.state == "stopped" else ("failed", run.error)
    if was_interrupted:
        return "stopped", ""
    return "failed", find_error_line(log) or "the run folder was removed"


def require_stoppable(run_id: str, holder: LockHolder) -> None:
    """Raise `ApiError` if the process that holds a lock does not train, or runs on another machine."""
    if not holder.pid or not holder.purpose.startswith(LOCK_PURPOSE):
        raise ApiError(409, f"{run_id} is in use by {holder}, which is not training")
    if holder.host != socket.gethostname():
        raise ApiError(409, f"{run_id} is in use by {holder}; stop it on that machine")


def send_stop_signal(run_id: str, pid: int) -> None:
    """Ask a training process to save and stop."""
    if sys.platform == "win32":  # there a signal would end the process without saving
        raise ApiError(501, f"stop {run_id} in its own window; on Windows the server cannot")
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        raise ApiError(409, f"{run_id} is not training") from None
    except PermissionError:
        raise ApiError(403, f"{run_id} is trained by another user (process {pid}), who has to stop it") from None
