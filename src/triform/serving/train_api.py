"""Routes of the tab Train before a job starts: uploads, their inspection, presets and settings, and an estimate."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread
import msgspec

from triform.config import TASK_NAMES, DataConfig
from triform.config.presets import SIZE_PRESETS, SYSTEM_PRESETS
from triform.config.reference import SettingInfo, setting_groups
from triform.config.settings import Settings
from triform.data import builtin
from triform.data.files import BUILTIN_PREFIX
from triform.data.preview import guess_task
from triform.errors import DataError
from triform.serving.endpoints import ApiError, Call, Endpoint, iter_body
from triform.serving.inspection import Inspection, inspect_data, limit_reading
from triform.serving.job_process import find_error_line
from triform.serving.run_details import Notice
from triform.serving.server import MAX_UPLOADS, Result, Server
from triform.serving.training_request import (
    DataRequest,
    TrainingRequest,
    hide_paths,
    resolve_settings,
    to_arguments,
)

# The settings that the form of the page has; all others can be given by name.
MAIN_SETTINGS = (
    *("train.epochs", "train.max_minutes", "train.batch_size", "train.lr", "model.d_model", "model.n_layers"),
    *("model.dropout", "data.max_len", "tokenizer.kind", "seed"),
)
ESTIMATE_SECONDS = 120.0
TERMINATE_SECONDS = 5.0


class UploadResponse(msgspec.Struct, kw_only=True):
    """An uploaded file. `task` is a guess; `error` says why the file cannot be read for this task."""

    id: str
    name: str
    bytes: int
    task: str
    inspection: Inspection | None
    error: str


class InspectRequest(DataRequest, kw_only=True, forbid_unknown_fields=True):
    """Data to inspect for a task."""


class Preset(msgspec.Struct, kw_only=True):
    """A preset, and the tasks that it fits."""

    name: str
    description: str
    tasks: list[str]


class FormSetting(msgspec.Struct, kw_only=True):
    """A setting as its documentation describes it."""

    name: str
    type: str
    default: str
    meaning: str
    automatic: str
    choices: list[str]
    bounds: list[float]


class TrainingForm(msgspec.Struct, kw_only=True):
    """What can be chosen: tasks with their built-in set, presets, and the settings that matter most."""

    can_train: bool
    max_upload: int
    tasks: dict[str, str]
    presets: list[Preset]
    settings: list[FormSetting]


class EstimateResponse(msgspec.Struct, kw_only=True):
    """What a run costs; see `triform train --dry-run`."""

    parameters: int
    trainable: int
    memory_bytes: int
    available_bytes: int
    steps: int
    seconds: float
    device: str
    train_examples: int
    valid_examples: int
    vocab_size: int
    max_len: int
    notices: list[Notice]


async def show_form(call: Call) -> TrainingForm:
    """Return what can be chosen."""
    options = call.server.options
    presets = [_describe_preset(name, list(TASK_NAMES)) for name in SIZE_PRESETS]
    presets += [_describe_preset(name, [create().task]) for name, create in SYSTEM_PRESETS.items()]
    by_name = {setting.name: setting for group in setting_groups() for setting in group.settings}
    return TrainingForm(
        can_train=options.folder is not None and not options.read_only,
        max_upload=options.max_upload,
        tasks={task: BUILTIN_PREFIX + builtin.DEFAULT_SETS[task] for task in TASK_NAMES},
        presets=presets,
        settings=[_describe_setting(by_name[name]) for name in MAIN_SETTINGS],
    )


def _describe_preset(name: str, tasks: list[str]) -> Preset:
    function = SIZE_PRESETS.get(name) or SYSTEM_PRESETS[name]
    return Preset(name=name, description=(function.__doc__ or "").partition("\n")[0], tasks=tasks)


def _describe_setting(setting: SettingInfo) -> FormSetting:
    return FormSetting(
        name=setting.name,
        type=setting.type_name,
        default=setting.short_default,
        meaning=setting.doc.meaning,
        automatic=setting.doc.auto,
        choices=list(setting.choices),
        bounds=list(setting.bounds or ()),
    )


async def receive_upload(call: Call) -> UploadResponse:
    """Store the body of a request as a data file, and inspect it."""
    server, store = call.server, call.server.uploads
    try:
        server.uploading.acquire_nowait()
    except anyio.WouldBlock:
        message = f"{MAX_UPLOADS} files are being uploaded; try again in a moment"
        raise ApiError(429, message, headers={"Retry-After": "1"}) from None
    try:
        max_bytes = server.options.max_upload
        await anyio.to_thread.run_sync(store.forget_unused, MAX_UPLOADS * max_bytes)
        upload_id = await store.receive(call.query.get("name", ""), iter_body(call.http, max_bytes))
        return await _run_inspection(server, partial(_inspect_upload, server, upload_id))
    finally:
        server.uploading.release()


async def _run_inspection(server: Server, function: Callable[[], Result]) -> Result:
    """Call a function that reads data, when no other one runs. It ends soon if the server or the request does."""
    is_given_up = threading.Event()

    def check() -> None:
        if is_given_up.is_set() or server.stopping.is_set():
            raise ApiError(503, "the server is stopping")

    def run() -> Result:
        with limit_reading(check):
            return function()

    try:
        return await anyio.to_thread.run_sync(run, limiter=server.inspecting)
    finally:
        is_given_up.set()


def _inspect_upload(server: Server, upload_id: str) -> UploadResponse:
    record, path = server.uploads.find(upload_id)
    response = UploadResponse(
        id=upload_id, name=record.label, bytes=record.bytes, task="", inspection=None, error=""
    )
    try:
        response.task = task = guess_task(str(path))
        response.inspection = inspect_data(task, str(path), DataConfig())
    except DataError as error:
        response.error = str(error).replace(str(path), record.label)
    return response


async def inspect(call: Call) -> Inspection:
    """Inspect data for a task."""
    return await _run_inspection(call.server, partial(_inspect, call.server, call.body))


def _inspect(server: Server, request: InspectRequest) -> Inspection:
    settings = resolve_settings(server, request)
    data_settings = {
        name.removeprefix("data."): value for name, value in settings.items() if name.startswith("data.")
    }
    data_config = replace(DataConfig(), **data_settings)  # type: ignore[arg-type]
    name = data_config.train or f"{data_config.source},{data_config.target}"
    try:
        return inspect_data(request.task, name, data_config)  # type: ignore[arg-type]
    except DataError as error:
        raise ApiError(400, hide_paths(server, request, str(error)), param="data") from None


async def estimate(call: Call) -> EstimateResponse:
    """Estimate what a run costs, in a process that ends with the request."""
    server, request = call.server, call.body
    _ = server.jobs.runs_folder  # raises an error if the server does not train
    settings: Settings = await anyio.to_thread.run_sync(resolve_settings, server, request, request.preset)
    arguments = to_arguments(request.task, request.preset, settings)
    arguments += ["--dry-run", "--json", *server.jobs.device_arguments]
    async with server.estimating:
        output, log, exit_code = await _run_command(arguments)
    if exit_code:
        reason = find_error_line(log) or f"the estimate ended with exit code {exit_code}"
        raise ApiError(400, hide_paths(server, request, reason))
    result = msgspec.json.decode(output, type=EstimateResponse)
    for notice in result.notices:
        notice.text = hide_paths(server, request, notice.text)
    return result


async def _run_command(arguments: list[str]) -> tuple[bytes, str, int]:
    """Run `triform ARGUMENTS`. The process ends when the request is cancelled or takes too long."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "triform", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(ESTIMATE_SECONDS):
            output, log = await process.communicate()
        return output, log.decode(errors="replace"), process.returncode or 0
    except TimeoutError:
        message = f"the estimate took longer than {ESTIMATE_SECONDS:.0f} s; choose a smaller preset, or just start"
        raise ApiError(504, message) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TERMINATE_SECONDS):
                        await process.wait()
                if process.returncode is None:
                    process.kill()


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/training",
        handler=show_form,
        dialect="triform",
        summary="Return what can be chosen for training: tasks, presets, and the settings that matter most.",
        response=TrainingForm,
    ),
    Endpoint(
        method="POST",
        path="/api/uploads",
        handler=receive_upload,
        dialect="triform",
        summary="Upload a data file as the body of the request, and return its columns, labels and problems.",
        response=UploadResponse,
        upload=True,
        query={"name": str},
    ),
    Endpoint(
        method="POST",
        path="/api/inspect",
        handler=inspect,
        dialect="triform",
        summary="Return the columns, labels and problems of data as it is read for a task.",
        request=InspectRequest,
        response=Inspection,
    ),
    Endpoint(
        method="POST",
        path="/api/estimate",
        handler=estimate,
        dialect="triform",
        summary="Estimate the parameters, memory and time of a run. A few steps are timed for it.",
        request=TrainingRequest,
        response=EstimateResponse,
    ),
)
