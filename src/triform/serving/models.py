"""The runs that a server has: found by name, loaded when they are first used, and reloaded when they change."""

from __future__ import annotations

import os
import threading
import time
import tomllib
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from triform.errors import CheckpointError
from triform.io.ensembles import find_member_folders
from triform.io.files import read_regular
from triform.io.run_layout import CHECKPOINTS_FOLDER, CONFIG_FILE, MODEL_FILE, TOKENS_FOLDER
from triform.run import Run, load
from triform.serving.endpoints import ApiError
from triform.serving.options import ServerOptions
from triform.serving.worker import Worker
from triform.tasks.pretraining import refuse_pretraining

if TYPE_CHECKING:
    from triform.config import TaskName

MAX_LOADED_MODELS = 4  # of a folder; runs that are served by name stay loaded
MAX_SEARCHED_FOLDERS = 10_000  # in one search for runs
ROUTES: dict[str, str] = {
    "classify": "POST /predict or /embed",
    "generate": "POST /v1/completions",
    "translate": "POST /translate",
}
FileStamp = tuple[int, int, int]
ModelStamp = tuple[FileStamp | None, ...]  # of the model file of each run of an ensemble, or of the only one


@dataclass(kw_only=True)
class ServedModel:
    """A loaded run, and the worker that answers the requests to it."""

    name: str
    run: Run
    worker: Worker
    stamp: ModelStamp
    last_used: float = field(default_factory=time.monotonic)
    _measured: tuple[float, int] = field(default_factory=lambda: (time.monotonic(), 0))  # when, and tokens so far

    @property
    def is_busy(self) -> bool:
        """Whether requests are running or waiting."""
        stats = self.worker.stats
        return stats.queued + stats.running > 0

    def measure_token_rate(self) -> float:
        """Return the generated tokens per second since the last call."""
        last_time, last_tokens = self._measured
        self._measured = time.monotonic(), self.worker.stats.n_tokens
        seconds = self._measured[0] - last_time
        return (self._measured[1] - last_tokens) / seconds if seconds > 0 else 0.0


