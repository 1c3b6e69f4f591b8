"""Fit the baseline that a run is compared with: after training if there is little data, else in another process.

The process has a low priority and one thread, so that training keeps most of the processor. It reads the
settings, tokenizers and data of the run, and ends when its standard input is closed, also if the trainer is killed.
Nothing here changes a random number of the training.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from triform.errors import TriformError
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.result import BaselineResult
from triform.evaluation.metrics import perplexity
from triform.evaluation.mixture import mix_held_out
from triform.tasks import choose_task
from triform.tasks.baseline import load_task_data, measure_baseline
from triform.tasks.batch import BucketedDataset
from triform.tasks.generate import Generate
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.mixture import token_losses
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer

MAX_WORK_AFTER_TRAINING = 300_000  # tokens, for classify times labels; fitting takes one to three seconds
MIN_STEPS, MIN_EPOCHS = 100, 2  # a run that is shorter than both is a trial and is not compared
MAX_WAIT_SECONDS = 5.0  # for the process, after training has ended
NICENESS = 10  # a tenth of the weight of an ordinary process
NOT_READY = "it was not ready when training ended; triform evaluate RUN --baselines computes it"

_PROCESS_CODE = (
    "import os, sys; os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'; "
    "sys.path[:] = {path!r}; from triform.training.baseline_job import process_main; "
    "process_main({folder!r}, {n_valid!r})"
)


class BaselineJob:
    """The baseline of a run, which is fitted when `result` is called."""

    def __init__(self, trainer: Trainer) -> None:
        self.folder, self.data = trainer.folder.path, trainer.task.data
        valid = trainer.valid_data
        self.n_valid = 0 if valid is None else trainer.task.evaluator.n_quick_examples(valid)

    def result(self) -> BaselineResult:
        """Return the baseline.

        Raises:
            TriformError: There is no baseline for this data, or it is not ready.
        """
        return measure_baseline(self.data, self.n_valid)

    def close(self) -> None:
        """Stop fitting the baseline."""


class BackgroundBaselineJob(BaselineJob):
    """The baseline of a run, which another process fits from now on."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        path = [str(Path(entry).absolute()) for entry in sys.path]
        code = _PROCESS_CODE.format(path=path, folder=str(self.folder.absolute()), n_valid=self.n_valid)
        self.output = TemporaryFile()  # noqa: SIM115  (closed in `close`; the buffer of a pipe could be too small)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=self.output, stderr=subprocess.DEVNULL
        )

    def result(self, max_wait_seconds: float | None = MAX_WAIT_SECONDS) -> BaselineResult:
        try:
            self.process.wait(max_wait_seconds)
        except subprocess.TimeoutExpired:
            raise BaselineError(NOT_READY.replace("RUN", str(self.folder))) from None
        self.output.seek(0)
        try:
            content = json.loads(self.output.read())
        except ValueError:
            raise BaselineError(f"the process that fits it has ended with code {self.process.returncode}") from None
        if "reason" in content:
            raise BaselineError(content["reason"])
        return BaselineResult(**content)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


@contextmanager
def start_baseline_job(trainer: Trainer, *, enabled: bool) -> Iterator[BaselineJob | None]:
    """Start to fit the baseline of a run. If the run is not compared with one, yield None."""
    if not enabled or not is_compared(trainer):
        yield None
        return
    is_small = count_work(trainer) <= MAX_WORK_AFTER_TRAINING
    job = BaselineJob(trainer) if is_small else BackgroundBaselineJob(trainer)
    try:
        yield job
    finally:
        job.close()


def add_mixture(trainer: Trainer, baseline: BaselineResult) -> BaselineResult:
    """Return an n-gram model with the perplexity of its mixture with the best weights on the validation data.

    Other baselines, and those of runs in several processes, are returned as they are.
    """
    task, valid = trainer.task, trainer.valid_data
    if not isinstance(task, Generate) or not isinstance(valid, LanguageModelDataset) or trainer.world.size > 1:
        return baseline
    trainer.load_best_weights()
    with trainer.train_step.autocast():
        losses = token_losses(task, valid.sample(len(baseline.token_probs)))
    probs = np.stack([np.exp(-losses), np.array(baseline.token_probs)])
    mixed = mix_held_out(probs, np.array(baseline.known_context))
    return replace(baseline, mixed=perplexity(float(-np.log(mixed).mean())))


def is_compared(trainer: Trainer) -> bool:
    """Return whether a run is compared with a baseline: it has validation data and is not too short."""
    config = trainer.task.config
    is_task = config.train.objective == "auto"  # pretraining has no baseline
    if not is_task or not config.train.baseline or trainer.valid_data is None or trainer.progress.finished:
        return False
    return trainer.max_steps >= min(MIN_STEPS, MIN_EPOCHS * trainer.steps_per_epoch)


def count_work(trainer: Trainer) -> int:
    """Return the number of training tokens, times the number of labels."""
    data = trainer.train_data
    n_tokens = int(data.full_lengths.sum()) if isinstance(data, BucketedDataset) else len(data)
    return n_tokens * max(1, len(trainer.task.config.data.labels))


def process_main(folder: str, n_valid: int) -> None:
    """Run the process: fit the baseline of the run in a folder, and print it as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    content: dict[str, object]
    try:
        config = RunFolder(Path(folder), verify=False).read_config()
        data = load_task_data(config, Path(folder), choose_task(config).choose_data_class(config))
        content = asdict(measure_baseline(data, n_valid))
    except (TriformError, MemoryError) as error:
        content = {"reason": str(error) or "there is too little memory"}
    print(json.dumps(content), flush=True)


def _exit_with_parent() -> None:
    """End this process when the parent closes the pipe or has ended."""
    sys.stdin.buffer.read()
    os._exit(1)
