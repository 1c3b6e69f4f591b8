"""What is written to a run when it starts, diverges or ends: events, messages and the report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TextIO

from triform import __version__
from triform.errors import DataError, DivergedError, format_notice, notice_level
from triform.evaluation.details import compact_details, details_to_dict
from triform.formatting import print_message
from triform.reporting.run_report import write_report
from triform.training.callbacks import MetricsFile
from triform.training.freezing import count_trainable
from triform.training.length import format_early_stopping_notice
from triform.training.linear_part import refit_linear_part
from triform.training.trainer import Trainer


def record_divergence(trainer: Trainer, failure: DivergedError) -> None:
    """Write to the metrics of a run that its training has diverged. A resume removes the event again."""
    event = {"event": "diverged", "step": trainer.progress.step, "text": str(failure)}
    MetricsFile(trainer.folder.metrics_file).on_event(event)


def describe_processes(trainer: Trainer) -> str:
    """Return the number of processes and how they train one model; empty for a single process."""
    if trainer.world.size == 1:
        return ""
    parallel = "FSDP" if trainer.train_step.is_sharded else "train.exact" if trainer.config.exact else "DDP"
    return f", {trainer.world.size} processes ({parallel})"


def log_start(
    trainer: Trainer, notices: Sequence[str], *, quiet: bool = False, stream: TextIO | None = None
) -> None:
    """Print the size of the model and the notices, and emit the `start` event of a new run."""
    if trainer.progress.finished:
        return
    task = trainer.task
    notices = (*notices, *format_early_stopping_notice(trainer))
    n_parameters = sum(p.numel() for p in task.model.parameters())
    n_trainable = count_trainable(task.model).trainable
    if not quiet:
        trainable_text = f", {n_trainable:,} of them trainable," if n_trainable < n_parameters else ""
        size = f"{n_parameters:,} parameters{trainable_text} on {task.device}, {trainer.max_steps} steps"
        size += describe_processes(trainer)
        for line in (*map(format_notice, notices), f"{task.name}: {size}"):
            print_message(line, stream)
    if trainer.folder.latest_checkpoint() is not None:  # the event was emitted when the run started
        return
    trainer.emit(
        "start",
        task=task.name,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        parameters=n_parameters,
        learning=n_trainable,
        device=str(task.device),
        precision=trainer.train_step.compute_dtype,
        unit=task.unit,
        train_examples=len(trainer.train_data),
        valid_examples=len(trainer.valid_data or ()),
        valid_name=task.config.data.valid_name,
        vocab_size=task.config.tokenizer.vocab_size,
        max_steps=trainer.max_steps,
        version=__version__,
        time=datetime.now().isoformat(timespec="seconds"),
    )
    for text in notices:
        trainer.emit("notice", level=notice_level(text), text=text)


def finish_run(trainer: Trainer, *, samples: bool = True) -> None:
    """Write the report. If training is finished, emit sample predictions and details of the best model first."""
    task = trainer.task
    if trainer.progress.finished:
        trainer.load_best_weights()
        task.model.eval()
        with suppress(DataError):  # if the data file no longer exists, the report has no samples
            if samples and trainer.valid_data is not None:
                for sample in task.predictor.sample_predictions(trainer.valid_data):
                    trainer.emit("sample", step=trainer.progress.best_step, **sample)
                details = compact_details(task.evaluator.report_details(trainer.valid_data))
                trainer.emit("details", step=trainer.progress.best_step, details=details_to_dict(details))
        if refit_linear_part(task, trainer.train_data, trainer.valid_data):
            trainer.save_model()
    write_report(trainer.folder.path)
