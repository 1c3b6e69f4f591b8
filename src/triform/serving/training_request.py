"""What a client wants to train, checked, and turned into the arguments of `triform train`."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from triform.config import TASK_NAMES
from triform.config.merging import DATA_FILE_SETTINGS, merge_request
from triform.config.settings import Settings, coerce_setting, format_setting, suggest_name
from triform.data.files import BUILTIN_PREFIX
from triform.serving.endpoints import ApiError
from triform.serving.server import Server
from triform.serving.uploads import UPLOAD_PREFIX

RUN_NAME = re.compile(r"\w[\w.-]{0,79}")
# Settings with paths: a client names its files as uploads, so that it cannot read other files of the machine.
FILE_SETTINGS = (
    *DATA_FILE_SETTINGS,
    *("data.monitor", "tokenizer.file", "train.embeddings", "train.init_from", "train.distill_from"),
)


class DataRequest(msgspec.Struct, kw_only=True):
    """The task and its data. A file is `upload:ID` or `builtin:NAME`; `settings` may name its columns."""

    task: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(TASK_NAMES)})]
    data: str = ""
    source: str = ""
    target: str = ""
    settings: dict[str, str | int | float | bool] = {}


class TrainingRequest(DataRequest, kw_only=True, forbid_unknown_fields=True):
    """A run to train: data, preset and settings by dotted name. `name` is the name of the run folder."""

    preset: str = ""
    name: str = ""


def resolve_settings(server: Server, request: DataRequest, preset: str = "") -> Settings:
    """Return the checked settings of a request, with the files of its uploads.

    Raises:
        ConfigError: The task, the preset or a setting is unknown or invalid.
        ApiError: The data is missing, or a setting is a path.
    """
    if request.task not in TASK_NAMES:
        hint = suggest_name(request.task, TASK_NAMES)
        raise ApiError(400, f"unknown task {request.task[:40]!r}; {hint}", param="task")
    settings: Settings = {name: coerce_setting(name, value) for name, value in request.settings.items()}
    for name in ("task", *FILE_SETTINGS):
        if name in settings:
            raise ApiError(400, f"{name} cannot be set here; upload the file and name it as data", param="settings")
    settings |= _resolve_files(server, request)
    merge_request(request.task, preset, None, settings)
    return settings


def _resolve_files(server: Server, request: DataRequest) -> Settings:
    if bool(request.source) != bool(request.target) or bool(request.data) == bool(request.source):
        raise ApiError(400, "give either data, or both source and target", param="data")
    if request.data.startswith(BUILTIN_PREFIX):
        return {"data.train": request.data}
    if request.data:
        return {"data.train": _upload_path(server, request.data)}
    return {
        "data.source": _upload_path(server, request.source),
        "data.target": _upload_path(server, request.target),
    }


def _upload_path(server: Server, name: str) -> str:
    if not name.startswith(UPLOAD_PREFIX):
        raise ApiError(400, f"{name[:80]!r} is not upload:ID or builtin:NAME", param="data")
    return str(server.uploads.find(name.removeprefix(UPLOAD_PREFIX))[1])


def to_arguments(task: str, preset: str, settings: Settings) -> list[str]:
    """Return the arguments of `triform train` for checked settings, without the run folder."""
    options = {"data.train": "--data", "data.source": "--source", "data.target": "--target"}
    arguments = ["train", task]
    for name, option in options.items():
        if name in settings:
            arguments += [option, str(settings[name])]
    if preset:
        arguments += ["--preset", preset]
    for name, value in settings.items():
        if name not in options:
            arguments += ["--set", f"{name}={format_setting(value)}"]
    return arguments


def hide_paths(server: Server, request: DataRequest, message: str) -> str:
    """Return a message with the names that the client gave instead of the paths of its uploads."""
    for file in (request.data, request.source, request.target):
        if file.startswith(UPLOAD_PREFIX):
            record, path = server.uploads.find(file.removeprefix(UPLOAD_PREFIX))
            message = message.replace(str(path.absolute()), record.label).replace(str(path), record.label)
    return message


def choose_run_name(server: Server, request: TrainingRequest) -> str:
    """Return the name of the run folder: that of the request, or a free one made of the task and the data.

    Raises:
        ApiError: The name is not valid.
    """
    if request.name:
        if not RUN_NAME.fullmatch(request.name):
            message = "a name has 1 to 80 letters, digits, hyphens, dots or underscores, and no slash"
            raise ApiError(400, f"{request.name[:80]!r} is no valid name for a run; {message}", param="name")
        return request.name
    base = f"{request.task}-{_data_stem(server, request)}"
    folder, name, number = server.jobs.runs_folder, base, 1
    while (folder / name).exists():
        number += 1
        name = f"{base}-{number}"
    return name


def _data_stem(server: Server, request: DataRequest) -> str:
    file = request.data or request.source
    if file.startswith(BUILTIN_PREFIX):
        label = file.removeprefix(BUILTIN_PREFIX)
    else:
        label = server.uploads.find(file.removeprefix(UPLOAD_PREFIX))[0].label
    return re.sub(r"\W+", "-", label.split(".")[0].lower()).strip("-")[:40] or "data"
