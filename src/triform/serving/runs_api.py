"""Routes of the tabs Runs and Run: the list of runs, one run, its metrics while it trains, and its removal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from starlette.responses import Response, StreamingResponse

from triform.errors import CheckpointError, TriformError
from triform.io.events import Event
from triform.io.locks import find_lock_holder
from triform.io.run_layout import METRICS_FILE
from triform.serving import run_details
from triform.serving.comparison import PLAN_FILE
from triform.serving.endpoints import STREAM_TYPE, ApiError, Call, Endpoint, encode_json
from triform.serving.metrics_tail import MetricsTail
from triform.serving.models import find_runs, resolve_below
from triform.serving.run_list import RunSummary
from triform.serving.server import Server
from triform.training.run_folder import RunFolder

POLL_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 15.0  # between comments in a stream without events, so that proxies keep it open


class RunsResponse(msgspec.Struct, kw_only=True):
    """All runs of the server. `is_complete` is false if the folder has too many folders to search all of them."""

    folder: str
    is_complete: bool
    read_only: bool
    runs: list[RunSummary]
    studies: list[str]
    metrics: dict[str, run_details.MetricFormat]


class RunResponse(msgspec.Struct, kw_only=True):
    """One run. `settings_error` says why the settings cannot be read; the other flags what the server may do."""

    run: RunSummary
    path: str
    can_delete: bool
    can_stop: bool
    can_resume: bool
    settings: list[run_details.Setting]
    settings_error: str
    notices: list[run_details.Notice]
    samples: list[run_details.Sample]
    tests: list[run_details.EvaluationResult]
    files: list[run_details.RunFile]
    metrics: dict[str, run_details.MetricFormat]


class MetricsResponse(msgspec.Struct, kw_only=True):
    """The events of a run so far, thinned."""

    run: RunSummary
    events: list[Event]


class DeletedResponse(msgspec.Struct, kw_only=True):
    """What was deleted. `remaining` are files in the folder that Triform has not written."""

    deleted: str
    remaining: list[str]


def list_summaries(server: Server) -> tuple[list[RunSummary], bool]:
    """Return the summaries of the runs of a server, and whether all folders were searched."""
    folders, is_complete = dict(server.options.runs), True
    if (root := server.options.folder) is not None:
        run_ids, is_complete = find_runs(root)
        folders = {run_id: root / run_id for run_id in run_ids} | folders
    server.run_list.forget_others(folders.keys())
    return [server.run_list.summarise(run_id, folder) for run_id, folder in folders.items()], is_complete


def find_studies(server: Server, summaries: list[RunSummary]) -> list[str]:
    """Return the folders of studies, relative to the folder of runs."""
    if (root := server.options.folder) is None:
        return []
    groups = sorted({summary.group for summary in summaries if "/" in summary.group})
    folders = dict.fromkeys(group.rpartition("/")[0] for group in groups)
    return [folder for folder in folders if (root / folder / PLAN_FILE).is_file()]


def run_path(server: Server, run_id: str) -> Path:
    """Return the folder of a run; raise `ApiError` if there is none."""
    try:
        return server.models.path(run_id)
    except ApiError:
        raise ApiError(404, f"there is no run {run_id!r}; GET /api/runs lists the runs") from None


def summarise(server: Server, run_id: str) -> RunSummary:
    """Return the summary of one run; raise `ApiError` if there is none."""
    return server.run_list.summarise(run_id, run_path(server, run_id))


async def list_runs(call: Call) -> RunsResponse:
    """Return all runs."""
    summaries, is_complete = await anyio.to_thread.run_sync(list_summaries, call.server)
    options = call.server.options
    studies = await anyio.to_thread.run_sync(find_studies, call.server, summaries)
    folder = "" if options.folder is None else str(options.folder)
    return RunsResponse(
        folder=folder,
        is_complete=is_complete,
        read_only=options.read_only,
        runs=summaries,
        studies=studies,
        metrics=run_details.describe_metrics(),
    )


async def show_run(call: Call) -> RunResponse:
    """Return one run."""
    return await anyio.to_thread.run_sync(_read_run, call.server, call.path["id"])


def _read_run(server: Server, run_id: str) -> RunResponse:
    folder = run_path(server, run_id)
    summary = summarise(server, run_id)
    events = run_details.read_events(folder / METRICS_FILE)
    settings_error = ""
    try:
        settings = run_details.read_settings(folder)
    except TriformError as error:
        settings, settings_error = [], str(error)
    may_change = run_id not in server.options.runs and not server.options.read_only
    return RunResponse(
        run=summary,
        path=str(folder),
        can_delete=may_change and summary.state != "training",
        can_stop=may_change and summary.state == "training",
        can_resume=may_change and summary.state in ("stopped", "failed"),
        settings=settings,
        settings_error=settings_error,
        notices=run_details.find_notices(events),
        samples=run_details.find_samples(events),
        tests=run_details.find_tests(events),
        files=run_details.read_files(folder),
        metrics=run_details.describe_metrics(),
    )


async def _show_run_named(call: Call, name: str) -> RunResponse | None:
    """Return the run `a/NAME` for the address `/api/runs/a/NAME` if there is no run `a`.

    Otherwise, a run folder that is named `metrics` or `predictions` could not be opened.
    """
    folder, run_id = call.server.options.folder, call.path["id"]
    if folder is None or resolve_below(folder, run_id) or not resolve_below(folder, f"{run_id}/{name}"):
        return None
    return await anyio.to_thread.run_sync(_read_run, call.server, f"{run_id}/{name}")


async def show_predictions(call: Call) -> run_details.Predictions | RunResponse:
    """Return predictions of the best weights so far on validation rows."""
    if run := await _show_run_named(call, "predictions"):
        return run
    run_path(call.server, call.path["id"])
    served = await call.server.models.get(call.path["id"])
    limiter = call.server.explanations.limiter  # few heavy computations at a time
    return await anyio.to_thread.run_sync(run_details.predict_validation_rows, served.run, limiter=limiter)


async def follow_metrics(call: Call) -> MetricsResponse | RunResponse | Response:
    """Return the metrics of a run: as JSON, or as a stream that continues while the run trains."""
    if run := await _show_run_named(call, "metrics"):
        return run
    run_id = call.path["id"]
    folder = run_path(call.server, run_id)
    tail = MetricsTail(path=folder / METRICS_FILE)
    if STREAM_TYPE not in call.http.headers.get("Accept", ""):
        events = await anyio.to_thread.run_sync(tail.read_history)
        summary = await anyio.to_thread.run_sync(summarise, call.server, run_id)
        return MetricsResponse(run=summary, events=events)
    return StreamingResponse(
        _stream_metrics(call.server, run_id, tail),
        media_type=STREAM_TYPE,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream_metrics(server: Server, run_id: str, tail: MetricsTail) -> AsyncIterator[bytes]:
    """Yield the events `history`, `run` after each change, `event` for a new line, `reset` before a new history."""
    yield _encode_event("history", await anyio.to_thread.run_sync(tail.read_history))
    last_summary: RunSummary | None = None
    last_sent = time.monotonic()
    while not server.stopping.is_set():
        messages: list[bytes] = []
        try:
            summary = await anyio.to_thread.run_sync(summarise, server, run_id)
        except ApiError as error:
            yield _encode_event("error", {"error": error.message})
            return
        if summary != last_summary:
            last_summary = summary
            messages.append(_encode_event("run", summary))
        events = await anyio.to_thread.run_sync(tail.read_new)
        if events is None:
            history = await anyio.to_thread.run_sync(tail.read_history)
            messages += [_encode_event("reset", {}), _encode_event("history", history)]
        else:
            messages += [_encode_event("event", event) for event in events]
        if not messages and time.monotonic() - last_sent > KEEP_ALIVE_SECONDS:
            messages.append(b": no news\n\n")
        if messages:
            last_sent = time.monotonic()
            yield b"".join(messages)
        await wait_for_poll(server)


async def wait_for_poll(server: Server) -> None:
    """Wait until the files are read again, or until the server stops."""
    with suppress(TimeoutError):
        await asyncio.wait_for(server.stopping.wait(), POLL_SECONDS)


def _encode_event(name: str, content: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode_json(content) + b"\n\n"


async def delete_run(call: Call) -> DeletedResponse:
    """Delete the files of a run that is not training."""
    run_id, options = call.path["id"], call.server.options
    if options.read_only:
        raise ApiError(403, "this server is read-only, so it does not delete runs")
    folder = run_path(call.server, run_id)
    if run_id in options.runs:
        raise ApiError(403, f"{run_id!r} was named when the server was started, so it is not deleted")
    return await anyio.to_thread.run_sync(partial(_delete, run_id, folder))


def _delete(run_id: str, folder: Path) -> DeletedResponse:
    if holder := find_lock_holder(folder):
        raise ApiError(409, f"{run_id} is in use by {holder}; stop it before you delete it")
    run_folder = RunFolder(folder)
    try:
        with run_folder.lock("deleting a run"):
            run_folder.clear()
            remaining = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except CheckpointError as error:
        raise ApiError(409, str(error)) from None
    return DeletedResponse(deleted=run_id, remaining=remaining)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/runs",
        handler=list_runs,
        dialect="triform",
        summary="List all runs with their state, step and metric.",
        response=RunsResponse,
    ),
    Endpoint(
        method="GET",
        path="/api/runs/{id:path}/metrics",
        handler=follow_metrics,
        dialect="triform",
        summary="Return the metrics of a run: as JSON, or with `Accept: text/event-stream` as they are written.",
        response=MetricsResponse,
        other_responses={
            STREAM_TYPE: "With `Accept: text/event-stream`: `history` with the events so far, then `event` for "
            "each new one, `run` when the state or the step changes, `reset` before a new `history`, and `error` "
            "if the run is gone."
        },
    ),
    Endpoint(
        method="GET",
        path="/api/runs/{id:path}/predictions",
        handler=show_predictions,
        dialect="triform",
        summary="Show where the best weights are wrong on validation rows, with sample predictions.",
        response=run_details.Predictions,
    ),
    Endpoint(
        method="GET",
        path="/api/runs/{id:path}",
        handler=show_run,
        dialect="triform",
        summary="Return one run: settings with their sources, notices, samples, test metrics and files.",
        response=RunResponse,
    ),
    Endpoint(
        method="DELETE",
        path="/api/runs/{id:path}",
        handler=delete_run,
        dialect="triform",
        summary="Delete a run that is not training. Files that Triform has not written remain.",
        response=DeletedResponse,
    ),
)
