"""Routes of training jobs: list, start, stop and resume them."""

from __future__ import annotations

import anyio.to_thread
import msgspec

from triform.serving.endpoints import Call, Endpoint
from triform.serving.server import Server
from triform.serving.training_jobs import JobSummary
from triform.serving.training_request import TrainingRequest, choose_run_name, resolve_settings, to_arguments
from triform.serving.uploads import UPLOAD_PREFIX


class JobsResponse(msgspec.Struct, kw_only=True):
    """All jobs, the newest first. `can_train` says whether this server starts jobs."""

    can_train: bool
    jobs: list[JobSummary]


class StopResponse(msgspec.Struct, kw_only=True):
    """The run whose process was asked to save and stop."""

    stopping: str


async def list_jobs(call: Call) -> JobsResponse:
    """Return all jobs."""
    options = call.server.options
    jobs = await anyio.to_thread.run_sync(call.server.jobs.summarise_all)
    return JobsResponse(can_train=options.folder is not None and not options.read_only, jobs=jobs)


async def start_job(call: Call) -> JobSummary:
    """Start a job."""
    return await anyio.to_thread.run_sync(_start, call.server, call.body)


def _start(server: Server, request: TrainingRequest) -> JobSummary:
    folder = server.jobs.runs_folder
    settings = resolve_settings(server, request, request.preset)
    name = choose_run_name(server, request)
    arguments = to_arguments(request.task, request.preset, settings)
    arguments += ["--out", str(folder / name), *server.jobs.device_arguments]

    def keep_uploads() -> None:
        for file in (request.data, request.source, request.target):
            if file.startswith(UPLOAD_PREFIX):
                server.uploads.mark_used(file.removeprefix(UPLOAD_PREFIX))

    return server.jobs.start(name, request.task, arguments, keep_uploads)


async def stop_job(call: Call) -> StopResponse:
    """Ask the process that trains a run to save and stop."""
    await anyio.to_thread.run_sync(call.server.jobs.stop, call.path["id"])
    return StopResponse(stopping=call.path["id"])


async def resume_job(call: Call) -> JobSummary:
    """Continue a run that was stopped."""
    return await anyio.to_thread.run_sync(call.server.jobs.resume, call.path["id"])


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/jobs",
        handler=list_jobs,
        dialect="triform",
        summary="List training jobs with their state and the end of their log. One job trains at a time.",
        response=JobsResponse,
    ),
    Endpoint(
        method="POST",
        path="/api/jobs",
        handler=start_job,
        dialect="triform",
        summary="Train a new run in a process that outlives the server.",
        request=TrainingRequest,
        response=JobSummary,
    ),
    Endpoint(
        method="POST",
        path="/api/jobs/{id:path}/stop",
        handler=stop_job,
        dialect="triform",
        summary="Save and stop the training of a run, whether a job or the command line started it.",
        response=StopResponse,
    ),
    Endpoint(
        method="POST",
        path="/api/jobs/{id:path}/resume",
        handler=resume_job,
        dialect="triform",
        summary="Continue a run that was stopped, as a job.",
        response=JobSummary,
    ),
)
