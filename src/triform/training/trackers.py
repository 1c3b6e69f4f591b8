"""One tracker for each package. A package is imported when its tracker opens a run.

Nothing leaves the machine unless the user asks for it: Weights & Biases works offline unless WANDB_MODE says
otherwise, and the usage statistics of the packages are off unless their variables say otherwise.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from triform.training.tracking import PROJECT, Tracker

MAX_MLFLOW_PARAMS = 100  # that MLflow accepts in one request
QUIET_VARIABLES = {  # set unless the user has set them
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
}


def _use_quiet_defaults() -> None:
    for name, value in QUIET_VARIABLES.items():
        os.environ.setdefault(name, value)


class TensorboardTracker(Tracker):
    """Tracker that writes TensorBoard event files to RUN/tensorboard, or to a folder for the run in FOLDER."""

    def open(self, step: int) -> str:
        writer_class: Any = import_module("torch.utils.tensorboard").SummaryWriter
        folder = Path(self.spec.location) / self.run_name if self.spec.location else self.folder / "tensorboard"
        # Values that were logged after the checkpoint are removed from the curves.
        self.writer = writer_class(folder, purge_step=step + 1 if self.run_id else None)
        if not self.run_id:
            rows = "".join(f"| {name} | {value} |\n" for name, value in self.settings.items())
            self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", 0)
        return str(folder.absolute())

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        if "best" in summary:
            self.writer.add_scalar("result/best", summary["best"], summary["best_step"])
        self.writer.add_text("result", ", ".join(f"{name}: {value}" for name, value in summary.items()), 0)
        self.writer.close()


class MlflowTracker(Tracker):
    """Tracker that logs to MLflow: to FOLDER/mlflow.db, to MLFLOW_TRACKING_URI, or to mlflow.db."""

    def open(self, step: int) -> str:
        _use_quiet_defaults()
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):  # they report how they create tables
            logging.getLogger(name).setLevel(logging.WARNING)
        folder = Path(self.spec.location).absolute()
        uri = "" if self.spec.location else os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.client = MlflowClient(uri)
        if self.run_id:
            self.client.update_run(self.run_id, status="RUNNING")
            return self.run_id
        experiment = self.client.get_experiment_by_name(PROJECT)
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(PROJECT)
        tags = {"mlflow.source.name": "triform", "triform.folder": str(self.folder.absolute())}
        run_id = str(self.client.create_run(experiment_id, run_name=self.run_name, tags=tags).info.run_id)
        from mlflow.entities import Param

        params = [Param(name, str(value)[:500]) for name, value in self.settings.items()]
        for first in range(0, len(params), MAX_MLFLOW_PARAMS):
            self.client.log_batch(run_id, params=params[first : first + MAX_MLFLOW_PARAMS])
        return run_id

    def log(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.client.log_batch(
            self.run_id, metrics=[Metric(name, value, now, step) for name, value in values.items()]
        )

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        if "best" in summary:
            self.client.log_metric(self.run_id, "result/best", summary["best"], step=summary["best_step"])
        for name, value in summary.items():
            self.client.set_tag(self.run_id, f"triform.{name}", str(value))
        self.client.set_terminated(self.run_id, ("killed" if status == "interrupted" else status).upper())


class WandbTracker(Tracker):
    """Tracker that logs to Weights & Biases: offline to RUN/wandb or FOLDER/wandb, online if WANDB_MODE=online."""

    def open(self, step: int) -> str:
        _use_quiet_defaults()
        import wandb

        folder = Path(self.spec.location or self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self.run_name,
            id=self.run_id or None,
            resume="allow" if self.run_id else None,
            dir=str(folder),
            config=self.settings,
            mode=mode,
            reinit="create_new",  # several seeds may be trained together
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True
            ),
        )
        self.run.define_metric("*", step_metric="step")
        return str(self.run.id)

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log({"step": step, **values})

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        self.run.summary.update(summary)
        self.run.finish(exit_code=0 if status == "finished" else 1)


class TrackioTracker(Tracker):
    """Tracker that logs to trackio: to FOLDER, to TRACKIO_DIR, or to the folder that trackio chooses."""

    def open(self, step: int) -> str:
        _use_quiet_defaults()
        if self.spec.location:
            location = str(Path(self.spec.location).absolute())
            if "trackio" in sys.modules and os.environ.get("TRACKIO_DIR") != location:
                raise RuntimeError("trackio is in use with another folder, and a process can use only one")
            os.environ["TRACKIO_DIR"] = location
        import trackio

        with redirect_stdout(StringIO()):  # trackio prints advice
            self.run = trackio.init(
                project=PROJECT,
                name=self.run_id or f"{self.run_name}-{time.strftime('%Y%m%d-%H%M%S')}",
                resume="must" if self.run_id else "never",
                config=self.settings,
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return str(self.run.name)

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        import trackio
        from trackio import context_vars

        numbers = {f"result/{name}": value for name, value in summary.items() if not isinstance(value, str)}
        with redirect_stdout(StringIO()):
            self.run.log(numbers)
            self.run.finish()
            if context_vars.current_run.get() is self.run:
                trackio.finish()  # otherwise trackio prints to standard output when the process ends


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorboardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
}
