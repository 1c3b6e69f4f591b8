"""The task of an ensemble: the data and the tokenizers of its first member, and the models of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from triform.errors import ConfigError
from triform.models.ensemble import ENSEMBLES
from triform.tasks.pretraining import refuse_pretraining
from triform.tasks.task import Task


def combine_tasks(tasks: Sequence[Task], names: Sequence[str]) -> Task:
    """Return a task whose model averages the probabilities of the models of several tasks.

    It reads as many tokens as all models can read. All other settings are those of the first task.

    Args:
        tasks: The tasks of the members.
        names: The name of each for messages.

    Raises:
        ConfigError: The members cannot be averaged; the message names the first difference.
    """
    for task, name in zip(tasks[1:], names[1:], strict=True):
        if difference := find_difference(tasks[0], task):
            raise ConfigError(f"{names[0]} and {name} cannot be averaged: {difference}")
        kinds = tasks[0].config.model, task.config.model
        if task.name == "generate" and kinds[0].is_recurrent != kinds[1].is_recurrent:
            raise ConfigError(
                f"{names[0]} and {name} cannot be averaged: model.kind is {kinds[0].kind} and {kinds[1].kind}, and "
                "only one of them reads texts of any length"
            )
    refuse_pretraining(tasks[0].config, "an ensemble")
    ensemble, data = copy(tasks[0]), tasks[0].config.data
    widths = [task.config.model.d_model for task in tasks]
    ensemble.model = ENSEMBLES[ensemble.name]([task.model for task in tasks], widths).eval()
    max_len = min(task.config.data.max_len for task in tasks)
    return ensemble.with_config(replace(ensemble.config, data=replace(data, max_len=max_len)))


def find_difference(first: Task, second: Task) -> str:
    """Return why the probabilities of two models are not about the same labels or tokens; "" if they are."""
    if first.name != second.name:
        return f"their tasks are {first.name} and {second.name}"
    objectives = first.config.train.objective, second.config.train.objective
    if objectives[0] != objectives[1]:
        return f"train.objective is {objectives[0]} and {objectives[1]}"
    labels = first.config.data.labels, second.config.data.labels
    if labels[0] != labels[1]:
        return f"their labels are {', '.join(labels[0])} and {', '.join(labels[1])}"
    for ours, theirs in zip(first.tokenizers, second.tokenizers, strict=True):
        if ours.to_json() != theirs.to_json():
            sizes = f"of {ours.vocab_size} and {theirs.vocab_size} tokens"
            return f"their vocabularies {sizes} differ; train both with the same tokenizer.file"
    return ""