class ModelRegistry:
    """The runs of a server by name.

    A run below the folder of the studio has its path relative to the folder as its name. All methods may be called
    from any thread.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._loaded: dict[str, ServedModel] = {}
        self._lock = threading.Lock()
        self._load_locks: dict[str, threading.Lock] = {}
        self._settings: dict[Path, tuple[int, dict[str, Any]]] = {}

    @property
    def loaded(self) -> list[ServedModel]:
        """The models that are loaded."""
        with self._lock:
            return list(self._loaded.values())

    def names(self, task: TaskName | None = None) -> list[str]:
        """Return the names of all trained models, or of those for one task.

        A run that was named and cannot be read is among them, so that a request for it says why.
        """
        names = list(self.options.runs)
        if self.options.folder is not None:
            names += [name for name in find_runs(self.options.folder)[0] if self._is_trained(name)]

        def has_task(name: str) -> bool:
            task_of_run = self.read_task(name)
            return task_of_run == task or (not task_of_run and name in self.options.runs)

        return [name for name in dict.fromkeys(names) if task is None or has_task(name)]

    def path(self, name: str) -> Path:
        """Return the folder of a run, which may still be training.

        Raises:
            ApiError: There is no such run, or it is outside of the folder.
        """
        if name in self.options.runs:
            return self.options.runs[name]
        if self.options.folder is not None and (path := resolve_below(self.options.folder, name)):
            return path
        raise ApiError(404, f"there is no model {name!r}; GET /v1/models lists the models", param="model")

    def read_settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a run as its file has them, which is fast; {} if they cannot be read."""
        path = find_member_folders(self.path(name))[0] / CONFIG_FILE
        try:
            modified = path.stat().st_mtime_ns
            if (known := self._settings.get(path)) and known[0] == modified:
                return known[1]
            settings = tomllib.loads(read_regular(path).decode())
        except (OSError, CheckpointError, ValueError, RecursionError):
            return {}
        self._settings[path] = modified, settings
        return settings

    def read_task(self, name: str) -> str:
        """Return the task of a run, or "" if its settings cannot be read."""
        return str(self.read_settings(name).get("task", ""))

    async def get(self, name: str | None = None, *, task: TaskName | None = None) -> ServedModel:
        """Return a model, which is loaded if it is not yet.

        Args:
            name: The name of the model. It may be left out if there is only one model for the task.
            task: The task that the request needs.

        Raises:
            ApiError: The model is unknown or has another task, or several models could be meant.
            CheckpointError: The run folder is damaged.
        """
        model_name = name if name else await anyio.to_thread.run_sync(self._only_name, task)
        path = self.path(model_name)
        served = self._find_loaded(model_name, path)
        if served is None:
            if task is not None:  # before a model is loaded in vain
                self._require_task(model_name, self.read_task(model_name) or task, task)
            served = await anyio.to_thread.run_sync(self.load, model_name)
        assert served is not None
        if task is not None:
            self._require_task(model_name, served.run.config.task, task)
        return served

    def load(self, name: str) -> ServedModel:
        """Return a model, which is loaded in this thread if it is not yet."""
        path = self.path(name)
        with self._lock:
            load_lock = self._load_locks.setdefault(name, threading.Lock())
        with load_lock:
            if served := self._find_loaded(name, path):
                return served
            stamp = model_stamp(path)
            if None in stamp and (path / CONFIG_FILE).exists():
                raise CheckpointError(f"{path} has no trained model yet")
            run = load(path, device=self.options.device, precision=self.options.precision)
            refuse_pretraining(run.config, "a server")
            run = replace(run, task=run.mixtures.find_task(run.config.decode.mix))
            limits = {"max_batch": self.options.max_batch, "max_queue": self.options.max_queue}
            worker = Worker(run, timeout=self.options.timeout, **limits)
            served = ServedModel(name=name, run=run, worker=worker, stamp=stamp)
            with self._lock:
                replaced = self._loaded.pop(name, None)
                self._loaded[name] = served
                unused = self._pop_unused()
        for model in (*unused, *([replaced] if replaced else [])):
            threading.Thread(target=partial(model.worker.close, drain=self.options.timeout), daemon=True).start()
        return served

    def close(self, *, drain: float) -> None:
        """Close all models. Their requests have `drain` seconds to end."""
        deadline = time.monotonic() + drain
        with self._lock:
            models, self._loaded = list(self._loaded.values()), {}
        for model in models:
            model.worker.close(drain=max(0.0, deadline - time.monotonic()))

    def _find_loaded(self, name: str, path: Path) -> ServedModel | None:
        """Return a loaded model whose file has not changed."""
        with self._lock:
            served = self._loaded.get(name)
            if served is None or model_stamp(path) != served.stamp:
                return None
            served.last_used = time.monotonic()
            return served

    def _pop_unused(self) -> list[ServedModel]:
        """Remove the least recently used models beyond the limit. Those with requests stay."""
        candidates = [name for name, model in self._loaded.items() if name not in self.options.runs]
        candidates.sort(key=lambda name: self._loaded[name].last_used)
        excess = candidates[: max(0, len(candidates) - MAX_LOADED_MODELS)]
        return [self._loaded.pop(name) for name in excess if not self._loaded[name].is_busy]

    def _only_name(self, task: TaskName | None) -> str:
        names = self.names(task)
        if len(names) == 1:
            return names[0]
        kind = f" for {task}" if task else ""
        if names:
            listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise ApiError(400, f"there are several models{kind}; choose one with model: {listed}", param="model")
        all_names = self.names()
        if task and len(all_names) == 1:
            self._require_task(all_names[0], self.read_task(all_names[0]), task)
        raise ApiError(404, f"there is no model{kind}; GET /v1/models lists the models", param="model")

    def _require_task(self, name: str, task: str, needed: str) -> None:
        if task != needed:
            route = ROUTES.get(task, "another route")
            raise ApiError(
                400, f"model {name!r} is for {task}, and this route is for {needed}; use {route}", param="model"
            )

    def _is_trained(self, name: str) -> bool:
        path = resolve_below(self.options.folder, name) if self.options.folder else None
        return path is not None and (path / MODEL_FILE).is_file()


def find_runs(folder: Path) -> tuple[list[str], bool]:
    """Return the paths, relative to `folder`, of the run folders below it, and whether all folders were searched.

    The search starts at the top and ends after `MAX_SEARCHED_FOLDERS` folders. Links to other folders are not
    followed, so the search stays below the folder.
    """
    runs: list[tuple[str, ...]] = []
    waiting: deque[tuple[str, tuple[str, ...]]] = deque([(str(folder), ())])
    for _ in range(MAX_SEARCHED_FOLDERS):
        if not waiting:
            break
        path, parts = waiting.popleft()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if name == CONFIG_FILE and parts:
                        runs.append(parts)
                    elif (
                        name not in (CHECKPOINTS_FOLDER, TOKENS_FOLDER)
                        and not name.startswith(".")
                        and entry.is_dir(follow_symlinks=False)
                    ):
                        waiting.append((entry.path, (*parts, name)))
        except OSError:
            continue
    return ["/".join(parts) for parts in sorted(runs)], not waiting


def resolve_below(folder: Path, name: str) -> Path | None:
    """Return the run folder of a name, or None if there is none below `folder`. Links that leave it are refused."""
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return None
    path = folder.joinpath(*parts)
    try:
        is_below = path.resolve(strict=True).is_relative_to(folder.resolve())
        return path if is_below and (path / CONFIG_FILE).is_file() else None
    except (OSError, RuntimeError):  # a name is too long, or links form a loop (RuntimeError in Python 3.11)
        return None


def model_stamp(path: Path) -> ModelStamp:
    """Return what changes when the model of a run, or one of the models of an ensemble, is replaced."""
    return tuple(file_stamp(folder / MODEL_FILE) for folder in find_member_folders(path))


def file_stamp(path: Path) -> FileStamp | None:
    """Return what changes when a file is replaced or written to, or None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
